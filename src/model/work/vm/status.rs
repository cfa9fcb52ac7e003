//! The status of a VM, derived from desired state and last report.

use super::record::{Vm, VmDesiredState};
use meshd_proto::vm::VmState;
use serde::{Deserialize, Serialize};

/// The status of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum VmStatus {
    /// No node has it.
    Unplaced,
    /// It is placed, and the node has not reported it yet.
    Ordered,
    /// QEMU starts.
    Starting,
    /// The guest runs.
    Running,
    /// The node paused the guest.
    Paused,
    /// It shuts down.
    Stopping,
    /// It restarts after a delay.
    Waiting,
    /// It is off.
    Stopped,
    /// It is off unexpectedly.
    Failed,
    /// The node does not answer; the VM may run.
    Unreachable,
    /// The record is from a backup; the VM may run there, elsewhere or not at all.
    Unconfirmed,
    /// The node releases it.
    Releasing,
    /// The node cannot release it.
    ReleaseBlocked,
}

impl VmStatus {
    /// All states.
    pub const ALL: [VmStatus; 13] = [
        VmStatus::Unplaced,
        VmStatus::Ordered,
        VmStatus::Starting,
        VmStatus::Running,
        VmStatus::Paused,
        VmStatus::Stopping,
        VmStatus::Waiting,
        VmStatus::Stopped,
        VmStatus::Failed,
        VmStatus::Unreachable,
        VmStatus::Unconfirmed,
        VmStatus::Releasing,
        VmStatus::ReleaseBlocked,
    ];

    /// Returns the word that is shown.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl From<VmState> for VmStatus {
    fn from(state: VmState) -> Self {
        match state {
            VmState::Starting => VmStatus::Starting,
            VmState::Running => VmStatus::Running,
            VmState::Paused => VmStatus::Paused,
            VmState::Stopping => VmStatus::Stopping,
            VmState::Waiting => VmStatus::Waiting,
            VmState::Stopped => VmStatus::Stopped,
            VmState::Failed => VmStatus::Failed,
        }
    }
}

impl Vm {
    /// Returns the status. `is_linked`: the node has a link.
    pub fn life(&self, is_linked: bool) -> VmStatus {
        match (&self.place, &self.seen) {
            (None, _) => VmStatus::Unplaced,
            (Some(_), _) if self.unconfirmed && self.desired_state == VmDesiredState::Run => VmStatus::Unconfirmed,
            (Some(_), _) if self.desired_state == VmDesiredState::Release && self.obstacle.is_some() => {
                VmStatus::ReleaseBlocked
            }
            (Some(_), _) if self.desired_state == VmDesiredState::Release => VmStatus::Releasing,
            (Some(_), Some(seen)) if !is_linked && seen.state.is_live() => VmStatus::Unreachable,
            (Some(_), Some(seen)) => seen.state.into(),
            (Some(_), None) if self.desired_state == VmDesiredState::Run => VmStatus::Ordered,
            (Some(_), None) => VmStatus::Stopped,
        }
    }
}
