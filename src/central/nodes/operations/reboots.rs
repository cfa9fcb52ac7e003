//! Reboots over the links of nodes. The number of the action is stored before it is sent, and an
//! agent executes a number once, so a restart between both sends the action again without a second
//! reboot.

use super::{
    BATCH,
    settle::{newest_boot, replace_older},
};
use crate::{
    links::{LinkError, LinkOrder},
    nodes::{NodeOps, OperateError, lifecycle::existing_node},
    vms::check_no_running_work,
};
use meshd_model::{
    fleet::{Event, EventKind, Node},
    operations::{NodeOperation, NodeOperationState, NodeOrder, NodeOutcome, Operation},
};
use meshd_proto::{ActionId, ActionOrder, NodeAction};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{BootSessionId, NodeId, OperationId, Timestamp, failpoint};
use std::collections::BTreeMap;

impl NodeOps {
    /// Sends the reboots of one batch. Returns the nodes that refuse; the others answer later.
    pub(super) async fn start_reboots(
        &self,
        head: &Operation,
        ids: &[NodeId],
    ) -> Result<BTreeMap<NodeId, Result<Node, OperateError>>, StoreError> {
        let now = self.env.now();
        let mut sent = Vec::new();
        let mut refused = BTreeMap::new();
        let recorded = self.env.store.commit(|tx| {
            for id in ids {
                let is_pending =
                    |record: &NodeOperation| record.state == NodeOperationState::Pending;
                if !tx.node_operation(head.id, *id).is_some_and(is_pending) {
                    continue;
                }
                match self.start_reboot_in(tx, head, *id, now) {
                    Ok(action) => sent.push(action),
                    Err(error) => {
                        let outcome = NodeOutcome::Failed(error.to_string());
                        tx.edit_node_operation(head.id, *id, |record| record.finish(outcome, now));
                        refused.insert(*id, Err(error));
                    }
                }
            }
            Ok::<_, StoreError>(())
        });
        recorded.await?;
        failpoint::point("reboot-recorded");
        for (action, session) in sent {
            self.links.add_action(action, session);
        }
        self.links.send_actions();
        failpoint::point("reboot-sent");
        Ok(refused)
    }

    fn start_reboot_in(
        &self,
        tx: &mut Tx<'_>,
        head: &Operation,
        id: NodeId,
        now: Timestamp,
    ) -> Result<(ActionOrder, Option<BootSessionId>), OperateError> {
        let node = self.check_reboot(tx, head, id)?;
        replace_older(tx, head, id, now);
        let number = u64::from_be_bytes(self.env.random());
        let newest = newest_boot(tx.before(), &node);
        tx.edit_node_operation(head.id, id, |record| {
            record.start_reboot(number, &node, newest, now);
        });
        let action = action_order(id, number, &head.order, now);
        let detail = format!("action {number}: {:?}", action.action);
        tx.event(Event::new(now, &head.by, EventKind::NodeAction, detail).of_node(id));
        Ok((action, node.boot))
    }

    /// Refuses a reboot that the node cannot carry out now.
    fn check_reboot(
        &self,
        tx: &Tx<'_>,
        head: &Operation,
        id: NodeId,
    ) -> Result<Node, OperateError> {
        let node = existing_node(tx, id)?;
        check_no_running_work(tx.before(), id, &head.by)?;
        if !self.links.is_linked(id) {
            return Err(LinkError::NotLinked { node: id, order: LinkOrder::Reboot }.into());
        }
        Ok(node)
    }

    /// Why the node cannot carry out the reboot of an operation now; `None` also for other orders.
    pub(super) fn reboot_refusal(
        &self,
        tx: &Tx<'_>,
        head: &Operation,
        id: NodeId,
    ) -> Option<OperateError> {
        head.order.is_reboot().then(|| self.check_reboot(tx, head, id).err()).flatten()
    }

    /// Waits until each node has answered a reboot, or until none can any more.
    pub(super) async fn await_answers(
        &self,
        head: &Operation,
        results: &mut BTreeMap<NodeId, Result<Node, OperateError>>,
    ) -> Result<(), StoreError> {
        let deadline = tokio::time::Instant::now() + NodeAction::Reboot.window();
        loop {
            // Before the look, so that no answer between both is missed.
            let answered = self.links.next_outcome();
            let is_unanswered =
                |model: &Model| model.node_operations(head.id).any(NodeOperation::is_unanswered);
            if !self.env.store.read(is_unanswered) {
                break;
            }
            if tokio::time::timeout_at(deadline, answered).await.is_err() {
                let late = self.expire_reboots(Some(head.id)).await?;
                results.extend(late.into_iter().map(|node| (node, Err(no_answer(node).into()))));
            }
        }
        let records: Vec<NodeOperation> =
            self.env.store.read(|model| model.node_operations(head.id).cloned().collect());
        for record in records {
            let id = record.node;
            let result = || match record.state {
                NodeOperationState::Failed => Err(OperateError::ActionFailed {
                    node: id,
                    reason: record.reason.clone().unwrap_or_default(),
                }),
                NodeOperationState::Cancelled => Err(OperateError::Cancelled {
                    node: id,
                    reason: record.reason.clone().unwrap_or_default(),
                }),
                _ => {
                    let node = self.env.store.read(|model| model.node(id).cloned());
                    node.ok_or_else(|| OperateError::NoNode { name: id.to_string() })
                }
            };
            results.entry(id).or_insert_with(result);
        }
        Ok(())
    }

