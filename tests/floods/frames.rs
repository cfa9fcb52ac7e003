//! Ethernet frames with DHCP packets of clients that do not exist, written by hand: the Ethernet
//! source is part of the attack.

use meshd_types::MacAddr;
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{LinkAddr, MsgFlags, bind, sendto},
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::Ipv4Addr, os::fd::AsRawFd};

const ETH_P_IP: u16 = 0x0800;
const UDP: u8 = 17;
const MAGIC: [u8; 4] = [99, 130, 83, 99];

pub const DISCOVER: u8 = 1;
pub const REQUEST: u8 = 3;
pub const DECLINE: u8 = 4;
pub const RELEASE: u8 = 7;

/// A DHCP packet of a client (RFC 2131 section 4.4).
#[derive(Clone, Copy)]
pub struct Packet {
    /// Option 53.
    pub kind: u8,
    pub chaddr: MacAddr,
    /// The source address of the frame.
    pub ethernet: MacAddr,
    /// The destination: the central node alone. OVMF reads about 100 frames a second and loses its
    /// own offer in a flood of broadcasts, whatever the server does; limits of the switch port are
    /// against those.
    pub to: MacAddr,
    /// The address that the client speaks of: ciaddr of a RELEASE, else option 50.
    pub address: Ipv4Addr,
    pub server: Ipv4Addr,
}

impl Packet {
    fn payload(&self) -> Vec<u8> {
        let mut packet = vec![0; 236];
        packet[..4].copy_from_slice(&[1, 1, 6, 0]);
        packet[4..8].copy_from_slice(&self.chaddr.0[2..]);
        packet[28..34].copy_from_slice(&self.chaddr.0);
        packet.extend(MAGIC);
        packet.extend([53, 1, self.kind]);
        if self.kind == RELEASE {
            packet[12..16].copy_from_slice(&self.address.octets());
        } else {
            packet[10] = 0x80;
            packet.extend([50, 4]);
            packet.extend(self.address.octets());
        }
        if self.kind != DISCOVER {
            packet.extend([54, 4]);
            packet.extend(self.server.octets());
        }
        packet.extend(b"\x3c\x20PXEClient:Arch:00000:UNDI:002001");
        packet.push(255);
        packet
    }

    fn frame(&self) -> Vec<u8> {
        let payload = self.payload();
        let udp = u16::try_from(payload.len() + 8).expect("a short packet");
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0];
        ip[2..4].copy_from_slice(&(udp + 20).to_be_bytes());
        ip.extend(Ipv4Addr::UNSPECIFIED.octets());
        ip.extend(Ipv4Addr::BROADCAST.octets());
        let sum = checksum(&ip).to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
        let mut frame = self.to.0.to_vec();
        frame.extend(self.ethernet.0);
        frame.extend(ETH_P_IP.to_be_bytes());
        frame.extend(ip);
        for field in [68, 67, udp, 0] {
            frame.extend(field.to_be_bytes());
        }
        frame.extend(payload);
        frame
    }
}

/// The Internet checksum (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = words.fold(0, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    });
    !u16::try_from(sum).expect("folded into 16 bits")
}

/// The link address of an interface of this network namespace.
fn link_of(interface: &str) -> io::Result<LinkAddr> {
    let entries = getifaddrs()?.filter(|entry| entry.interface_name == interface);
    let mut links = entries.filter_map(|entry| entry.address.as_ref()?.as_link_addr().copied());
    links.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The Ethernet address of an interface.
pub fn mac_of(interface: &str) -> io::Result<MacAddr> {
    link_of(interface)?.addr().map(MacAddr).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// A packet socket on one interface of this network namespace.
pub struct Wire {
    socket: Socket,
    link: LinkAddr,
}

impl Wire {
    pub fn open(interface: &str) -> io::Result<Self> {
        let link = link_of(interface)?;
        let socket = Socket::new(
            Domain::PACKET,
            Type::RAW,
            Some(Protocol::from(i32::from(ETH_P_IP.to_be()))),
        )?;
        bind(socket.as_raw_fd(), &link)?;
        Ok(Wire { socket, link })
    }

    pub fn mac(&self) -> MacAddr {
        MacAddr(self.link.addr().expect("an Ethernet interface"))
    }

    pub fn send(&self, packet: &Packet) -> io::Result<()> {
        sendto(self.socket.as_raw_fd(), &packet.frame(), &self.link, MsgFlags::empty())?;
        Ok(())
    }
}

#[test]
fn ip_header_with_checksum_sums_to_zero() {
    let packet = Packet {
        kind: DISCOVER,
        chaddr: MacAddr([2; 6]),
        ethernet: MacAddr([2; 6]),
        to: MacAddr([2; 6]),
        address: Ipv4Addr::new(10, 77, 0, 100),
        server: Ipv4Addr::new(10, 77, 0, 1),
    };
    assert_eq!(checksum(&packet.frame()[14..34]), 0);
}
