//! Receives the UDP datagrams of clients, without those that another machine sent in their name.
//!
//! A UDP socket does not report Ethernet sources. A packet socket therefore receives, and the UDP
//! sockets of the same ports only send, and receive what this host sends to itself. A request
//! decides which machine has a client's address and port; later datagrams must come from there.

use super::{
    datagram, ethernet_link,
    receive::{OTHER_HOST, packet_socket},
};
use meshd_central::Shared;
use meshd_tftp::ClientReceiver;
use meshd_types::{MacAddr, failpoint};
use nix::sys::socket::{LinkAddr, MsgFlags, MultiHeaders, recvmmsg};
use socket2::Socket;
use std::{
    collections::HashMap,
    io::{self, IoSliceMut},
    net::SocketAddrV4,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    time::{Duration, Instant},
};

/// Size of the kernel's queue in bytes: acknowledgements of thousands of clients.
const QUEUE: usize = 8 << 20;
/// Maximum number of packets per call.
const BATCH: usize = 64;
/// Maximum size of a packet. Longer ones are truncated, and their length then makes them invalid.
const MAX_PACKET: usize = 2048;
/// Maximum number of clients whose machine is remembered: of all machines, and of one Ethernet
/// source (a router has many clients).
const MAX_CLIENTS: usize = 16_384;
const MAX_CLIENTS_OF_SOURCE: usize = 8192;
/// Time after the last datagram of a client, after which another machine may have its address and
/// port.
const CLIENT_LIFETIME: Duration = Duration::from_secs(10);
/// Minimum interval between two removals of expired clients.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The datagrams of one interface to this host's ports.
pub struct ClientDatagrams {
    socket: Socket,
    index: usize,
    /// Address and port of requests.
    requests: SocketAddrV4,
    buffers: Box<[[u8; MAX_PACKET]; BATCH]>,
    clients: ClientTable,
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
        Ok(ClientDatagrams {
            socket: packet_socket(&link, &[requests.port(), transfers], QUEUE)?,
            index: link.ifindex(),
            requests,
            buffers: Box::new([[0; MAX_PACKET]; BATCH]),
            clients: ClientTable::new(central),
        })
    }
}

impl ClientReceiver for ClientDatagrams {
    fn receive(
        &mut self,
        is_wanted: &dyn Fn(SocketAddrV4, u16) -> bool,
        each: &mut dyn FnMut(SocketAddrV4, u16, &[u8]),
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
            let client = datagram.source;
            let port = datagram.destination.port();
            let is_request = port == self.requests.port();
            if datagram.destination.ip() == self.requests.ip()
                && is_wanted(client, port)
                && self.clients.is_genuine(now, client, source, is_request)
            {
                each(client, port, datagram.payload);
            }
        }
        Ok(count)
    }
}

impl AsFd for ClientDatagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The machine of each client: that of its last request.
struct ClientTable {
    central: Shared,
    machines: HashMap<SocketAddrV4, ClientMachine>,
    /// Number of clients of each Ethernet source.
    counts: HashMap<MacAddr, usize>,
    next_sweep: Instant,
}

/// The machine of a client.
struct ClientMachine {
    mac: MacAddr,
    /// Time of the last datagram.
    last: Instant,
}

impl ClientTable {
    fn new(central: Shared) -> Self {
        ClientTable {
            central,
            machines: HashMap::new(),
            counts: HashMap::new(),
            next_sweep: Instant::now(),
        }
    }

    /// Returns true if a datagram comes from the machine of its client. Reports others.
    fn is_genuine(
        &mut self,
        now: Instant,
        client: SocketAddrV4,
        source: MacAddr,
        is_request: bool,
    ) -> bool {
        let known =
            self.machines.get_mut(&client).filter(|known| now - known.last < CLIENT_LIFETIME);
        let earlier = match known {
            Some(known) if known.mac == source && !is_request => {
                known.last = now;
                return true;
            }
            known => known.map(|known| known.mac),
        };
        let is_genuine = self.central.admits_datagram(*client.ip(), source, earlier);
        if is_genuine && is_request {
            self.record(now, client, source);
        }
        is_genuine || !failpoint::defends("tftp-source")
    }

    fn record(&mut self, now: Instant, client: SocketAddrV4, mac: MacAddr) {
        self.remove(client);
        if !self.has_room(mac) && now >= self.next_sweep {
            self.next_sweep = now + SWEEP_INTERVAL;
            let is_expired = |known: &ClientMachine| now - known.last >= CLIENT_LIFETIME;
            let expired = self.machines.iter().filter(|(_, known)| is_expired(known));
            let expired: Vec<SocketAddrV4> = expired.map(|(client, _)| *client).collect();
            expired.into_iter().for_each(|client| self.remove(client));
        }
        if self.has_room(mac) {
            *self.counts.entry(mac).or_default() += 1;
            self.machines.insert(client, ClientMachine { mac, last: now });
        }
    }

    fn has_room(&self, mac: MacAddr) -> bool {
        let of_source = self.counts.get(&mac).copied().unwrap_or_default();
        self.machines.len() < MAX_CLIENTS && of_source < MAX_CLIENTS_OF_SOURCE
    }

    fn remove(&mut self, client: SocketAddrV4) {
        let Some(ClientMachine { mac, .. }) = self.machines.remove(&client) else { return };
        if let Some(count) = self.counts.get_mut(&mac) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&mac);
            }
        }
    }
}
