//! Operations: orders of operators to nodes, as records. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `drain_hooks` | what a drain means for other schedulers of the node |
//! | `login_attempt` | logins of BMCs that were refused, or may have been |
//! | `node_operation` | the record of one node, and its states |
//! | `order` | what an order wants of a node |
//! | `outcome` | the end of an order to one node |
//! | `power` | an order to the BMC of a machine, as a state machine |
//! | `power_ladder` | the requests that such an order tries one after another |
//! | `stall_retry` | the policy that retries stalled boots by BMCs |
//!
//! An operation is one head record, [`Operation`], and one [`NodeOperation`] for each of its nodes.
//! An order to one node is an operation with one node.

mod drain_hooks;
mod login_attempt;
mod node_operation;
mod order;
mod outcome;
mod power;
mod power_ladder;
mod stall_retry;

#[cfg(test)]
mod power_ladder_tests;
#[cfg(test)]
mod power_tests;
#[cfg(test)]
mod tests;

pub use drain_hooks::{drain_entry, has_drain_hooks, waiting_hooks};
pub use login_attempt::{LOGIN_HOLD, LoginAttempt, LoginHeld, MAX_LOGIN_ATTEMPTS};
pub use node_operation::{NodeOperation, NodeOperationState, StateCounts};
pub use order::{DrainPolicy, NodeOrder};
pub use outcome::NodeOutcome;
pub use power::{BmcFailure, BmcResult, PowerProgress, PowerStep, Sighting};
pub use stall_retry::{STALL_RETRY, due_stall_retry};

use crate::fleet::AuditContext;
use meshd_types::{OperationId, Timestamp};
use serde::{Deserialize, Serialize};

/// The stage of an operation's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationStage {
    /// Records of nodes are missing. The operation was not acknowledged: nothing is executed, and a
    /// restart discards it.
    Accepting,
    /// All records of nodes are stored; they are executed.
    Accepted,
    /// Records of nodes are being removed. The operation is not listed.
    Removing,
}

/// The head record of an operation: the order and its cause. Its progress follows from the records
/// of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub id: OperationId,
    pub order: NodeOrder,
    /// Caller, verb, reason and correlation ID.
    pub by: AuditContext,
    pub accepted_at: Timestamp,
    /// Number of nodes.
    pub targets: u32,
    pub stage: OperationStage,
}

/// State of an operation, which follows from the states of its nodes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum OperationState {
    /// At least one node is pending or running.
    Running,
    /// All nodes are done.
    Done,
    /// All nodes are finished, and at least one failed.
    Failed,
    /// All nodes are finished, none failed, and at least one is cancelled.
    Cancelled,
}

as_str!(OperationState);
as_str!(NodeOperationState);
