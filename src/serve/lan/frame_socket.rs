//! A send-only packet socket for answers to an Ethernet address: to clients without an address, and
//! to those that ARP has not resolved.

use super::ethernet_link;
use meshd_dhcp::packet::udp_frame;
use meshd_types::MacAddr;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};
use std::{
    io,
    net::SocketAddrV4,
    os::fd::{AsRawFd, OwnedFd},
};

/// Sends frames on one interface.
pub struct FrameSocket {
    socket: OwnedFd,
    link: LinkAddr,
    mac: MacAddr,
}

impl FrameSocket {
    /// Opens the socket on an Ethernet interface.
    pub fn open(interface: &str) -> io::Result<Self> {
        let (link, mac) = ethernet_link(interface)?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        // A socket without a protocol receives nothing.
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        Ok(FrameSocket { socket, link, mac })
    }

    /// Returns the index of the interface.
    pub fn interface(&self) -> u32 {
        u32::try_from(self.link.ifindex()).unwrap_or_default()
    }

    /// Sends a UDP datagram in a frame. Does not wait.
    ///
    /// # Errors
    /// `WouldBlock` if the queue of the interface is full, `InvalidInput` for a payload that is too
    /// long, and errors of the kernel.
    pub fn send(
        &self,
        from: SocketAddrV4,
        to: (MacAddr, SocketAddrV4),
        payload: &[u8],
    ) -> io::Result<()> {
        let frame = udp_frame((self.mac, from), to, payload).ok_or(io::ErrorKind::InvalidInput)?;
        sendto(self.socket.as_raw_fd(), &frame, &self.link, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }
}
