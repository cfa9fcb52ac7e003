//! Fences a node: an operator confirms that its machine is off, so that its VMs and containers may
//! start elsewhere.

use super::{NodeOps, OperateError, lifecycle::existing_node};
use crate::{
    containers::release_replicas,
    enrolment::revoke::revoke_credentials,
    environment::records::phase_event,
    links::{LinkError, Links},
    tasks::mark_node_lost,
    vms::release_vms,
};
use meshd_model::fleet::{AuditContext, Event, EventKind, Node, PhaseChange};
use meshd_store::Tx;
use meshd_types::{NodeId, Timestamp, failpoint};

/// Reason for closing the link of a fenced node.
pub(super) const FENCED: &str = "an operator fenced this node";

impl NodeOps {
    /// Refuses to fence a node with a sign of life within `offline_after`: a broken link does not
    /// prove that the machine is off.
    fn check_silence(&self, id: NodeId) -> Result<(), OperateError> {
        let silence = self.links.silence(id);
        let needed = self.env.site().agent.offline_after;
        if silence > needed || !failpoint::defends("fence-silence") {
            return Ok(());
        }
        let wait = needed.saturating_sub(silence).as_secs() + 1;
        Err(OperateError::NotSilent { node: id, seconds: silence.as_secs(), wait })
    }

    /// Refuses to fence a node that answers. Returns the number of its last link.
    pub(super) async fn prepare_fence(&self, id: NodeId) -> Result<Option<u64>, OperateError> {
        let last_link = self.links.link_number(id);
        if self.links.probe(id).await {
            return Err(LinkError::StillLinked { node: id }.into());
        }
        // A machine without power needs no silence to be off.
        if let Err(refusal) = self.check_silence(id)
            && !self.is_reported_off(id).await
        {
            return Err(refusal);
        }
        Ok(last_link)
    }
}

/// Revokes the credentials of a node, and releases its VMs, in a transaction.
pub(super) fn fence_in(
    tx: &mut Tx<'_>,
    id: NodeId,
    links: &Links,
    last_link: Option<u64>,
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    links.check_no_newer_link(id, last_link)?;
    let node = existing_node(tx, id)?;
    revoke_credentials(tx, id, &links.link_state(id), audit, FENCED, now);
    // In any phase, no work is placed there until it links again.
    let change = tx.edit_node(id, |node| node.change(PhaseChange::Silent).ok().flatten()).flatten();
    phase_event(tx, id, node.boot, change, audit, now);
    tx.event(Event::new(now, audit, EventKind::NodeFenced, FENCED).of_node(id));
    release_vms(tx, id, audit, "its node was fenced", now);
    release_replicas(tx, id, audit, "its node was fenced", now);
    mark_node_lost(tx, id, FENCED, now);
    existing_node(tx, id)
}
