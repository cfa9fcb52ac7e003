//! A commit of leases: the replies that wait for it, and whether it hangs or has failed.

use meshd_dhcp::Reply;
use meshd_store::StoreError;
use std::{
    future::{Future, pending},
    pin::Pin,
    time::{Duration, Instant},
};

/// A running commit, with the replies that wait for it.
pub(super) type RunningCommit =
    Pin<Box<dyn Future<Output = (Result<(), StoreError>, Vec<PendingReply>)> + Send>>;

pub(super) async fn wait_for_commit(
    running_commit: &mut Option<RunningCommit>,
) -> (Result<(), StoreError>, Vec<PendingReply>) {
    match running_commit {
        Some(running_commit) => running_commit.await,
        None => pending().await,
    }
}

/// Duration of a commit after which DHCP counts as hung, and time for which a failed commit is
/// reported.
const SLOW_COMMIT: Duration = Duration::from_secs(10);
const FAILURE_REPORTED: Duration = Duration::from_secs(60);

/// Whether replies leave: a client gets none while its change is not stored.
#[derive(Default)]
pub(super) struct CommitHealth {
    begun: Option<Instant>,
    failed: Option<(Instant, String)>,
}

impl CommitHealth {
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    pub(super) fn end(&mut self, outcome: &Result<(), StoreError>, now: Instant) {
        self.begun = None;
        self.failed = outcome.as_ref().err().map(|error| (now, error.to_string()));
    }

    /// Returns why clients get no reply.
    pub(super) fn fault(&self, now: Instant) -> Option<String> {
        let age =
            self.begun.map(|begun| now.duration_since(begun)).filter(|age| *age >= SLOW_COMMIT);
        let slow = age.map(|age| {
            format!("leases are not stored: the disk has not answered for {} s", age.as_secs())
        });
        let failed =
            self.failed.as_ref().filter(|(at, _)| now.duration_since(*at) < FAILURE_REPORTED);
        slow.or_else(|| Some(format!("leases cannot be stored: {}", failed?.1)))
    }
}

/// A reply that waits for a commit, and the arrival time of its request.
pub(super) struct PendingReply {
    pub(super) reply: Reply,
    pub(super) since: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_that_hangs_or_fails_is_a_fault_until_one_succeeds() {
        let mut health = CommitHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        health.begin(start);
        assert_eq!(health.fault(at(9)), None);
        assert!(health.fault(at(10)).is_some_and(|fault| fault.contains("not answered for 10 s")));
        health.end(&Err(StoreError::Write(std::io::ErrorKind::StorageFull.into())), at(11));
        assert!(
            health
                .fault(at(12))
                .is_some_and(|fault| fault.starts_with("leases cannot be stored: "))
        );
        assert_eq!(health.fault(at(80)), None, "no client has asked since");
        health.end(&Err(StoreError::Write(std::io::ErrorKind::StorageFull.into())), at(81));
        health.begin(at(82));
        assert!(health.fault(at(83)).is_some());
        health.end(&Ok(()), at(84));
        assert_eq!(health.fault(at(85)), None);
    }
}
