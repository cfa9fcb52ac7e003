//! Effects outside the store, after a transaction. A restart makes them unnecessary: it begins without links and scans all nodes.

use crate::nodes::{
    NodeOps, OperateError,
    fence::FENCED,
    lifecycle::{QUARANTINED, REJECTED, REMOVED},
};
use meshd_model::{
    fleet::Node,
    operations::{DrainPolicy, NodeOrder, Operation},
};
use meshd_store::StoreError;
use meshd_types::NodeId;
use std::{collections::BTreeMap, sync::Arc};

impl NodeOps {
    /// Closes the links of nodes that lost their credentials, also if the change could not be flushed.
    fn disconnect_revoked(&self, ids: &[NodeId], order: &NodeOrder) {
        let why = match order {
            NodeOrder::Reject => REJECTED,
            NodeOrder::Quarantine => QUARANTINED,
            NodeOrder::Remove => REMOVED,
            NodeOrder::Fence => FENCED,
            _ => return,
        };
        for id in ids {
            if !self.enrolment.has_valid_certificate(*id) {
                self.enrolment.disconnect(*id, why);
            }
        }
    }

    /// Closes the links of the nodes that a transaction changed. If it was not flushed, its changes may be in the model.
    pub(super) fn disconnect_changed(
        &self,
        outcome: Result<&BTreeMap<NodeId, Result<Node, OperateError>>, &StoreError>,
        ids: &[NodeId],
        order: &NodeOrder,
    ) {
        match outcome {
            Ok(results) => {
                let changed: Vec<NodeId> =
                    results.iter().filter(|(_, result)| result.is_ok()).map(|(id, _)| *id).collect();
                self.disconnect_revoked(&changed, order);
            }
            Err(_) => self.disconnect_revoked(ids, order),
        }
    }

    /// Runs the effects of one batch.
    pub(super) async fn run_follow_ups(
        self: &Arc<Self>,
        results: &BTreeMap<NodeId, Result<Node, OperateError>>,
        head: &Operation,
    ) -> Result<(), StoreError> {
        let changed: Vec<NodeId> = results.iter().filter(|(_, result)| result.is_ok()).map(|(id, _)| *id).collect();
        match &head.order {
            NodeOrder::Approve { .. } => self.enrolment.notify_decision(),
            NodeOrder::Resume => changed.iter().for_each(|id| self.links.arm_timer(*id, self.env.monotonic())),
            NodeOrder::Drain { workloads: DrainPolicy::Stop, .. } => {
                for id in changed {
                    self.workloads.notify_unsettled(id);
                    self.tasks.send_orders_of_task_on(id);
                }
            }
            NodeOrder::Fence if !changed.is_empty() => {
                // The other nodes of its task become free before VMs are placed.
                self.tasks.repeat_orders();
                self.workloads.place_waiting().await;
            }
            NodeOrder::AssignProfile { .. }
            | NodeOrder::ChangeVars { .. }
            | NodeOrder::BootOnce { .. }
            | NodeOrder::ClearBootOnce
            | NodeOrder::Unpin => self.generations.scan(changed).await?,
            NodeOrder::Pin { .. } if !changed.is_empty() => {
                self.generations.scan(changed).await?;
                self.generations.update_in_use().await;
            }
            _ => {}
        }
        Ok(())
    }
}
