//! Receives the UDP datagrams of clients, without those that another machine sent in their name.
//!
//! A UDP socket does not report Ethernet sources. A packet socket therefore receives, and the UDP
//! sockets of the same ports only send, and receive what this host sends to itself. A request
//! decides which machine has a client's address and port; later datagrams must come from there.

use super::{
    datagram, ethernet_link,
    receive::{OTHER_HOST, filter},
};
use meshd_central::Shared;
use meshd_tftp::ClientReceiver;
use meshd_types::{MacAddr, failpoint};
use nix::sys::socket::{LinkAddr, bind, recvfrom};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};
use std::{
    collections::HashMap,
    io,
    net::SocketAddrV4,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    time::{Duration, Instant},
};

/// EtherType of IPv4.
const ETH_P_IP: u16 = 0x0800;
/// Size of the kernel's queue in bytes: acknowledgements of thousands of clients.
const QUEUE: usize = 8 << 20;
/// Maximum number of packets per call.
const BATCH: usize = 64;
/// Maximum size of a packet. Longer ones are dropped.
const MAX_PACKET: usize = 2048;
/// Maximum number of clients whose machine is remembered.
const MAX_CLIENTS: usize = 16_384;
/// Time after the last datagram of a client, after which another machine may have its address and
/// port.
const CLIENT_LIFETIME: Duration = Duration::from_secs(10);

/// The datagrams of one interface to this host's ports.
pub struct ClientDatagrams {
    central: Shared,
    socket: Socket,
    index: usize,
    /// Address and port of requests.
    requests: SocketAddrV4,
    clients: HashMap<SocketAddrV4, ClientMachine>,
    buffer: Vec<u8>,
}

/// The machine of a client.
struct ClientMachine {
    mac: MacAddr,
    /// Time of the last datagram.
    last: Instant,
}

impl ClientDatagrams {
    /// Opens the receiver for the port of `requests` and another port of the same address. Needs
    /// CAP_NET_RAW.
    ///
    /// # Errors
    /// The interface is not Ethernet (`Unsupported`), and errors of the kernel.
    pub fn open(
        central: Shared,
        interface: &str,
        requests: SocketAddrV4,
        transfers: u16,
    ) -> io::Result<Self> {
        let (link, _) = ethernet_link(interface)?;
        let protocol = Protocol::from(i32::from(ETH_P_IP.to_be()));
        let socket =
            Socket::new(Domain::PACKET, Type::DGRAM.nonblocking().cloexec(), Some(protocol))?;
        socket.attach_filter(&filter(&[requests.port(), transfers]))?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE).is_err() {
            // Without CAP_NET_ADMIN, net.core.rmem_max limits the buffer.
            let _ = socket.set_recv_buffer_size(QUEUE);
        }
        bind(socket.as_raw_fd(), &link)?;
        let (clients, buffer) = (HashMap::new(), vec![0; MAX_PACKET]);
        Ok(ClientDatagrams { central, socket, index: link.ifindex(), requests, clients, buffer })
    }

    /// Returns true if a datagram comes from the machine of its client. Reports others.
    fn is_genuine(&mut self, client: SocketAddrV4, source: MacAddr, is_request: bool) -> bool {
        let now = Instant::now();
        let known =
            self.clients.get_mut(&client).filter(|known| now - known.last < CLIENT_LIFETIME);
        if let Some(known) = known.filter(|known| known.mac == source && !is_request) {
            known.last = now;
            return true;
        }
        let known = self.clients.get(&client).filter(|known| now - known.last < CLIENT_LIFETIME);
        let is_genuine =
            self.central.admits_datagram(*client.ip(), source, known.map(|known| known.mac));
        if is_genuine && is_request {
            if self.clients.len() >= MAX_CLIENTS {
                self.clients.retain(|_, known| now - known.last < CLIENT_LIFETIME);
            }
            if self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client) {
                self.clients.insert(client, ClientMachine { mac: source, last: now });
            }
        }
        is_genuine || !failpoint::defends("tftp-source")
    }
}

impl ClientReceiver for ClientDatagrams {
    fn receive(&mut self, each: &mut dyn FnMut(SocketAddrV4, u16, &[u8])) -> io::Result<usize> {
        for count in 0..BATCH {
            // MSG_TRUNC is not set: a packet longer than the buffer is truncated, and its length
            // then makes it invalid.
            let (length, from) =
                match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut self.buffer[..]) {
                    Ok(received) => received,
                    Err(_) if count > 0 => return Ok(count),
                    Err(error) => return Err(error.into()),
                };
            // Before the bind, the socket also received packets of other interfaces.
            let from =
                from.filter(|from| from.ifindex() == self.index && from.pkttype() != OTHER_HOST);
            let Some(source) = from.and_then(|from| from.addr()).map(MacAddr) else { continue };
            let buffer = std::mem::take(&mut self.buffer);
            if let Some(datagram) = buffer.get(..length).and_then(datagram::parse)
                && datagram.destination.ip() == self.requests.ip()
            {
                let (client, port) = (datagram.source, datagram.destination.port());
                if self.is_genuine(client, source, port == self.requests.port()) {
                    each(client, port, datagram.payload);
                }
            }
            self.buffer = buffer;
        }
        Ok(BATCH)
    }
}

impl AsFd for ClientDatagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// Instructions of classic BPF (linux/bpf_common.h), and the offset of the interface's index
// (linux/filter.h).
const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const INTERFACE_INDEX: u32 = 0xffff_f008;
/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

/// Makes a UDP socket drop packets of other hosts, because [`ClientDatagrams`] receives them.
///
/// # Errors
/// Errors of the kernel.
pub fn receive_only_from_this_host(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).attach_filter(&[
        SockFilter::new(LOAD_WORD, 0, 0, INTERFACE_INDEX),
        SockFilter::new(JUMP_EQUAL, 1, 0, LOOPBACK),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}
