//! A TFTP client in lock step, from RFC 1350, RFC 2348 and RFC 2349.

use super::{DEADLINE, receive};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

/// How long a client waits before it sends its last packet again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads one file, from an address where there are several.
pub fn get(server: Ipv4Addr, name: &str, from: Option<Ipv4Addr>) -> io::Result<Vec<u8>> {
    let socket = UdpSocket::bind((from.unwrap_or(Ipv4Addr::UNSPECIFIED), 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let end = Instant::now() + DEADLINE;
    let mut last =
        [&[0, 1][..], name.as_bytes(), b"\0octet\0blksize\x001468\0tsize\x000\0"].concat();
    let mut to = SocketAddr::from((server, 69));
    let mut file = Vec::new();
    let mut next = 1u16;
    let mut buffer = [0; 2048];
    socket.send_to(&last, to)?;
    loop {
        let length = match receive(&socket, &mut buffer) {
            Ok((length, from)) => {
                to = from;
                length
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                socket.send_to(&last, to)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        match buffer[..length] {
            [0, 6, ..] => last = vec![0, 4, 0, 0],
            [0, 3, high, low, ref data @ ..] => {
                last = vec![0, 4, high, low];
                // A server that has waited long sends a block again.
                if u16::from_be_bytes([high, low]) == next {
                    next = next.wrapping_add(1);
                    file.extend_from_slice(data);
                    if data.len() < 1468 {
                        socket.send_to(&last, to)?;
                        return Ok(file);
                    }
                }
            }
            _ => {
                return Err(io::Error::other(
                    String::from_utf8_lossy(&buffer[4..length]).into_owned(),
                ));
            }
        }
        socket.send_to(&last, to)?;
    }
}

/// Asks for a file's size and breaks off, as firmware does before it fetches.
pub fn size(server: Ipv4Addr, name: &str, from: Option<Ipv4Addr>) -> io::Result<usize> {
    let socket = UdpSocket::bind((from.unwrap_or(Ipv4Addr::UNSPECIFIED), 0))?;
    socket.set_read_timeout(Some(DEADLINE))?;
    let ask = [&[0, 1][..], name.as_bytes(), b"\0octet\0tsize\x000\0"].concat();
    socket.send_to(&ask, (server, 69))?;
    let mut buffer = [0; 2048];
    let (length, from) = receive(&socket, &mut buffer)?;
    socket.send_to(b"\0\x05\0\x08probed\0", from)?;
    let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
    let size = answer.strip_prefix("\0\x06").and_then(|options| {
        let mut words = options.split('\0');
        words.find(|word| word.eq_ignore_ascii_case("tsize"))?;
        words.next()?.parse().ok()
    });
    size.ok_or_else(|| io::Error::other(answer))
}
