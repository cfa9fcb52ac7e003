//! The records of a rollout and of its nodes.

use super::{GateVerdict, ProgramPoint, RolloutPolicy, RolloutTarget};
use crate::fleet::{AuditContext, Generation};
use meshd_types::{BootSessionId, NodeId, ProfileName, RolloutId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

/// Maximum length of a reason, in characters.
const MAX_REASON: usize = 500;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum RolloutState {
    Running,
    /// No further node begins; nodes in progress are finished.
    Paused,
    /// An operator ended the rollout; nodes in progress are finished.
    Aborting,
    /// Too many nodes failed, or the time is over; nodes in progress are finished.
    Failing,
    Done,
    Failed,
    Aborted,
}

impl RolloutState {
    /// All states, in the order of their declaration.
    pub const ALL: [RolloutState; 7] = {
        use RolloutState::{Aborted, Aborting, Done, Failed, Failing, Paused, Running};
        [Running, Paused, Aborting, Failing, Done, Failed, Aborted]
    };

    /// True if the rollout never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, RolloutState::Done | RolloutState::Failed | RolloutState::Aborted)
    }

    /// True if no further node begins, and none will.
    pub fn is_ending(self) -> bool {
        matches!(self, RolloutState::Aborting | RolloutState::Failing)
    }
}

as_str!(RolloutState);

/// The head record of a rollout. Its progress follows from the records of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    pub id: RolloutId,
    pub target: RolloutTarget,
    pub policy: RolloutPolicy,
    /// Caller, verb, reason and correlation ID.
    pub by: AuditContext,
    pub started_at: Timestamp,
    pub state: RolloutState,
    /// Why the rollout is paused, or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Nothing is ordered until an operator resumes or aborts the rollout: the site was restored
    /// from a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of waves, the canaries included.
    pub waves: u32,
    /// Running time, in milliseconds. It advances only while meshd runs, whatever the wall clock
    /// does.
    pub clock_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The rollout that this one takes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<RolloutId>,
}

impl Rollout {
    pub fn clock(&self) -> Duration {
        Duration::from_millis(self.clock_ms)
    }

    /// Stores a reason, bounded.
    pub fn set_reason(&mut self, reason: &str) {
        self.reason = Some(bounded(reason));
    }
}

/// The stage of a node in a rollout.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum NodeStage {
    /// Nothing was done.
    Waiting,
    /// The node leaves service.
    Draining,
    /// Boot settings and reboot are ordered, until the node is healthy.
    Rebooting,
    /// The node is healthy, and must stay so.
    Soaking,
    Done,
    /// The node failed, and returns to what it ran.
    Returning,
    /// The node failed, and runs again what it ran.
    Returned,
    /// The node failed, and needs an operator.
    Failed,
    /// The node was left out.
    Skipped,
}

impl NodeStage {
    /// All stages, in the order of [`StageCounts`].
    pub const ALL: [NodeStage; 9] = {
        use NodeStage::{
            Done, Draining, Failed, Rebooting, Returned, Returning, Skipped, Soaking, Waiting,
        };
        [Waiting, Draining, Rebooting, Soaking, Done, Returning, Returned, Failed, Skipped]
    };

    /// True if the node is in progress: it counts as out of service.
    pub fn is_active(self) -> bool {
        use NodeStage::{Draining, Rebooting, Returning, Soaking};
        matches!(self, Draining | Rebooting | Soaking | Returning)
    }

    /// True if the rollout is finished with the node.
    pub fn is_final(self) -> bool {
        self != NodeStage::Waiting && !self.is_active()
    }

    /// True if the node did not become healthy.
    pub fn is_failure(self) -> bool {
        matches!(self, NodeStage::Returning | NodeStage::Returned | NodeStage::Failed)
    }
}

as_str!(NodeStage);

/// What determines the boot of a node, and what it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    pub profile: ProfileName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Generation>,
    /// Generation that the node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<Generation>,
}

/// Identifies one boot of a node. The boot ID of the kernel detects reboots of a machine without
/// netboot: such a machine stays in one boot session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootKey {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<BootSessionId>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
}

