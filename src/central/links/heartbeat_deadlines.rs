//! Heartbeat deadlines: a node that falls silent becomes offline.
//!
//! Each node has its own timer in [`DeadlineQueue`], which expires `offline_after` after the last
//! sign of life. Expired timers are processed every [`WATCH_INTERVAL`]. The longest time from the
//! last heartbeat to `offline` is `offline_after` plus [`WATCH_INTERVAL`]: 61 seconds by default
//! (LC-3).

use crate::{
    environment::{alarms::log_failure, records::phase_event},
    links::Links,
};
use meshd_model::fleet::{Actor, DeadlineQueue, Phase, PhaseChange};
use meshd_store::StoreError;
use meshd_types::NodeId;
use std::time::Duration;

/// Interval at which expired timers are processed.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The timers of nodes, with the timeout that they were set with.
#[derive(Default)]
pub(super) struct Timers {
    queue: DeadlineQueue,
    /// `None` before the first run of [`Links::mark_silent_nodes`].
    offline_after: Option<Duration>,
}

/// Phases in which a node must send heartbeats.
fn requires_heartbeat(phase: Phase) -> bool {
    matches!(phase, Phase::Enrolling | Phase::Degraded | Phase::Online | Phase::Draining)
}

impl Links {
    /// Marks nodes as offline that were silent for longer than `offline_after`.
    pub(crate) async fn mark_silent_nodes(&self) {
        let silent = self.silent_nodes();
        for node in &silent {
            tracing::warn!(%node, "offline: no message for longer than [agent].offline_after");
            self.close_link(*node, "no message within [agent].offline_after");
        }
        if silent.is_empty() {
            return;
        }
        let offline_after = self.env.site().agent.offline_after;
        let now = self.env.now();
        let recorded = self.env.store.commit(|tx| {
            // Checked again: a node may have sent a message meanwhile.
            for id in silent.iter().filter(|id| self.silence(**id) > offline_after) {
                let change = tx
                    .edit_node(*id, |node| node.change(PhaseChange::Silent).ok().flatten())
                    .flatten();
                let session = tx.node(*id).and_then(|node| node.boot);
                phase_event(tx, *id, session, change, Actor::Central, now);
            }
            Ok::<_, StoreError>(())
        });
        let recorded = recorded.await;
        if recorded.is_err() {
            // No message will arm these timers: the next run tries again.
            let mut timers = self.deadlines.lock();
            let due = self.env.monotonic();
            silent.iter().for_each(|id| timers.queue.arm(*id, due));
        }
        log_failure(recorded, "cannot record which nodes are silent");
    }

    /// Sets a node's timer, unless one runs.
    pub(crate) fn arm_timer(&self, node: NodeId, last_alive: Duration) {
        let mut timers = self.deadlines.lock();
        // Before the first run, which sets the timers of all nodes, the timeout is unknown.
        if let Some(offline_after) = timers.offline_after {
            timers.queue.arm(node, last_alive + offline_after);
        }
    }

    /// Returns silent nodes with an expired timer. The timer of a node with a later sign of life is
    /// set again.
    fn silent_nodes(&self) -> Vec<NodeId> {
        let now = self.env.monotonic();
        let offline_after = self.env.site().agent.offline_after;
        let due = {
            let mut timers = self.deadlines.lock();
            // At the first run and after a changed timeout, all timers are set again.
            let reset_all = timers.offline_after.replace(offline_after) != Some(offline_after);
            if reset_all { None } else { Some(timers.queue.due(now)) }
        };
        let due = due.unwrap_or_else(|| {
            self.env.store.read(|model| model.nodes().map(|node| node.id).collect())
        });
        let requires_heartbeat_now = |id: &NodeId| {
            self.env
                .store
                .read(|model| model.node(*id).is_some_and(|node| requires_heartbeat(node.phase)))
        };
        let (silent, alive): (Vec<_>, Vec<_>) = due
            .into_iter()
            .filter(requires_heartbeat_now)
            .partition(|id| self.silence(*id) > offline_after);
        let mut timers = self.deadlines.lock();
        for id in alive {
            timers.queue.set(id, now + offline_after.saturating_sub(self.silence(id)));
        }
        silent
    }
}
