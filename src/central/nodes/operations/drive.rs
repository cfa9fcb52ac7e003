//! Executes accepted operations in bounded batches: within their request, else in the background,
//! also after a restart.

use super::{
    BATCH,
    settle::{newest_boot, settle_in},
};
use crate::{
    environment::alarms::log_failure,
    nodes::{NodeOps, OperateError},
};
use meshd_model::{
    fleet::Node,
    operations::{NodeOperation, NodeOperationState, Operation, OperationStage},
};
use meshd_store::{Model, StoreError};
use meshd_types::{NodeId, OperationId, failpoint};
use std::{collections::BTreeMap, sync::Arc};

/// Batches of one operation in a round of the background, so that other operations follow.
const BATCHES: usize = 4;

impl NodeOps {
    /// Executes one batch of an operation. Returns its results, or `None` if no node is pending.
    pub(super) async fn run_batch(
        self: &Arc<Self>,
        head: &Operation,
    ) -> Result<Option<BTreeMap<NodeId, Result<Node, OperateError>>>, StoreError> {
        let ids = self.env.store.read(|model| pending(model, head.id));
        if ids.is_empty() {
            return Ok(None);
        }
        if head.order.is_reboot() {
            return self.start_reboots(head, &ids).await.map(Some);
        }
        let mut prepared = self.prepare(&ids, &head.order).await;
        let recorded = self.env.store.commit(|tx| {
            let mut results = BTreeMap::new();
            for id in &ids {
                // It may have been cancelled meanwhile.
                let is_pending =
                    |record: &NodeOperation| record.state == NodeOperationState::Pending;
                if tx.node_operation(head.id, *id).is_some_and(is_pending) {
                    results.insert(*id, self.apply_to_node(tx, head, *id, prepared.remove(id)));
                }
            }
            Ok::<_, StoreError>(results)
        });
        let results = recorded.await?;
        self.disconnect_changed(&results, &head.order);
        failpoint::point("operation-applied");
        self.run_follow_ups(&results, head).await;
        Ok(Some(results))
    }

    /// Drives all operations that no request executes. Call it every second.
    pub async fn drive_operations(self: &Arc<Self>) {
        log_failure(
            self.discard_unacknowledged().await,
            "cannot discard an operation that was not acknowledged",
        );
        log_failure(self.settle_operations().await, "cannot record the end of an operation");
        log_failure(
            self.expire_reboots(None).await.map(drop),
            "cannot record an unanswered reboot",
        );
        self.links.send_actions();
        log_failure(self.drive_power().await, "cannot record the next step of an order to a BMC");
        for id in self.env.store.read(waiting_operations) {
            let Some(_claim) = self.active.claim(id) else { continue };
            let Some(head) = self.env.store.read(|model| model.operation(id).cloned()) else {
                continue;
            };
            for _ in 0..BATCHES {
                match self.run_batch(&head).await {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => return log_failure(Err(error), "cannot execute an operation"),
                }
            }
        }
    }

    /// Removes the records of operations that an earlier process did not acknowledge, in bounded
    /// batches.
    async fn discard_unacknowledged(&self) -> Result<(), StoreError> {
        let discarded = self.active.discarded.lock().clone();
        if !discarded.is_empty() {
            let marked = self.env.store.commit(|tx| {
                for id in &discarded {
                    let head =
                        tx.operation(*id).filter(|head| head.stage == OperationStage::Accepting);
                    if let Some(head) = head.cloned() {
                        tx.put_operation(Operation { stage: OperationStage::Removing, ..head });
                    }
                }
                Ok::<_, StoreError>(())
            });
            marked.await?;
            self.active.discarded.lock().retain(|id| !discarded.contains(id));
        }
        while self.env.store.read(Model::removes_operations) {
            let removed = self.env.store.commit(|tx| {
                tx.remove_surplus_operations(0);
                Ok::<_, StoreError>(())
            });
            removed.await?;
        }
        Ok(())
    }

    /// Ends running orders whose effect the records of their nodes show.
    async fn settle_operations(&self) -> Result<(), StoreError> {
        let now = self.env.now();
        let ends = |model: &Model, id: NodeId| {
            let is_running = |record: &NodeOperation| record.state == NodeOperationState::Running;
            let mut running =
                model.open_operations_of(id).filter(|(_, record)| is_running(record)).peekable();
            if running.peek().is_none() {
                return false;
            }
            let node = model.node(id);
            let newest = node.and_then(|node| newest_boot(model, node));
            running.any(|(head, record)| record.observe(&head.order, node, newest, now).is_some())
        };
        let ended: Vec<NodeId> = self.env.store.read(|model| {
            model.nodes_with_open_operations().filter(|id| ends(model, *id)).collect()
        });
        for batch in ended.chunks(BATCH) {
            let settled = self.env.store.commit(|tx| {
                for id in batch {
                    settle_in(tx, *id, now);
                }
                Ok::<_, StoreError>(())
            });
            settled.await?;
        }
        Ok(())
    }
}

/// The next nodes of an operation that have not started.
fn pending(model: &Model, id: OperationId) -> Vec<NodeId> {
    let is_pending = |record: &&NodeOperation| record.state == NodeOperationState::Pending;
    model.node_operations(id).filter(is_pending).take(BATCH).map(|record| record.node).collect()
}

/// Operations with nodes that have not started, the oldest first.
fn waiting_operations(model: &Model) -> Vec<OperationId> {
    let waits =
        |head: &&Operation| model.operation_counts(head.id).of(NodeOperationState::Pending) > 0;
    model.operations().filter(waits).map(|head| head.id).collect()
}
