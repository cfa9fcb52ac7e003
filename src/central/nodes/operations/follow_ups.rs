//! Effects outside the store, after a transaction. A restart makes them unnecessary: it begins
//! without links and scans all nodes.

use crate::{
    environment::alarms::log_failure,
    links::SpecPart,
    nodes::{
        NodeOps, OperateError,
        fence::FENCED,
        lifecycle::{QUARANTINED, REJECTED, REMOVED},
    },
};
use meshd_model::{
    fleet::Node,
    operations::{DrainPolicy, NodeOrder, Operation},
};
use meshd_types::NodeId;
use std::{collections::BTreeMap, sync::Arc};

impl NodeOps {
    /// Closes the links of the nodes that lost their credentials in a transaction.
    pub(super) fn disconnect_changed(
        &self,
        results: &BTreeMap<NodeId, Result<Node, OperateError>>,
        order: &NodeOrder,
    ) {
        let why = match order {
            NodeOrder::Reject => REJECTED,
            NodeOrder::Quarantine => QUARANTINED,
            NodeOrder::Remove => REMOVED,
            NodeOrder::Fence => FENCED,
            _ => return,
        };
        for (id, _) in results.iter().filter(|(_, result)| result.is_ok()) {
            self.disconnect_revoked(*id, why);
        }
    }

    /// Runs the effects of one batch. They cannot fail, because the order is executed.
    pub(super) async fn run_follow_ups(
        self: &Arc<Self>,
        results: &BTreeMap<NodeId, Result<Node, OperateError>>,
        head: &Operation,
    ) {
        let changed: Vec<NodeId> =
            results.iter().filter(|(_, result)| result.is_ok()).map(|(id, _)| *id).collect();
        if matches!(
            head.order,
            NodeOrder::Drain { .. } | NodeOrder::Maintenance | NodeOrder::Resume
        ) {
            changed.iter().for_each(|id| self.links.notify_node(*id, SpecPart::Drain));
        }
        match &head.order {
            NodeOrder::Approve { .. } => self.enrolment.notify_decision(),
            NodeOrder::Resume => {
                changed.iter().for_each(|id| self.links.arm_timer(*id, self.env.monotonic()))
            }
            NodeOrder::Drain { workloads: DrainPolicy::Stop, .. } => {
                for id in changed {
                    self.vms.notify_unsettled(id);
                    self.tasks.send_orders_of_task_on(id);
                }
            }
            NodeOrder::Fence if !changed.is_empty() => {
                // The other nodes of its task become free before VMs are placed.
                self.tasks.send_unfinished_orders();
                self.vms.place_unplaced_vms().await;
                self.containers.place_waiting_replicas().await;
            }
            NodeOrder::AssignProfile { .. }
            | NodeOrder::ChangeVars { .. }
            | NodeOrder::BootOnce { .. }
            | NodeOrder::ClearBootOnce
            | NodeOrder::Unpin => self.scan(changed).await,
            NodeOrder::Pin { .. } if !changed.is_empty() => {
                self.scan(changed).await;
                self.generations.update_in_use().await;
            }
            _ => {}
        }
    }

    /// Records what nodes boot next. The order is executed already: after an error, the scan
    /// follows later.
    async fn scan(&self, nodes: Vec<NodeId>) {
        if let Err(error) = self.generations.scan(nodes.clone()).await {
            log_failure(Err(error), "cannot record yet what nodes boot next");
            nodes.into_iter().for_each(|id| self.generations.scan_soon(id));
        }
    }
}
