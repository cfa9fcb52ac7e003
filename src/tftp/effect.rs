//! Outputs of the engine: datagrams to send, completed files, and events. Pure.

use crate::{client::Client, packet};
use bytes::Bytes;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Collects the outputs of the engine; the driver drains them. `F` identifies files
/// ([`crate::Files::Id`]).
#[derive(Debug)]
pub struct Effects<F> {
    /// Datagrams, in the order in which they must be sent.
    pub sends: Vec<Transmission>,
    /// Files that a client acknowledged completely.
    pub completed: Vec<(Ipv4Addr, F)>,
    /// Events for metrics and log.
    pub events: Vec<Event>,
}

impl<F> Default for Effects<F> {
    fn default() -> Self {
        Effects { sends: Vec::new(), completed: Vec::new(), events: Vec::new() }
    }
}

/// One or more datagrams to one client.
#[derive(Debug)]
pub struct Transmission {
    pub to: Client,
    /// The content of the datagrams.
    pub payload: Payload,
}

/// The content of datagrams.
#[derive(Debug)]
pub enum Payload {
    /// A complete OACK or ERROR packet.
    Packet(Bytes),
    /// Blocks `first..first + count` of a file, counted from 1; see [`block_of`].
    Blocks {
        /// The whole file.
        file: Bytes,
        /// Block size in bytes.
        block: u16,
        /// Number of the first block.
        first: u64,
        /// Number of blocks.
        count: u16,
        /// True for a retransmission.
        resent: bool,
    },
}

/// An event of a transfer or request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A transfer began.
    Began,
    /// The client acknowledged the last block.
    Completed,
    /// The client sent an ERROR, usually after a size probe.
    Aborted,
    /// The client stopped answering, or was slower than the minimum rate.
    TimedOut {
        client: SocketAddrV4,
        /// Acknowledged blocks.
        acked: u64,
        /// Blocks of the file.
        blocks: u64,
    },
    /// The client sent a new request from the same port.
    Restarted,
    /// A transfer that was never acknowledged, or that stalled, was evicted for a new one.
    Evicted,
    /// The transfer table is full, or the share of the client's Ethernet source. The request was
    /// not answered; the client repeats it.
    Full { client: SocketAddrV4 },
    /// A request was answered with an ERROR.
    Refused { client: SocketAddrV4, cause: Refusal },
    /// A packet that no client sends to this port. It is not answered: an ERROR could only disturb
    /// its sender.
    Malformed { client: SocketAddrV4 },
    /// A packet of no transfer, usually a duplicate of the last acknowledgement.
    Stray,
    /// The server stopped during the transfer.
    CutOff,
}

/// Why a request was answered with an ERROR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// [`crate::Files::open`] knows no such file.
    NotFound {
        /// The requested name.
        name: String,
    },
    /// A mode other than octet.
    Mode,
    /// A write request.
    Write,
    /// A request that cannot be read, or an unknown operation.
    Illegal,
}

impl<F> Effects<F> {
    pub(crate) fn packet(&mut self, to: Client, packet: Bytes) {
        self.sends.push(Transmission { to, payload: Payload::Packet(packet) });
    }

    pub(crate) fn refuse(&mut self, client: Client, cause: Refusal) {
        let (code, text) = match cause {
            Refusal::NotFound { .. } => (packet::Code::NotFound, "no such file"),
            Refusal::Mode => (
                packet::Code::IllegalOperation,
                "only mode octet is served; set the client to binary",
            ),
            Refusal::Write => (packet::Code::AccessViolation, "this server is read-only"),
            Refusal::Illegal => (packet::Code::IllegalOperation, "the request cannot be read"),
        };
        self.packet(client, packet::error(code, text));
        self.events.push(Event::Refused { client: client.address, cause });
    }
}

/// Returns the bytes of block `number`, counted from 1. The last block is short or empty; blocks
/// after it are empty.
pub fn block_of(file: &[u8], block: u16, number: u64) -> &[u8] {
    let start = (number.saturating_sub(1) as usize).saturating_mul(block.into()).min(file.len());
    &file[start..file.len().min(start + usize::from(block))]
}
