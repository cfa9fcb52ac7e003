//! Fences a node: an operator confirms that its machine is off, so that its VMs may start elsewhere.

use super::{NodeOps, OperateError, lifecycle::existing_node};
use crate::{
    enrolment::revoke::revoke_credentials, environment::records::phase_event, links::LinkError, tasks::mark_node_lost,
    vms::release_vms,
};
use meshd_model::fleet::{AuditContext, Event, EventKind, Node, PhaseChange};
use meshd_types::{NodeId, failpoint};

impl NodeOps {
    /// Refuses to fence a node with a sign of life within `offline_after`: a broken link does not prove that the machine is off.
    fn check_silence(&self, id: NodeId) -> Result<(), OperateError> {
        let (silence, needed) = (self.links.silence(id), self.env.site().agent.offline_after);
        if silence > needed || !failpoint::defends("fence-silence") {
            return Ok(());
        }
        let wait = needed.saturating_sub(silence).as_secs() + 1;
        Err(OperateError::NotSilent { node: id, seconds: silence.as_secs(), wait })
    }

    /// Revokes the credentials of a node, releases its VMs, and places the movable ones on other nodes.
    pub async fn fence(&self, id: NodeId, audit: &AuditContext) -> Result<Node, OperateError> {
        let (now, why) = (self.env.now(), "an operator fenced this node");
        let last_link = self.links.link_number(id);
        if self.links.probe(id).await {
            return Err(LinkError::StillLinked { node: id }.into());
        }
        self.check_silence(id)?;
        let stored = self.env.store.commit(|tx| {
            self.links.check_no_newer_link(id, last_link)?;
            let node = existing_node(tx, id)?;
            revoke_credentials(tx, id, &self.links.link_state(id), audit, why, now);
            // In any phase, no work is placed there until it links again.
            let change = tx.edit_node(id, |node| node.change(PhaseChange::Silent).ok().flatten()).flatten();
            phase_event(tx, id, node.boot, change, audit, now);
            tx.event(Event::new(now, audit, EventKind::NodeFenced, why).of_node(id));
            release_vms(tx, id, audit, "its node was fenced", now);
            mark_node_lost(tx, id, why, now);
            Ok::<_, OperateError>(node)
        });
        let node = stored.await?;
        self.enrolment.disconnect(id, why);
        // The other nodes of its task become free before VMs are placed.
        self.tasks.repeat_orders();
        self.workloads.place_waiting().await;
        Ok(self.env.store.read(|model| model.node(id).cloned()).unwrap_or(node))
    }
}
