//! Order of URLs, delays between tries, and when to give up. Pure.

use std::{collections::BTreeSet, time::Duration};

/// First delay after every URL has failed once; it doubles up to [`LONGEST_DELAY`].
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// Time without a new byte after which the boot fails: outlives a central node that restarts.
const PATIENCE: Duration = Duration::from_secs(300);

/// Which URL comes next, and when.
#[derive(Debug)]
pub struct RetrySchedule {
    urls: usize,
    current: usize,
    /// Most bytes that a try has reached. A file that is fetched anew brings no new bytes before it.
    furthest: u64,
    /// Failures since the last new byte.
    failures: usize,
    /// Time of the last new byte.
    progress_at: Duration,
    /// URLs that do not have the file: their answer was another file, or none.
    without_file: BTreeSet<usize>,
}

/// The next step after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTry {
    /// Try the current URL after a delay.
    After(Duration),
    GiveUp,
}

impl RetrySchedule {
    /// Creates a schedule for a number of URLs, at a time since any origin.
    pub fn new(urls: usize, now: Duration) -> Self {
        RetrySchedule {
            urls,
            current: 0,
            furthest: 0,
            failures: 0,
            progress_at: now,
            without_file: BTreeSet::new(),
        }
    }

    /// Index of the URL to use.
    pub fn current(&self) -> usize {
        self.current
    }

    /// A try has ended with so many bytes of the file.
    pub fn record_received(&mut self, now: Duration, received: u64) {
        if received > self.furthest {
            self.furthest = received;
            self.progress_at = now;
            self.failures = 0;
        }
    }

    /// A connection failed or ended early: the next URL continues.
    pub fn record_failure(&mut self, now: Duration) -> NextTry {
        self.advance();
        if now.saturating_sub(self.progress_at) >= PATIENCE {
            return NextTry::GiveUp;
        }
        let rounds = self.failures / self.urls.max(1);
        self.failures += 1;
        let exponent = u32::try_from(rounds).unwrap_or(u32::MAX).min(16);
        let delay = FIRST_DELAY.saturating_mul(2u32.saturating_pow(exponent)).min(LONGEST_DELAY);
        // The first failure at each URL costs no time if another URL has not been tried.
        let is_first_round = self.failures < self.urls;
        NextTry::After(if is_first_round { Duration::ZERO } else { delay })
    }

    /// The server does not have the file. Waiting does not help if that is true of all.
    pub fn record_without_file(&mut self) -> NextTry {
        self.without_file.insert(self.current);
        self.advance();
        if self.without_file.len() >= self.urls {
            return NextTry::GiveUp;
        }
        NextTry::After(Duration::ZERO)
    }

    fn advance(&mut self) {
        self.current = (self.current + 1) % self.urls.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn every_url_is_tried_at_once_then_delays_double() {
        let mut schedule = RetrySchedule::new(2, seconds(0));
        let delays: Vec<NextTry> = (0..7).map(|_| schedule.record_failure(seconds(1))).collect();
        let expected = [0, 1, 2, 2, 4, 4, 8].map(|count| NextTry::After(seconds(count)));
        assert_eq!(delays, expected);
        assert_eq!(schedule.current(), 1);
        schedule.record_received(seconds(2), 1);
        assert_eq!(schedule.record_failure(seconds(3)), NextTry::After(seconds(0)));
    }

    #[test]
    fn fetch_without_progress_ends_after_five_minutes() {
        let mut schedule = RetrySchedule::new(1, seconds(0));
        assert_eq!(schedule.record_failure(seconds(299)), NextTry::After(seconds(1)));
        assert_eq!(schedule.record_failure(seconds(300)), NextTry::GiveUp);
        schedule.record_received(seconds(300), 2);
        assert_eq!(schedule.record_failure(seconds(301)), NextTry::After(seconds(1)));
        // A file that is fetched anew, and breaks off again.
        schedule.record_received(seconds(500), 2);
        assert_eq!(schedule.record_failure(seconds(600)), NextTry::GiveUp);
    }

    #[test]
    fn fetch_ends_when_no_url_has_the_file() {
        let mut schedule = RetrySchedule::new(2, seconds(0));
        assert_eq!(schedule.record_without_file(), NextTry::After(seconds(0)));
        assert_eq!(schedule.current(), 1);
        assert_eq!(schedule.record_without_file(), NextTry::GiveUp);
    }

    #[test]
    fn url_that_does_not_answer_may_have_the_file() {
        let mut schedule = RetrySchedule::new(2, seconds(0));
        for delay in [0, 1, 1] {
            assert_eq!(schedule.record_without_file(), NextTry::After(seconds(0)));
            let NextTry::After(_) = schedule.record_failure(seconds(delay)) else {
                panic!("the second URL was not heard");
            };
        }
    }
}
