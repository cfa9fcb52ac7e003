//! Reboots nodes over their links.

use super::{NodeOps, OperateError};
use crate::{
    links::{LinkError, LinkOrder},
    vms::check_no_running_work,
};
use meshd_model::fleet::AuditContext;
use meshd_proto::{ActionOutcome, NodeAction};
use meshd_types::NodeId;

impl NodeOps {
    /// Reboots a node over its link. Returns when the node has confirmed it.
    pub async fn reboot(&self, id: NodeId, audit: &AuditContext) -> Result<(), OperateError> {
        self.env.store.read(|model| check_no_running_work(model, id, audit))?;
        if !self.links.is_linked(id) {
            return Err(LinkError::NotLinked { node: id, order: LinkOrder::Reboot }.into());
        }
        let seconds = NodeAction::Reboot.window().as_secs();
        let no_answer = LinkError::NoAnswer { node: id, order: LinkOrder::Reboot, seconds };
        match self.links.run_action(id, NodeAction::Reboot, audit).await?.ok_or(no_answer)? {
            ActionOutcome::Done => self.reboot_ordered(id).await,
            ActionOutcome::Refused { reason } | ActionOutcome::Failed { reason } => {
                Err(OperateError::ActionFailed { node: id, reason })
            }
        }
    }

    /// Marks the present boot as ended by an order, so that it does not count as failed.
    async fn reboot_ordered(&self, id: NodeId) -> Result<(), OperateError> {
        let stored = self.env.store.commit(|tx| {
            if let Some(session) = tx.node(id).and_then(|node| node.boot) {
                tx.edit_session(session, |session| session.reboot_ordered = true);
            }
            Ok(())
        });
        stored.await
    }
}
