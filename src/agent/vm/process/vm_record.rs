//! Commands to a supervisor, and the stored record of a VM.

use super::vm_state_machine::{VmRecord, VmStateMachine};
use crate::{files, vm::vm_paths::VmPaths};
use meshd_proto::vm::{VmFailure, VmReport, VmSpec};
use serde::{Deserialize, Serialize};
use std::{io, time::Duration};
use tokio::sync::oneshot;

/// A command to the supervisor of a VM.
#[derive(Debug)]
pub enum SupervisorCommand {
    /// Start it by this start number.
    Start(u32),
    /// The node cannot run it by this start number.
    Refuse(u32, VmFailure),
    /// Stop it with this grace period.
    Stop(Duration),
    /// Stop it with this grace period and start it by this start number.
    Restart(Duration, u32),
    /// Kill it and remove everything.
    Release(oneshot::Sender<Result<(), String>>),
}

/// The contents of [`VmPaths::kept`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedVm {
    pub spec: VmSpec,
    /// Number of the last start order.
    #[serde(default)]
    pub start: u32,
    /// State of the state machine.
    #[serde(default)]
    pub kept: VmRecord,
    /// Boot ID of the kernel that wrote it.
    #[serde(default)]
    pub boot: String,
    /// QEMU ran in that boot, so it had the units and disks.
    #[serde(default)]
    pub ran: bool,
}

impl PersistedVm {
    /// Writes the record; makes the folder.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn write(&self, files: &VmPaths) -> io::Result<()> {
        files.make()?;
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        files::replace(&files.kept(), &text).map_err(io::Error::other)
    }
}

/// The report of a VM.
pub fn report(spec: &VmSpec, start: u32, machine: &VmStateMachine) -> VmReport {
    let VmRecord { restarts, failure, .. } = machine.kept().clone();
    let plain = VmReport::new(spec.uuid, spec.name.clone(), machine.state());
    VmReport { failure, restarts, start: Some(start), ..plain }
}
