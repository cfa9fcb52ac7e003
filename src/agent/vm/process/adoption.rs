//! Finds the processes that an earlier agent started, by their command lines.

use super::qemu_process::WatchedProcess;
use rustix::process::Pid;
use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

/// Maximum bytes of a command line that are read.
const MAX_COMMAND_LINE: usize = 256 * 1024;

/// Finds the QEMU with this pidfile. It belongs to `user`, or to root until it drops its
/// privileges.
pub fn find(pidfile: &Path, user: Option<u32>) -> Option<WatchedProcess> {
    find_by_option("-pidfile", pidfile.as_os_str().as_encoded_bytes(), user)
}

/// Finds a process of a user or of root by an option and its value.
pub fn find_by_option(option: &str, value: &[u8], user: Option<u32>) -> Option<WatchedProcess> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw);
    // A process can change its command line, so the user must match.
    let matches = |pid: Pid| runs_as(pid, user) && has_option(pid, option, value);
    // Check again with the pidfd open: the ID may have been reused.
    pids.filter(|pid| matches(*pid))
        .find_map(|pid| WatchedProcess::watch(pid).ok().filter(|_| matches(pid)))
}

/// Returns whether a process runs as root or as `user`.
fn runs_as(pid: Pid, user: Option<u32>) -> bool {
    let uid = fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).map(|status| status.uid());
    uid.is_ok_and(|uid| uid == 0 || Some(uid) == user)
}

/// Returns whether a command line has an option with this value. A zombie has no command line.
fn has_option(pid: Pid, option: &str, value: &[u8]) -> bool {
    let Ok(line) = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())) else {
        return false;
    };
    let line = &line[..line.len().min(MAX_COMMAND_LINE)];
    let args: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    args.windows(2).any(|pair| pair == [option.as_bytes(), value])
}
