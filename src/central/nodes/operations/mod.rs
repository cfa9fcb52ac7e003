//! Operations: orders to nodes, as records. The one path of every order, for one node and for
//! several.
//!
//! | module | content |
//! | --- | --- |
//! | `apply` | applies an order to one node, in a transaction |
//! | `cancel` | cancels the nodes that have not started |
//! | `drive` | executes accepted operations in bounded batches, also after a restart |
//! | `follow_ups` | effects outside the store, after a transaction |
//! | `power` | orders to BMCs: the next step of each, every second |
//! | `prepare` | checks of an order outside the transaction |
//! | `queries` | reads of operations |
//! | `reboots` | reboots over the links of nodes |
//! | `stall_retries` | retries stalled boots, as the site allows |
//! | `settle` | ends running orders whose effect shows, or that a newer order replaces |
//!
//! A transaction changes at most [`BATCH`] nodes. An operation is acknowledged when its head has
//! the stage `accepted`; then it goes on after a restart. The change of a node and the state of its
//! record are one transaction, so no order is executed twice.

mod apply;
mod cancel;
mod drive;
mod follow_ups;
mod power;
mod prepare;
mod queries;
mod reboots;
mod settle;
mod stall_retries;

pub use cancel::CancelError;
pub(super) use power::starting_machines;
pub(crate) use settle::newest_boot;
pub(super) use settle::settle_in;

use super::{NodeOps, OperateError};
use crate::{environment::alarms::log_failure, locks::Leaf};
use meshd_api::BulkTarget;
use meshd_model::{
    fleet::{AuditContext, Node, Phase},
    operations::{
        NodeOperation, NodeOperationState, NodeOrder, NodeOutcome, Operation, OperationStage,
    },
};
use meshd_store::{MAX_OPEN_NODE_OPERATIONS, Model, StoreError, Tx};
use meshd_trust::Role;
use meshd_types::{NodeId, OperationId, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Maximum number of nodes of one order.
pub const MAX_BULK: usize = 10_000;
/// Maximum number of nodes that one transaction of an operation changes.
pub const BATCH: usize = 256;
/// An order to more nodes is answered when it is accepted, and executed after that.
pub const MAX_ANSWERED: usize = 1000;

/// Why an order is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    #[error("cannot change {count} nodes with one order")]
    Count { count: usize, most: usize },
    #[error("node {node} changed since it was listed, so no node was changed")]
    Changed { node: NodeId },
    /// A node, the profile or a variable is unknown.
    #[error(transparent)]
    Operate(#[from] OperateError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(BulkError {
    BulkError::Count { most, .. } => "name 1 to {most} nodes, each of them once";
    BulkError::Changed { node } => "look at it with `meshd node show {node}` and repeat the order";
    @source BulkError::Operate(source) => source;
    @source BulkError::Store(source) => source;
});

/// Why a transaction stored nothing.
enum Unstored {
    Bulk(BulkError),
    /// The only node refused the order. A record of it would help nobody, and repetitions would
    /// drive other operations out of the store; the audit log has it.
    Refused(NodeId, OperateError),
}

impl From<BulkError> for Unstored {
    fn from(error: BulkError) -> Self {
        Unstored::Bulk(error)
    }
}

impl From<StoreError> for Unstored {
    fn from(error: StoreError) -> Self {
        Unstored::Bulk(error.into())
    }
}

/// The result for each node.
pub type NodeResults = Vec<(NodeId, Result<Node, OperateError>)>;

/// An accepted order.
#[derive(Debug)]
pub struct AcceptedOrder {
    /// `None` if the only node refused the order: no record is stored.
    pub operation: Option<OperationId>,
    /// The result for each node, in the order of the request; `None` if the operation goes on in
    /// the background: for an order to more than [`MAX_ANSWERED`] nodes, or after an error of the
    /// store.
    pub results: Option<NodeResults>,
}

/// Operations that a request executes at present. All others are executed in the background.
#[derive(Default)]
pub(crate) struct ActiveOperations {
    claimed: Leaf<BTreeSet<OperationId>>,
    /// Operations of an earlier process that were not acknowledged.
    discarded: Leaf<Vec<OperationId>>,
}

/// Releases an operation when it is dropped.
struct Claim<'a>(&'a ActiveOperations, OperationId);

impl ActiveOperations {
    pub(crate) fn new(model: &Model) -> Self {
        let active = ActiveOperations::default();
        active.discarded.lock().extend(model.unacknowledged_operations());
        active
    }

    /// Claims an operation, unless it is claimed already.
    fn claim(&self, id: OperationId) -> Option<Claim<'_>> {
        self.claimed.lock().insert(id).then(|| Claim(self, id))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.claimed.lock().remove(&self.1);
    }
}

