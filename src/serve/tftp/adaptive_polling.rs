//! Whether to look again or to sleep, when nothing has come. Pure.
//!
//! Sleeping and being woken takes the kernel longer than a client beside us takes to answer. So a worker looks again for a
//! moment, as long as that has paid; when answers come later than that it sleeps at once, and only tries now and then.

use std::time::{Duration, Instant};

/// How long to look: about what sleeping and waking costs.
const MOMENT: Duration = Duration::from_micros(50);
/// So many fruitless looks in a row, and it sleeps at once.
const MOST_CREDIT: u8 = 8;
/// Then it looks again one time in so many.
const TRY_EVERY: u8 = 64;

/// What looking has brought so far.
pub(super) struct Patience {
    credit: u8,
    slept: u8,
    since: Option<Instant>,
}

impl Patience {
    pub(super) fn new() -> Self {
        Patience { credit: MOST_CREDIT, slept: 0, since: None }
    }

    /// Something came.
    pub(super) fn paid(&mut self) {
        if self.since.take().is_some() {
            self.credit = MOST_CREDIT.min(self.credit + 1);
        }
    }

    /// Nothing came. Is it worth to look again at once?
    pub(super) fn again(&mut self, now: Instant) -> bool {
        match self.since {
            Some(since) if now.saturating_duration_since(since) < MOMENT => true,
            Some(_) => {
                self.since = None;
                self.credit = self.credit.saturating_sub(1);
                false
            }
            None => {
                self.slept = (self.slept + 1) % TRY_EVERY;
                let look = self.credit > 0 || self.slept == 0;
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
    fn it_looks_while_that_pays_and_stops_when_it_does_not() {
        let (mut patience, mut now) = (Patience::new(), Instant::now());
        for _ in 0..100 {
            assert!(patience.again(now), "answers come soon");
            patience.paid();
        }
        let mut looks = 0;
        for _ in 0..1000 {
            while patience.again(now) {
                looks += 1;
                now += MOMENT;
            }
            patience.paid();
        }
        assert!((10..40).contains(&looks), "answers come late: {looks} looks");
        for _ in 0..1000 {
            if patience.again(now) {
                patience.paid();
            }
        }
        assert!(patience.again(now), "answers come soon again");
    }
}
