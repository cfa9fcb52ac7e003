//! Traits that the user of the crate implements: a file look-up, an observer for metrics and log,
//! and a receiver of datagrams.

use crate::effect::Event;
use bytes::Bytes;
use std::{
    fmt::Debug,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsFd,
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

/// Receives the datagrams of clients in place of the UDP sockets, for example to check where they
/// come from.
pub trait ClientReceiver: AsFd + Send {
    /// Passes waiting datagrams to `each`: sender, destination port, payload. Drops those whose
    /// sender and destination port `is_wanted` refuses, before any other check. Returns the number
    /// of packets that were read. Must not wait.
    ///
    /// # Errors
    /// `WouldBlock` if no packet waits, and errors of the kernel.
    fn receive(
        &mut self,
        is_wanted: &dyn Fn(SocketAddrV4, u16) -> bool,
        each: &mut dyn FnMut(SocketAddrV4, u16, &[u8]),
    ) -> io::Result<usize>;
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
    /// The kernel's send queue stayed full; the missing blocks are retransmitted later.
    SendQueueFull,
    /// A worker has too many unread requests; a request was dropped.
    RequestQueueFull,
    /// Too many completed files wait for [`Files::completed`]; one is not reported.
    ReportQueueFull,
}
