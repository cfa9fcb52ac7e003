//! Commands to a supervisor, and the stored record of a VM.

use super::vm_state_machine::{RestartState, VmEvent, VmStateMachine};
use crate::{files, vm::vm_paths::VmPaths};
use meshd_proto::vm::{VmReport, VmSpec};
use serde::{Deserialize, Serialize};
use std::io;
use tokio::sync::oneshot;

#[derive(Debug)]
pub enum SupervisorCommand {
    /// Process an event. `start` is the number of the start order, if the event belongs to one.
    Event { event: VmEvent, start: Option<u32> },
    /// Kill the VM and remove its files.
    Release(oneshot::Sender<Result<(), String>>),
}

/// The contents of [`VmPaths::record`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedVm {
    pub spec: VmSpec,
    #[serde(default)]
    pub start: u32,
    #[serde(default)]
    pub record: RestartState,
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
    let RestartState { restarts, failure, .. } = state_machine.record().clone();
    let plain = VmReport::new(spec.uuid, spec.name.clone(), state_machine.state());
    VmReport { failure, restarts, start: Some(start), ..plain }
}
