//! Nodes whose checks are too old become degraded, although their link is up.

use crate::{environment::records::phase_event, links::Links};
use meshd_model::fleet::{Actor, ConditionKind, Event, EventKind, Phase, PhaseChange};
use meshd_store::StoreError;
use meshd_types::{NodeId, fail};
use std::time::Duration;

/// Checks are told every five minutes; three of them may be lost.
const STALE: Duration = Duration::from_secs(16 * 60);
/// The first version whose agents tell their checks again when nothing has changed.
const TELLS_AGAIN: u16 = 2;

impl Links {
    /// Takes nodes whose checks are stale out of service, until they are told again.
    pub(crate) async fn watch_evidence(&self) {
        let now = self.env.now();
        if !fail::defends("stale-evidence") {
            return;
        }
        let unchecked = self.unchecked_for(STALE, TELLS_AGAIN);
        let stale: Vec<NodeId> = self.env.store.read(|model| {
            let is_up = |phase| matches!(phase, Phase::Enrolling | Phase::Online);
            let counts = |id: &NodeId| model.node(*id).is_some_and(|node| is_up(node.phase));
            unchecked.into_iter().filter(counts).collect()
        });
        if stale.is_empty() {
            return;
        }
        let recorded = self.env.store.commit(|tx| {
            for id in &stale {
                let detail = format!("its checks were told last more than {} minutes ago", STALE.as_secs() / 60);
                let mut change = None;
                let raised = tx.edit_node(*id, |node| {
                    change = node.change(PhaseChange::ChecksFail).ok().flatten();
                    node.raise(ConditionKind::CheckFailed, detail.clone(), now)
                });
                let session = tx.node(*id).and_then(|node| node.boot);
                if raised == Some(true) {
                    let kind = EventKind::Raised { condition: ConditionKind::CheckFailed };
                    tx.event(Event::new(now, Actor::Central, kind, detail).of_node(*id).in_session(session));
                }
                phase_event(tx, *id, session, change, Actor::Central, now);
            }
            Ok::<_, StoreError>(())
        });
        if let Err(error) = recorded.await {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot record that checks are stale");
        }
    }
}
