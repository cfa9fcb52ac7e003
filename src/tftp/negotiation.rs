//! Negotiation of block size, window and timeout for one transfer, within the server's limits.
//! Pure.

use crate::packet::{self, RequestedOptions};
use bytes::Bytes;
use std::time::Duration;

/// The largest block, in bytes. With its headers it fills an Ethernet frame.
pub const MAX_BLOCK: u16 = 1468;
/// Length of the headers of a block: IPv4, UDP and TFTP, in bytes.
const HEADERS: usize = 20 + 8 + 4;
/// The smallest block that RFC 2348 allows, in bytes.
const MIN_BLOCK: u16 = 8;
/// Block size without negotiation, in bytes (RFC 1350).
const DEFAULT_BLOCK: u16 = 512;
/// The largest window, in blocks (RFC 7440). Firmware requests 4; more than 64 gains nothing.
pub const MAX_WINDOW: u16 = 64;
/// Retransmission timeout, unless the client requests another one (RFC 2349).
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// The negotiated options of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// Block size in bytes.
    pub(crate) block: u16,
    /// Blocks in flight without an acknowledgement.
    pub(crate) window: u16,
    /// Retransmission timeout.
    pub(crate) timeout: Duration,
    /// The client requested this timeout and uses it too, so the server does not back off.
    pub(crate) fixed_timeout: bool,
}

impl Negotiated {
    /// Grants options within the limits. `budget`: bytes that the window may use; one block is
    /// always granted.
    ///
    /// A block is not larger than what the path takes in one packet (`path_mtu`), because much
    /// firmware cannot join fragments. RFC 2348 lets the server grant less than the client
    /// requested.
    pub(crate) fn grant(
        requested: &RequestedOptions,
        budget: usize,
        path_mtu: impl FnOnce() -> usize,
    ) -> Self {
        let mut block = requested.block.unwrap_or(DEFAULT_BLOCK).min(MAX_BLOCK);
        if block > DEFAULT_BLOCK {
            let fitting = u16::try_from(path_mtu().saturating_sub(HEADERS)).unwrap_or(MAX_BLOCK);
            block = block.min(fitting.max(MIN_BLOCK));
        }
        let affordable = u16::try_from(budget / usize::from(block)).unwrap_or(u16::MAX);
        let window = requested.window.unwrap_or(1).min(MAX_WINDOW).min(affordable).max(1);
        let timeout = requested.timeout.map(|seconds| Duration::from_secs(seconds.into()));
        Negotiated {
            block,
            window,
            timeout: timeout.unwrap_or(TIMEOUT),
            fixed_timeout: timeout.is_some(),
        }
    }

    /// Returns the size of a whole window in bytes.
    pub(crate) fn window_bytes(&self) -> usize {
        usize::from(self.block) * usize::from(self.window)
    }

    /// Returns the number of blocks of a file. The last block is shorter than the others and may be
    /// empty.
    pub(crate) fn blocks(&self, length: usize) -> u64 {
        length as u64 / u64::from(self.block) + 1
    }

    /// Returns the OACK for the requested options; `None` if the client requested none.
    pub(crate) fn option_ack(&self, requested: &RequestedOptions, length: usize) -> Option<Bytes> {
        let options = [
            requested.block.map(|_| ("blksize", u64::from(self.block))),
            requested.timeout.map(|seconds| ("timeout", u64::from(seconds))),
            requested.size.then_some(("tsize", length as u64)),
            requested.window.map(|_| ("windowsize", u64::from(self.window))),
        ];
        let granted = options.into_iter().flatten();
        (*requested != RequestedOptions::default()).then(|| packet::option_ack(granted))
    }
}
