//! Time passed: nodes that fell silent are offline, boots without an overlay or that stand still are shown.
//!
//! Worst case from the last heartbeat to `offline`: `offline_after` plus [`WATCH_INTERVAL`] (LC-3).

use super::{Central, lock, script::phase_event, stalls::LOOK_INTERVAL};
use crate::fleet::{Actor, ConditionKind, Event, EventKind, Phase, PhaseChange, Stage};
use crate::id::{NodeId, Timestamp};
use crate::store::StoreError;
use std::time::Duration;

/// Time between two looks.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// A machine that runs Linux has fetched its overlay within this time since its kernel, or boots without one.
const OVERLAY_GRACE: Duration = Duration::from_secs(10 * 60);

impl Central {
    /// One look at all nodes. Call it every [`WATCH_INTERVAL`].
    pub async fn watch(&self) {
        self.watch_silence().await;
        self.record_repeats().await;
        if self.is_due() {
            self.watch_boots().await;
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

    fn silent_nodes(&self) -> Vec<NodeId> {
        let watched = |phase| matches!(phase, Phase::Enrolling | Phase::Degraded | Phase::Online | Phase::Draining);
        let candidates: Vec<NodeId> =
            self.store.read(|model| model.nodes().filter(|node| watched(node.phase)).map(|node| node.id).collect());
        let offline_after = self.site().agent.offline_after;
        candidates.into_iter().filter(|id| self.silence(*id) > offline_after).collect()
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
