//! Ends hooks of an agent that was killed. Their requests would arrive after those of the next run: a
//! node in service could be closed for ever.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::sleep;

/// The variable by which processes of hooks are found. Its value is the folder of the hooks, which
/// distinguishes agents that run on one machine, as in tests.
const MARKER: &str = "MESHD_HOOKS";
/// Interval of checks for killed processes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of checks after which the agent goes on without the end of a process.
const MAX_POLLS: u32 = 500;

/// Returns the variable that marks the processes of a hook, with its value.
pub fn marker(hook: &Path) -> (&'static str, PathBuf) {
    (MARKER, hook.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Kills the processes of hooks of this folder, and waits for their end.
pub async fn end(folder: &Path) {
    let mut entry = OsString::from(MARKER);
    entry.push("=");
    entry.push(folder);
    for poll in 0..MAX_POLLS {
        let found = marked_processes(entry.as_bytes());
        if found.is_empty() {
            return;
        }
        if poll == 0 {
            tracing::warn!(processes = ?found, "killing drain hooks of an earlier agent");
        }
        for pid in found.into_iter().filter_map(Pid::from_raw) {
            // Check again with the pidfd open: the ID may have been reused.
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
                && is_marked(pid.as_raw_nonzero().get(), entry.as_bytes())
            {
                // It may have ended.
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
        sleep(POLL_INTERVAL).await;
    }
    tracing::error!("drain hooks of an earlier agent do not end");
}

fn marked_processes(entry: &[u8]) -> Vec<i32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_marked(*pid, entry)).collect()
}

/// A zombie has no environment.
fn is_marked(pid: i32, entry: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|own| own == entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[tokio::test]
    async fn hooks_of_this_folder_are_killed_and_others_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let start = |folder: &str| {
            let (name, value) = marker(&dir.path().join(folder).join("hook"));
            let mut command = Command::new("sleep");
            command.arg("1000").env(name, value).spawn().expect("it runs")
        };
        let mut own = start("own");
        let mut other = start("other");
        end(&dir.path().join("own")).await;
        assert!(!own.wait().expect("it ended").success());
        assert!(other.try_wait().expect("known").is_none(), "it runs");
        other.kill().expect("killed");
        other.wait().expect("ended");
    }
}
