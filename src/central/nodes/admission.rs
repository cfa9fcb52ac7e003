//! Approves and releases nodes: they may boot.

use super::{
    NodeOps, OperateError,
    lifecycle::{acknowledge, existing_node},
};
use crate::environment::records::{clear_condition, phase_event};
use meshd_model::fleet::{AuditContext, ConditionKind, Node, Phase, PhaseChange};
use meshd_store::Tx;
use meshd_types::{NodeId, Timestamp, failpoint};

impl NodeOps {
    /// Approves a node; its pending connection receives a certificate at once. Approving again accepts its present hardware and units.
    pub async fn approve(&self, id: NodeId, audit: &AuditContext) -> Result<Node, OperateError> {
        self.approve_at(id, false, audit).await
    }

    /// Approves a node. `moved` clears its relay port, and its next enrolment sets the port.
    pub async fn approve_at(&self, id: NodeId, moved: bool, audit: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        let node = self.env.store.commit(|tx| approve_in(tx, id, moved, audit, now)).await?;
        failpoint::point("order-committed");
        self.enrolment.notify_decision();
        Ok(node)
    }

    /// Allows a quarantined node to boot. Earlier boots no longer count as a boot loop. The node retries in iPXE and continues.
    pub async fn release(&self, id: NodeId, audit: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        self.env.store.commit(|tx| release_in(tx, id, audit, now)).await
    }
}

/// Approves one node, in a transaction. A failure stages nothing.
pub(super) fn approve_in(
    tx: &mut Tx<'_>,
    id: NodeId,
    moved: bool,
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    let mut node = existing_node(tx, id)?;
    if matches!(node.phase, Phase::Discovered | Phase::Rejected) {
        let change = node.change(PhaseChange::Approve)?;
        tx.put_node(node.clone());
        phase_event(tx, id, node.boot, change, audit, now);
    } else if !node.phase.is_admitted() {
        node.change(PhaseChange::Approve)?;
    } else {
        acknowledge(tx, id, moved, audit, now);
        node = tx.node(id).cloned().unwrap_or(node);
    }
    Ok(node)
}

/// Releases one node, in a transaction. A failure stages nothing.
pub(super) fn release_in(
    tx: &mut Tx<'_>,
    id: NodeId,
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    let mut node = existing_node(tx, id)?;
    let change = node.release(now)?;
    tx.put_node(node);
    phase_event(tx, id, None, change, audit, now);
    for over in [ConditionKind::BootLoop, ConditionKind::BootStalled] {
        clear_condition(tx, id, over, audit, now);
    }
    existing_node(tx, id)
}
