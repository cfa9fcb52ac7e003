//! Activities: unfinished requests of nodes, VMs, slots and tasks. Pure.
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

/// The kind of an activity.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum ActivityKind {
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
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum ObjectKind {
    Node,
    /// A booting machine that is not identified yet.
    Machine,
    Vm,
    Slot,
    Task,
}

/// The state of an activity. Failed ones come first in a list.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum ActivityState {
    /// The activity cannot proceed without an operator, or it is retried.
    Failed,
    /// The request is recorded; no node has confirmed it.
    Requested,
    /// A node executes the activity.
    Accepted,
}

as_str!(ActivityKind);
as_str!(ObjectKind);
as_str!(ActivityState);

/// An unfinished request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    pub kind: ActivityKind,
    pub object: ObjectKind,
    /// ID of the object: node ID, MAC address, UUID, slot ID or task ID.
    pub id: String,
    /// Name of the object; its ID if it has no name.
    pub name: String,
    /// The node that executes the activity.
    pub node: Option<NodeId>,
    pub request: String,
    /// Time of the last recorded change; `None` if unknown.
    pub since: Option<Timestamp>,
    pub state: ActivityState,
    /// Progress as text; empty if unknown.
    pub progress: String,
    /// Reason why the activity does not proceed.
    pub reason: Option<String>,
}

impl Activity {
    /// Creates a requested activity of an object whose name is its ID, without node and details.
    fn new(kind: ActivityKind, object: ObjectKind, id: String, request: impl Into<String>) -> Self {
        let name = id.clone();
        let request = request.into();
        let state = ActivityState::Requested;
        let node = None;
        let since = None;
        let progress = String::new();
        let reason = None;
        Activity { kind, object, id, name, node, request, since, state, progress, reason }
    }

    /// Sets the reason of an activity whose node has no link, unless another reason is known.
    fn without_link(mut self, is_linked: bool) -> Self {
        if let Some(node) = self.node.filter(|_| !is_linked) {
            self.reason.get_or_insert_with(|| format!("node {node} has no link"));
        }
        self
    }
}

/// Sorts activities: failed ones first, then by age. Returns at most `limit` activities, and the
/// number of the others.
pub fn first(mut all: Vec<Activity>, limit: usize) -> (Vec<Activity>, usize) {
    let order = |one: &Activity| {
        (one.state, one.since.is_none(), one.since, one.kind, one.id.clone(), one.node)
    };
    all.sort_by_cached_key(order);
    let rest = all.len().saturating_sub(limit);
    all.truncate(limit);
    (all, rest)
}
