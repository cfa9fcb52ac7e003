//! Which server is asked next, and when a read fails. Pure.
//!
//! The server that answered last is asked first, unless it was slow. A server that sent wrong bytes is not asked for
//! them again. A read waits while no server answers: a root that fails a read ends programs.

use std::time::Duration;

/// First delay after every server has failed once; it doubles up to [`LONGEST_DELAY`].
const FIRST_DELAY: Duration = Duration::from_millis(250);
pub const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// Time without an answer after which a boot fails, as of a root in memory.
pub const BOOT_PATIENCE: Duration = Duration::from_secs(300);
/// Time without an answer after which a read of a running node fails.
pub const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// The servers of a root.
#[derive(Debug)]
pub struct Failover {
    servers: usize,
    /// The server that answered last.
    current: usize,
}

/// One read, until a server has answered it.
#[derive(Debug)]
pub struct ReadAttempt {
    begin: Duration,
    patience: Duration,
    failures: u32,
    /// Servers that sent wrong bytes, by position.
    wrong: Vec<bool>,
}

/// The next step after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextServer {
    /// Ask the current server after a delay.
    After(Duration),
    /// Every server sent wrong bytes.
    AllWrong,
    /// No server answered for too long.
    GaveUp,
}

impl Failover {
    /// Creates the state for a number of servers, at least 1.
    pub fn new(servers: usize) -> Self {
        Failover { servers: servers.max(1), current: 0 }
    }

    /// Position of the server to ask.
    pub fn current(&self) -> usize {
        self.current
    }

    /// Begins a read.
    pub fn begin(&self, now: Duration, patience: Duration) -> ReadAttempt {
        ReadAttempt { begin: now, patience, failures: 0, wrong: vec![false; self.servers] }
    }

    /// The current server did not answer.
    pub fn record_failure(&mut self, read: &mut ReadAttempt, now: Duration) -> NextServer {
        self.advance(read);
        if now.saturating_sub(read.begin) >= read.patience {
            return NextServer::GaveUp;
        }
        let right = read.wrong.iter().filter(|is_wrong| !**is_wrong).count().max(1);
        let round = read.failures / u32::try_from(right).unwrap_or(u32::MAX);
        read.failures = read.failures.saturating_add(1);
        // The first failure of each server costs no time if another has not been asked.
        if (read.failures as usize) < right {
            return NextServer::After(Duration::ZERO);
        }
        let factor = 2u32.saturating_pow(round.min(16));
        NextServer::After(FIRST_DELAY.saturating_mul(factor).min(LONGEST_DELAY))
    }

    /// The current server answered late: the next read asks another one first.
    pub fn leave_slow_server(&mut self) {
        self.current = (self.current + 1) % self.servers;
    }

    /// The current server sent wrong bytes.
    pub fn record_wrong(&mut self, read: &mut ReadAttempt) -> NextServer {
        read.wrong[self.current] = true;
        self.advance(read);
        if read.wrong.iter().all(|is_wrong| *is_wrong) {
            return NextServer::AllWrong;
        }
        NextServer::After(Duration::ZERO)
    }

    /// Goes to the next server that has not sent wrong bytes.
    fn advance(&mut self, read: &ReadAttempt) {
        let others = (1..=self.servers).map(|step| (self.current + step) % self.servers);
        let mut right = others.filter(|server| !read.wrong[*server]);
        self.current = right.next().unwrap_or((self.current + 1) % self.servers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ZERO: Duration = Duration::ZERO;

    fn after(millis: u64) -> NextServer {
        NextServer::After(Duration::from_millis(millis))
    }

    #[test]
    fn every_server_is_asked_at_once_then_delays_double() {
        let mut failover = Failover::new(2);
        let mut read = failover.begin(ZERO, PATIENCE);
        let delays: Vec<NextServer> =
            (0..6).map(|_| failover.record_failure(&mut read, ZERO)).collect();
        assert_eq!(delays, [0, 250, 500, 500, 1000, 1000].map(after));
        assert_eq!(failover.current(), 0);
        for _ in 0..20 {
            failover.record_failure(&mut read, ZERO);
        }
        assert_eq!(failover.record_failure(&mut read, ZERO), after(5000));
    }

    #[test]
    fn server_that_answered_is_asked_by_the_next_read() {
        let mut failover = Failover::new(3);
        let mut read = failover.begin(ZERO, PATIENCE);
        failover.record_failure(&mut read, ZERO);
        assert_eq!(failover.current(), 1);
        let mut next = failover.begin(ZERO, PATIENCE);
        assert_eq!(failover.record_failure(&mut next, ZERO), after(0));
        assert_eq!(failover.current(), 2);
    }

    #[test]
    fn read_fails_after_its_patience_and_not_before() {
        let mut failover = Failover::new(1);
        let mut read = failover.begin(ZERO, PATIENCE);
        let before = PATIENCE - Duration::from_secs(1);
        assert!(matches!(failover.record_failure(&mut read, before), NextServer::After(_)));
        assert_eq!(failover.record_failure(&mut read, PATIENCE), NextServer::GaveUp);
    }

    #[test]
    fn server_with_wrong_bytes_is_asked_once_and_a_lost_one_is_waited_for() {
        let mut failover = Failover::new(2);
        let mut read = failover.begin(ZERO, PATIENCE);
        assert_eq!(failover.record_wrong(&mut read), after(0));
        for _ in 0..5 {
            assert_eq!(failover.current(), 1);
            assert!(matches!(failover.record_failure(&mut read, ZERO), NextServer::After(_)));
        }
        assert_eq!(failover.record_wrong(&mut read), NextServer::AllWrong);
    }

    proptest! {
        #[test]
        fn read_of_any_failures_ends_or_asks_a_server_that_may_be_right(
            servers in 1usize..5, steps in proptest::collection::vec(any::<bool>(), 0..40)
        ) {
            let mut failover = Failover::new(servers);
            let mut read = failover.begin(ZERO, PATIENCE);
            for is_wrong in steps {
                let next = if is_wrong {
                    failover.record_wrong(&mut read)
                } else {
                    failover.record_failure(&mut read, ZERO)
                };
                if next == NextServer::AllWrong {
                    break;
                }
                prop_assert!(failover.current() < servers && !read.wrong[failover.current()]);
            }
        }
    }
}
