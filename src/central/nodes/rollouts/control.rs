//! Pause, resume, abort and undo of a rollout.

use super::{RolloutError, Rollouts};
use meshd_model::{
    fleet::{AuditContext, Event, EventKind},
    rollouts::{NodeSettings, NodeStage, Rollout, RolloutNode, RolloutState},
};
use meshd_types::{NodeId, RolloutId};
use std::collections::BTreeMap;

impl Rollouts {
    /// Lets no further node begin; nodes in progress are finished.
    pub async fn pause(
        &self,
        id: RolloutId,
        audit: &AuditContext,
    ) -> Result<Rollout, RolloutError> {
        self.change(id, &[RolloutState::Running], RolloutState::Paused, audit).await
    }

    /// Continues a paused rollout.
    pub async fn resume(
        &self,
        id: RolloutId,
        audit: &AuditContext,
    ) -> Result<Rollout, RolloutError> {
        self.change(id, &[RolloutState::Paused], RolloutState::Running, audit).await
    }

    /// Ends a rollout; nodes in progress are finished, others stay as they are.
    pub async fn abort(
        &self,
        id: RolloutId,
        audit: &AuditContext,
    ) -> Result<Rollout, RolloutError> {
        let open = [RolloutState::Running, RolloutState::Paused];
        self.change(id, &open, RolloutState::Aborting, audit).await
    }

    async fn change(
        &self,
        id: RolloutId,
        from: &[RolloutState],
        to: RolloutState,
        audit: &AuditContext,
    ) -> Result<Rollout, RolloutError> {
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let mut head = tx.rollout(id).cloned().ok_or(RolloutError::Unknown(id))?;
            if !from.contains(&head.state) {
                return Err(RolloutError::State { id, state: head.state });
            }
            head.state = to;
            head.frozen = false;
            head.reason = None;
            if let Some(reason) = audit.reason.as_ref().filter(|_| to != RolloutState::Running) {
                head.set_reason(reason);
            }
            let detail = format!("rollout {id}: {}", to.as_str());
            tx.event(Event::new(now, audit, EventKind::Rollout, detail));
            tx.put_rollout(head.clone());
            Ok(head)
        });
        stored.await
    }

    /// Starts a rollout that returns the nodes of a finished one to what they ran before.
    pub async fn undo(
        &self,
        id: RolloutId,
        all_at_once: Option<u32>,
        audit: &AuditContext,
    ) -> Result<Rollout, RolloutError> {
        let (undone, _) = self.rollout(id)?;
        if !undone.state.is_final() {
            return Err(RolloutError::State { id, state: undone.state });
        }
        let previous: BTreeMap<NodeId, NodeSettings> = self.env.store.read(|model| {
            let is_changed = |record: &&RolloutNode| {
                matches!(record.stage, NodeStage::Done | NodeStage::Failed)
                    && model.node(record.node).is_some()
            };
            let records = model.rollout_nodes(id).values().filter(is_changed);
            records.filter_map(|record| Some((record.node, record.before.clone()?))).collect()
        });
        if previous.is_empty() {
            return Err(RolloutError::NothingToUndo(id));
        }
        let planned = self.plan_return(&undone, previous, audit).await?;
        self.start_planned(planned, all_at_once, audit).await
    }
}
