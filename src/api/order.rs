//! Request bodies of orders for nodes and profiles, and their responses.

use crate::{
    node::{NodeView, WarmRebootView},
    status::ErrorView,
};
use meshd_config::Fault;
use meshd_model::fleet::{
    DeliveredGeneration, Generation, GenerationDiff, RevisionDiff, RevisionSummary,
};
use meshd_model::operations::DrainPolicy;
use meshd_proto::DoctorReport;
use meshd_types::{Hostlist, MacAddr, NodeId, OperationId, Secret, VarName, VarValue};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Body of `assign-profile`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AssignProfile {
    /// Name of the profile.
    pub profile: String,
}

/// Body of `approve`; an empty body means the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Approve {
    /// True if the node was moved to another port: meshd forgets the relay port on record.
    pub moved: bool,
}

/// Body of `vars`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeVars {
    /// Variables to set, with their values.
    pub set: BTreeMap<VarName, VarValue>,
    /// Names of the variables to remove.
    pub unset: Vec<VarName>,
}

/// Body of an order for several nodes: `nodes`, or `hostlist`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    /// Nodes, each with its ID and the revision that the caller read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<BulkTarget>,
    /// Names of nodes, such as `gpu[001-040,050]` or `gpu*`. Nothing is done if one is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostlist: Option<Hostlist>,
    /// Body of the same order for one node.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub order: serde_json::Value,
}

impl BulkRequest {
    /// Creates the request for nodes that the caller has read.
    pub fn of_nodes(nodes: Vec<BulkTarget>, order: serde_json::Value) -> Self {
        BulkRequest { nodes, hostlist: None, order }
    }
}

/// Results of an order for several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkDone {
    /// The operation that the order has become; absent for orders that are not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
    /// False if the operation is executed in the background: follow it. True if `results` has all
    /// nodes.
    #[serde(default = "is_finished_by_default")]
    pub finished: bool,
    /// Number of nodes for which the order failed.
    pub failed: usize,
    /// Results in the order of the nodes in the request; empty for an operation in the background.
    pub results: Vec<BulkNode>,
}

fn is_finished_by_default() -> bool {
    true
}

/// Result of an order for one of several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkNode {
    pub id: NodeId,
    /// The node after the order; `null` if the order failed.
    pub node: Option<NodeView>,
    /// Results of the readiness checks, if the order ran them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<DoctorReport>,
    /// The last order to reboot without the firmware, with `report` and if the node booted through
    /// its firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_reboot: Option<WarmRebootView>,
    /// Error of the order, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
}

/// Body of `rename`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// New host name of the node.
    pub name: String,
}

/// Body of `boot-once`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BootOnce {
    /// Name of the profile for the next boot.
    pub profile: Option<String>,
    /// Kernel arguments in addition to those of the profile.
    pub kernel_args: Vec<String>,
    /// True to cancel an earlier override.
    pub clear: bool,
}

/// Body of `pin`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pin {
    /// Generation or a prefix of its digest. Default: the generation that the node runs.
    pub generation: Option<String>,
    /// True to remove the pin.
    pub off: bool,
}

/// Body of `drain`; an empty body means the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Drain {
    /// Policy for running workloads: `wait` waits for their end, `stop` stops them.
    pub workloads: DrainPolicy,
    /// Shutdown time of guests in seconds, at most 3600, for the policy `stop`. This time replaces
    /// the grace period of each VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
}

/// Body of `reboot`; an empty body means the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Reboot {
    /// Start the next boot by kexec, without the firmware. A node that cannot boots through its
    /// firmware.
    pub warm: bool,
}

/// Body of `fence`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// Name of the node, entered to confirm that the node is powered off.
    pub confirm: String,
}

/// Body of `replace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// ID or name of the node whose hardware takes over the identity of the old node.
    pub new: String,
}

/// Results of the readiness checks of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorView {
    pub node: NodeId,
    /// Checks, and the numbers of failed checks and of warnings.
    #[serde(flatten)]
    pub report: DoctorReport,
    /// The last order to reboot without the firmware, if the node booted through its firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_reboot: Option<WarmRebootView>,
}

/// Body of `accept-nic`: a NIC that identifies the node from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptNic {
    pub mac: MacAddr,
}

/// Result of a replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replaced {
    /// Node with the new hardware.
    pub node: NodeView,
    /// Settings of the site file that still refer to the old hardware, as text for operators.
    pub outdated_settings: Vec<String>,
}

/// A generation of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GenerationView {
    /// Digest, inputs and times of the generation.
    #[serde(flatten)]
    pub delivered: DeliveredGeneration,
    /// True if the node runs this generation.
    pub runs: bool,
    /// True if the node would boot this generation now.
    pub next: bool,
    /// True if the node is pinned to this generation.
    pub pinned: bool,
    /// True if all files of the generation are archived. Only such a generation can be compared or
    /// booted again.
    pub archived: bool,
}

/// Difference between the running generation of a node and the generation of its next boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiffView {
    pub runs: Generation,
    /// Generation of the next boot.
    pub next: Generation,
    /// Generation to which the node is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Generation>,
    /// Generation to which the profile is rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<Generation>,
    pub diff: GenerationDiff,
}

/// Body of `rollback`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rollback {
    /// Generation of the profile or a prefix of its digest. Default: the generation before the one
    /// that its nodes boot.
    pub to: Option<String>,
    /// True to end the rollback: nodes boot the profile of the site file again.
    pub off: bool,
}

/// A revision of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionView {
    /// Generation, image and start time of the revision.
    #[serde(flatten)]
    pub revised: RevisionSummary,
    /// True if nodes of the profile boot this revision.
    pub boots: bool,
    /// True if the revision matches the current site file, overlays and image.
    pub current: bool,
    /// True if the profile is rolled back to this revision.
    pub pinned: bool,
}

/// Difference between two revisions of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionDiffView {
    /// Changed settings and changed files of overlays.
    #[serde(flatten)]
    pub diff: RevisionDiff,
}

/// Result of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReloadView {
    /// Faults for which meshd refused the reload; empty after a successful reload.
    pub faults: Vec<Fault>,
    /// True if the reload changed something.
    pub changed: bool,
    /// Changed keys of `site.toml` that take effect only after a restart.
    pub restart: Vec<String>,
    /// Nodes that would not boot with the new site.
    #[serde(default)]
    pub warnings: Vec<Fault>,
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

/// A node, and the revision of its record that the caller read. Without a revision, the order is
/// executed in any case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkTarget {
    pub id: NodeId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}
