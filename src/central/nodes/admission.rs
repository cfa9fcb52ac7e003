//! Approves and releases nodes: they may boot.

use super::{
    OperateError,
    lifecycle::{acknowledge, existing_node},
};
use crate::environment::records::{clear_condition, phase_event};
use meshd_model::fleet::{AuditContext, ConditionKind, Node, Phase, PhaseChange};
use meshd_store::Tx;
use meshd_types::{NodeId, Timestamp};

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
