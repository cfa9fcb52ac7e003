//! Time passed: nodes that fell silent are offline, boots without an overlay or that stand still are shown.
//!
//! Each node has its own timer ([`DeadlineQueue`]): due `offline_after` after it was last heard. They are looked at every [`WATCH_INTERVAL`], so
//! the worst case from the last heartbeat to `offline` is `offline_after` plus [`WATCH_INTERVAL`], 61 seconds by default; a node that
//! dies right after a heartbeat is found then, one that dies right before the next one is found a heartbeat earlier (LC-3).

use super::{Central, boot_stalls::LOOK_INTERVAL, lock, script::phase_event};
use meshd_model::fleet::{Actor, ConditionKind, DeadlineQueue, Event, EventKind, Phase, PhaseChange, Stage};
use meshd_store::StoreError;
use meshd_types::{NodeId, Timestamp};
use std::time::Duration;

/// Time between two looks.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// A machine that runs Linux has fetched its overlay within this time since its kernel, or boots without one.
const OVERLAY_GRACE: Duration = Duration::from_secs(10 * 60);

/// The timers of nodes, and what they were set by.
#[derive(Default)]
pub(super) struct Watched {
    vigil: DeadlineQueue,
    /// `None` until the first look of this process.
    offline_after: Option<Duration>,
}

/// Phases in which a node has to be heard of.
fn is_heard_of(phase: Phase) -> bool {
    matches!(phase, Phase::Enrolling | Phase::Degraded | Phase::Online | Phase::Draining)
}

impl Central {
    /// One look at all nodes. Call it every [`WATCH_INTERVAL`].
    pub async fn watch(&self) {
        self.watch_silence().await;
        self.record_repeats().await;
        self.watch_jobs().await;
        if self.is_due() {
            self.remind_of_jobs();
            self.watch_boots().await;
            self.watch_evidence().await;
            self.place_waiting().await;
            self.forget_promises(self.now());
            self.watch_authority().await;
        }
    }

    /// True once in every [`LOOK_INTERVAL`].
    fn is_due(&self) -> bool {
        let now = self.clock.monotonic();
        let mut looked = lock(&self.looked);
        let due = looked.is_none_or(|last| now.saturating_sub(last) >= LOOK_INTERVAL);
        if due {
            *looked = Some(now);
        }
        due
    }

    async fn watch_silence(&self) {
        let now = self.now();
        let silent = self.silent_nodes();
        for node in &silent {
            tracing::warn!(%node, "offline: nothing heard for longer than [agent].offline_after");
            self.close_link(*node, "nothing was heard");
        }
        let bare = self.without_overlay(now);
        if silent.is_empty() && bare.is_empty() {
            return;
        }
        let offline_after = self.site().agent.offline_after;
        let recorded = self.store.commit(|tx| {
            // A node that was heard of since the look is not silent.
            for id in silent.iter().filter(|id| self.silence(**id) > offline_after) {
                let change = tx.edit_node(*id, |node| node.change(PhaseChange::Silent).ok().flatten()).flatten();
                let session = tx.node(*id).and_then(|node| node.boot);
                phase_event(tx, *id, session, change, Actor::Central, now);
            }
            for id in &bare {
                let detail = "Linux runs, and its overlay was not fetched";
                let raised = tx.edit_node(*id, |node| node.raise(ConditionKind::OverlayMissing, detail, now));
                if raised == Some(true) {
                    let kind = EventKind::Raised { condition: ConditionKind::OverlayMissing };
                    tx.event(Event::new(now, Actor::Central, kind, detail).of_node(*id));
                }
            }
            Ok::<_, StoreError>(())
        });
        if let Err(error) = recorded.await {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot record what the watch saw");
        }
    }

    /// Sets a node's timer, unless one runs.
    pub(super) fn watch_over(&self, node: NodeId, heard: Duration) {
        let mut watched = lock(&self.vigil);
        // Before the first look it is not known from when on; that look sets the timers of all.
        if let Some(offline_after) = watched.offline_after {
            watched.vigil.arm(node, heard + offline_after);
        }
    }

    /// Nodes whose time is over. A timer that is due for one that was heard of meanwhile is set again.
    fn silent_nodes(&self) -> Vec<NodeId> {
        let (now, offline_after) = (self.clock.monotonic(), self.site().agent.offline_after);
        let due = {
            let mut watched = lock(&self.vigil);
            // The first look of this process, or a reload: every timer is another one.
            let anew = watched.offline_after.replace(offline_after) != Some(offline_after);
            if anew { None } else { Some(watched.vigil.due(now)) }
        };
        let due = due.unwrap_or_else(|| self.store.read(|model| model.nodes().map(|node| node.id).collect()));
        let heard_of =
            |id: &NodeId| self.store.read(|model| model.node(*id).is_some_and(|node| is_heard_of(node.phase)));
        let (silent, heard): (Vec<_>, Vec<_>) =
            due.into_iter().filter(heard_of).partition(|id| self.silence(*id) > offline_after);
        let mut watched = lock(&self.vigil);
        for id in heard {
            watched.vigil.set(id, now + offline_after.saturating_sub(self.silence(id)));
        }
        silent
    }

    fn without_overlay(&self, now: Timestamp) -> Vec<NodeId> {
        self.store.read(|model| {
            let bare = model.nodes().filter(|node| {
                let Some(session) = node.boot.and_then(|id| model.session(id)) else { return false };
                // One that does not come so far stands still: that is another condition.
                let runs = [Stage::OsDhcp, Stage::Modloop].into_iter().any(|stage| session.reached(stage).is_some());
                let kernel = session.reached(Stage::Kernel);
                runs && kernel.is_some_and(|at| now.since(at) > OVERLAY_GRACE)
                    && session.reached(Stage::Overlay).is_none()
                    && !node.conditions.iter().any(|condition| condition.kind == ConditionKind::OverlayMissing)
            });
            bare.map(|node| node.id).collect()
        })
    }
}