/// The record of one node of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutNode {
    pub rollout: RolloutId,
    pub node: NodeId,
    /// Name of the node when the rollout was planned.
    pub name: String,
    /// Number of the wave; the canaries are wave 0.
    pub wave: u32,
    pub stage: NodeStage,
    /// Why the node failed or was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the node ran when it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<NodeSettings>,
    /// What the node returns to, for [`RolloutTarget::Previous`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<NodeSettings>,
    /// The generation to which the rollout pins the node, for targets that pin: one of its own, or
    /// of its profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Generation>,
    /// Points whose program has passed.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub passed: BTreeSet<ProgramPoint>,
    /// What the gate said at last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateVerdict>,
    /// The boot that the reboot ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootKey>,
    /// Time of the rollout's clock at which the reboot or the return began, or since which a
    /// waiting node has no link, in milliseconds.
    #[serde(default)]
    pub since_ms: u64,
    /// Time of the rollout's clock since which the node is healthy, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_ms: Option<u64>,
    /// Time of the rollout's clock since which the node timeout is stopped, in milliseconds: the
    /// gate waits for its turn, or a node that returns drains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_ms: Option<u64>,
    /// The rollout ordered the drain of the node, so it returns the node to service. Another rollout
    /// of a bisection may have ordered it. A drain of an operator is not undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// The node served when the rollout was planned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub served: bool,
    /// Generation that the node was to boot when its reboot was ordered. A reload during the
    /// rollout makes a newer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Generation>,
    /// The node was back in service after its reboot: its next drain is the order of somebody else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub served_again: bool,
    /// The drain was seen: its end is the order of somebody else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// The boot settings were seen as ordered: a later difference is the order of somebody else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub configured: bool,
    /// The node was seen without a pin: a later one is that of its return.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unpinned: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

impl RolloutNode {
    /// Creates the record of a node that waits for its wave.
    pub fn waiting(rollout: RolloutId, node: NodeId, name: String, wave: u32) -> Self {
        RolloutNode {
            rollout,
            node,
            name,
            wave,
            stage: NodeStage::Waiting,
            reason: None,
            before: None,
            previous: None,
            goal: None,
            passed: BTreeSet::new(),
            gate: None,
            boot: None,
            since_ms: 0,
            healthy_ms: None,
            stopped_ms: None,
            drained: false,
            served: false,
            wanted: None,
            served_again: false,
            left: false,
            configured: false,
            unpinned: false,
            began_at: None,
            finished_at: None,
        }
    }

    /// Begins the return of a node to what it ran, which needs no link.
    pub fn begin_return(&mut self, before: NodeSettings, boot: BootKey, why: &str, now: Timestamp) {
        self.stage = NodeStage::Returning;
        (self.before, self.boot) = (Some(before), Some(boot));
        (self.configured, self.unpinned) = (false, false);
        self.began_at = Some(now);
        self.set_reason(why);
    }

    pub(super) fn set_reason(&mut self, reason: &str) {
        self.reason = Some(bounded(reason));
    }

    /// Ends the node.
    pub(super) fn finish(&mut self, stage: NodeStage, reason: Option<&str>, now: Timestamp) {
        self.stage = stage;
        if let Some(reason) = reason {
            self.set_reason(reason);
        }
        self.finished_at = Some(now);
    }

    /// Returns the node to the state before it began, without a change.
    pub(super) fn withdraw(&mut self) {
        let waiting = RolloutNode::waiting(
            self.rollout,
            self.node,
            std::mem::take(&mut self.name),
            self.wave,
        );
        let previous = self.previous.take();
        let goal = self.goal;
        *self = RolloutNode { previous, goal, served: self.served, ..waiting };
    }
}

fn bounded(reason: &str) -> String {
    reason.chars().take(MAX_REASON).collect()
}

/// Number of nodes in each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounts([u32; 9]);

impl StageCounts {
    pub fn of(self, stage: NodeStage) -> u32 {
        self.0[stage as usize]
    }

    pub fn add(&mut self, stage: NodeStage) {
        self.0[stage as usize] += 1;
    }
}
