//! Traits that the user of the crate implements: a file look-up, an observer for metrics and log,
//! and an Ethernet interface.

use crate::{client::Client, effect::Event};
use bytes::Bytes;
use std::{
    fmt::Debug,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsFd,
    time::Instant,
};

/// The files that the server offers.
pub trait Files: Send + Sync + 'static {
    /// Identifies a file in [`Files::completed`].
    type Id: Copy + Debug + Send + 'static;

    /// Returns the content of the file `name`, or `None` if there is no such file. Called on worker
    /// threads; it must not block.
    fn open(&self, name: &str) -> Option<(Bytes, Self::Id)>;

    /// Records that the client at this address acknowledged the last block. Transfers do not wait
    /// for it.
    fn completed(&self, client: Ipv4Addr, file: Self::Id) -> impl Future<Output = ()> + Send;
}

/// The Ethernet interface of the clients. It receives datagrams in place of the UDP sockets, for
/// example to check where they come from, and sends frames where the kernel would wait for ARP.
pub trait EthernetLink: AsFd + Send {
    /// Passes waiting datagrams to `each`. Drops requests of clients that `takes` refuses, before
    /// any other check. Returns the number of packets that were read. Must not wait.
    ///
    /// # Errors
    /// `WouldBlock` if no packet waits, and errors of the kernel.
    fn receive(
        &mut self,
        takes: &dyn Fn(SocketAddrV4) -> bool,
        each: &mut dyn FnMut(Datagram<'_>),
    ) -> io::Result<usize>;

    /// Returns true if the kernel sends packets to this address at once. Otherwise it would keep
    /// them in the send queue of their socket, until ARP finds the next hop or gives up.
    fn is_resolved(&mut self, now: Instant, address: Ipv4Addr) -> bool;

    /// Sends a datagram from the port of transfers, as a frame to the Ethernet source of the
    /// client's request. Must not wait.
    ///
    /// # Errors
    /// `WouldBlock` if the queue of the interface is full, and errors of the kernel.
    fn send(&mut self, client: Client, payload: &[u8]) -> io::Result<()>;
}

/// A datagram that an [`EthernetLink`] received.
#[derive(Clone, Copy, Debug)]
pub enum Datagram<'a> {
    /// To the request port.
    Request(Client, &'a [u8]),
    /// To the port of transfers, from this address and port.
    Packet(SocketAddrV4, &'a [u8]),
}

/// Receives events for metrics and log. Called on worker threads; it must not block. `()` ignores
/// everything.
pub trait Observer: Send + Sync + 'static {
    /// Counts an event.
    fn event(&self, event: &Event);

    /// Counts sent file data: bytes, and blocks that were retransmitted.
    fn sent(&self, bytes: u64, resent_blocks: u64);

    /// Reports a problem of the host or the network.
    fn problem(&self, problem: Problem<'_>);
}

impl Observer for () {
    fn event(&self, _: &Event) {}

    fn sent(&self, _: u64, _: u64) {}

    fn problem(&self, _: Problem<'_>) {}
}

/// A problem of the host or the network. The server continues.
#[derive(Debug)]
pub enum Problem<'a> {
    /// A packet could not be received.
    Receive(&'a io::Error),
    /// A packet could not be sent.
    Send(&'a io::Error),
    /// UDP segmentation offload is refused; windows are sent block by block.
    NoSegmentation(&'a io::Error),
    /// The kernel's send queue did not take a message of this client; it is sent again later.
    SendQueueFull(SocketAddrV4),
    /// A worker has too many unread requests; a request was dropped.
    RequestQueueFull,
    /// Too many completed files wait for [`Files::completed`]; one is not reported.
    ReportQueueFull,
}
