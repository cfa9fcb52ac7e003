//! What client and server agree on for one transfer: block, window and time, within the server's bounds. Pure.

use super::packet::{self, RequestedOptions};
use bytes::Bytes;
use std::time::Duration;

/// The largest block, in bytes: with its headers it fills an Ethernet frame, so that nothing is ever fragmented.
pub const MAX_BLOCK: u16 = 1468;
/// The block of a client that asks for none, in bytes (RFC 1350).
const DEFAULT_BLOCK: u16 = 512;
/// The largest window, in blocks (RFC 7440). Firmware asks for 4; beyond 64 nothing is gained.
pub const MAX_WINDOW: u16 = 64;
/// Silence after which a window is sent again, unless the client asks for another time (RFC 2349).
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// The agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Bytes of data in each block but the last.
    pub(super) block: u16,
    /// Blocks that are sent before an acknowledgement is waited for.
    pub(super) window: u16,
    /// Silence after which a window is sent again.
    pub(super) timeout: Duration,
    /// Whether the client chose it; its own clock is the same then.
    pub(super) fixed_timeout: bool,
}

impl Terms {
    /// Grants what was asked for; `room` is how many bytes a window may still take. One block is always granted.
    pub(super) fn grant(asked: &RequestedOptions, room: usize) -> Self {
        let block = asked.block.unwrap_or(DEFAULT_BLOCK).min(MAX_BLOCK);
        let affordable = u16::try_from(room / usize::from(block)).unwrap_or(u16::MAX);
        let window = asked.window.unwrap_or(1).min(MAX_WINDOW).min(affordable).max(1);
        let timeout = asked.timeout.map(|seconds| Duration::from_secs(seconds.into()));
        Terms { block, window, timeout: timeout.unwrap_or(TIMEOUT), fixed_timeout: timeout.is_some() }
    }

    /// Bytes of a whole window.
    pub(super) fn window_bytes(&self) -> usize {
        usize::from(self.block) * usize::from(self.window)
    }

    /// Blocks of a file; the last is shorter than the others, and may be empty.
    pub(super) fn blocks(&self, length: usize) -> u64 {
        length as u64 / u64::from(self.block) + 1
    }

    /// The answer to the options that were asked for; none if none was.
    pub(super) fn offer(&self, asked: &RequestedOptions, length: usize) -> Option<Bytes> {
        let options = [
            asked.block.map(|_| ("blksize", u64::from(self.block))),
            asked.timeout.map(|seconds| ("timeout", u64::from(seconds))),
            asked.size.then_some(("tsize", length as u64)),
            asked.window.map(|_| ("windowsize", u64::from(self.window))),
        ];
        let granted = options.into_iter().flatten();
        (*asked != RequestedOptions::default()).then(|| packet::option_ack(granted))
    }
}
