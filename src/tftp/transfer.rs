//! One transfer as a state machine, with retransmission: (time, packet or deadline) ->
//! [`TransferAction`]. Pure.
//!
//! ```text
//!            with options             ACK 0              ACK of the last block
//! request --------------> OACK sent --------> running ---------------------------> finished
//!        \___________________________________/   |  ^
//!            without: blocks at once             |__| ACK within the window: the next window;
//!                                                     timeout: the same window again
//! ```
//! A transfer ends early when its client times out, sends an ERROR, or is slower than [`MIN_RATE`]
//! on average.
//!
//! Only an acknowledgement that moves forward is answered at once; this prevents traffic from
//! doubling (the sorcerer's apprentice syndrome, RFC 1123). A duplicate acknowledgement indicates
//! loss: it brings the retransmission timer forward, once. If the next acknowledgement arrives
//! before that timer, nothing is sent twice.

use crate::negotiation::{Negotiated, TIMEOUT};
use bytes::Bytes;
use meshd_types::failpoint;
use std::time::{Duration, Instant};

/// Retransmissions before the first acknowledgement. Most size probes end here, without an answer or
/// with an ERROR. A client that got nothing repeats its request; an invented one never answers.
const MAX_FIRST_RETRANSMITS: u8 = 1;
/// Retransmissions of a window before the transfer times out.
pub(crate) const MAX_RETRANSMITS: u8 = 5;
/// The longest retransmission timeout, unless the client requested another one.
const MAX_BACKOFF: Duration = Duration::from_secs(4);
/// A transfer without progress times out after this time, regardless of the timeout that the client
/// requested.
pub(crate) const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Average rate in bytes per second that a client must reach after [`MAX_SILENCE`]. It bounds the
/// duration of every transfer. Firmware reads a thousand times as fast.
const MIN_RATE: u64 = 256;
/// Rate in bytes per second below which a transfer may be evicted when the table is full.
pub(crate) const EVICTABLE_RATE: u64 = 1024;
/// A transfer without progress for this time has stalled. Longer than the loss of one packet takes.
const STALLED: Duration = Duration::from_secs(2);
/// The rate of a transfer is measured over at least this time.
const RATE_WINDOW: Duration = Duration::from_secs(2);
/// A younger transfer is not evicted for its rate.
const MIN_AGE: Duration = Duration::from_secs(1);
/// A client that acknowledged the options but no block within this time does not read the file.
const FIRST_BLOCK: Duration = Duration::from_millis(250);
/// Minimum delay of a retransmission after a duplicate acknowledgement. On a busy server the delay
/// is twice the window time.
const MIN_RETRANSMIT_DELAY: Duration = Duration::from_millis(10);
/// Delay after which datagrams that the send queue did not take are sent again. A full queue of a
/// slow network drains in this time, and is never empty for long.
const POSTPONED: Duration = Duration::from_millis(20);
/// A request repeated this soon after its answer is a duplicate and not answered.
pub(crate) const DUPLICATE_WITHIN: Duration = Duration::from_millis(100);
/// A client that made progress within this time has not restarted.
const RESTART_AFTER: Duration = Duration::from_millis(250);

/// The next action of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferAction {
    Nothing,
    /// Send the acknowledgement of options.
    OptionAck,
    /// Send blocks `first..first + count`, counted from 1.
    Blocks {
        first: u64,
        count: u16,
        /// True for a retransmission.
        resent: bool,
    },
    /// The last block was acknowledged.
    Finished,
    /// The client timed out or is too slow.
    TimeOut,
}

/// The meaning of a second request from the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepeatedRequest {
    /// A duplicate of the current request.
    Ignore,
    /// The answer was lost.
    Answer(TransferAction),
    /// The client restarted.
    Restart,
}

/// The state of one transfer.
pub(crate) struct Transfer {
    pub(crate) file: Bytes,
    pub(crate) negotiated: Negotiated,
    /// The OACK, until the client acknowledges it.
    pub(crate) option_ack: Option<Bytes>,
    /// Hash of the request's name and options.
    request: u64,
    blocks: u64,
    acked: u64,
    sent: u64,
    retransmits: u8,
    saw_duplicate_ack: bool,
    /// The last datagrams were not sent.
    is_postponed: bool,
    /// The client acknowledged something, so its address is not forged.
    pub(crate) confirmed: bool,
    began: Instant,
    /// Two earlier samples of time and acknowledged bytes, the older one first.
    samples: [(Instant, u64); 2],
    progress_at: Instant,
    sent_at: Instant,
    /// Time from sending a window to its acknowledgement; decays slowly.
    window_time: Duration,
    /// When [`Transfer::expire`] must be called.
    pub(crate) deadline: Instant,
}

impl Transfer {
    /// Begins with an OACK if the client requested options, otherwise with data.
    pub(crate) fn begin(
        now: Instant,
        file: Bytes,
        negotiated: Negotiated,
        option_ack: Option<Bytes>,
        request: u64,
    ) -> (Self, TransferAction) {
        let mut transfer = Transfer {
            blocks: negotiated.blocks(file.len()),
            file,
            negotiated,
            option_ack,
            request,
            acked: 0,
            sent: 0,
            retransmits: 0,
            saw_duplicate_ack: false,
            is_postponed: false,
            confirmed: false,
            began: now,
            samples: [(now, 0); 2],
            progress_at: now,
            sent_at: now,
            window_time: Duration::ZERO,
            deadline: now,
        };
        let action = transfer.send(now);
        (transfer, action)
    }

