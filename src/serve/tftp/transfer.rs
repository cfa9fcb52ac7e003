//! One transfer as a state machine: (now, what the client said) -> [`Step`]. Pure.
//!
//! ```text
//!            with options             ACK 0              ACK of the last block
//! request ---------------> offered ---------> running ---------------------------> finished
//!        \___________________________________/   |  ^
//!            without: blocks at once             |__| ACK within the window: the next window;
//!                                                     silence: the same window again
//! ```
//! Silence at any place, or an ERROR, ends it. What keeps traffic from doubling (the sorcerer's apprentice of RFC 1123): only
//! an acknowledgement that moves forward sends at once. One that repeats is a hint that something was lost, and brings
//! the timer forward, once; if the next acknowledgement comes before it, nothing is sent twice.

use super::terms::Terms;
use bytes::Bytes;
use std::time::{Duration, Instant};

/// How often an offer is repeated that nobody takes up: most size probes end with silence or an ERROR here.
pub(super) const MAX_OFFERS: u8 = 2;
/// How often a window is sent again before a transfer is given up.
pub(super) const MAX_RESENDS: u8 = 5;
/// The longest pause between two of them, unless the client asked for another.
const MAX_PAUSE: Duration = Duration::from_secs(4);
/// A transfer without progress ends after this time at the latest, whatever the client asked for.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(60);
/// The soonest that a repeated acknowledgement brings a window again. On a busy server it is twice the time that a window takes.
const SOONEST: Duration = Duration::from_millis(10);
/// A request that comes again so soon after its answer is an echo, and not answered.
pub(super) const ECHO: Duration = Duration::from_millis(100);
/// A client that was heard within this time has not started again.
const STARTS_AGAIN: Duration = Duration::from_millis(250);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
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
    Answer(Step),
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
    progress_at: Instant,
    sent_at: Instant,
    /// How long a window takes from its sending to its acknowledgement.
    pace: Duration,
    /// When [`Transfer::expire`] is to be called.
    pub(super) deadline: Instant,
}

impl Transfer {
    /// Begins: with an offer if options were asked for, else with data.
    pub(super) fn begin(now: Instant, file: Bytes, terms: Terms, offer: Option<Bytes>, request: u64) -> (Self, Step) {
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
            progress_at: now,
            sent_at: now,
            pace: Duration::ZERO,
            deadline: now,
        };
        let step = transfer.send(now);
        (transfer, step)
    }

    /// The client acknowledged block `number`.
    pub(super) fn ack(&mut self, now: Instant, number: u16) -> Step {
        if self.offer.is_some() {
            if number != 0 {
                return Step::Nothing;
            }
            self.offer = None;
            self.progress(now);
            return self.send(now);
        }
        // In flight are at most MAX_WINDOW blocks: sixteen bits tell them apart.
        let forward = u64::from(number.wrapping_sub(self.acked as u16));
        if forward == 0 {
            self.hint(now);
            return Step::Nothing;
        }
        if forward > self.sent - self.acked {
            return Step::Nothing;
        }
        if self.resends == 0 && forward == self.sent - self.acked {
            let took = now.saturating_duration_since(self.sent_at);
            self.pace = took.max(self.pace - self.pace / 8);
        }
        self.acked += forward;
        self.progress(now);
        if self.acked == self.blocks { Step::Finished } else { self.send(now) }
    }

    /// The deadline has come.
    pub(super) fn expire(&mut self, now: Instant) -> Step {
        let most = if self.offer.is_some() { MAX_OFFERS } else { MAX_RESENDS };
        if self.resends >= most || now.saturating_duration_since(self.progress_at) >= MAX_SILENCE {
            return Step::GiveUp;
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
    fn send(&mut self, now: Instant) -> Step {
        let pause = if self.terms.fixed_timeout {
            self.terms.timeout
        } else {
            (self.terms.timeout * (1 << self.resends.min(4))).min(MAX_PAUSE)
        };
        (self.sent_at, self.deadline) = (now, now + pause.min(MAX_SILENCE));
        if self.offer.is_some() {
            return Step::Offer;
        }
        let before = self.sent;
        self.sent = (self.acked + u64::from(self.terms.window)).min(self.blocks);
        let count = (self.sent - self.acked) as u16;
        Step::Blocks { first: self.acked + 1, count, again: before > self.acked }
    }
}
