//! Heartbeat deadlines: a node that falls silent becomes offline.
//!
//! Each node has its own timer ([`DeadlineQueue`]): due `offline_after` after it was last heard. They are looked at every [`WATCH_INTERVAL`], so
//! the worst case from the last heartbeat to `offline` is `offline_after` plus [`WATCH_INTERVAL`], 61 seconds by default; a node that
//! dies right after a heartbeat is found then, one that dies right before the next one is found a heartbeat earlier (LC-3).

use crate::{environment::records::phase_event, links::Links};
use meshd_model::fleet::{Actor, DeadlineQueue, Phase, PhaseChange};
use meshd_store::StoreError;
use meshd_types::NodeId;
use std::time::Duration;

/// Time between two looks.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The timers of nodes, and what they were set by.
#[derive(Default)]
pub(super) struct Timers {
    queue: DeadlineQueue,
    /// `None` until the first look of this process.
    offline_after: Option<Duration>,
}

/// Phases in which a node has to be heard of.
fn is_heard_of(phase: Phase) -> bool {
    matches!(phase, Phase::Enrolling | Phase::Degraded | Phase::Online | Phase::Draining)
}

impl Links {
    /// Nodes that were silent for longer than `offline_after` become offline.
    pub(crate) async fn watch_silence(&self) {
        let now = self.env.now();
        let silent = self.silent_nodes();
        for node in &silent {
            tracing::warn!(%node, "offline: nothing heard for longer than [agent].offline_after");
            self.close_link(*node, "nothing was heard");
        }
        if silent.is_empty() {
            return;
        }
        let offline_after = self.env.site().agent.offline_after;
        let recorded = self.env.store.commit(|tx| {
            // A node that was heard of since the look is not silent.
            for id in silent.iter().filter(|id| self.silence(**id) > offline_after) {
                let change = tx.edit_node(*id, |node| node.change(PhaseChange::Silent).ok().flatten()).flatten();
                let session = tx.node(*id).and_then(|node| node.boot);
                phase_event(tx, *id, session, change, Actor::Central, now);
            }
            Ok::<_, StoreError>(())
        });
        if let Err(error) = recorded.await {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot record which nodes are silent");
        }
    }

    /// Sets a node's timer, unless one runs.
    pub(crate) fn watch_over(&self, node: NodeId, heard: Duration) {
        let mut timers = self.deadlines.lock();
        // Before the first look it is not known from when on; that look sets the timers of all.
        if let Some(offline_after) = timers.offline_after {
            timers.queue.arm(node, heard + offline_after);
        }
    }

    /// Nodes whose time is over. A timer that is due for one that was heard of meanwhile is set again.
    fn silent_nodes(&self) -> Vec<NodeId> {
        let (now, offline_after) = (self.env.monotonic(), self.env.site().agent.offline_after);
        let due = {
            let mut timers = self.deadlines.lock();
            // The first look of this process, or a reload: every timer is another one.
            let anew = timers.offline_after.replace(offline_after) != Some(offline_after);
            if anew { None } else { Some(timers.queue.due(now)) }
        };
        let due = due.unwrap_or_else(|| self.env.store.read(|model| model.nodes().map(|node| node.id).collect()));
        let heard_of =
            |id: &NodeId| self.env.store.read(|model| model.node(*id).is_some_and(|node| is_heard_of(node.phase)));
        let (silent, heard): (Vec<_>, Vec<_>) =
            due.into_iter().filter(heard_of).partition(|id| self.silence(*id) > offline_after);
        let mut timers = self.deadlines.lock();
        for id in heard {
            timers.queue.set(id, now + offline_after.saturating_sub(self.silence(id)));
        }
        silent
    }
}