    /// Handles the acknowledgement of block `number`.
    pub(crate) fn ack(&mut self, now: Instant, number: u16) -> TransferAction {
        if self.option_ack.is_some() {
            if number != 0 {
                return TransferAction::Nothing;
            }
            self.option_ack = None;
            self.progress(now);
            return self.send(now);
        }
        // At most MAX_WINDOW blocks are in flight, so sixteen bits are unambiguous.
        let forward = u64::from(number.wrapping_sub(self.acked as u16));
        if forward == 0 {
            self.duplicate_ack(now);
            return TransferAction::Nothing;
        }
        if forward > self.sent - self.acked {
            return TransferAction::Nothing;
        }
        if self.retransmits == 0 && forward == self.sent - self.acked {
            let took = now.saturating_duration_since(self.sent_at);
            self.window_time = took.max(self.window_time - self.window_time / 8);
        }
        self.acked += forward;
        self.progress(now);
        if self.acked == self.blocks {
            return TransferAction::Finished;
        }
        if now.saturating_duration_since(self.samples[1].0) >= RATE_WINDOW {
            self.samples = [self.samples[1], (now, self.acked_bytes())];
        }
        if self.is_too_slow(now) { TransferAction::TimeOut } else { self.send(now) }
    }

    /// Handles the deadline: retransmits or times out.
    pub(crate) fn expire(&mut self, now: Instant) -> TransferAction {
        let most = if self.confirmed { MAX_RETRANSMITS } else { MAX_FIRST_RETRANSMITS };
        let silent = now.saturating_duration_since(self.progress_at) >= MAX_SILENCE;
        let exhausted = self.retransmits >= most && !self.is_postponed;
        if exhausted || silent || self.is_too_slow(now) {
            return TransferAction::TimeOut;
        }
        self.retransmits += u8::from(!self.is_postponed);
        self.send(now)
    }

    /// Brings the deadline forward, because the last datagrams were not sent. A transfer without an
    /// acknowledgement keeps its deadline.
    pub(crate) fn postpone(&mut self, now: Instant) {
        if self.confirmed {
            self.is_postponed = true;
            self.deadline = self.deadline.min(now + POSTPONED);
        }
    }

    /// Handles another request from the same port.
    pub(crate) fn repeated(&mut self, now: Instant, request: u64) -> RepeatedRequest {
        let since = |then| now.saturating_duration_since(then);
        match (request == self.request, self.confirmed) {
            (true, false) if since(self.sent_at) < DUPLICATE_WITHIN => RepeatedRequest::Ignore,
            (true, false) => {
                (self.retransmits, self.progress_at) = (0, now);
                RepeatedRequest::Answer(self.send(now))
            }
            (true, true) if since(self.progress_at) < RESTART_AFTER => RepeatedRequest::Ignore,
            _ => RepeatedRequest::Restart,
        }
    }

    /// Returns the acknowledged blocks and all blocks.
    pub(crate) fn position(&self) -> (u64, u64) {
        (self.acked, self.blocks)
    }

    /// Returns the rate in bytes per second if the transfer may be evicted; `None` while it is too
    /// young.
    pub(crate) fn evictable_rate(&self, now: Instant) -> Option<u64> {
        let since = |then| now.saturating_duration_since(then);
        if self.acked == 0 && since(self.began) >= FIRST_BLOCK {
            return Some(0);
        }
        if since(self.began) < MIN_AGE {
            return None;
        }
        if since(self.progress_at) >= STALLED {
            return Some(0);
        }
        let (then, bytes) = self.samples[0];
        Some(rate(self.acked_bytes() - bytes, since(then)))
    }

    fn is_too_slow(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.began);
        age > MAX_SILENCE
            && rate(self.acked_bytes(), age) < MIN_RATE
            && failpoint::defends("tftp-minimum-rate")
    }

    fn acked_bytes(&self) -> u64 {
        self.acked * u64::from(self.negotiated.block)
    }

    fn progress(&mut self, now: Instant) {
        self.confirmed = true;
        self.progress_at = now;
        self.retransmits = 0;
        self.saw_duplicate_ack = false;
    }

    fn duplicate_ack(&mut self, now: Instant) {
        if !self.saw_duplicate_ack && self.sent > self.acked {
            self.saw_duplicate_ack = true;
            self.deadline = self.deadline.min(now + MIN_RETRANSMIT_DELAY.max(self.window_time * 2));
        }
    }

    /// Sends the current window and sets the deadline.
    fn send(&mut self, now: Instant) -> TransferAction {
        self.is_postponed = false;
        let timeout = if self.negotiated.fixed_timeout && self.confirmed {
            self.negotiated.timeout
        } else {
            (TIMEOUT * (1 << self.retransmits.min(4))).min(MAX_BACKOFF)
        };
        (self.sent_at, self.deadline) = (now, now + timeout.min(MAX_SILENCE));
        if self.option_ack.is_some() {
            return TransferAction::OptionAck;
        }
        let before = self.sent;
        self.sent = (self.acked + u64::from(self.negotiated.window)).min(self.blocks);
        let count = (self.sent - self.acked) as u16;
        TransferAction::Blocks { first: self.acked + 1, count, resent: before > self.acked }
    }
}

/// Returns bytes per second.
fn rate(bytes: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(bytes) * 1000 / time.as_millis().max(1)).unwrap_or(u64::MAX)
}