impl NodeOps {
    /// Gives an order to nodes. A refused order of one node does not affect the others. `role` is
    /// the role of the caller.
    pub async fn order(
        self: &Arc<Self>,
        targets: &[BulkTarget],
        order: NodeOrder,
        role: Role,
        audit: &AuditContext,
    ) -> Result<AcceptedOrder, BulkError> {
        check_count(targets, MAX_BULK)?;
        self.check_order(&order, role, targets)?;
        let id = self.unused_id();
        let claim = self.active.claim(id);
        let head = Operation {
            id,
            order,
            by: audit.clone(),
            accepted_at: self.env.now(),
            targets: u32::try_from(targets.len()).unwrap_or(u32::MAX),
            stage: OperationStage::Accepted,
        };
        let fits_one_transaction = targets.len() <= BATCH && !head.order.is_reboot();
        let accepted = if fits_one_transaction {
            self.accept_and_apply(&head, targets).await
        } else {
            self.accept(&head, targets).await
        };
        let mut results: BTreeMap<NodeId, Result<Node, OperateError>> = match accepted {
            Ok(results) => results.into_iter().collect(),
            Err(Unstored::Bulk(error)) => return Err(error),
            Err(Unstored::Refused(node, refusal)) => {
                return Ok(AcceptedOrder {
                    operation: None,
                    results: Some(vec![(node, Err(refusal))]),
                });
            }
        };
        let operation = Some(id);
        if !fits_one_transaction {
            failpoint::point("operation-accepted");
            if targets.len() > MAX_ANSWERED {
                return Ok(AcceptedOrder { operation, results: None });
            }
            if let Err(error) = self.run_to_end(&head, &mut results).await {
                // The order is acknowledged: the background finishes it.
                log_failure(Err(error), "cannot finish an operation within its request");
                return Ok(AcceptedOrder { operation, results: None });
            }
        }
        drop(claim);
        let in_request_order = targets
            .iter()
            .filter_map(|target| Some((target.id, results.remove(&target.id)?)))
            .collect();
        Ok(AcceptedOrder { operation, results: Some(in_request_order) })
    }

    /// Gives an order to one node, whatever its revision. `role` is the role of the caller.
    pub async fn order_one(
        self: &Arc<Self>,
        id: NodeId,
        order: NodeOrder,
        role: Role,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        let target = BulkTarget { id, revision: None };
        let accepted = match self.order(&[target], order, role, audit).await {
            Ok(accepted) => accepted,
            Err(BulkError::Operate(error)) => return Err(error),
            Err(BulkError::Store(error)) => return Err(error.into()),
            Err(BulkError::Count { .. } | BulkError::Changed { .. }) => return Err(no_node(id)),
        };
        match accepted {
            AcceptedOrder { results: None, operation: Some(operation) } => {
                Err(OperateError::Unfinished { node: id, operation })
            }
            AcceptedOrder { results, .. } => {
                let result = results.and_then(|mut results| results.pop());
                result.map_or_else(|| Err(no_node(id)), |(_, result)| result)
            }
        }
    }

    /// A random ID that no stored operation has.
    fn unused_id(&self) -> OperationId {
        loop {
            let id = OperationId(self.env.random());
            if self.env.store.read(|model| model.operation(id).is_none()) {
                return id;
            }
        }
    }

    /// Executes an accepted operation, and waits for its results. After an error, the operation
    /// goes on in the background.
    async fn run_to_end(
        self: &Arc<Self>,
        head: &Operation,
        results: &mut BTreeMap<NodeId, Result<Node, OperateError>>,
    ) -> Result<(), StoreError> {
        while let Some(batch) = self.run_batch(head).await? {
            results.extend(batch);
        }
        self.await_answers(head, results).await
    }

    /// Runs the readiness checks of nodes, all at the same time. It changes nothing, so it is no
    /// operation.
    pub async fn run_checks(
        &self,
        targets: &[BulkTarget],
        audit: &AuditContext,
    ) -> Result<NodeResults, BulkError> {
        check_count(targets, MAX_ANSWERED)?;
        self.env.store.read(|model| check_revisions(model, targets))?;
        let checks = targets.iter().map(async |BulkTarget { id, .. }| {
            let done = self.links.node_doctor(*id, audit).await.map_err(OperateError::from);
            let node = || self.env.store.read(|model| model.node(*id).cloned());
            let gone = || OperateError::NoNode { name: id.to_string() };
            (*id, done.and_then(|_| node().ok_or_else(gone)))
        });
        Ok(futures_util::future::join_all(checks).await)
    }

    /// Stores and executes a small operation in one transaction.
    async fn accept_and_apply(
        self: &Arc<Self>,
        head: &Operation,
        targets: &[BulkTarget],
    ) -> Result<NodeResults, Unstored> {
        let ids: Vec<NodeId> = targets.iter().map(|target| target.id).collect();
        let mut prepared = self.prepare(&ids, &head.order).await;
        let recorded = self.env.store.commit(|tx| {
            check_revisions(tx.before(), targets)?;
            check_capacity(tx.before(), &head.order, targets.len())?;
            tx.remove_surplus_operations(targets.len());
            tx.put_operation(head.clone());
            let mut results = BTreeMap::new();
            for id in &ids {
                let result = match add_node(tx, head, *id) {
                    Some(refusal) => Err(refusal),
                    None => self.apply_to_node(tx, head, *id, prepared.remove(id)),
                };
                match result {
                    Err(refusal) if ids.len() == 1 => return Err(Unstored::Refused(*id, refusal)),
                    result => results.insert(*id, result),
                };
            }
            Ok(results)
        });
        let results = recorded.await?;
        self.disconnect_changed(&results, &head.order);
        failpoint::point("order-committed");
        self.run_follow_ups(&results, head).await;
        Ok(results.into_iter().collect())
    }

