//! A reply is sent after its lease is stored. Changes are collected and stored together; a reply
//! without a change is sent at once.

use super::{
    convert,
    driver::Driver,
    running_commit::{PendingReply, RunningCommit},
};
use meshd_dhcp::{Effect, Reply};
use meshd_store::StoreError;
use std::{
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
        let Some(interface) = self.interfaces.get_mut(reply.interface_index) else { return };
        match interface.send(reply) {
            Ok(()) => self.telemetry.count_sent(reply.kind, since),
            Err(error) => {
                self.telemetry.count_unsent();
                self.log.warn("send", || {
                    format!("cannot send a DHCP reply to {:?}: {error}", reply.to)
                });
            }
        }
    }

    /// Begins to store the collected changes, if there are any.
    pub(super) fn commit(&mut self) -> Option<RunningCommit> {
        if self.changes.is_empty() {
            return None;
        }
        self.next_commit = tokio::time::Instant::now() + COMMIT_INTERVAL;
        self.commit_health.begin(Instant::now());
        let changes = std::mem::take(&mut self.changes);
        let waiting = std::mem::take(&mut self.waiting);
        let shared = Arc::clone(&self.shared);
        Some(Box::pin(async move { (shared.boot.apply_dhcp_changes(&changes).await, waiting) }))
    }

    /// Releases the replies of a finished commit.
    pub(super) fn finish_commit(
        &mut self,
        (stored, waiting): (Result<(), StoreError>, Vec<PendingReply>),
    ) {
        self.commit_health.end(&stored, Instant::now());
        if let Err(error) = stored {
            let count = waiting.len();
            let error = &error as &dyn std::error::Error;
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
