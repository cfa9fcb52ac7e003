//! Commands to a supervisor, and the stored record of a VM.

use super::vm_state_machine::{VmRecord, VmStateMachine};
use crate::{files, vm::vm_paths::VmPaths};
use meshd_proto::vm::{VmFailure, VmReport, VmSpec};
use serde::{Deserialize, Serialize};
use std::{io, time::Duration};
use tokio::sync::oneshot;

/// What is ordered of a keeper.
#[derive(Debug)]
pub enum SupervisorCommand {
    /// Run it, by this number.
    Start(u32),
    /// The node could not run it by this number.
    Refuse(u32, VmFailure),
    /// Stop it; the guest has so long.
    Stop(Duration),
    /// Stop it and run it again, by this number.
    Restart(Duration, u32),
    /// End it at once, and remove everything.
    Release(oneshot::Sender<Result<(), String>>),
}

/// What stands in [`VmPaths::kept`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedVm {
    /// What it shall be.
    pub spec: VmSpec,
    /// The number of the order by which it was started last.
    #[serde(default)]
    pub start: u32,
    /// What outlives the agent.
    #[serde(default)]
    pub kept: VmRecord,
    /// The boot of the node in which it was written; the kernel's name for it.
    #[serde(default)]
    pub boot: String,
    /// QEMU was run in that boot: it had the units and disks.
    #[serde(default)]
    pub ran: bool,
}

impl PersistedVm {
    /// Writes what outlives the agent; makes the folder.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, files: &VmPaths) -> io::Result<()> {
        files.make()?;
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        files::replace(&files.kept(), &text).map_err(io::Error::other)
    }
}

/// Where a machine stands, as it is told.
pub fn report(spec: &VmSpec, start: u32, machine: &VmStateMachine) -> VmReport {
    let VmRecord { restarts, failure, .. } = machine.kept().clone();
    let plain = VmReport::new(spec.uuid, spec.name.clone(), machine.state());
    VmReport { failure, restarts, start: Some(start), ..plain }
}
