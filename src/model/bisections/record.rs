//! The record of a bisection.

use crate::{
    fleet::{AuditContext, Generation},
    rollouts::{NodeSettings, NodeStage, RolloutNode},
};
use meshd_types::{BisectionId, NodeId, ProfileName, ProgramName, RolloutId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a reason, in characters.
const MAX_REASON: usize = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum BisectionState {
    Running,
    /// The result is known; the nodes return to what they ran.
    Returning,
    /// The first bad generation was found.
    Done,
    Failed,
    Aborted,
}

impl BisectionState {
    /// All states, in the order of their declaration.
    pub const ALL: [BisectionState; 5] = {
        use BisectionState::{Aborted, Done, Failed, Returning, Running};
        [Running, Returning, Done, Failed, Aborted]
    };

    /// True if the bisection never changes again.
    pub fn is_final(self) -> bool {
        !matches!(self, BisectionState::Running | BisectionState::Returning)
    }
}

as_str!(BisectionState);

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum ProbeVerdict {
    Good,
    Bad,
    /// Several runs of the check on one boot had different results.
    Mixed,
    /// The node did not boot the generation, or did not become healthy.
    Untested,
}

as_str!(ProbeVerdict);

/// One boot of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Position in [`Bisection::generations`].
    pub index: usize,
    pub node: NodeId,
    /// The rollout that boots the node.
    pub rollout: RolloutId,
    /// `None` while the rollout runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<ProbeVerdict>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The node is offline after the boot: it is of no use for further probes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

/// A search for the first bad generation of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bisection {
    pub id: BisectionId,
    pub profile: ProfileName,
    /// From the good generation to the bad one, both included, the oldest first. At least two.
    pub generations: Vec<Generation>,
    /// Spare nodes. At least one.
    pub nodes: Vec<NodeId>,
    /// The program that decides whether a node is good.
    pub check: ProgramName,
    /// Number of runs of the check on each boot.
    pub runs: u32,
    /// The last good and the first bad generation are booted once more.
    pub verify: bool,
    pub node_timeout_s: u32,
    pub soak_s: u32,
    /// Caller, verb, reason and correlation ID.
    pub by: AuditContext,
    pub started_at: Timestamp,
    pub state: BisectionState,
    /// The final state, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_as: Option<BisectionState>,
    /// Why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<Generation>,
    pub probes: Vec<Probe>,
    /// What the nodes ran, and return to.
    pub before: BTreeMap<NodeId, NodeSettings>,
    /// The nodes that were in service, and return to it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub served: BTreeSet<NodeId>,
    /// The rollout that returns the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returning: Option<RolloutId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

impl Bisection {
    /// Decides the result. The nodes return first.
    pub fn conclude(&mut self, ends_as: BisectionState, reason: Option<&str>) {
        self.state = BisectionState::Returning;
        self.ends_as = Some(ends_as);
        if let Some(reason) = reason {
            self.add_reason(reason);
        }
    }

    /// Ends the bisection: the nodes have returned.
    pub fn finish(&mut self, now: Timestamp) {
        self.state = self.ends_as.unwrap_or(BisectionState::Failed);
        self.finished_at = Some(now);
    }

    /// Adds a reason, bounded.
    pub fn add_reason(&mut self, reason: &str) {
        let earlier = self.reason.take().map(|earlier| format!("{earlier}; ")).unwrap_or_default();
        self.reason = Some(format!("{earlier}{reason}").chars().take(MAX_REASON).collect());
    }

    /// Adds the nodes that did not return, by the records of the rollout that returns them.
    pub fn add_unreturned<'a>(&mut self, records: impl IntoIterator<Item = &'a RolloutNode>) {
        let is_back = |stage| matches!(stage, NodeStage::Done | NodeStage::Returned);
        let failed = records.into_iter().filter(|record| !is_back(record.stage));
        let failed: Vec<String> = failed
            .map(|record| {
                let why = record.reason.as_deref().unwrap_or(record.stage.as_str());
                format!("{}: {why}", record.name)
            })
            .collect();
        if !failed.is_empty() {
            self.add_reason(&format!("nodes that did not return: {}", failed.join(", ")));
        }
    }

    /// The nodes that booted another generation.
    pub fn used_nodes(&self) -> BTreeMap<NodeId, NodeSettings> {
        let is_used = |id: &NodeId| self.probes.iter().any(|probe| probe.node == *id);
        let used = self.before.iter().filter(|(id, _)| is_used(id));
        used.map(|(id, settings)| (*id, settings.clone())).collect()
    }
}
