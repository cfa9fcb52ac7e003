//! Bisections: searches for the first bad generation of a profile.

use meshd_model::{
    bisections::{Bisection, BisectionState, Probe, ProbeVerdict, untested},
    fleet::{AuditContext, Generation},
};
use meshd_types::{BisectionId, Hostlist, NodeId, ProfileName, ProgramName, RolloutId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of a new bisection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartBisection {
    /// Spare nodes of one profile, such as `gpu[001-002]`.
    #[schema(value_type = String)]
    pub hostlist: Hostlist,
    /// Generation of the profile that is good, or a prefix of its digest.
    pub good: String,
    /// Newer generation of the profile that is bad.
    pub bad: String,
    /// Program of the site that decides whether a node is good.
    #[schema(value_type = String)]
    pub check: ProgramName,
    /// Number of runs of the check on each boot.
    #[serde(default = "two")]
    pub runs: u32,
    /// Boot the last good and the first bad generation once more.
    #[serde(default)]
    pub verify: bool,
    /// Time from the reboot of a node to the result of the check, in seconds.
    #[serde(default = "node_timeout")]
    pub node_timeout_s: u32,
    /// Time for which a node must be healthy before the check, in seconds.
    #[serde(default = "soak")]
    pub soak_s: u32,
}

fn two() -> u32 {
    2
}

fn node_timeout() -> u32 {
    45 * 60
}

fn soak() -> u32 {
    10
}

/// A bisection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BisectionView {
    #[schema(value_type = String)]
    pub id: BisectionId,
    #[schema(value_type = String)]
    pub profile: ProfileName,
    /// `running`, `returning`, `done`, `failed` or `aborted`.
    #[schema(value_type = String)]
    pub state: BisectionState,
    /// Why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The first bad generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub first_bad: Option<Generation>,
    /// Number of generations that may be the first bad one.
    pub suspects: usize,
    /// From the good generation to the bad one, the oldest first.
    #[schema(value_type = Vec<String>)]
    pub generations: Vec<Generation>,
    #[schema(value_type = Vec<String>)]
    pub nodes: Vec<NodeId>,
    #[schema(value_type = String)]
    pub check: ProgramName,
    /// The boots, in their order.
    pub probes: Vec<ProbeView>,
    /// The rollout that returns the nodes to what they ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub returning: Option<RolloutId>,
    #[schema(value_type = String)]
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub finished_at: Option<Timestamp>,
    /// Caller, verb, reason and correlation ID.
    #[schema(value_type = Object)]
    pub by: AuditContext,
}

/// One boot of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProbeView {
    #[schema(value_type = String)]
    pub generation: Generation,
    #[schema(value_type = String)]
    pub node: NodeId,
    /// The rollout that boots the node.
    #[schema(value_type = String)]
    pub rollout: RolloutId,
    /// `good`, `bad`, `mixed` or `untested`; absent while the rollout runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub verdict: Option<ProbeVerdict>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<&Bisection> for BisectionView {
    fn from(bisection: &Bisection) -> Self {
        let view = |probe: &Probe| ProbeView {
            generation: bisection.generations[probe.index],
            node: probe.node,
            rollout: probe.rollout,
            verdict: probe.verdict,
            reason: probe.reason.clone(),
        };
        BisectionView {
            id: bisection.id,
            profile: bisection.profile.clone(),
            state: bisection.state,
            reason: bisection.reason.clone(),
            first_bad: bisection.first_bad,
            suspects: untested(bisection),
            generations: bisection.generations.clone(),
            nodes: bisection.nodes.clone(),
            check: bisection.check.clone(),
            probes: bisection.probes.iter().map(view).collect(),
            returning: bisection.returning,
            started_at: bisection.started_at,
            finished_at: bisection.finished_at,
            by: bisection.by.clone(),
        }
    }
}
