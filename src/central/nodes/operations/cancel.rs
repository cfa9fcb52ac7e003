//! Cancels the nodes of an operation that have not started, and attempts of orders to BMCs. An order
//! that a node has received cannot be recalled.

use super::{BATCH, settle::retract_end};
use crate::nodes::NodeOps;
use meshd_model::{
    fleet::{Audit, AuditContext},
    operations::{NodeOperation, NodeOperationState, NodeOutcome, OperationStage},
};
use meshd_store::{Model, StoreError};
use meshd_types::{NodeId, OperationId};

/// Why an operation is not cancelled.
#[derive(Debug, thiserror::Error)]
pub enum CancelError {
    #[error("there is no operation {0}")]
    Unknown(OperationId),
    #[error("operation {0} has no node to cancel: all have started")]
    Started(OperationId),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(CancelError {
    CancelError::Unknown(_) => "`meshd operation list` lists all operations";
    CancelError::Started(id) => "`meshd operation show {id}` lists them";
    @source CancelError::Store(source) => source;
});

impl NodeOps {
    /// Cancels all nodes of an operation that have not started. Returns their number.
    pub async fn cancel_operation(
        &self,
        id: OperationId,
        audit: &AuditContext,
    ) -> Result<usize, CancelError> {
        let is_known = |stage| stage == OperationStage::Accepted;
        if !self
            .env
            .store
            .read(|model| model.operation(id).is_some_and(|head| is_known(head.stage)))
        {
            return Err(CancelError::Unknown(id));
        }
        let why = audit.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let why = format!("cancelled by {}{why}", audit.principal);
        let mut cancelled = 0;
        loop {
            let now = self.env.now();
            let ids = self.env.store.read(|model| cancellable(model, id));
            if ids.is_empty() {
                break;
            }
            let recorded = self.env.store.commit(|tx| {
                let mut count = 0;
                for node in ids {
                    let cancel = |record: &mut NodeOperation| {
                        is_cancellable(record)
                            && record.finish(NodeOutcome::Cancelled(why.clone()), now)
                    };
                    let record = tx.node_operation(id, node);
                    let power = record.and_then(|record| record.power.as_ref());
                    let acts = power.is_some_and(|power| power.acted_at.is_some());
                    let is_cancelled = tx.edit_node_operation(id, node, cancel) == Some(true);
                    count += usize::from(is_cancelled);
                    if is_cancelled && acts {
                        retract_end(tx, node);
                    }
                }
                if cancelled == 0 && count > 0 {
                    let mut line = Audit::done(now, audit.clone());
                    line.target = Some(id.to_string());
                    line.detail = "its pending nodes are cancelled".to_owned();
                    tx.audit(line);
                }
                Ok::<_, StoreError>(count)
            });
            cancelled += recorded.await?;
        }
        if cancelled > 0 { Ok(cancelled) } else { Err(CancelError::Started(id)) }
    }
}

/// An order to a BMC makes no further attempt after its cancellation.
fn is_cancellable(record: &NodeOperation) -> bool {
    match record.state {
        NodeOperationState::Pending => true,
        NodeOperationState::Running => record.power.is_some(),
        _ => false,
    }
}

/// The next nodes of an operation to cancel.
fn cancellable(model: &Model, id: OperationId) -> Vec<NodeId> {
    let records = model.node_operations(id).filter(|record| is_cancellable(record));
    records.take(BATCH).map(|record| record.node).collect()
}
