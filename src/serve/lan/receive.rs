//! Receives UDP packets of one interface together with their Ethernet source address. A UDP socket
//! does not report that address. A packet socket therefore receives, and a UDP socket only reserves
//! the port and sends.

use super::{datagram, ethernet, link_of, register_with_tokio};
use meshd_types::MacAddr;
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{LinkAddr, bind, recvfrom},
};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
    os::fd::AsRawFd,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::io::{Interest, unix::AsyncFd};

/// EtherType of IPv4.
const ETH_P_IP: u16 = 0x0800;
/// Packet type of a frame for another host. A bridge or a promiscuous interface also delivers these
/// frames.
pub(super) const OTHER_HOST: u8 = 3;
/// Minimum interval between two reads of this host's addresses.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Sender according to the packet.
    pub source: SocketAddrV4,
    /// Destination port.
    pub port: u16,
    /// The Ethernet address that sent the frame; `None` if the interface is not Ethernet.
    pub ethernet_source: Option<MacAddr>,
    /// Position of the payload in the buffer.
    pub payload: Range<usize>,
}

/// Receives the UDP packets for this host that arrive at some ports of one interface.
pub struct Receiver {
    socket: AsyncFd<Socket>,
    interface: String,
    index: usize,
    is_ethernet: bool,
    /// This host's addresses and the broadcast addresses of its networks.
    own: BTreeSet<Ipv4Addr>,
    looked: Instant,
}

impl Receiver {
    /// Opens the receiver with a kernel buffer of `buffer` bytes. Needs a tokio runtime and
    /// CAP_NET_RAW.
    pub fn open(interface: &str, ports: &[u16], buffer: usize) -> io::Result<Self> {
        let link = link_of(interface)?;
        let socket = packet_socket(&link, ports, buffer)?;
        Ok(Receiver {
            socket: register_with_tokio(socket)?,
            interface: interface.to_owned(),
            index: link.ifindex(),
            is_ethernet: ethernet(&link).is_some(),
            own: own_addresses(),
            looked: Instant::now(),
        })
    }

    /// Returns ready when a packet may be available.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        self.socket.poll_read_ready(context).map(drop)
    }

    /// Receives one packet; `Ok(None)` for a packet that is not for this host.
    ///
    /// # Errors
    /// `WouldBlock` if no packet is available, and errors of the kernel.
    pub fn try_receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let received = self.socket.try_io(Interest::READABLE, |socket| {
            // MSG_TRUNC is not set: a packet longer than the buffer is truncated, and its length
            // then makes it invalid.
            let read = recvfrom::<LinkAddr>(socket.as_raw_fd(), buffer);
            read.map_err(io::Error::from)
        })?;
        let (length, Some(from)) = received else { return Ok(None) };
        // Before the bind, the socket also received packets of other interfaces.
        if from.ifindex() != self.index || from.pkttype() == OTHER_HOST {
            return Ok(None);
        }
        let Some(datagram) = buffer.get(..length).and_then(datagram::parse) else {
            return Ok(None);
        };
        let source = datagram.source;
        let destination = datagram.destination;
        let start = datagram.payload.as_ptr().addr().saturating_sub(buffer.as_ptr().addr());
        let payload = start..start.saturating_add(datagram.payload.len());
        if !self.is_own(*destination.ip()) {
            return Ok(None);
        }
        let ethernet_source = from.addr().map(MacAddr).filter(|_| self.is_ethernet);
        Ok(Some(Received { source, port: destination.port(), ethernet_source, payload }))
    }

    /// Returns true for an address of this host, and for broadcasts. A frame for this host may
    /// contain a packet that this host only routes.
    fn is_own(&mut self, address: Ipv4Addr) -> bool {
        if address.is_broadcast() || self.own.contains(&address) {
            return true;
        }
        // Addresses may change at run time.
        if self.looked.elapsed() >= LOOK_EVERY {
            (self.own, self.looked) = (own_addresses(), Instant::now());
        }
        self.own.contains(&address)
    }

    /// Returns true if the receiver was opened on the interface with this index.
    pub fn is_bound_to(&self, index: u32) -> bool {
        u32::try_from(self.index) == Ok(index)
    }

    /// Returns the interface of the receiver.
    pub fn interface(&self) -> &str {
        &self.interface
    }
}

