//! One transfer as a state machine: (now, what the client said) -> [`TransferAction`]. Pure.
//!
//! ```text
//!            with options             ACK 0              ACK of the last block
//! request ---------------> offered ---------> running ---------------------------> finished
//!        \___________________________________/   |  ^
//!            without: blocks at once             |__| ACK within the window: the next window;
//!                                                     silence: the same window again
//! ```
//! Silence at any place, or an ERROR, ends it, and so does a client that is slower than [`MIN_RATE`] on the whole. What keeps traffic from doubling (the sorcerer's apprentice of RFC 1123): only
//! an acknowledgement that moves forward sends at once. One that repeats is a hint that something was lost, and brings
//! the timer forward, once; if the next acknowledgement comes before it, nothing is sent twice.

use super::negotiation::Terms;
use bytes::Bytes;
use meshd_types::fail;
use std::time::{Duration, Instant};

/// How often an offer is repeated that nobody takes up: most size probes end with silence or an ERROR here.
pub(super) const MAX_OFFERS: u8 = 2;
/// How often a window is sent again before a transfer is given up.
pub(super) const MAX_RESENDS: u8 = 5;
/// The longest pause between two of them, unless the client asked for another.
const MAX_PAUSE: Duration = Duration::from_secs(4);
/// A transfer without progress ends after this time at the latest, whatever the client asked for.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Bytes a second that a client must acknowledge on the whole once [`MAX_SILENCE`] is over: the absolute timeout of a transfer is
/// [`MAX_SILENCE`] and the time that its file takes at this rate. Firmware reads a thousand times as fast.
const MIN_RATE: u64 = 256;
/// Bytes a second below which a transfer gives its place to a new one, when there is no other place.
pub(super) const WEAK_RATE: u64 = 1024;
/// A client that acknowledged no new byte for so long has stalled. Longer than one lost packet takes.
const STALLED: Duration = Duration::from_secs(2);
/// Rates of single transfers are compared over at least this time.
const RATE_WINDOW: Duration = Duration::from_secs(2);
/// A transfer younger than this is not judged by its rate.
const YOUNG: Duration = Duration::from_secs(1);
/// A client that acknowledged the options but no block within this time does not read.
const FIRST_BLOCK: Duration = Duration::from_millis(250);
/// The soonest that a repeated acknowledgement brings a window again. On a busy server it is twice the time that a window takes.
const SOONEST: Duration = Duration::from_millis(10);
/// A request that comes again so soon after its answer is an echo, and not answered.
pub(super) const ECHO: Duration = Duration::from_millis(100);
/// A client that was heard within this time has not started again.
const STARTS_AGAIN: Duration = Duration::from_millis(250);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferAction {
    Nothing,
    /// Send the acknowledgement of options.
    Offer,
    /// Send blocks `first..first + count`, counted from 1.
    Blocks {
        first: u64,
        count: u16,
        /// They were sent before.
        again: bool,
    },
    /// The last block was acknowledged.
    Finished,
    /// The client has fallen silent.
    GiveUp,
}

/// What a second request of the same client means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// A copy of the one that is being answered.
    Ignore,
    /// The answer was lost.
    Answer(TransferAction),
    /// The client has started afresh.
    Restart,
}

/// A transfer.
pub(super) struct Transfer {
    pub(super) file: Bytes,
    pub(super) terms: Terms,
    /// Acknowledges the options, until the client has seen it.
    pub(super) offer: Option<Bytes>,
    /// Tells one request from another.
    request: u64,
    blocks: u64,
    acked: u64,
    sent: u64,
    resends: u8,
    hinted: bool,
    /// The client has acknowledged something: its address is its own.
    pub(super) confirmed: bool,
    began: Instant,
    /// Two earlier positions, the older one first: time and acknowledged bytes.
    marks: [(Instant, u64); 2],
    progress_at: Instant,
    sent_at: Instant,
    /// How long a window takes from its sending to its acknowledgement.
    pace: Duration,
    /// When [`Transfer::expire`] is to be called.
    pub(super) deadline: Instant,
}

impl Transfer {
    /// Begins: with an offer if options were asked for, else with data.
    pub(super) fn begin(
        now: Instant,
        file: Bytes,
        terms: Terms,
        offer: Option<Bytes>,
        request: u64,
    ) -> (Self, TransferAction) {
        let mut transfer = Transfer {
            blocks: terms.blocks(file.len()),
            file,
            terms,
            offer,
            request,
            acked: 0,
            sent: 0,
            resends: 0,
            hinted: false,
            confirmed: false,
            began: now,
            marks: [(now, 0); 2],
            progress_at: now,
            sent_at: now,
            pace: Duration::ZERO,
            deadline: now,
        };
        let step = transfer.send(now);
        (transfer, step)
    }

