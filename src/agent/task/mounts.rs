//! Mounts of a task. Shared memory is a folder of the task and is removed with it. Control groups are read-only, so that no process
//! leaves its group by accident, such as a service that root starts. A process of root can still leave it; the agent finds such a
//! process by its mounts and kills it with the task.

use super::scratch_storage;
use rustix::{
    fs::{major, minor},
    mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    thread::UnshareFlags,
};
use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

/// Mount point of POSIX shared memory (shm_open(3)).
const SHARED: &str = "/dev/shm";
/// Interval of checks for killed processes.
const LOOK: Duration = Duration::from_millis(20);
/// Number of checks after which a process that does not end is logged.
const IMMORTAL: u32 = 1500;

/// Gives this single-threaded process its own mounts and System V IPC. `shm` is the folder of the task.
///
/// # Errors
/// The step that failed.
#[expect(deprecated, reason = "its successor is unsafe for what shares file descriptors; this does not")]
pub fn enter(shm: &Path) -> Result<(), String> {
    let failed = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
    rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWIPC)
        .map_err(failed("cannot create a mount namespace"))?;
    // Later mounts of the node appear here, but not vice versa.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(failed("cannot stop mount propagation to the node"))?;
    let flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    if Path::new(SHARED).is_dir() {
        mount_bind(shm, SHARED).map_err(failed("cannot mount private shared memory"))?;
        mount_remount(SHARED, flags, "").map_err(failed("cannot restrict shared memory"))?;
    }
    for (place, own) in [("/tmp", scratch_storage::tmp(shm)), ("/var/tmp", scratch_storage::var_tmp(shm))] {
        // A task with files below this folder would not see them; no node has that.
        if !Path::new(place).is_dir() || shm.starts_with(place) {
            continue;
        }
        mount_bind(&own, place).map_err(failed("cannot mount a private temporary folder"))?;
        mount_remount(place, flags, "").map_err(failed("cannot restrict the temporary folder"))?;
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let groups = mounts.lines().filter_map(|line| match line.split(' ').collect::<Vec<_>>().as_slice() {
        [_, place, "cgroup2", ..] => Some((*place).to_owned()),
        _ => None,
    });
    for place in groups {
        mount_remount(&*place, flags | MountFlags::NOEXEC | MountFlags::RDONLY, "")
            .map_err(failed("cannot close the control groups"))?;
    }
    Ok(())
}

/// Kills every process with the mounts of a task. `shm` is the folder of the task.
pub async fn end(shm: &Path) {
    let mut looks = 0;
    // In tests, two agents on one machine may run parts of the same task.
    let device = fs::metadata(shm).ok().map(|folder| format!("{}:{}", major(folder.dev()), minor(folder.dev())));
    let device = device.as_deref();
    loop {
        let found = inside(shm, device);
        if found.is_empty() {
            return;
        }
        if looks == 0 {
            tracing::warn!(processes = ?found, "processes of a task had left its control group; they are killed");
        }
        for pid in found.into_iter().filter_map(Pid::from_raw) {
            // Check again with the pidfd open: the ID may have been reused.
            if let Ok(held) = pidfd_open(pid, PidfdFlags::empty())
                && is_inside(pid.as_raw_nonzero().get(), shm, device)
            {
                // It may have ended.
                let _ = pidfd_send_signal(held, Signal::KILL);
            }
        }
        tokio::time::sleep(LOOK).await;
        looks += 1;
        if looks == IMMORTAL {
            tracing::error!("a killed process of a task does not end; the node needs a reboot");
        }
    }
}

fn inside(shm: &Path, device: Option<&str>) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_inside(*pid, shm, device)).collect()
}

/// A zombie has no mounts.
fn is_inside(pid: i32, shm: &Path, device: Option<&str>) -> bool {
    fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|mounts| has(&mounts, shm, device))
}

/// Returns whether these mounts have the folder of the task as shared memory. They show its path within its file system, which is a suffix
/// of its full path; `device` is the number of that file system, if the folder still exists.
fn has(mounts: &str, shm: &Path, device: Option<&str>) -> bool {
    // Task ID and folder name.
    const LEAST: usize = 2;
    mounts.lines().any(|line| match line.split(' ').collect::<Vec<_>>().as_slice() {
        [_, _, number, root, SHARED, ..] if device.is_none_or(|device| device == *number) => {
            let root = Path::new(root.trim_start_matches('/'));
            root.components().count() >= LEAST && shm.ends_with(root)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_a_task_is_known_by_its_mounts() {
        let line =
            |root: &str, place: &str| format!("9 1 0:1 / / rw - tmpfs t rw\n36 9 0:2 {root} {place} rw - tmpfs t rw\n");
        let shm = Path::new("/var/lib/jobs/0a0b0c0d/shm");
        for (root, place, is) in [
            ("/var/lib/jobs/0a0b0c0d/shm", SHARED, true),
            ("/jobs/0a0b0c0d/shm", SHARED, true),
            ("/var/lib/jobs/0a0b0c0e/shm", SHARED, false),
            ("/other/jobs/0a0b0c0d/shm", SHARED, false),
            ("/jobs/0a0b0c0d/shm", "/mnt", false),
            ("/shm", SHARED, false),
            ("/", SHARED, false),
        ] {
            assert_eq!(has(&line(root, place), shm, None), is, "{root} {place}");
            assert_eq!(has(&line(root, place), shm, Some("0:2")), is, "{root} {place}");
            assert!(!has(&line(root, place), shm, Some("0:3")), "another file system");
        }
        assert!(!has("junk", shm, None));
    }
}
