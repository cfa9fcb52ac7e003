//! The central node at a glance: health findings, counts, unfinished operations, and the body of a refusal.

use meshd_model::operations::{ObjectKind, Operation, OperationKind, OperationState};
use meshd_trust::Role;
use meshd_types::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Why a request was not done. The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorView {
    /// One word for programs.
    pub code: String,
    /// What went wrong, for people.
    pub message: String,
    /// What to do next; empty when the message says it.
    #[serde(default)]
    pub hint: String,
    /// Finds this answer in the log of the central node.
    pub correlation_id: String,
}

/// Who asks: the answer of `whoami`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallerView {
    /// `token:NAME`, or `uid:N` for a process at the admin socket.
    pub name: String,
    #[schema(value_type = String)]
    pub role: Role,
}

/// The central node at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatusView {
    /// The site's name.
    pub site: String,
    /// Version and commit of the meshd that answers.
    pub version: String,
    pub pid: u32,
    /// SHA-256 of the certificate of `[admin.https]`, for `--server-fingerprint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https_fingerprint: Option<String>,
    /// Machines boot: nothing is wrong that keeps them from it.
    #[serde(default)]
    pub ready: bool,
    /// How many nodes there are.
    #[serde(default)]
    pub nodes: usize,
    /// How many nodes are in each phase; phases without a node are left out.
    pub phases: BTreeMap<String, usize>,
    /// What nodes can give to virtual machines.
    #[serde(default)]
    pub units: UnitCount,
    /// How many nodes have each condition; those that none has are left out.
    #[serde(default)]
    pub conditions: BTreeMap<String, usize>,
    /// What somebody should look at.
    #[serde(default)]
    pub warnings: Vec<Finding>,
    /// What keeps machines from booting.
    #[serde(default)]
    pub errors: Vec<Finding>,
}

/// Units of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnitCount {
    /// Those that can be given: of nodes that are online.
    pub ready: usize,
    /// All that nodes tell of.
    pub total: usize,
}

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Machines boot, and somebody should look.
    Warn,
    /// Machines do not boot, or soon will not.
    Fail,
}

/// One check and what it found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub check: String,
    pub status: Status,
    pub found: String,
    /// What to do next; empty when nothing is to be done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
}

impl Finding {
    /// All is well.
    pub fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Finding { check: check.into(), status: Status::Ok, found: found.into(), next: String::new() }
    }

    /// Somebody should look.
    pub fn warn(check: impl Into<String>, found: impl Into<String>, next: impl Into<String>) -> Self {
        Finding { check: check.into(), status: Status::Warn, found: found.into(), next: next.into() }
    }

    /// Machines do not boot.
    pub fn fail(check: impl Into<String>, found: impl Into<String>, next: impl Into<String>) -> Self {
        Finding { check: check.into(), status: Status::Fail, found: found.into(), next: next.into() }
    }

    /// A sentence of this program reads "what is wrong; what to do".
    pub fn fail_of(check: impl Into<String>, error: &dyn std::error::Error) -> Self {
        let text = error.to_string();
        let (found, next) = text.split_once("; ").unwrap_or((&text, "see the log of meshd"));
        Finding::fail(check, found, next)
    }
}

/// Operations of the site that are not finished: failed ones first, then old ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationsView {
    pub operations: Vec<OperationView>,
    /// Number of operations that are not in this answer.
    pub rest: usize,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    /// `boot`, `reboot`, `drain`, `vm`, `fetch`, `write`, `wipe`, `slot` or `task`.
    #[schema(value_type = String)]
    pub kind: OperationKind,
    /// `node`, `machine`, `vm`, `slot` or `task`.
    #[schema(value_type = String)]
    pub object: ObjectKind,
    /// Node ID, MAC address, UUID, slot ID or task ID.
    pub id: String,
    /// Name of the object; its ID if it has none.
    pub name: String,
    /// The node on which it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub node: Option<NodeId>,
    /// The requested action.
    pub request: String,
    /// Time of the order, or of the last reported change; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// `requested`: no node has confirmed it. `accepted`: a node works on it. `failed`: it needs help, or it is retried.
    #[schema(value_type = String)]
    pub state: OperationState,
    /// How far it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub progress: String,
    /// Why it does not proceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<Operation> for OperationView {
    fn from(operation: Operation) -> Self {
        let Operation { kind, object, id, name, node, request, since, state, progress, reason } = operation;
        OperationView { kind, object, id, name, node, request, since, state, progress, reason }
    }
}
