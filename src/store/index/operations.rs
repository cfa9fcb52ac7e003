//! Operations in memory: heads by ID and by age, records of nodes, open ones by node.

use crate::{
    Model,
    records::{NodeOperationKey, RecordIndex},
};
use meshd_model::operations::{NodeOperation, Operation, OperationStage, StateCounts};
use meshd_types::{NodeId, OperationId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of stored operations. Operations that are not finished are never removed.
pub const MAX_STORED_OPERATIONS: usize = 1000;
/// Maximum number of stored records of nodes: five orders to the largest rack. Records of
/// operations that are not finished are never removed.
pub const MAX_NODE_OPERATIONS: usize = 50_000;
/// Maximum number of records that are not finished. More orders are refused.
pub const MAX_OPEN_NODE_OPERATIONS: usize = 40_000;

/// Maximum number of records that one transaction removes.
pub(crate) const MAX_REMOVED: usize = 256;

/// All operations, with derived indexes.
#[derive(Default)]
pub(crate) struct Operations {
    heads: BTreeMap<OperationId, Operation>,
    nodes: BTreeMap<OperationId, BTreeMap<NodeId, NodeOperation>>,
    counts: BTreeMap<OperationId, StateCounts>,
    by_age: BTreeSet<(Timestamp, OperationId)>,
    /// Open records: operations of each node.
    open: BTreeMap<NodeId, BTreeSet<OperationId>>,
    /// Number of records of nodes.
    total: usize,
    /// Number of open records of nodes.
    open_total: usize,
    /// Operations whose records are being removed.
    removing: BTreeSet<OperationId>,
}

impl RecordIndex<OperationId, Operation> for Operations {
    fn put_record(&mut self, id: OperationId, head: Operation) -> Option<Operation> {
        let before = self.remove_record(&id);
        if head.stage == OperationStage::Removing {
            self.removing.insert(id);
        }
        self.by_age.insert((head.accepted_at, id));
        self.heads.insert(id, head);
        before
    }

    fn remove_record(&mut self, id: &OperationId) -> Option<Operation> {
        self.removing.remove(id);
        let head = self.heads.remove(id)?;
        self.by_age.remove(&(head.accepted_at, *id));
        Some(head)
    }
}

impl RecordIndex<NodeOperationKey, NodeOperation> for Operations {
    fn put_record(
        &mut self,
        key: NodeOperationKey,
        record: NodeOperation,
    ) -> Option<NodeOperation> {
        let before = self.remove_record(&key);
        let NodeOperationKey { owner: operation, node } = key;
        self.counts.entry(operation).or_default().add(record.state);
        if record.state.is_open() {
            self.open.entry(node).or_default().insert(operation);
            self.open_total += 1;
        }
        self.nodes.entry(operation).or_default().insert(node, record);
        self.total += 1;
        before
    }

    fn remove_record(&mut self, key: &NodeOperationKey) -> Option<NodeOperation> {
        let NodeOperationKey { owner: operation, node } = *key;
        let records = self.nodes.get_mut(&operation)?;
        let record = records.remove(&node)?;
        self.total -= 1;
        if records.is_empty() {
            self.nodes.remove(&operation);
        }
        if let Some(counts) = self.counts.get_mut(&operation) {
            counts.subtract(record.state);
            if counts.total() == 0 {
                self.counts.remove(&operation);
            }
        }
        if let Some(open) = self.open.get_mut(&node) {
            self.open_total -= usize::from(open.remove(&operation));
            if open.is_empty() {
                self.open.remove(&node);
            }
        }
        Some(record)
    }
}

impl Model {
    /// All operations that are acknowledged, the oldest first.
    pub fn operations(&self) -> impl DoubleEndedIterator<Item = &Operation> {
        let heads =
            self.operations.by_age.iter().filter_map(|(_, id)| self.operations.heads.get(id));
        heads.filter(|head| head.stage == OperationStage::Accepted)
    }

    /// The head of an operation in any stage.
    pub fn operation(&self, id: OperationId) -> Option<&Operation> {
        self.operations.heads.get(&id)
    }

    /// The records of the nodes of an operation, by node ID.
    pub fn node_operations(&self, id: OperationId) -> impl Iterator<Item = &NodeOperation> {
        self.operations.nodes.get(&id).into_iter().flat_map(BTreeMap::values)
    }

    pub fn node_operation(&self, id: OperationId, node: NodeId) -> Option<&NodeOperation> {
        self.operations.nodes.get(&id)?.get(&node)
    }

    /// The open records of a node, with their heads.
    pub fn open_operations_of(
        &self,
        node: NodeId,
    ) -> impl Iterator<Item = (&Operation, &NodeOperation)> {
        let open = self.operations.open.get(&node).into_iter().flatten();
        open.filter_map(move |id| Some((self.operation(*id)?, self.node_operation(*id, node)?)))
    }

    /// Nodes with an open record.
    pub fn nodes_with_open_operations(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.operations.open.keys().copied()
    }

    /// Number of nodes of an operation in each state.
    pub fn operation_counts(&self, id: OperationId) -> StateCounts {
        self.operations.counts.get(&id).copied().unwrap_or_default()
    }

    /// Number of records of nodes that are not finished.
    pub fn open_operation_count(&self) -> usize {
        self.operations.open_total
    }

    /// Number of records of nodes.
    pub fn node_operation_count(&self) -> usize {
        self.operations.total
    }

    /// Heads that were not acknowledged before a restart.
    pub fn unacknowledged_operations(&self) -> Vec<OperationId> {
        let heads = self.operations.heads.values();
        heads.filter(|head| head.stage == OperationStage::Accepting).map(|head| head.id).collect()
    }

    /// True if records of operations are being removed.
    pub fn removes_operations(&self) -> bool {
        !self.operations.removing.is_empty()
    }

    /// The operations to remove for one with `added` nodes: those that are being removed, then the
    /// oldest finished ones above a bound.
    pub(crate) fn surplus_operations(&self, added: usize) -> Vec<&Operation> {
        let all = &self.operations;
        let mut heads = (all.heads.len() + 1).saturating_sub(MAX_STORED_OPERATIONS);
        let mut records = (all.total + added).saturating_sub(MAX_NODE_OPERATIONS);
        let mut surplus: Vec<&Operation> =
            all.removing.iter().filter_map(|id| all.heads.get(id)).collect();
        for head in self.operations() {
            if heads + records == 0 || surplus.len() >= MAX_REMOVED {
                break;
            }
            let counts = self.operation_counts(head.id);
            if counts.open() == 0 {
                heads = heads.saturating_sub(1);
                records = records.saturating_sub(counts.total() as usize);
                surplus.push(head);
            }
        }
        surplus
    }
}
