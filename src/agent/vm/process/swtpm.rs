//! The TPM of a VM: swtpm, one process for each VM.

use super::adoption;
use crate::vm::{
    confine::{Confinement, owned_tree},
    helper_program,
    vm_paths::VmPaths,
};
use rustix::process::Signal;
use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt as _, path::Path, time::Duration};
use tokio::time::timeout;

/// Timeout for the end of swtpm after a signal.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts swtpm. Its state survives a restart of the VM.
pub(super) async fn start(
    files: &VmPaths,
    swtpm: &Path,
    confined: &Confinement,
) -> Result<(), String> {
    // An earlier swtpm without QEMU would lock the state.
    stop(files).await;
    let state = files.tpm_state();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&state)
        .and_then(|()| owned_tree::set_owner(&state, confined.owner()))
        .map_err(|error| format!("cannot make {}: {error}", state.display()))?;
    let (program, args) = confined.command(false, Vec::new(), swtpm, &arguments(files));
    helper_program::run(&program, &args).await?;
    Ok(())
}

/// Returns the arguments of `swtpm`. It becomes a daemon when its socket is ready, and ends with
/// QEMU.
fn arguments(files: &VmPaths) -> Vec<String> {
    let state = format!("dir={}", files.tpm_state().display());
    let control = files.tpm_control();
    ["socket", "--tpm2", "--daemon", "--terminate", "--tpmstate", &state, "--ctrl", &control]
        .map(str::to_owned)
        .into()
}

/// Ends swtpm. Without a connection from QEMU, it does not end by itself.
pub async fn stop(files: &VmPaths) {
    let Some(tpm) =
        adoption::find_by_option("--ctrl", files.tpm_control().as_bytes(), files.user())
    else {
        return;
    };
    for signal in [Signal::TERM, Signal::KILL] {
        tpm.signal(signal);
        if timeout(STOP_TIMEOUT, tpm.wait()).await.is_ok() {
            return;
        }
    }
    tracing::error!(pid = tpm.id(), "swtpm did not end after SIGKILL");
}
