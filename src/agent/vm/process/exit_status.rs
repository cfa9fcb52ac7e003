//! Why QEMU ended or paused a guest, as a failure report. Pure.

use super::{
    qmp_message::{DiskError, Pause},
    vm_state_machine::{ShutdownCause, VmEvent},
};
use meshd_proto::vm::{MAX_FAILURE_TEXT, VmFailure, VmFailureKind, VmSpec};

/// Builds the failure from QEMU's shutdown cause and the exit status of its process.
pub fn crash(cause: Option<ShutdownCause>, how: &str, log: Vec<String>) -> VmFailure {
    let (kind, detail) = match cause {
        Some(ShutdownCause::Panic) => (VmFailureKind::GuestPanic, "the guest's kernel gave up (panic)".to_owned()),
        Some(ShutdownCause::Outside { reason }) => {
            (VmFailureKind::Crashed, format!("QEMU was ended from outside: {reason}"))
        }
        Some(ShutdownCause::Guest) | None => (VmFailureKind::Crashed, format!("QEMU {how} while the guest ran")),
    };
    VmFailure { kind, detail: cut(detail), log }
}

/// Builds the event of a paused guest.
pub fn paused(spec: &VmSpec, pause: &Pause, error: Option<&DiskError>) -> VmEvent {
    VmEvent::Paused { why: why_paused(spec, pause, error), resumable: pause.resumable }
}

fn why_paused(spec: &VmSpec, pause: &Pause, error: Option<&DiskError>) -> String {
    let next = if pause.resumable { "`meshd vm start` goes on with it" } else { "`meshd vm start` starts it anew" };
    let Some(DiskError { volume, operation, reason }) = error else {
        return format!("QEMU holds the guest ({}); {next}", pause.word);
    };
    let volume = volume.and_then(|index| spec.volumes.get(index));
    let disk = volume.map_or_else(|| "a disk".to_owned(), |volume| format!("volume {}", volume.name));
    format!("QEMU holds the guest ({}): {operation} of {disk}: {reason}; {next}", pause.word)
}

/// Truncates a text to its maximum length.
pub fn cut(mut text: String) -> String {
    let mut end = text.len().min(MAX_FAILURE_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
