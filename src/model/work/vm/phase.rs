//! The phase of a VM, derived from its desired state and its last report.

use super::record::{Vm, VmDesiredState};
use meshd_proto::vm::ReportedVmState;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

/// The phase of a VM for operators: the reported state, and phases that only the central node
/// knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(utoipa::ToSchema, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum VmPhase {
    /// No node has the VM.
    Unplaced,
    /// The VM is placed, and its node has not reported it yet.
    Ordered,
    Starting,
    Running,
    /// The node paused the guest.
    Paused,
    /// The guest shuts down.
    Stopping,
    /// The VM restarts after a delay.
    Waiting,
    Stopped,
    /// The VM is off unexpectedly.
    Failed,
    /// The node does not answer; the VM may run.
    Unreachable,
    /// The record is from a backup; the VM may run there, elsewhere or not at all.
    Unconfirmed,
    Releasing,
    /// The node cannot release the VM.
    ReleaseBlocked,
}

impl VmPhase {
    pub const ALL: [VmPhase; VmPhase::VARIANTS.len()] =
        *VmPhase::VARIANTS.first_chunk().expect("the same length");
}

as_str!(VmPhase);

impl From<ReportedVmState> for VmPhase {
    fn from(state: ReportedVmState) -> Self {
        match state {
            ReportedVmState::Starting => VmPhase::Starting,
            ReportedVmState::Running => VmPhase::Running,
            ReportedVmState::Paused => VmPhase::Paused,
            ReportedVmState::Stopping => VmPhase::Stopping,
            ReportedVmState::Waiting => VmPhase::Waiting,
            ReportedVmState::Stopped => VmPhase::Stopped,
            ReportedVmState::Failed => VmPhase::Failed,
        }
    }
}

impl Vm {
    /// Returns the phase. `is_linked`: the node has a link.
    pub fn phase(&self, is_linked: bool) -> VmPhase {
        match (&self.placement, &self.last_report) {
            (None, _) => VmPhase::Unplaced,
            (Some(_), _) if self.unconfirmed && self.desired_state == VmDesiredState::Run => {
                VmPhase::Unconfirmed
            }
            (Some(_), _)
                if self.desired_state == VmDesiredState::Release && self.obstacle.is_some() =>
            {
                VmPhase::ReleaseBlocked
            }
            (Some(_), _) if self.desired_state == VmDesiredState::Release => VmPhase::Releasing,
            (Some(_), Some(last)) if !is_linked && last.state.is_live() => VmPhase::Unreachable,
            (Some(_), Some(last)) => last.state.into(),
            (Some(_), None) if self.desired_state == VmDesiredState::Run => VmPhase::Ordered,
            (Some(_), None) => VmPhase::Stopped,
        }
    }
}
