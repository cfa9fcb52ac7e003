//! Resolves the name of a node; approves, releases and reboots nodes.

use super::OperateError;
use crate::{
    environment::records::{clear, phase_event},
    links::LinkError,
    nodes::{
        NodeOps,
        lifecycle::{acknowledge, known},
    },
    workloads::spare,
};
use meshd_model::fleet::{AuditContext, ConditionKind, NamedNode, Node, Phase, PhaseChange, find_node};
use meshd_proto::{ActionOutcome, NodeAction};
use meshd_store::Tx;
use meshd_types::{NodeId, Timestamp};

impl NodeOps {
    /// The node that an operator means: by ID, else by name, else by the beginning of one of them.
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

    /// Lets a node in. If it waits on a pending connection it goes on at once. Approving again takes
    /// its units and other parts as they are now.
    pub async fn approve(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        self.approve_at(id, false, by).await
    }

    /// The same; a node that was `moved` may be plugged in anywhere, and its next enrolment says where it is.
    pub async fn approve_at(&self, id: NodeId, moved: bool, by: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        let node = self.env.store.commit(|tx| approved(tx, id, moved, by, now)).await?;
        meshd_types::fail::point("order-committed");
        self.enrolment.decided();
        Ok(node)
    }

    /// Lets a quarantined node boot again; what it did before counts for no loop any more. It is asking all the while, and
    /// goes on by itself.
    pub async fn release(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        self.env.store.commit(|tx| released(tx, id, by, now)).await
    }

    /// Reboots a node over its link. Returns when the node has confirmed it.
    pub async fn reboot(&self, id: NodeId, by: &AuditContext) -> Result<(), OperateError> {
        self.env.store.read(|model| spare(model, id, by))?;
        if self.links.link_state(id).since.is_none() {
            return Err(LinkError::NotLinked { node: id }.into());
        }
        let no_answer = LinkError::NoAnswer { node: id, seconds: NodeAction::Reboot.window().as_secs() };
        match self.links.run_action(id, NodeAction::Reboot, by).await?.ok_or(no_answer)? {
            ActionOutcome::Done => self.reboot_ordered(id).await,
            ActionOutcome::Refused { reason } | ActionOutcome::Failed { reason } => {
                Err(OperateError::TaskFailed { node: id, reason })
            }
        }
    }

    /// The boot that ends now ends by an operator's word: that is no failure of it.
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

/// Admits one node, in a transaction. A failure stages nothing.
pub(super) fn approved(
    tx: &mut Tx<'_>,
    id: NodeId,
    moved: bool,
    by: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    let mut node = known(tx, id)?;
    if matches!(node.phase, Phase::Discovered | Phase::Rejected) {
        let change = node.change(PhaseChange::Approve)?;
        tx.put_node(node.clone());
        phase_event(tx, id, node.boot, change, by, now);
    } else if !node.phase.is_admitted() {
        node.change(PhaseChange::Approve)?;
    } else {
        acknowledge(tx, id, moved, by, now);
        node = tx.node(id).cloned().unwrap_or(node);
    }
    Ok(node)
}

/// Releases one node, in a transaction. A failure stages nothing.
pub(super) fn released(tx: &mut Tx<'_>, id: NodeId, by: &AuditContext, now: Timestamp) -> Result<Node, OperateError> {
    let mut node = known(tx, id)?;
    let change = node.release(now)?;
    tx.put_node(node);
    phase_event(tx, id, None, change, by, now);
    for over in [ConditionKind::BootLoop, ConditionKind::BootStalled] {
        clear(tx, id, over, by, now);
    }
    known(tx, id)
}
