//! Why QEMU ended or paused a guest, as a failure report. Pure.

use super::{
    qmp_message::{DiskError, Pause},
    vm_event::{ShutdownCause, VmEvent},
};
use crate::vm::failure::failure;
use meshd_proto::vm::{VmFailure, VmFailureKind, VmSpec};

/// A guest can be the cause of its own internal error; broken nested virtualisation stops all.
const KVM_FAILED: &str = "KVM failed to run it; if this stops all guests of the node, check nested virtualisation of its hypervisor, or the virtualisation settings of its firmware";

/// Builds the failure from QEMU's shutdown cause and the exit status of its process.
pub fn crash(cause: Option<ShutdownCause>, exit: &str, log: Vec<String>) -> VmFailure {
    let (kind, detail) = match cause {
        Some(ShutdownCause::Panic) => {
            (VmFailureKind::GuestPanic, "kernel panic of the guest".to_owned())
        }
        Some(ShutdownCause::Outside { reason }) => {
            (VmFailureKind::Crashed, format!("QEMU was ended from outside: {reason}"))
        }
        Some(ShutdownCause::Guest) | None => {
            (VmFailureKind::Crashed, format!("QEMU {exit} while the guest ran"))
        }
    };
    VmFailure { log, ..failure(kind, detail) }
}

/// Builds the event of a paused guest.
pub fn paused(spec: &VmSpec, pause: &Pause, error: Option<&DiskError>) -> VmEvent {
    let cause = error.map(|DiskError { volume, operation, reason }| {
        let volume = volume.and_then(|index| spec.volumes.get(index));
        let disk =
            volume.map_or_else(|| "a disk".to_owned(), |volume| format!("volume {}", volume.name));
        format!(": {operation} of {disk}: {reason}")
    });
    let hint = if pause.resumable { "resumes the guest" } else { "restarts the guest" };
    let state = &pause.run_state;
    // QEMU's accel/kvm/kvm-all.c pauses a guest that KVM fails to run.
    let is_of_kvm = state == "internal-error";
    let cause = cause.or_else(|| is_of_kvm.then(|| format!(": {KVM_FAILED}"))).unwrap_or_default();
    let reason = format!("QEMU paused the guest ({state}){cause}; `meshd vm start` {hint}");
    VmEvent::Paused { reason, resumable: pause.resumable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::fixtures;
    use serde_json::json;

    #[test]
    fn pause_by_a_failure_of_kvm_names_what_to_check() {
        let spec = fixtures::spec(json!({}));
        let reason = |run_state: &str| {
            let pause = Pause { run_state: run_state.to_owned(), resumable: false };
            let VmEvent::Paused { reason, .. } = paused(&spec, &pause, None) else {
                panic!("a pause")
            };
            reason
        };
        assert!(reason("internal-error").contains("check nested virtualisation"));
        assert!(!reason("guest-panicked").contains("KVM"));
    }
}
