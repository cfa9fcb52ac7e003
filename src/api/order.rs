//! Orders about nodes and profiles, and their short answers.

use crate::{node::NodeView, status::ErrorView};
use meshd_config::Fault;
use meshd_model::fleet::{DeliveredGeneration, Generation, GenerationDiff, LabelChange, RevisionDiff, RevisionSummary};
use meshd_proto::DoctorReport;
use meshd_types::{MacAddr, NodeId, Secret, VarName, Vars};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of `assign-profile`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AssignProfile {
    /// The profile's name, as somebody typed it.
    pub profile: String,
}

/// Body of `approve`; none is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Approve {
    /// The node was plugged in elsewhere: the port of a relay that it is known by is forgotten.
    pub moved: bool,
}

/// Body of `vars`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeVars {
    /// Variables to set.
    #[schema(value_type = Object)]
    pub set: Vars,
    /// Variables to remove.
    #[schema(value_type = Vec<String>)]
    pub unset: Vec<VarName>,
}

/// Body of `label`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct ChangeLabels {
    /// `set` and `unset`.
    #[schema(value_type = Object)]
    pub change: LabelChange,
}

/// Body of an order for several nodes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    /// Each node with its ID and the revision that the caller saw.
    #[schema(value_type = Vec<Object>)]
    pub nodes: Vec<BulkTarget>,
    /// The body of the same order for one node.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub order: serde_json::Value,
}

/// What came of an order for several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkDone {
    /// How many nodes refused it.
    pub failed: usize,
    /// Each node, in the order of the request.
    pub results: Vec<BulkNode>,
}

/// What came of it for one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkNode {
    #[schema(value_type = String)]
    pub id: NodeId,
    /// The node afterwards; `null` if it refused the order.
    pub node: Option<NodeView>,
    /// Its readiness checks, if the order was to run them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub report: Option<DoctorReport>,
    /// Why it refused the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
}

/// Body of `rename`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// The new name: a host name.
    pub name: String,
}

/// Body of `boot-once`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BootOnce {
    /// The profile's name, as somebody typed it.
    pub profile: Option<String>,
    /// Kernel arguments on top of the profile's.
    pub kernel_args: Vec<String>,
    /// Take back what was ordered.
    pub clear: bool,
}

/// Body of `pin`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pin {
    /// A generation or the beginning of its digest; what the node runs unless it is named.
    pub generation: Option<String>,
    /// Let it go.
    pub off: bool,
}

/// Body of `drain`; none is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Drain {
    /// What becomes of what runs: `wait` until it ends, or `stop` it.
    #[schema(value_type = String)]
    pub workloads: DrainPolicy,
    /// With `stop`: seconds that guests have to end by themselves, in place of what each has by its own; an hour at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
}

/// Body of `fence`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// The node's name, typed by whoever says that it is off.
    pub confirm: String,
}

/// Body of `replace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// The node that takes the place of the old one: ID or name.
    pub new: String,
}

/// What a node's doctor says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorView {
    #[schema(value_type = String)]
    pub node: NodeId,
    /// Its checks, and how many of them fail or warn.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub report: DoctorReport,
}

/// A network card that a node is to be recognised by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptNic {
    #[schema(value_type = String)]
    pub mac: MacAddr,
}

/// What came of a replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replaced {
    /// The new node.
    pub node: NodeView,
    /// What the site file says of the old hardware and nothing has taken over, for people.
    pub left: Vec<String>,
}

/// One generation of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GenerationView {
    /// Which, of what, when.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub given: DeliveredGeneration,
    /// The node runs it.
    pub runs: bool,
    /// The node would boot it now.
    pub next: bool,
    /// The node is pinned to it.
    pub pinned: bool,
    /// All of it is kept: it can be compared, and booted again.
    pub kept: bool,
}

/// What a node runs against what it would boot now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiffView {
    #[schema(value_type = String)]
    pub runs: Generation,
    /// What it would boot now.
    #[schema(value_type = String)]
    pub next: Generation,
    /// The generation that it is pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub pinned: Option<Generation>,
    /// The generation that its profile is rolled back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub rolled_back: Option<Generation>,
    #[schema(value_type = Object)]
    pub diff: GenerationDiff,
}

/// Body of `rollback`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rollback {
    /// A generation of the profile or the beginning of its digest; the one before what its nodes boot unless it is named.
    pub to: Option<String>,
    /// Its nodes boot what the site file says again.
    pub off: bool,
}

/// One revision of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionView {
    /// Which, and since when.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub revised: RevisionSummary,
    /// Nodes of the profile boot it.
    pub boots: bool,
    /// It is what site file, overlays and image say.
    pub filed: bool,
    /// The profile was rolled back to it.
    pub held: bool,
}

/// How two revisions of a profile differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionDiffView {
    /// Its settings and files of overlays.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub diff: RevisionDiff,
}

/// What came of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReloadView {
    /// Why it was refused; empty when it was not.
    #[schema(value_type = Vec<Object>)]
    pub faults: Vec<Fault>,
    /// False when everything is as it was.
    pub changed: bool,
    /// Keys of `site.toml` that differ and need a restart.
    pub restart: Vec<String>,
}

/// Body of `backup`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeBackup {
    /// The passphrase that encrypts the backup.
    pub key: Secret<String>,
    /// Whether the backup contains the blobs of images and bundles.
    #[serde(default)]
    pub blobs: bool,
}

/// What a drain does with running work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainPolicy {
    /// It ends by itself.
    #[default]
    Wait,
    /// It is stopped.
    Stop,
}

/// A node as an operator saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BulkTarget {
    pub id: NodeId,
    pub revision: String,
}