    /// The client acknowledged block `number`.
    pub(super) fn ack(&mut self, now: Instant, number: u16) -> TransferAction {
        if self.offer.is_some() {
            if number != 0 {
                return TransferAction::Nothing;
            }
            self.offer = None;
            self.progress(now);
            return self.send(now);
        }
        // In flight are at most MAX_WINDOW blocks: sixteen bits tell them apart.
        let forward = u64::from(number.wrapping_sub(self.acked as u16));
        if forward == 0 {
            self.hint(now);
            return TransferAction::Nothing;
        }
        if forward > self.sent - self.acked {
            return TransferAction::Nothing;
        }
        if self.resends == 0 && forward == self.sent - self.acked {
            let took = now.saturating_duration_since(self.sent_at);
            self.pace = took.max(self.pace - self.pace / 8);
        }
        self.acked += forward;
        self.progress(now);
        if self.acked == self.blocks {
            return TransferAction::Finished;
        }
        if now.saturating_duration_since(self.marks[1].0) >= RATE_WINDOW {
            self.marks = [self.marks[1], (now, self.acked_bytes())];
        }
        if self.is_too_slow(now) { TransferAction::GiveUp } else { self.send(now) }
    }

    /// The deadline has come.
    pub(super) fn expire(&mut self, now: Instant) -> TransferAction {
        let most = if self.offer.is_some() { MAX_OFFERS } else { MAX_RESENDS };
        let silent = now.saturating_duration_since(self.progress_at) >= MAX_SILENCE;
        if self.resends >= most || silent || self.is_too_slow(now) {
            return TransferAction::GiveUp;
        }
        self.resends += 1;
        self.send(now)
    }

    /// The client asked again, from the same port.
    pub(super) fn again(&mut self, now: Instant, request: u64) -> Again {
        let since = |then| now.saturating_duration_since(then);
        match (request == self.request, self.confirmed) {
            (true, false) if since(self.sent_at) < ECHO => Again::Ignore,
            (true, false) => {
                (self.resends, self.progress_at) = (0, now);
                Again::Answer(self.send(now))
            }
            (true, true) if since(self.progress_at) < STARTS_AGAIN => Again::Ignore,
            _ => Again::Restart,
        }
    }

    /// Blocks that the client has.
    pub(super) fn position(&self) -> (u64, u64) {
        (self.acked, self.blocks)
    }

    /// How little this transfer achieves, in bytes a second, if somebody else may have its place; `None` while it has to be left alone.
    pub(super) fn weakness(&self, now: Instant) -> Option<u64> {
        let since = |then| now.saturating_duration_since(then);
        if self.acked == 0 && since(self.began) >= FIRST_BLOCK {
            return Some(0);
        }
        if since(self.began) < YOUNG {
            return None;
        }
        if since(self.progress_at) >= STALLED {
            return Some(0);
        }
        let (then, bytes) = self.marks[0];
        Some(rate(self.acked_bytes() - bytes, since(then)))
    }

    fn is_too_slow(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.began);
        age > MAX_SILENCE && rate(self.acked_bytes(), age) < MIN_RATE && fail::defends("tftp-minimum-rate")
    }

    fn acked_bytes(&self) -> u64 {
        self.acked * u64::from(self.terms.block)
    }

    fn progress(&mut self, now: Instant) {
        self.confirmed = true;
        self.progress_at = now;
        self.resends = 0;
        self.hinted = false;
    }

    fn hint(&mut self, now: Instant) {
        if !self.hinted && self.sent > self.acked {
            self.hinted = true;
            self.deadline = self.deadline.min(now + SOONEST.max(self.pace * 2));
        }
    }

    /// Sends what the client lacks, and sets the deadline.
    fn send(&mut self, now: Instant) -> TransferAction {
        let pause = if self.terms.fixed_timeout {
            self.terms.timeout
        } else {
            (self.terms.timeout * (1 << self.resends.min(4))).min(MAX_PAUSE)
        };
        (self.sent_at, self.deadline) = (now, now + pause.min(MAX_SILENCE));
        if self.offer.is_some() {
            return TransferAction::Offer;
        }
        let before = self.sent;
        self.sent = (self.acked + u64::from(self.terms.window)).min(self.blocks);
        let count = (self.sent - self.acked) as u16;
        TransferAction::Blocks { first: self.acked + 1, count, again: before > self.acked }
    }
}

/// Bytes a second.
fn rate(bytes: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(bytes) * 1000 / time.as_millis().max(1)).unwrap_or(u64::MAX)
}
