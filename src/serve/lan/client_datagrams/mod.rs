//! Receives the UDP datagrams of clients, without those that another machine sent in their name.
//!
//! A UDP socket does not report Ethernet sources. A packet socket therefore receives, and the UDP
//! sockets of the same ports only send, and receive what this host sends to itself. A request
//! decides which machine has a client's address and port; later datagrams must come from there.
//!
//! | file | content |
//! | --- | --- |
//! | this file | receives datagrams, and sends frames to clients that ARP has not resolved |
//! | `client_table` | the machine of each client |
//! | `source_rate` | limits the requests of each Ethernet source; no I/O |

mod client_table;
mod source_rate;

use super::{
    datagram, ethernet_link,
    frame_socket::FrameSocket,
    next_hops::{NextHop, NextHops},
    receive::{OTHER_HOST, packet_socket},
};
use client_table::ClientTable;
use meshd_central::Shared;
use meshd_tftp::{Client, Datagram, EthernetLink, Origin};
use meshd_types::MacAddr;
use nix::sys::socket::{LinkAddr, MsgFlags, MultiHeaders, recvmmsg};
use socket2::Socket;
use source_rate::SourceRate;
use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    time::Instant,
};

/// Size of the kernel's queue in bytes: acknowledgements of thousands of clients.
const QUEUE: usize = 8 << 20;
/// Maximum number of packets per call.
const BATCH: usize = 64;
/// Maximum size of a packet. Longer ones are truncated, and their length then makes them invalid.
const MAX_PACKET: usize = 2048;

/// The datagrams of one interface to this host's ports.
pub struct ClientDatagrams {
    socket: Socket,
    index: usize,
    /// Address and port of requests.
    requests: SocketAddrV4,
    /// Address and port of transfers.
    transfers: SocketAddrV4,
    buffers: Box<[[u8; MAX_PACKET]; BATCH]>,
    admission: Admission,
    frames: FrameSocket,
}

/// Decides which datagrams are served.
struct Admission {
    clients: ClientTable,
    rate: SourceRate,
    next_hops: NextHops,
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
        let frames = FrameSocket::open(interface)?;
        Ok(ClientDatagrams {
            socket: packet_socket(&link, &[requests.port(), transfers], QUEUE)?,
            index: link.ifindex(),
            requests,
            transfers: SocketAddrV4::new(*requests.ip(), transfers),
            buffers: Box::new([[0; MAX_PACKET]; BATCH]),
            admission: Admission {
                clients: ClientTable::new(central),
                rate: SourceRate::new(Instant::now()),
                next_hops: NextHops::new(frames.interface()),
            },
            frames,
        })
    }
}

impl Admission {
    /// Returns the client of a request; `None` if the request is not admitted.
    fn admit(&mut self, now: Instant, address: SocketAddrV4, source: MacAddr) -> Option<Client> {
        // The total comes first: it needs no look-up.
        let count = self.rate.count(now, source)?;
        let NextHop { is_router, .. } = self.next_hops.get(now, *address.ip());
        let is_admitted =
            count.is_within(is_router) && self.clients.is_genuine(now, address, source, true);
        let origin = if is_router { Origin::Router(source) } else { Origin::Nic(source) };
        is_admitted.then_some(Client { address, origin })
    }
}

impl EthernetLink for ClientDatagrams {
    fn receive(
        &mut self,
        takes: &dyn Fn(SocketAddrV4) -> bool,
        each: &mut dyn FnMut(Datagram<'_>),
    ) -> io::Result<usize> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        // Made for each call: headers cannot move to the thread of the worker.
        let mut headers = MultiHeaders::<LinkAddr>::preallocate(BATCH, None);
        let descriptor = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmmsg(descriptor, &mut headers, &mut slices, flags, None)?;
        let now = Instant::now();
        let mut count = 0;
        for message in received {
            count += 1;
            // Before the bind, the socket also received packets of other interfaces.
            let from = message
                .address
                .filter(|from| from.ifindex() == self.index && from.pkttype() != OTHER_HOST);
            let Some(source) = from.and_then(|from| from.addr()).map(MacAddr) else { continue };
            let Some(datagram) = message.iovs().next().and_then(datagram::parse) else { continue };
            let address = datagram.source;
            if datagram.destination == self.requests {
                if takes(address)
                    && let Some(client) = self.admission.admit(now, address, source)
                {
                    each(Datagram::Request(client, datagram.payload));
                }
            } else if datagram.destination == self.transfers
                && self.admission.clients.is_genuine(now, address, source, false)
            {
                each(Datagram::Packet(address, datagram.payload));
            }
        }
        Ok(count)
    }

    fn is_resolved(&mut self, now: Instant, address: Ipv4Addr) -> bool {
        self.admission.next_hops.get(now, address).is_resolved
    }

    fn send(&mut self, client: Client, payload: &[u8]) -> io::Result<()> {
        let mac = client.origin.mac().ok_or(io::ErrorKind::InvalidInput)?;
        self.frames.send(self.transfers, (mac, client.address), payload)
    }
}

impl AsFd for ClientDatagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
