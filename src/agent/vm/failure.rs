//! Failures and refusals of VMs in reports, with texts of bounded length. Pure.

use meshd_proto::vm::{MAX_FAILURE_TEXT, VmFailure, VmFailureKind, VmRefusal, VmRefusalReason};

/// Makes a failure without log lines.
pub fn failure(kind: VmFailureKind, detail: impl Into<String>) -> VmFailure {
    VmFailure { kind, detail: truncate(detail.into(), MAX_FAILURE_TEXT), log: Vec::new() }
}

pub fn refusal(reason: VmRefusalReason, detail: impl Into<String>) -> VmRefusal {
    VmRefusal { reason, detail: detail.into() }
}

/// Truncates a text to `max` bytes at a character boundary.
pub fn truncate(mut text: String, max: usize) -> String {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
