//! The stored record of a VM.

use super::vm_state_machine::{RestartState, VmStateMachine};
use crate::{files, vm::vm_paths::VmPaths};
use meshd_proto::vm::{VmReport, VmSpec};
use serde::{Deserialize, Serialize};
use std::io;

/// The contents of [`VmPaths::record`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedVm {
    pub spec: VmSpec,
    #[serde(default)]
    pub start: u32,
    /// Under its former name, so that running VMs survive another agent.
    #[serde(default, rename = "record")]
    pub restart_state: RestartState,
    /// Boot ID of the kernel that wrote it.
    #[serde(default)]
    pub boot: String,
    /// QEMU ran in that boot, so it used the units and disks.
    #[serde(default)]
    pub ran: bool,
}

impl PersistedVm {
    /// Makes the folder and writes the record.
    pub fn write(&self, files: &VmPaths) -> io::Result<()> {
        files.make()?;
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        files::replace(&files.record(), &text).map_err(io::Error::other)
    }
}

pub fn report(spec: &VmSpec, start: u32, state_machine: &VmStateMachine) -> VmReport {
    let RestartState { restarts, failure, .. } = state_machine.restart_state().clone();
    let plain = VmReport::new(spec.uuid, spec.name.clone(), state_machine.state());
    VmReport { failure, restarts, start: Some(start), ..plain }
}
