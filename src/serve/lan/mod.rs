//! Layer 2 of the boot LAN: the Ethernet sender of packets, and the Ethernet addresses of IP
//! addresses (ARP, neighbour table).
//!
//! | file | content |
//! | --- | --- |
//! | `datagram` | parses an IPv4 UDP packet; no I/O |
//! | `receive` | receives UDP packets with their Ethernet source address |
//! | `interfaces` | network interfaces of this host with their addresses |
//! | `kernel_tables` | looks up an address in the kernel's routes and neighbour table (ARP) |
//! | `client_datagrams` | receives UDP datagrams without those that another machine sent |
//! | `next_hops` | whether the kernel knows the Ethernet address of the next hop to a client |
//! | `frame_socket` | sends UDP datagrams in frames to an Ethernet address |
//! | `arp_claimants` | sends ARP requests to find all machines that claim an address |
//! | `neighbour_pins` | binds addresses to NICs in the kernel's neighbour table |
//! | `tcp_segment` | parses an IPv4 packet as a TCP segment; no I/O |
//! | `segment_table` | the Ethernet sources of each TCP connection; no I/O |
//! | `connection_witness` | observes the Ethernet source of every TCP segment to this host's ports |
//! | `system` | implements the central node's `Lan` with the files above |

mod arp_claimants;
mod client_datagrams;
mod connection_witness;
mod datagram;
mod frame_socket;
mod interfaces;
mod kernel_tables;
mod neighbour_pins;
mod next_hops;
mod receive;
mod segment_table;
mod system;
mod tcp_segment;

pub use arp_claimants::ArpProber;
pub use client_datagrams::ClientDatagrams;
pub use datagram::{Datagram, parse};
pub use frame_socket::FrameSocket;
pub use interfaces::InterfaceTable;
pub use next_hops::NextHops;
pub(crate) use receive::enlarge_receive_buffer;
pub use receive::{Received, Receiver, drop_all_received, receive_only_from_this_host};
pub use system::SystemLan;

use meshd_types::{MacAddr, failpoint};
use nix::{ifaddrs::getifaddrs, sys::socket::LinkAddr};
use rustix::net::sockopt;
use socket2::Socket;
use std::io;
use tokio::io::{Interest, unix::AsyncFd};

/// `ARPHRD_ETHER`: the interface has Ethernet addresses.
const ETHERNET: u16 = 1;

/// Size of the send queue of a service's socket, in bytes. Linux keeps packets to each address that
/// it has not resolved in this queue, at most 208 KiB for each, for three seconds.
const SEND_QUEUE: u64 = 8 << 20;

/// Enlarges the send queue of a socket, so that a few addresses that nobody answers for do not fill
/// it. Without CAP_NET_ADMIN, net.core.wmem_max limits it.
pub fn enlarge_send_queue(socket: &impl std::os::fd::AsFd) {
    let size = usize::try_from(failpoint::bound("SEND_QUEUE", SEND_QUEUE)).unwrap_or_default();
    if sockopt::set_socket_send_buffer_size_force(socket, size).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, size);
    }
}

/// Registers a packet socket with tokio.
#[expect(
    deprecated,
    reason = "its successor is an unsafe function, for descriptors that may be closed meanwhile; a socket2 Socket owns its own"
)]
fn register_with_tokio(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

/// Returns the link address of an interface: index, kind and Ethernet address.
fn link_of(interface: &str) -> io::Result<LinkAddr> {
    getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address.as_ref()?.as_link_addr().copied())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such interface"))
}

/// Returns the Ethernet address of a link address; `None` for other kinds of interfaces.
fn ethernet(link: &LinkAddr) -> Option<MacAddr> {
    (link.hatype() == ETHERNET).then(|| link.addr().map(MacAddr)).flatten()
}

/// Returns the link address of an Ethernet interface, and its Ethernet address.
///
/// # Errors
/// The interface does not exist or is not Ethernet.
pub(super) fn ethernet_link(interface: &str) -> io::Result<(LinkAddr, MacAddr)> {
    let link = link_of(interface)?;
    let mac = ethernet(&link)
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "not an Ethernet interface"))?;
    Ok((link, mac))
}
