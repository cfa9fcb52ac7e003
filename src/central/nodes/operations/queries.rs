//! Reads of operations.

use crate::nodes::NodeOps;
use meshd_model::operations::{NodeOperation, Operation, OperationStage, StateCounts};
use meshd_types::OperationId;

impl NodeOps {
    /// Returns an accepted operation, and the number of its nodes in each state.
    pub fn operation(&self, id: OperationId) -> Option<(Operation, StateCounts)> {
        self.env.store.read(|model| {
            let head = model.operation(id).filter(|head| head.stage == OperationStage::Accepted)?;
            Some((head.clone(), model.operation_counts(id)))
        })
    }

    /// Collects the views of accepted operations, the oldest first. `None` omits one.
    pub fn collect_operations<R>(
        &self,
        view: impl FnMut((&Operation, StateCounts)) -> Option<R>,
    ) -> Vec<R> {
        self.env.store.read(|model| {
            model
                .operations()
                .map(|head| (head, model.operation_counts(head.id)))
                .filter_map(view)
                .collect()
        })
    }

    /// Collects the views of the nodes of an operation, by node ID. `None` omits one.
    pub fn collect_operation_nodes<R>(
        &self,
        id: OperationId,
        view: impl FnMut(&NodeOperation) -> Option<R>,
    ) -> Vec<R> {
        self.env.store.read(|model| model.node_operations(id).filter_map(view).collect())
    }
}
