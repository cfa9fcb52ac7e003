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
    /// Start with this start number.
    Start(u32),
    /// Report the start of this number as refused.
    Refuse(u32, VmFailure),
    /// Stop with this grace period.
    Stop(Duration),
    /// Stop with this grace period, then start with this start number.
    Restart(Duration, u32),
    /// Kill the VM and remove its files.
    Release(oneshot::Sender<Result<(), String>>),
}

/// The contents of [`VmPaths::record`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedVm {
    pub spec: VmSpec,
    /// Number of the last start order.
    #[serde(default)]
    pub start: u32,
    /// State of the state machine.
    #[serde(default, rename = "kept")]
    pub record: VmRecord,
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

pub fn report(spec: &VmSpec, start: u32, machine: &VmStateMachine) -> VmReport {
    let VmRecord { restarts, failure, .. } = machine.record().clone();
    let plain = VmReport::new(spec.uuid, spec.name.clone(), machine.state());
    VmReport { failure, restarts, start: Some(start), ..plain }
}
