//! Nodes whose checks are too old become degraded, although their link is up.

use crate::{
    environment::{
        alarms::log_failure,
        records::{phase_event, raise_if_new},
    },
    links::Links,
};
use meshd_model::fleet::{Actor, Condition, ConditionKind, Phase, PhaseChange};
use meshd_store::StoreError;
use meshd_types::{NodeId, failpoint};
use std::time::Duration;

/// Agents report checks every five minutes; three reports may be lost.
const MAX_CHECK_AGE: Duration = Duration::from_secs(16 * 60);

impl Links {
    /// Degrades nodes whose checks are stale, until they report again.
    pub(crate) async fn degrade_stale_nodes(&self) {
        let now = self.env.now();
        if !failpoint::defends("stale-evidence") {
            return;
        }
        let unchecked = self.unchecked_for(MAX_CHECK_AGE);
        let stale: Vec<NodeId> = self.env.store.read(|model| {
            let is_up = |phase| matches!(phase, Phase::Enrolling | Phase::Online);
            let is_eligible = |id: &NodeId| model.node(*id).is_some_and(|node| is_up(node.phase));
            unchecked.into_iter().filter(is_eligible).collect()
        });
        if stale.is_empty() {
            return;
        }
        let recorded = self.env.store.commit(|tx| {
            for id in &stale {
                let detail = format!(
                    "its last checks are more than {} minutes old",
                    MAX_CHECK_AGE.as_secs() / 60
                );
                let change = tx
                    .edit_node(*id, |node| node.change(PhaseChange::ChecksFail).ok().flatten())
                    .flatten();
                let session = tx.node(*id).and_then(|node| node.boot);
                raise_if_new(
                    tx,
                    *id,
                    session,
                    Condition { kind: ConditionKind::CheckFailed, since: now, detail },
                    Actor::Central,
                );
                phase_event(tx, *id, session, change, Actor::Central, now);
            }
            Ok::<_, StoreError>(())
        });
        log_failure(recorded.await, "cannot record that checks are stale");
    }
}
