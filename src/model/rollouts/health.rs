//! The health of a node in progress, and what its step depends on.

use super::{NodePresent, Rollout, RolloutNode};
use crate::{fleet::Phase, operations::NodeOrder};
use meshd_types::Timestamp;
use std::time::Duration;

/// The time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Wall-clock time, for people.
    pub now: Timestamp,
    /// Running time of the rollout, for timeouts.
    pub clock: Duration,
}

/// What the step of one node depends on, beside its record.
pub(super) struct NodeContext<'a> {
    pub(super) rollout: &'a Rollout,
    /// `None` if the node was removed.
    pub(super) present: Option<&'a NodePresent>,
    pub(super) time: StepTime,
}

impl NodeContext<'_> {
    pub(super) fn clock_ms(&self) -> u64 {
        u64::try_from(self.time.clock.as_millis()).unwrap_or(u64::MAX)
    }

    /// True if the node timeout is over since a time of the rollout's clock.
    pub(super) fn is_late(&self, since_ms: u64) -> bool {
        let limit_ms = u64::from(self.rollout.policy.node_timeout_s) * 1000;
        self.clock_ms().saturating_sub(since_ms) > limit_ms
    }
}

/// True if the node runs what it was rebooted into, or what it boots next, with a link, and no
/// check fails.
pub(super) fn runs_wanted(record: &RolloutNode, present: &NodePresent) -> bool {
    let is_wanted = present.settings.booted.is_some() && present.settings.booted == record.wanted;
    present.runs_next() || (is_wanted && present.is_linked && present.passes)
}

/// Describes why a node is not healthy.
pub(super) fn state_text(record: &RolloutNode, present: &NodePresent) -> String {
    let phase = present.phase;
    if !present.is_linked {
        format!("{phase} without a link")
    } else if !present.passes {
        format!("{phase} and its checks do not pass")
    } else if !runs_wanted(record, present) {
        format!("{phase} and runs another generation")
    } else {
        phase.to_string()
    }
}

/// True if the node is back in the service that it had.
pub(super) fn is_back(record: &RolloutNode, present: &NodePresent) -> bool {
    let is_in_service = match present.phase {
        Phase::Online => true,
        Phase::Maintenance => !record.drained,
        _ => false,
    };
    is_in_service && runs_wanted(record, present)
}

/// Returns a node to service that runs what it should and that the rollout has drained.
pub(super) fn resume(record: &RolloutNode, present: &NodePresent) -> Option<NodeOrder> {
    let is_out = record.drained && present.phase == Phase::Maintenance;
    let can_resume = is_out && runs_wanted(record, present);
    can_resume.then_some(NodeOrder::Resume)
}
