//! A reply is sent after its lease is stored. Changes are collected and stored together; a reply
//! without a change is sent at once.

use super::{convert, driver::Driver};
use meshd_dhcp::{Effect, Reply};
use meshd_store::StoreError;
use std::{
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

/// Minimum time between two commits. A commit costs as much for one lease as for a hundred, so
/// changes are collected. A single client is never delayed by it.
const COMMIT_INTERVAL: Duration = Duration::from_millis(8);
/// Replies of one flush are sent in slices, one millisecond apart. A slice contains at least this
/// many replies, and at least 1/`SLICE_PART` of the waiting ones. The receive buffer of a relay
/// (208 KiB) holds about 270 replies.
const SLICE: usize = 12;
const SLICE_PART: usize = 8;
const BETWEEN_SLICES: Duration = Duration::from_millis(1);

/// A running commit, with the replies that wait for it.
pub(super) type Committing =
    Pin<Box<dyn Future<Output = (Result<(), StoreError>, Vec<PendingReply>)> + Send>>;

pub(super) async fn finished(
    committing: &mut Option<Committing>,
) -> (Result<(), StoreError>, Vec<PendingReply>) {
    match committing {
        Some(committing) => committing.await,
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
    fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    fn end(&mut self, outcome: &Result<(), StoreError>, now: Instant) {
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
    reply: Reply,
    since: Instant,
}

impl Driver {
    /// Executes effects in order. Replies after a change wait until the change is stored.
    pub(super) fn perform(&mut self, effects: impl IntoIterator<Item = Effect>, since: Instant) {
        let mut waits = false;
        for effect in effects {
            match effect {
                Effect::Reply(reply) if waits => self.waiting.push(PendingReply { reply, since }),
                Effect::Reply(reply) => self.send(&reply, since),
                Effect::Store(change) => {
                    waits = true;
                    self.changes.push(convert::change(change));
                }
                Effect::Warn(warning) => self.warn(&warning),
            }
        }
    }

    fn send(&mut self, reply: &Reply, since: Instant) {
        let Some(interface) = self.interfaces.get(reply.interface_index) else { return };
        match interface.send(reply) {
            Ok(()) => self.telemetry.sent(reply.kind, since),
            Err(error) => {
                self.telemetry.unsent();
                self.log.warn("send", || {
                    format!("cannot send a DHCP reply to {:?}: {error}", reply.to)
                });
            }
        }
    }

    /// Begins to store the collected changes, if there are any.
    pub(super) fn commit(&mut self) -> Option<Committing> {
        if self.changes.is_empty() {
            return None;
        }
        self.next_commit = tokio::time::Instant::now() + COMMIT_INTERVAL;
        self.commit_health.begin(Instant::now());
        let (changes, waiting) =
            (std::mem::take(&mut self.changes), std::mem::take(&mut self.waiting));
        let shared = Arc::clone(&self.shared);
        Some(Box::pin(async move { (shared.boot.apply_dhcp_changes(&changes).await, waiting) }))
    }

    /// Releases the replies of a finished commit.
    pub(super) fn committed(
        &mut self,
        (stored, waiting): (Result<(), StoreError>, Vec<PendingReply>),
    ) {
        self.commit_health.end(&stored, Instant::now());
        if let Err(error) = stored {
            let (count, error) = (waiting.len(), &error as &dyn std::error::Error);
            tracing::error!(count, error, "cannot store leases: their clients get no DHCP reply");
            return;
        }
        self.ready_replies.extend(waiting);
        self.send_slice();
    }

    /// Sends a slice of the ready replies.
    pub(super) fn send_slice(&mut self) {
        let slice = SLICE.max(self.ready_replies.len() / SLICE_PART).min(self.ready_replies.len());
        let replies: Vec<PendingReply> = self.ready_replies.drain(..slice).collect();
        for PendingReply { reply, since } in replies {
            self.send(&reply, since);
        }
        self.next_slice = tokio::time::Instant::now() + BETWEEN_SLICES;
    }
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
