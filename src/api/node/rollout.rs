//! Rollouts: planned changes of many nodes.

use meshd_model::{
    fleet::{AuditContext, Selector},
    rollouts::{
        NodeStage, Rollout, RolloutNode, RolloutPolicy, RolloutState, RolloutTarget, StageCounts,
    },
};
use meshd_types::{GroupName, Hostlist, NodeId, ProfileName, RolloutId, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// Body of a new rollout: the nodes, by exactly one of `hostlist`, `label`, `group` and `profile`,
/// and the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRollout {
    /// Names of nodes, such as `gpu[001-040,050]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostlist: Option<Hostlist>,
    /// Selector, such as `rack=a,feed!=2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Selector>,
    /// Name of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Nodes that have this profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    pub target: RolloutTarget,
    /// Canaries, waves, floors, timeouts, window, programs; absent fields have their defaults.
    #[serde(default)]
    pub policy: RolloutPolicy,
    /// Number of all nodes, if they change at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_at_once: Option<u32>,
}

/// Body of `undo`; an empty body means the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UndoRollout {
    /// Number of all nodes, if they change at once.
    pub all_at_once: Option<u32>,
}

/// A rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutView {
    pub id: RolloutId,
    pub target: RolloutTarget,
    pub policy: RolloutPolicy,
    pub state: RolloutState,
    /// Why the rollout is paused, or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why no further node begins at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// Estimated time until the end, in seconds; absent if nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<u64>,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of waves, the canaries included.
    pub waves: u32,
    /// Nodes of all waves.
    #[serde(flatten)]
    pub progress: WaveProgress,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The rollout that this one takes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<RolloutId>,
    /// Caller, verb, reason and correlation ID.
    pub by: AuditContext,
    /// Nodes of each wave, in a single rollout; absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub board: Vec<WaveView>,
}

/// Number of nodes by progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaveProgress {
    /// Number of nodes that have not begun.
    pub waiting: u32,
    /// Number of nodes in progress.
    pub active: u32,
    pub done: u32,
    /// Number of nodes that did not become healthy.
    pub failed: u32,
    pub skipped: u32,
}

/// One wave of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaveView {
    /// Number of the wave; the canaries are wave 0.
    pub wave: u32,
    #[serde(flatten)]
    pub progress: WaveProgress,
}

impl From<StageCounts> for WaveProgress {
    fn from(counts: StageCounts) -> Self {
        let sum = |is_meant: fn(NodeStage) -> bool| {
            let stages = NodeStage::ALL.into_iter().filter(|stage| is_meant(*stage));
            stages.map(|stage| counts.of(stage)).sum()
        };
        WaveProgress {
            waiting: counts.of(NodeStage::Waiting),
            active: sum(|stage| stage.is_active() && !stage.is_failure()),
            done: counts.of(NodeStage::Done),
            failed: sum(NodeStage::is_failure),
            skipped: counts.of(NodeStage::Skipped),
        }
    }
}

impl WaveProgress {
    /// Returns the numbers in words, without zeros.
    pub fn words(self) -> String {
        let counts = [
            (self.waiting, "waiting"),
            (self.active, "in progress"),
            (self.done, "done"),
            (self.failed, "failed"),
            (self.skipped, "skipped"),
        ];
        let words = counts.iter().filter(|(count, _)| *count > 0);
        words.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
    }
}

impl RolloutView {
    pub fn new(head: &Rollout, counts: StageCounts, waits: Option<String>) -> Self {
        RolloutView {
            id: head.id,
            target: head.target.clone(),
            policy: head.policy.clone(),
            state: head.state,
            reason: head.reason.clone(),
            waits: waits.filter(|_| head.state == RolloutState::Running),
            eta_s: None,
            nodes: head.nodes,
            waves: head.waves,
            progress: counts.into(),
            started_at: head.started_at,
            finished_at: head.finished_at,
            undoes: head.undoes,
            by: head.by.clone(),
            board: Vec::new(),
        }
    }

    /// Adds the estimated time until the end.
    pub fn with_eta(mut self, remaining: Option<Duration>) -> Self {
        self.eta_s = remaining.map(|remaining| remaining.as_secs());
        self
    }

    /// Adds the nodes of each wave.
    pub fn with_board(mut self, waves: impl IntoIterator<Item = (u32, StageCounts)>) -> Self {
        let view = |(wave, counts): (u32, StageCounts)| WaveView { wave, progress: counts.into() };
        self.board = waves.into_iter().map(view).collect();
        self
    }
}

/// One node of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutNodeView {
    pub node: NodeId,
    /// Name of the node when the rollout was planned.
    pub name: String,
    /// Number of the wave; the canaries are wave 0.
    pub wave: u32,
    pub stage: NodeStage,
    /// Why the node failed or was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

impl From<&RolloutNode> for RolloutNodeView {
    fn from(record: &RolloutNode) -> Self {
        RolloutNodeView {
            node: record.node,
            name: record.name.clone(),
            wave: record.wave,
            stage: record.stage,
            reason: record.reason.clone(),
            began_at: record.began_at,
            finished_at: record.finished_at,
        }
    }
}

/// A rollout that was planned and not started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutPlan {
    pub rollout: RolloutView,
    /// The nodes by wave.
    pub nodes: Vec<RolloutNodeView>,
}
