//! Layer 2 of the boot LAN: which Ethernet address sent a packet, and which one has an IP address now.
//!
//! | file | what it does |
//! | --- | --- |
//! | `datagram` | reads an IPv4 UDP packet; pure |
//! | `receive` | receives UDP packets with their Ethernet source address |
//! | `neighbour` | looks up an address in the kernel's neighbour table |
//! | `arp` | asks a segment which machines have an address |
//! | `system` | answers the central node's questions by the two above |

mod arp;
mod datagram;
mod neighbour;
mod receive;
mod system;

pub use datagram::{Datagram, parse};
pub use receive::{Received, Receiver, send_only};
pub use system::SystemLan;

use meshd_types::MacAddr;
use nix::{ifaddrs::getifaddrs, sys::socket::LinkAddr};
use socket2::Socket;
use std::io;
use tokio::io::{Interest, unix::AsyncFd};

/// `ARPHRD_ETHER`: the interface has Ethernet addresses.
const ETHERNET: u16 = 1;

/// A packet socket that tokio waits for.
#[expect(
    deprecated,
    reason = "its successor is an unsafe function, for descriptors that may be closed meanwhile; a socket2 Socket owns its own"
)]
fn waiting_for(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

/// The link address of an interface: its index, kind and Ethernet address.
fn link_of(interface: &str) -> io::Result<LinkAddr> {
    getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address.as_ref()?.as_link_addr().copied())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such interface"))
}

/// The Ethernet address in a link address, if that is of an Ethernet interface.
fn ethernet(link: &LinkAddr) -> Option<MacAddr> {
    (link.hatype() == ETHERNET).then(|| link.addr().map(MacAddr)).flatten()
}
