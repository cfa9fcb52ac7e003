//! Ethernet frames written by hand: their source, VLAN tags and addresses are parts of an attack.

use meshd_types::MacAddr;
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{LinkAddr, MsgFlags, sendto},
};
use socket2::{Domain, Socket, Type};
use std::{net::SocketAddrV4, os::fd::AsRawFd as _};

const IPV4: u16 = 0x0800;
const VLAN_TAG: u16 = 0x8100;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// An IPv4 packet in a frame. `tags` are the numbers of its VLANs, with their priority.
pub struct Frame<'a> {
    pub source: MacAddr,
    pub destination: MacAddr,
    pub tags: &'a [u16],
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    /// `None`: a TCP segment without data.
    pub datagram: Option<&'a [u8]>,
}

impl Frame<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut frame = [self.destination.0, self.source.0].concat();
        for tag in self.tags {
            frame.extend(VLAN_TAG.to_be_bytes());
            frame.extend(tag.to_be_bytes());
        }
        frame.extend(IPV4.to_be_bytes());
        let mut payload: Vec<u8> =
            [self.from.port(), self.to.port()].iter().flat_map(|port| port.to_be_bytes()).collect();
        match self.datagram {
            Some(datagram) => {
                payload.extend(u16::try_from(datagram.len() + 8).unwrap().to_be_bytes());
                payload.extend([0, 0]);
                payload.extend(datagram);
            }
            // Sequence numbers, length of the header, ACK, window; the checksum is wrong.
            None => payload.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]),
        }
        let length = u16::try_from(payload.len() + 20).unwrap().to_be_bytes();
        let protocol = if self.datagram.is_some() { UDP } else { TCP };
        let mut header = vec![0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
        header.extend(self.from.ip().octets());
        header.extend(self.to.ip().octets());
        let sum = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum = sum.sum::<u32>();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(header);
        frame.extend(payload);
        frame
    }
}

/// The link address of an interface of this network namespace.
pub fn link(interface: &str) -> LinkAddr {
    let entries = getifaddrs().unwrap().filter(|entry| entry.interface_name == interface);
    let mut links = entries.filter_map(|entry| entry.address.as_ref()?.as_link_addr().copied());
    links.next().expect("an interface")
}

/// Sends frames on `eth0` of this network namespace.
pub fn send<'a>(frames: impl IntoIterator<Item = Frame<'a>>) {
    let socket = Socket::new(Domain::PACKET, Type::RAW, None).unwrap();
    let link = link("eth0");
    for frame in frames {
        sendto(socket.as_raw_fd(), &frame.bytes(), &link, MsgFlags::empty()).unwrap();
    }
}
