//! The stored record of a VM.

use super::{vm_event::RestartState, vm_state_machine::VmStateMachine};
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
    pub restart_state: RestartState,
    /// Boot ID of the kernel that wrote it.
    #[serde(default)]
    pub boot: String,
    /// QEMU ran in that boot, so it used the units and disks.
    #[serde(default)]
    pub ran: bool,
    /// End of the grace period of a guest that shuts down by ACPI, in milliseconds of uptime in
    /// that boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_down_until_ms: Option<u64>,
}

impl PersistedVm {
    /// A VM that this node has not started.
    pub fn new(spec: VmSpec, start: u32) -> Self {
        PersistedVm {
            spec,
            start,
            restart_state: RestartState::default(),
            boot: String::new(),
            ran: false,
            power_down_until_ms: None,
        }
    }

    /// Reads the record of a VM. `None`: there is none.
    ///
    /// # Errors
    /// The record is damaged.
    pub fn read(files: &VmPaths) -> Result<Option<Self>, String> {
        match files::read(&files.record()) {
            // The error text of serde_json would repeat parts of the file, which may contain
            // secrets.
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|error| format!("the record is damaged at line {}", error.line())),
            Err(_) if !files.record().exists() => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

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
