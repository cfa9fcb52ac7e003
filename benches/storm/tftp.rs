//! A machine's TFTP client in lock step: RFC 1350, 2347, 2348.

use crate::{fabric, fault::Fault, frame::SERVER};
use std::{net::Ipv4Addr, time::Duration};
use tokio::time::timeout;

/// EDK II: six tries of 4 seconds for each packet.
const TRIES: u32 = 6;
const PATIENCE: Duration = Duration::from_secs(4);
const BLOCK: usize = 1468;

/// Reads a file whole. Gives how often something had to be sent twice.
pub async fn fetch(from: Ipv4Addr, name: &str) -> Result<u32, Fault> {
    let socket = fabric::datagrams(from).await?;
    let mut packet =
        [&[0, 1][..], name.as_bytes(), b"\0octet\0tsize\x000\0blksize\x001468\0"].concat();
    let mut buffer = [0; BLOCK + 4];
    let mut peer = (SERVER, 69).into();
    let mut expected = 1u16;
    let mut tries = 0;
    let mut repeats = 0;
    loop {
        socket.send_to(&packet, peer).await?;
        let Ok(received) = timeout(PATIENCE, socket.recv_from(&mut buffer)).await else {
            tries += 1;
            repeats += 1;
            if tries == TRIES {
                return Err(Fault::Tftp("no answer".to_owned()));
            }
            continue;
        };
        let (length, from) = received?;
        match buffer[..length] {
            [0, 6, ..] => packet = vec![0, 4, 0, 0],
            [0, 3, high, low, ..] if u16::from_be_bytes([high, low]) == expected => {
                packet = vec![0, 4, high, low];
                expected = expected.wrapping_add(1);
                if length < BLOCK + 4 {
                    socket.send_to(&packet, from).await?;
                    return Ok(repeats);
                }
            }
            [0, 5, ..] => {
                return Err(Fault::Tftp(String::from_utf8_lossy(&buffer[4..length]).into_owned()));
            }
            _ => repeats += 1,
        }
        (peer, tries) = (from, 0);
    }
}
