//! TFTP to clients behind a path that takes smaller packets than the LAN.

use crate::{
    boot::dhcp::Behind,
    world::{DEADLINE, World, receive},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
};

const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 77, 0, 1), 69);
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// A client from RFC 1350, RFC 2348 and RFC 7440 alone.
struct Client {
    socket: UdpSocket,
    block: usize,
    window: u64,
    server: SocketAddr,
    read: Vec<u8>,
    blocks: u64,
}

impl Client {
    /// Requests the loader with blocks of 1468 bytes.
    fn request(from: Ipv4Addr, window: u64) -> io::Result<Self> {
        let socket = UdpSocket::bind((from, 0))?;
        socket.set_read_timeout(Some(DEADLINE))?;
        let options = format!("undionly.kpxe\0octet\0blksize\x001468\0windowsize\0{window}\0");
        socket.send_to(&[b"\0\x01", options.as_bytes()].concat(), SERVER)?;
        let mut buffer = [0; 2048];
        let (length, server) = receive(&socket, &mut buffer)?;
        let text = String::from_utf8_lossy(&buffer[2..length]).into_owned();
        let mut words = text.split('\0');
        assert_eq!(buffer[..2], [0, 6], "{text}");
        words.find(|word| *word == "blksize").unwrap();
        let block = words.next().unwrap().parse().unwrap();
        socket.send_to(&[0, 4, 0, 0], server)?;
        Ok(Client { socket, block, window, server, read: Vec::new(), blocks: 0 })
    }

    /// Reads one window. Returns true at the end of the file.
    fn read_window(&mut self) -> io::Result<bool> {
        let last = self.blocks + self.window;
        let mut buffer = [0; 2048];
        loop {
            let (length, _) = receive(&self.socket, &mut buffer)?;
            let number = u16::from_be_bytes([buffer[2], buffer[3]]);
            assert_eq!(buffer[..2], [0, 3]);
            if u64::from(number) != self.blocks + 1 {
                continue;
            }
            self.blocks += 1;
            self.read.extend_from_slice(&buffer[4..length]);
            let is_end = length - 4 < self.block;
            if is_end || self.blocks == last {
                self.socket.send_to(&[0, 4, buffer[2], buffer[3]], self.server)?;
                return Ok(is_end);
            }
        }
    }

    fn read_rest(mut self) -> io::Result<(usize, Vec<u8>)> {
        while !self.read_window()? {}
        Ok((self.block, self.read))
    }
}

#[test]
fn tftp_blocks_fit_the_path_of_each_client() {
    let mut world = World::prepared("auto");
    let _behind = Behind::new(&world);
    world.start();
    let route = |mtu: &str| {
        let route = ["route", "replace", "10.88.0.0/24", "via", "10.77.0.9", "mtu", mtu];
        world.central.ip(&route).unwrap();
    };
    route("1400");
    let fetch = |from, window| {
        let fetched = world
            .nodes
            .inside(|| Client::request(from, window).and_then(Client::read_rest))
            .unwrap();
        fetched.unwrap_or_else(|error| panic!("{from}, window {window}: {error}"))
    };
    let (block, file) = fetch(LOCAL, 1);
    assert!(block == 1468 && file.len() > 4 * 1468, "{block}, {}", file.len());
    // In the order in which a window to one client disturbed the next one.
    for (from, window, expected) in
        [(REMOTE, 1, 1368), (LOCAL, 4, 1468), (REMOTE, 1, 1368), (REMOTE, 4, 1368)]
    {
        let (block, read) = fetch(from, window);
        assert!(
            block == expected && read == file,
            "{from}, window {window}: blocks of {block}, {} bytes",
            read.len()
        );
    }
    // The path becomes narrower during the transfer: blocks arrive in fragments.
    for window in [1, 4] {
        route("1500");
        let narrowed = world.nodes.inside(|| {
            let mut client = Client::request(REMOTE, window).unwrap();
            client.read_window().unwrap();
            route("1400");
            client.read_rest().unwrap()
        });
        let (block, read) = narrowed.unwrap();
        assert!(
            block == 1468 && read == file,
            "window {window}: blocks of {block}, {} bytes",
            read.len()
        );
    }
}
