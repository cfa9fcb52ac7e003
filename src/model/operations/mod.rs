//! Operations: unfinished requests of nodes, VMs, slots and tasks. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `nodes` | boots, reboots and drains |
//! | `workloads` | VMs with their volumes and disks, slots, tasks |

mod nodes;
mod workloads;

#[cfg(test)]
mod tests;

pub use nodes::{boot, drain, reboot};
pub use workloads::{former_nodes, slot, task, transfer, vm, wipe};

use meshd_types::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OperationKind {
    Boot,
    Reboot,
    Drain,
    /// The desired state of a VM differs from the reported one.
    Vm,
    /// A node fetches the volumes of a VM.
    Fetch,
    /// A node writes an image onto a disk.
    Write,
    Wipe,
    Slot,
    Task,
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ObjectKind {
    Node,
    /// A booting machine that is not identified yet.
    Machine,
    Vm,
    Slot,
    Task,
}

/// The state of an operation. Failed ones come first in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OperationState {
    /// The operation cannot proceed without an operator, or it is retried.
    Failed,
    /// The request is recorded; no node has confirmed it.
    Requested,
    /// A node executes the operation.
    Accepted,
}

as_str!(OperationKind);
as_str!(ObjectKind);
as_str!(OperationState);

/// An unfinished request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub kind: OperationKind,
    pub object: ObjectKind,
    /// ID of the object: node ID, MAC address, UUID, slot ID or task ID.
    pub id: String,
    /// Name of the object; its ID if it has no name.
    pub name: String,
    /// The node that executes the operation.
    pub node: Option<NodeId>,
    pub request: String,
    /// Time of the last recorded change; `None` if unknown.
    pub since: Option<Timestamp>,
    pub state: OperationState,
    /// Progress as text; empty if unknown.
    pub progress: String,
    /// Reason why the operation does not proceed.
    pub reason: Option<String>,
}

impl Operation {
    /// Creates a requested operation of an object whose name is its ID, without node and details.
    fn new(kind: OperationKind, object: ObjectKind, id: String, request: impl Into<String>) -> Self {
        let (name, request, state) = (id.clone(), request.into(), OperationState::Requested);
        let (node, since, progress, reason) = (None, None, String::new(), None);
        Operation { kind, object, id, name, node, request, since, state, progress, reason }
    }

    /// Sets the reason of an operation whose node has no link, unless another reason is known.
    fn without_link(mut self, is_linked: bool) -> Self {
        if let Some(node) = self.node.filter(|_| !is_linked) {
            self.reason.get_or_insert_with(|| format!("node {node} has no link"));
        }
        self
    }
}

/// Sorts operations: failed ones first, then by age. Returns at most `limit` operations, and the number of the others.
pub fn first(mut all: Vec<Operation>, limit: usize) -> (Vec<Operation>, usize) {
    let order = |one: &Operation| (one.state, one.since.is_none(), one.since, one.kind, one.id.clone(), one.node);
    all.sort_by_cached_key(order);
    let rest = all.len().saturating_sub(limit);
    all.truncate(limit);
    (all, rest)
}
