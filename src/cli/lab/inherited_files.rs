//! Closes files that the caller of `meshd lab` left open. meshd and QEMU of the rack outlive the
//! command, and would keep them: a lock of `flock` would stay held.

use nix::unistd::close;
use std::fs;

/// Standard input, output and error.
const STANDARD: i32 = 3;
/// `O_CLOEXEC` in the flags of `/proc/self/fdinfo`. Files that this program opens have it.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// Closes every inherited file. Call it before the first program is started.
pub(super) fn close_inherited_files() {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<i32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for file in open.into_iter().filter(|file| *file >= STANDARD && is_inherited(*file)) {
        // It fails only for a file that is closed already.
        let _ = close(file);
    }
}

fn is_inherited(file: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{file}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & CLOSE_ON_EXEC == 0)
}