    /// Fails the unanswered reboots of `operation`, or all those that no agent can answer any more.
    /// Returns their nodes.
    pub(super) async fn expire_reboots(
        &self,
        operation: Option<OperationId>,
    ) -> Result<Vec<NodeId>, StoreError> {
        let now = self.env.now();
        // The request that waits for the answer reports it first.
        let window = NodeAction::Reboot.window() * 2;
        let age = |record: &NodeOperation| {
            let outstanding = record.action.and_then(|id| self.links.action_age(ActionId(id)));
            // No link can carry it any more, so the clock, which may have jumped, is enough.
            outstanding.or_else(|| Some(now.distance(record.started_at?)))
        };
        let is_late = |record: &NodeOperation| {
            let is_old = || age(record).is_some_and(|age| age >= window);
            record.is_unanswered() && (operation.is_some() || is_old())
        };
        let late: Vec<(OperationId, NodeId)> = self.env.store.read(|model| {
            let open =
                model.nodes_with_open_operations().flat_map(|id| model.open_operations_of(id));
            let of = |id: OperationId| operation.is_none_or(|only| only == id);
            let late = open.filter(|(head, record)| of(head.id) && is_late(record));
            late.map(|(head, record)| (head.id, record.node)).collect()
        });
        let mut failed = Vec::new();
        for batch in late.chunks(BATCH) {
            let recorded = self
                .env
                .store
                .commit(|tx| Ok::<_, StoreError>(fail_unanswered(tx, batch, is_late, now)));
            failed.extend(recorded.await?);
        }
        Ok(failed)
    }

    /// Restores the reboots that were sent before a restart and are not answered.
    pub(crate) fn restore_reboots(&self) {
        let unanswered: Vec<(NodeOrder, NodeOperation)> = self.env.store.read(|model| {
            let open =
                model.nodes_with_open_operations().flat_map(|id| model.open_operations_of(id));
            let reboots =
                open.filter(|(head, record)| head.order.is_reboot() && record.is_unanswered());
            reboots.map(|(head, record)| (head.order.clone(), record.clone())).collect()
        });
        for (order, record) in unanswered {
            if let (Some(number), Some(started)) = (record.action, record.started_at) {
                let action = action_order(record.node, number, &order, started);
                self.links.add_action(action, record.session);
            }
        }
    }
}

/// Fails those of these reboots that are still late: an agent may have answered since they were
/// found. Returns their nodes.
fn fail_unanswered(
    tx: &mut Tx<'_>,
    late: &[(OperationId, NodeId)],
    is_late: impl Fn(&NodeOperation) -> bool,
    now: Timestamp,
) -> Vec<NodeId> {
    let fails = |(operation, node): &&(OperationId, NodeId)| {
        let outcome = NodeOutcome::Failed(no_answer(*node).to_string());
        let failed = tx.edit_node_operation(*operation, *node, |record| {
            is_late(record) && record.finish(outcome, now)
        });
        failed == Some(true)
    };
    late.iter().filter(fails).map(|(_, node)| *node).collect()
}

fn action_order(node: NodeId, number: u64, order: &NodeOrder, started: Timestamp) -> ActionOrder {
    let action = match order {
        NodeOrder::WarmReboot => NodeAction::WarmReboot,
        _ => NodeAction::Reboot,
    };
    ActionOrder { id: ActionId(number), node, expires_at: started.after(action.ttl()), action }
}

fn no_answer(node: NodeId) -> LinkError {
    LinkError::NoAnswer {
        node,
        order: LinkOrder::Reboot,
        seconds: NodeAction::Reboot.window().as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::fleet::Fingerprint;
    use meshd_store::Store;
    use meshd_types::{Basis, MacAddr};

    #[tokio::test]
    async fn reboot_that_was_answered_meanwhile_is_not_reported_as_unanswered() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::open(dir.path()).expect("a store");
        let now = Timestamp::from_millis(1);
        let operation = OperationId([1; 4]);
        let [answered, silent] = [1, 2].map(|number| {
            let mac = MacAddr([2, 0, 0, 0, 0, number]);
            Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, now)
        });
        let late = [answered.id, silent.id].map(|node| (operation, node));
        let committed = store.commit(|tx| {
            for node in [&answered, &silent] {
                let mut record = NodeOperation::pending(operation, node.id, node.name.clone());
                record.start_reboot(7, node, None, now);
                if node.id == answered.id {
                    record.confirm(now);
                }
                tx.put_node_operation(record);
            }
            Ok::<_, StoreError>(fail_unanswered(tx, &late, NodeOperation::is_unanswered, now))
        });
        assert_eq!(committed.await.expect("stored"), [silent.id]);
    }
}
