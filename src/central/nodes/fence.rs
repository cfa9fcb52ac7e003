//! Fences a node: an operator says that its machine runs no more. Its virtual machines may start elsewhere then.

use super::{NodeOps, OperateError};
use crate::{
    enrolment::revoke::disown, environment::records::phase_event, links::LinkError, tasks::lose_node, workloads::free,
};
use meshd_model::fleet::{AuditContext, Event, EventKind, Node, PhaseChange};
use meshd_types::{NodeId, fail};

impl NodeOps {
    /// Refuses to fence a node of which anything was heard within `offline_after`: a link that broke says nothing of its machine.
    fn is_silent(&self, id: NodeId) -> Result<(), OperateError> {
        let (silence, needed) = (self.links.silence(id), self.env.site().agent.offline_after);
        if silence > needed || !fail::defends("fence-silence") {
            return Ok(());
        }
        let wait = needed.saturating_sub(silence).as_secs() + 1;
        Err(OperateError::StillHeard { node: id, seconds: silence.as_secs(), wait })
    }

    /// An operator says that a node runs no more and will not go on. Its credentials are taken first; then nothing of it holds a
    /// virtual machine, and those that may be moved are started elsewhere.
    pub async fn fence(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let (now, why) = (self.env.now(), "an operator fenced this node");
        let silent = self.links.link_number(id);
        if self.links.probe(id).await {
            return Err(LinkError::StillLinked { node: id }.into());
        }
        self.is_silent(id)?;
        let node = self
            .env
            .store
            .commit(|tx| {
                self.links.no_newer_link(id, silent)?;
                let node = tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
                disown(tx, id, &self.links.link_state(id), by, why, now);
                // Whatever it was, nothing is placed there until it links again.
                let change = tx.edit_node(id, |node| node.change(PhaseChange::Silent).ok().flatten()).flatten();
                phase_event(tx, id, node.boot, change, by, now);
                tx.event(Event::new(now, by, EventKind::NodeFenced, why).of_node(id));
                free(tx, id, by, "its node was fenced", now);
                lose_node(tx, id, why, now);
                Ok::<_, OperateError>(node)
            })
            .await?;
        self.enrolment.cut_off(id, why);
        self.orphans.forget(id);
        // Nodes of a task that it had are free before anybody else asks for one.
        self.tasks.repeat_orders();
        self.workloads.place_waiting().await;
        Ok(self.env.store.read(|model| model.node(id).cloned()).unwrap_or(node))
    }
}
