//! What the engine wants done: packets to send, and what happened. Pure.

use super::packet;
use crate::serve::central::Fetched;
use bytes::Bytes;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Collects effects; the driver empties it.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// In the order in which they shall leave.
    pub(super) sends: Vec<Send>,
    pub(super) happened: Vec<Happened>,
}

/// One or more datagrams to one client.
#[derive(Debug)]
pub(super) struct Send {
    pub(super) to: SocketAddrV4,
    pub(super) what: Payload,
}

/// What they carry.
#[derive(Debug)]
pub(super) enum Payload {
    /// OACK or ERROR, as it is.
    Packet(Bytes),
    /// Blocks `first..first + count` of a file, counted from 1.
    Blocks { file: Bytes, block: u16, first: u64, count: u16, again: bool },
}

/// What happened, for stages, metrics and log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    Began,
    /// The last block was acknowledged.
    Fetched {
        from: Ipv4Addr,
        what: Fetched,
    },
    /// The client sent an ERROR: most often after its size probe.
    Aborted,
    /// The client fell silent after so many blocks.
    Silent {
        client: SocketAddrV4,
        acked: u64,
        blocks: u64,
    },
    /// The client began again from the same port.
    Restarted,
    /// A transfer that was never acknowledged, or that stalled, made room for another.
    Displaced,
    /// No room; nothing was answered, the client asks again.
    Full {
        client: SocketAddrV4,
        cause: &'static str,
    },
    Refused {
        client: SocketAddrV4,
        cause: Refusal,
    },
    /// Not a packet that a client sends here.
    Malformed,
    /// The server stopped under it.
    CutOff,
}

/// Why a request was answered with an ERROR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NotFound { name: String },
    Mode,
    Write,
}

impl Effects {
    pub(super) fn packet(&mut self, to: SocketAddrV4, packet: Bytes) {
        self.sends.push(Send { to, what: Payload::Packet(packet) });
    }

    pub(super) fn refuse(&mut self, client: SocketAddrV4, cause: Refusal) {
        let (code, text) = match cause {
            Refusal::NotFound { .. } => (packet::Code::NotFound, "no such file"),
            Refusal::Mode => (packet::Code::IllegalOperation, "only mode octet is served; set the client to binary"),
            Refusal::Write => (packet::Code::AccessViolation, "nothing can be written here"),
        };
        self.packet(client, packet::error(code, text));
        self.happened.push(Happened::Refused { client, cause });
    }
}

/// The bytes of block `number`, counted from 1; the last is short or empty, beyond it is nothing.
pub(super) fn block_of(file: &[u8], block: u16, number: u64) -> &[u8] {
    let start = (number.saturating_sub(1) as usize).saturating_mul(block.into()).min(file.len());
    &file[start..file.len().min(start + usize::from(block))]
}