/// Opens a packet socket for the UDP packets that arrive at some ports of one interface, with a
/// kernel buffer of `buffer` bytes. Needs CAP_NET_RAW.
pub(super) fn packet_socket(link: &LinkAddr, ports: &[u16], buffer: usize) -> io::Result<Socket> {
    let protocol = Protocol::from(i32::from(ETH_P_IP.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::DGRAM.nonblocking().cloexec(), Some(protocol))?;
    socket.attach_filter(&filter(ports))?;
    enlarge_receive_buffer(&socket, buffer);
    bind(socket.as_raw_fd(), link)?;
    Ok(socket)
}

/// Gives a socket a kernel buffer of `bytes` for received packets. Without CAP_NET_ADMIN,
/// `net.core.rmem_max` limits the buffer.
pub(crate) fn enlarge_receive_buffer(socket: &Socket, bytes: usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = socket.set_recv_buffer_size(bytes);
    }
}

/// Makes a UDP socket drop all received packets, because a [`Receiver`] receives them.
///
/// # Errors
/// Errors of the kernel.
pub fn drop_all_received(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    SockRef::from(socket).attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])
}

/// Makes a UDP socket drop the packets of other hosts, because a packet socket receives them.
///
/// # Errors
/// Errors of the kernel.
pub fn receive_only_from_this_host(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    SockRef::from(socket).attach_filter(&[
        SockFilter::new(LOAD_WORD, 0, 0, INTERFACE_INDEX),
        SockFilter::new(JUMP_EQUAL, 1, 0, LOOPBACK),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}

fn own_addresses() -> BTreeSet<Ipv4Addr> {
    let all = getifaddrs().into_iter().flatten().flat_map(|entry| [entry.address, entry.broadcast]);
    all.flatten().filter_map(|address| Some(address.as_sockaddr_in()?.ip())).collect()
}

// Instructions of classic BPF (linux/bpf_common.h), and the offset of the interface's index
// (linux/filter.h).
const LOAD_WORD: u16 = 0x20;
const INTERFACE_INDEX: u32 = 0xffff_f008;
/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_HALF_BEHIND: u16 = 0x48;
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Returns a filter for unfragmented UDP packets to these ports. The kernel drops all others. The
/// filter sees packets from their IP header on.
pub(super) fn filter(ports: &[u16]) -> Vec<SockFilter> {
    let count = u8::try_from(ports.len()).unwrap_or(u8::MAX).min(16);
    // Failed checks jump to the "drop" instruction, which follows the port comparisons.
    let mut program = vec![
        SockFilter::new(LOAD_BYTE, 0, 0, 9),
        SockFilter::new(JUMP_EQUAL, 0, count.saturating_add(4), 17),
        SockFilter::new(LOAD_HALF, 0, 0, 6),
        SockFilter::new(JUMP_SET, count.saturating_add(2), 0, 0x3fff),
        SockFilter::new(LOAD_HEADER_LENGTH, 0, 0, 0),
        SockFilter::new(LOAD_HALF_BEHIND, 0, 0, 2),
    ];
    for (index, port) in (0..count).zip(ports) {
        program.push(SockFilter::new(JUMP_EQUAL, count.saturating_sub(index), 0, u32::from(*port)));
    }
    program.push(SockFilter::new(RETURN, 0, 0, 0));
    program.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::poll_fn, net::UdpSocket};

    #[tokio::test]
    async fn receiver_gets_only_packets_to_its_ports() {
        let closed = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let port = closed.local_addr().expect("bound").port();
        drop_all_received(&closed).expect("a filter");
        let Ok(mut receiver) = Receiver::open("lo", &[1, port], 65_536) else {
            assert!(!rustix::process::geteuid().is_root(), "root may open packet sockets");
            return;
        };
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let beside = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        sender.send_to(b"not this", beside.local_addr().expect("bound")).expect("sent");
        sender.send_to(b"this", ("127.0.0.1", port)).expect("sent");
        let mut buffer = [0; 2048];
        let received = loop {
            poll_fn(|context| receiver.poll_ready(context)).await;
            match receiver.try_receive(&mut buffer) {
                Ok(Some(received)) => break received,
                Ok(None) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
            }
        };
        assert_eq!(buffer.get(received.payload), Some(&b"this"[..]));
        assert_eq!((received.port, received.ethernet_source), (port, None), "lo is not Ethernet");
        assert_eq!(received.source.port(), sender.local_addr().expect("bound").port());
        closed.set_nonblocking(true).expect("it can be");
        let nothing = closed.recv(&mut buffer).expect_err("the UDP socket only sends");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
