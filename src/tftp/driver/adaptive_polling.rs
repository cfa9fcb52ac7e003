//! Decides whether an idle worker polls its socket again or sleeps. Pure.
//!
//! Sleeping and waking takes the kernel longer than a client on the LAN takes to answer, so a
//! worker polls for a moment as long as that succeeds. When answers take longer, it sleeps at once
//! and polls only now and then.

use std::time::{Duration, Instant};

/// How long to poll: about the cost of sleeping and waking.
const POLL_TIME: Duration = Duration::from_micros(50);
/// After this many fruitless polls the worker sleeps at once.
const MAX_CREDIT: u8 = 8;
/// Then it polls instead of one of this many sleeps.
const RETRY_EVERY: u8 = 64;

/// How successful polling was so far.
pub(crate) struct AdaptivePolling {
    credit: u8,
    sleeps: u8,
    since: Option<Instant>,
}

impl AdaptivePolling {
    pub(crate) fn new() -> Self {
        AdaptivePolling { credit: MAX_CREDIT, sleeps: 0, since: None }
    }

    /// Records that a packet arrived.
    pub(crate) fn succeeded(&mut self) {
        if self.since.take().is_some() {
            self.credit = MAX_CREDIT.min(self.credit + 1);
        }
    }

    /// Returns true if the worker should poll again, though no packet arrived.
    pub(crate) fn poll_again(&mut self, now: Instant) -> bool {
        match self.since {
            Some(since) if now.saturating_duration_since(since) < POLL_TIME => true,
            Some(_) => {
                self.since = None;
                self.credit = self.credit.saturating_sub(1);
                false
            }
            None => {
                self.sleeps = (self.sleeps + 1) % RETRY_EVERY;
                let look = self.credit > 0 || self.sleeps == 0;
                self.since = look.then_some(now);
                look
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_polls_only_while_polling_succeeds() {
        let mut polling = AdaptivePolling::new();
        let mut now = Instant::now();
        for _ in 0..100 {
            assert!(polling.poll_again(now), "answers come soon");
            polling.succeeded();
        }
        let mut looks = 0;
        for _ in 0..1000 {
            while polling.poll_again(now) {
                looks += 1;
                now += POLL_TIME;
            }
            polling.succeeded();
        }
        assert!((10..40).contains(&looks), "answers come late: {looks} looks");
        for _ in 0..1000 {
            if polling.poll_again(now) {
                polling.succeeded();
            }
        }
        assert!(polling.poll_again(now), "answers come soon again");
    }
}
