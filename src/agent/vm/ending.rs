//! Why a machine ended that nobody asked to end, in words. Pure.

use super::machine::Leaving;
use crate::wire::vm::{MAX_FAILURE_TEXT, VmFailure, VmFailureKind};

/// From what QEMU said, if it did, and how its process ended.
pub fn crash(leaving: Option<Leaving>, how: &str, log: Vec<String>) -> VmFailure {
    let (kind, detail) = match leaving {
        Some(Leaving::Panic) => (VmFailureKind::GuestPanic, "the guest's kernel gave up (panic)".to_owned()),
        Some(Leaving::Outside { reason }) => (VmFailureKind::Crashed, format!("QEMU was ended from outside: {reason}")),
        Some(Leaving::Guest) | None => (VmFailureKind::Crashed, format!("QEMU {how} while the guest ran")),
    };
    VmFailure { kind, detail: cut(detail), log }
}

/// A text within its bounds.
pub fn cut(mut text: String) -> String {
    let mut end = text.len().min(MAX_FAILURE_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
