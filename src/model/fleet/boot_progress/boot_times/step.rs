//! Steps of a boot with their durations.

use crate::fleet::boot_progress::{boot_session::BootSession, stage::Stage};
use meshd_types::Timestamp;
use std::time::Duration;

/// A step of a boot, in the order of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BootStep {
    /// From the order to the first packet of any NIC: shutdown, firmware, boot devices that meshd
    /// does not see.
    Firmware,
    /// From the first packet of a failed attempt to the first packet of this boot.
    Attempts,
    /// From the stage before.
    Stage(Stage),
    /// The wait for an operator.
    Approval,
}

impl BootStep {
    /// Returns the word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            BootStep::Firmware => "firmware",
            BootStep::Attempts => "attempts",
            BootStep::Stage(stage) => stage.as_str(),
            BootStep::Approval => "approval",
        }
    }
}

/// The time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootStepTime {
    pub step: BootStep,
    /// End of the step.
    pub at: Timestamp,
    /// Time from the step before, without the wait for approval. Zero after a clock that went back.
    pub duration: Duration,
    /// Number of times that the machine reached the step.
    pub count: u32,
}

/// Returns the stages of a boot in the order in which they were reached. `running_until` is the
/// present time of an unfinished boot.
pub fn stage_times(session: &BootSession, running_until: Option<Timestamp>) -> Vec<BootStepTime> {
    let mut before = session.stages.first().map_or(session.opened_at, |mark| mark.at);
    let mut times = Vec::with_capacity(session.stages.len() + 1);
    let mut approval = session.approval_wait(running_until);
    let approval_time = |[began, end]: [Timestamp; 2], before: Timestamp| BootStepTime {
        step: BootStep::Approval,
        at: end,
        duration: end.since(began.max(before)),
        count: 1,
    };
    for mark in &session.stages {
        let mut duration = mark.at.since(before);
        if let Some(wait) = approval.take_if(|_| mark.stage >= Stage::Enrolled) {
            let wait = approval_time(wait, before);
            duration = duration.saturating_sub(wait.duration);
            times.push(wait);
        }
        times.push(BootStepTime {
            step: BootStep::Stage(mark.stage),
            at: mark.at,
            duration,
            count: mark.count,
        });
        before = mark.at;
    }
    times.extend(approval.map(|wait| approval_time(wait, before)));
    times
}
