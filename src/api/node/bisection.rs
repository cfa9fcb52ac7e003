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
    pub hostlist: Hostlist,
    /// Generation of the profile that is good, or a prefix of its digest.
    pub good: String,
    /// Newer generation of the profile that is bad.
    pub bad: String,
    /// Program of the site that decides whether a node is good.
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
    pub id: BisectionId,
    pub profile: ProfileName,
    pub state: BisectionState,
    /// Why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The first bad generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<Generation>,
    /// Number of generations that may be the first bad one.
    pub suspects: usize,
    /// From the good generation to the bad one, the oldest first.
    pub generations: Vec<Generation>,
    pub nodes: Vec<NodeId>,
    pub check: ProgramName,
    /// The boots, in their order.
    pub probes: Vec<ProbeView>,
    /// The rollout that returns the nodes to what they ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returning: Option<RolloutId>,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Caller, verb, reason and correlation ID.
    pub by: AuditContext,
}

/// One boot of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProbeView {
    pub generation: Generation,
    pub node: NodeId,
    /// The rollout that boots the node.
    pub rollout: RolloutId,
    /// Absent while the rollout runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
