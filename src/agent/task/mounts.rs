//! Mounts of a task. Shared memory is a folder of the task and is removed with the task. Control
//! groups are read-only, so that no process leaves its group by accident, such as a service that
//! root starts. A process of root can leave its group nevertheless; the agent finds such a process
//! by its mounts and kills it.

use super::scratch_storage;
use crate::system::isolation::{self, SHARED_MEMORY, TEMPORARY_FOLDERS};
use rustix::{
    fs::{major, minor},
    mount::{MountFlags, mount_bind, mount_remount},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

/// Interval of checks for killed processes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of checks after which a process that does not end is logged.
const HANG_POLLS: u32 = 1500;

/// Isolates this single-threaded process. `shm` is the folder of the task.
pub fn enter(shm: &Path) -> Result<(), String> {
    let failed = |step: &'static str| move |error: rustix::io::Errno| format!("{step}: {error}");
    isolation::enter()?;
    let flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    if Path::new(SHARED_MEMORY).is_dir() {
        mount_bind(shm, SHARED_MEMORY).map_err(failed("cannot mount private shared memory"))?;
        mount_remount(SHARED_MEMORY, flags, "").map_err(failed("cannot restrict shared memory"))?;
    }
    for target in TEMPORARY_FOLDERS {
        // Only in tests the folder of the task is below /tmp.
        if !Path::new(target).is_dir() || shm.starts_with(target) {
            continue;
        }
        mount_bind(scratch_storage::replacement(shm, target), target)
            .map_err(failed("cannot mount a private temporary folder"))?;
        mount_remount(target, flags, "").map_err(failed("cannot restrict the temporary folder"))?;
    }
    for target in isolation::mounts_of("cgroup2") {
        mount_remount(&*target, flags | MountFlags::NOEXEC | MountFlags::RDONLY, "")
            .map_err(failed("cannot make the control groups read-only"))?;
    }
    Ok(())
}

/// Kills every process with the mounts of a task. `shm` is the folder of the task.
pub async fn kill_processes(shm: &Path) {
    let mut polls = 0;
    // The device distinguishes agents that run the same task on one machine, as tests do.
    let device = fs::metadata(shm)
        .ok()
        .map(|folder| format!("{}:{}", major(folder.dev()), minor(folder.dev())));
    let device = device.as_deref();
    loop {
        let found = processes_with_mount(shm, device);
        if found.is_empty() {
            return;
        }
        if polls == 0 {
            tracing::warn!(processes = ?found, "killing processes of a task that left its control group");
        }
        for pid in found.into_iter().filter_map(Pid::from_raw) {
            // Check again with the pidfd open: the ID may have been reused.
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
                && has_mount(pid.as_raw_nonzero().get(), shm, device)
            {
                // It may have ended.
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        polls += 1;
        if polls == HANG_POLLS {
            tracing::error!("a killed process of a task does not end; reboot the node");
        }
    }
}

fn processes_with_mount(shm: &Path, device: Option<&str>) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| has_mount(*pid, shm, device)).collect()
}

/// A zombie has no mounts.
fn has_mount(pid: i32, shm: &Path, device: Option<&str>) -> bool {
    fs::read_to_string(format!("/proc/{pid}/mountinfo"))
        .is_ok_and(|mounts| contains_mount(&mounts, shm, device))
}

/// Returns whether these mounts contain the folder of the task as shared memory. `mountinfo` shows
/// the path within the file system, a suffix of the full path. `device` is the number of the file
/// system, if the folder exists.
fn contains_mount(mounts: &str, shm: &Path, device: Option<&str>) -> bool {
    // Task ID and folder name.
    const MIN_COMPONENTS: usize = 2;
    mounts.lines().any(|line| match line.split(' ').collect::<Vec<_>>().as_slice() {
        [_, _, number, root, SHARED_MEMORY, ..]
            if device.is_none_or(|device| device == *number) =>
        {
            let root = Path::new(root.trim_start_matches('/'));
            root.components().count() >= MIN_COMPONENTS && shm.ends_with(root)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_a_task_is_found_by_its_mounts() {
        let line = |root: &str, target: &str| {
            format!("9 1 0:1 / / rw - tmpfs t rw\n36 9 0:2 {root} {target} rw - tmpfs t rw\n")
        };
        let shm = Path::new("/var/lib/tasks/0a0b0c0d/shm");
        for (root, target, is_found) in [
            ("/var/lib/tasks/0a0b0c0d/shm", SHARED_MEMORY, true),
            ("/tasks/0a0b0c0d/shm", SHARED_MEMORY, true),
            ("/var/lib/tasks/0a0b0c0e/shm", SHARED_MEMORY, false),
            ("/other/tasks/0a0b0c0d/shm", SHARED_MEMORY, false),
            ("/tasks/0a0b0c0d/shm", "/mnt", false),
            ("/shm", SHARED_MEMORY, false),
            ("/", SHARED_MEMORY, false),
        ] {
            assert_eq!(contains_mount(&line(root, target), shm, None), is_found, "{root} {target}");
            assert_eq!(
                contains_mount(&line(root, target), shm, Some("0:2")),
                is_found,
                "{root} {target}"
            );
            assert!(!contains_mount(&line(root, target), shm, Some("0:3")), "another file system");
        }
        assert!(!contains_mount("junk", shm, None));
    }
}