    /// Stores the records of an operation in bounded batches. The last batch accepts it. Returns
    /// the nodes that refuse the order.
    async fn accept(
        &self,
        head: &Operation,
        targets: &[BulkTarget],
    ) -> Result<NodeResults, Unstored> {
        self.env.store.read(|model| {
            check_revisions(model, targets)?;
            check_capacity(model, &head.order, targets.len())
        })?;
        let mut refused = Vec::new();
        let last = targets.len().div_ceil(BATCH);
        for (number, batch) in (1..).zip(targets.chunks(BATCH)) {
            let stage =
                if number == last { OperationStage::Accepted } else { OperationStage::Accepting };
            let recorded = self.env.store.commit(|tx| {
                tx.remove_surplus_operations(batch.len());
                if number == 1 || number == last {
                    tx.put_operation(Operation { stage, ..head.clone() });
                }
                if let [only] = targets {
                    let refusal = add_node(tx, head, only.id)
                        .or_else(|| self.reboot_refusal(tx, head, only.id));
                    return refusal.map_or_else(
                        || Ok(Vec::new()),
                        |refusal| Err(Unstored::Refused(only.id, refusal)),
                    );
                }
                let add =
                    |target: &BulkTarget| Some((target.id, Err(add_node(tx, head, target.id)?)));
                Ok(batch.iter().filter_map(add).collect::<NodeResults>())
            });
            match recorded.await {
                Ok(more) => refused.extend(more),
                Err(error) => {
                    // The earlier batches must not refuse later orders to their nodes.
                    self.active.discarded.lock().push(head.id);
                    return Err(error);
                }
            }
            failpoint::point("operation-accepting");
        }
        Ok(refused)
    }
}

/// Stores the pending record of one node. A node takes one order at a time: the record fails, with
/// the returned refusal, while an earlier order to the node has not started, or while the agent has
/// not answered an earlier reboot. An order that takes the node out of service is not refused: it
/// cancels them when it succeeds.
fn add_node(tx: &mut Tx<'_>, head: &Operation, id: NodeId) -> Option<OperateError> {
    let name = tx.node(id).map(|node| node.name.clone()).unwrap_or_default();
    let mut record = NodeOperation::pending(head.id, id, name);
    let blocks = |(other, record): &(&Operation, &NodeOperation)| {
        let is_pending =
            record.state == NodeOperationState::Pending && !head.order.withdraws_pending();
        let is_unanswered = head.order.replaces(&other.order) && record.is_unanswered();
        is_pending || is_unanswered
    };
    let mut others = tx.before().open_operations_of(id).filter(|(other, _)| other.id != head.id);
    let blocking = others.find(blocks).map(|(other, _)| other.id);
    let refusal = blocking.map(|operation| OperateError::Busy { node: id, operation });
    if let Some(refusal) = &refusal {
        record.finish(NodeOutcome::Failed(refusal.to_string()), head.accepted_at);
    }
    tx.put_node_operation(record);
    refusal
}

/// Refuses an order to no node, to too many, or to one node twice.
fn check_count(targets: &[BulkTarget], most: usize) -> Result<(), BulkError> {
    let distinct: BTreeSet<NodeId> = targets.iter().map(|target| target.id).collect();
    if targets.is_empty() || targets.len() > most || distinct.len() != targets.len() {
        return Err(BulkError::Count { count: targets.len(), most });
    }
    Ok(())
}

/// Refuses an order of which one node is not as the operator saw it.
fn check_revisions(model: &Model, targets: &[BulkTarget]) -> Result<(), BulkError> {
    for BulkTarget { id, revision } in targets {
        let Some(revision) = revision else { continue };
        let node = model.node(*id).filter(|node| node.phase != Phase::Removed);
        if node.is_none_or(|node| node.revision() != *revision) {
            return Err(BulkError::Changed { node: *id });
        }
    }
    Ok(())
}

/// Refuses an order if too many others are not finished, unless it takes nodes out of service.
fn check_capacity(model: &Model, order: &NodeOrder, added: usize) -> Result<(), BulkError> {
    let open = model.open_operation_count();
    if open + added <= MAX_OPEN_NODE_OPERATIONS || order.withdraws_pending() {
        Ok(())
    } else {
        Err(OperateError::TooManyOrders { open }.into())
    }
}

fn no_node(id: NodeId) -> OperateError {
    OperateError::NoNode { name: id.to_string() }
}
