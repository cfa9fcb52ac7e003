//! The exit code of a program, as shells tell it.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

/// Returns the exit code; 128 plus the signal number after a signal.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255);
    u8::try_from(code).unwrap_or(255)
}
