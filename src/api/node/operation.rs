//! Operations: orders to nodes, with the state of each node.

use meshd_model::{
    fleet::AuditContext,
    operations::{
        NodeOperation, NodeOperationState, NodeOrder, Operation, OperationState, PowerProgress,
        StateCounts,
    },
};
use meshd_types::{NodeId, OperationId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An operation: an order to one or several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    pub id: OperationId,
    /// Verb of the order.
    pub verb: String,
    /// The order with its values.
    pub order: NodeOrder,
    pub state: OperationState,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of nodes that have not started.
    pub pending: u32,
    pub running: u32,
    pub done: u32,
    pub failed: u32,
    pub cancelled: u32,
    pub accepted_at: Timestamp,
    /// Caller, verb, reason and correlation ID.
    pub by: AuditContext,
}

impl OperationView {
    pub fn new(head: &Operation, counts: StateCounts) -> Self {
        use NodeOperationState::{Cancelled, Done, Failed, Pending, Running};
        OperationView {
            id: head.id,
            verb: head.by.verb.to_string(),
            order: head.order.clone(),
            state: counts.state(),
            nodes: head.targets,
            pending: counts.of(Pending),
            running: counts.of(Running),
            done: counts.of(Done),
            failed: counts.of(Failed),
            cancelled: counts.of(Cancelled),
            accepted_at: head.accepted_at,
            by: head.by.clone(),
        }
    }
}

/// One node of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeOperationView {
    pub node: NodeId,
    /// Name of the node when the order was accepted.
    pub name: String,
    pub state: NodeOperationState,
    /// Why the node failed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Attempt and last error of a running order to a BMC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time at which the agent confirmed the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

impl From<&NodeOperation> for NodeOperationView {
    fn from(record: &NodeOperation) -> Self {
        NodeOperationView {
            node: record.node,
            name: record.name.clone(),
            state: record.state,
            reason: record.reason.clone(),
            progress: record
                .power
                .as_ref()
                .filter(|_| record.state.is_open())
                .map(PowerProgress::words),
            started_at: record.started_at,
            confirmed_at: record.confirmed_at,
            finished_at: record.finished_at,
        }
    }
}

/// Result of the cancellation of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelledOperation {
    /// Number of nodes that are cancelled.
    pub cancelled: usize,
    /// The operation after the cancellation.
    pub operation: OperationView,
}
