//! A send-only packet socket for replies to clients without an address.

use crate::serve::lan::ethernet_link;
use meshd_dhcp::packet::{CLIENT_PORT, SERVER_PORT, udp_frame};
use meshd_types::MacAddr;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd, OwnedFd},
};

/// Sends frames on one interface.
pub(super) struct FrameSocket {
    socket: OwnedFd,
    link: LinkAddr,
    mac: MacAddr,
}

impl FrameSocket {
    /// Opens the socket on an Ethernet interface.
    pub(super) fn open(interface: &str) -> io::Result<Self> {
        let (link, mac) = ethernet_link(interface)?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        // A socket without a protocol receives nothing.
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        Ok(FrameSocket { socket, link, mac })
    }

    /// Sends a DHCP packet to a NIC and its future address.
    pub(super) fn send(
        &self,
        from: Ipv4Addr,
        to: MacAddr,
        address: Ipv4Addr,
        packet: &[u8],
    ) -> io::Result<()> {
        let from = (self.mac, SocketAddrV4::new(from, SERVER_PORT));
        let to = (to, SocketAddrV4::new(address, CLIENT_PORT));
        let frame = udp_frame(from, to, packet).ok_or(io::ErrorKind::InvalidInput)?;
        sendto(self.socket.as_raw_fd(), &frame, &self.link, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }
}
