//! Resolves the name of a node; approves, releases and reboots nodes.

use super::OperateError;
use crate::{
    environment::records::{clear_condition, phase_event},
    links::LinkError,
    nodes::{
        NodeOps,
        lifecycle::{acknowledge, existing_node},
    },
    vms::check_no_running_work,
};
use meshd_model::fleet::{AuditContext, ConditionKind, NamedNode, Node, Phase, PhaseChange, find_node};
use meshd_proto::{ActionOutcome, NodeAction};
use meshd_store::Tx;
use meshd_types::{NodeId, Timestamp};

impl NodeOps {
    /// Finds a node by its ID, else by its name, else by a prefix of one of them.
    pub fn resolve(&self, name: &str) -> Result<NodeId, OperateError> {
        self.env.store.read(|model| {
            if let Some(node) = name.parse().ok().and_then(|id| model.node(id)) {
                return Ok(node.id);
            }
            let present = |node: &'_ Node| node.phase != Phase::Removed;
            let nodes = model.nodes().map(|node| (node.id, node.name.as_str(), present(node)));
            match find_node(name, nodes) {
                NamedNode::One(id) => Ok(id),
                NamedNode::None => Err(OperateError::NoNode { name: name.to_owned() }),
                NamedNode::Several(candidates, count) => {
                    Err(OperateError::Ambiguous { name: name.to_owned(), count, candidates: candidates.join(", ") })
                }
            }
        })
    }

    /// Approves a node; its pending connection receives a certificate at once. Approving again accepts its present hardware and units.
    pub async fn approve(&self, id: NodeId, audit: &AuditContext) -> Result<Node, OperateError> {
        self.approve_at(id, false, audit).await
    }

    /// Approves a node. `moved` clears its relay port, and its next enrolment sets the port.
    pub async fn approve_at(&self, id: NodeId, moved: bool, audit: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        let node = self.env.store.commit(|tx| approve_in(tx, id, moved, audit, now)).await?;
        meshd_types::fail::point("order-committed");
        self.enrolment.notify_decision();
        Ok(node)
    }

    /// Allows a quarantined node to boot. Earlier boots no longer count as a boot loop. The node retries in iPXE and continues.
    pub async fn release(&self, id: NodeId, audit: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        self.env.store.commit(|tx| release_in(tx, id, audit, now)).await
    }

    /// Reboots a node over its link. Returns when the node has confirmed it.
    pub async fn reboot(&self, id: NodeId, audit: &AuditContext) -> Result<(), OperateError> {
        self.env.store.read(|model| check_no_running_work(model, id, audit))?;
        if self.links.link_state(id).since.is_none() {
            return Err(LinkError::NotLinked { node: id }.into());
        }
        let no_answer = LinkError::NoAnswer { node: id, seconds: NodeAction::Reboot.window().as_secs() };
        match self.links.run_action(id, NodeAction::Reboot, audit).await?.ok_or(no_answer)? {
            ActionOutcome::Done => self.reboot_ordered(id).await,
            ActionOutcome::Refused { reason } | ActionOutcome::Failed { reason } => {
                Err(OperateError::TaskFailed { node: id, reason })
            }
        }
    }

    /// Marks the present boot as ended by an order, so that it does not count as failed.
    async fn reboot_ordered(&self, id: NodeId) -> Result<(), OperateError> {
        self.env
            .store
            .commit(|tx| {
                if let Some(session) = tx.node(id).and_then(|node| node.boot) {
                    tx.edit_session(session, |session| session.reboot_ordered = true);
                }
                Ok(())
            })
            .await
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
