//! Isolation of the programs of VMs and tasks from what other users of the node leave, and the
//! other way round.

use super::keyrings;
use meshd_types::failpoint;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change},
    thread::UnshareFlags,
};
use std::{collections::BTreeSet, ffi::CStr, fs, path::Path};

/// Flags of the file systems of a program.
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
/// Mount point of POSIX shared memory (shm_open(3)).
pub const SHARED_MEMORY: &str = "/dev/shm";
/// The other folders in which every user may leave files.
pub const TEMPORARY_FOLDERS: [&str; 3] = ["/tmp", "/var/tmp", "/run/lock"];

/// Sockets of the system log: busybox, syslog-ng; systemd.
const SYSTEM_LOG: [&str; 2] = ["/dev/log", "/run/systemd/journal"];

/// Moves this single-threaded process to new mount and IPC namespaces, and gives it an empty
/// session keyring.
#[expect(deprecated, reason = "the successor is unsafe for processes that share file descriptors")]
pub fn enter() -> Result<(), String> {
    let failed = |step: &'static str| move |error: rustix::io::Errno| format!("{step}: {error}");
    if failpoint::defends("session-keyring") {
        keyrings::join_session()?;
    }
    rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWIPC)
        .map_err(failed("cannot create a mount namespace"))?;
    // Later mounts of the node appear in the namespace, but not vice versa.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(failed("cannot stop mount propagation to the node"))?;
    if failpoint::defends("private-queues") {
        // A mount shows the message queues of the IPC namespace in which it was made.
        for target in mounts_of("mqueue").iter().filter(|target| Path::new(target).is_dir()) {
            mount("mqueue", target.as_str(), "mqueue", FLAGS, None::<&CStr>)
                .map_err(failed("cannot mount private message queues"))?;
        }
    }
    Ok(())
}

/// Mounts an empty file system in memory over each folder in which every user may leave files. A
/// folder that contains `used` stays visible.
pub fn mount_empty_folders(used: &Path) -> Result<(), String> {
    if !failpoint::defends("vm-folders") {
        return Ok(());
    }
    for target in TEMPORARY_FOLDERS.iter().chain([&SHARED_MEMORY]) {
        if Path::new(target).is_dir() && !used.starts_with(target) {
            mount("meshd-vm", *target, "tmpfs", FLAGS, Some(c"mode=1777,size=16m"))
                .map_err(|error| format!("cannot mount an empty {target}: {error}"))?;
        }
    }
    Ok(())
}

/// Hides the system log, which the agent sends to the central node: lines of a program could pass
/// for lines of a service.
pub fn hide_system_log() -> Result<(), String> {
    if !failpoint::defends("system-log") {
        return Ok(());
    }
    for target in SYSTEM_LOG {
        let hidden = match fs::metadata(target) {
            Ok(found) if found.is_dir() => {
                mount("meshd-empty", target, "tmpfs", FLAGS | MountFlags::RDONLY, Some(c"size=4k"))
            }
            Ok(_) => mount_bind("/dev/null", target),
            Err(_) => Ok(()),
        };
        hidden.map_err(|error| format!("cannot hide {target}: {error}"))?;
    }
    Ok(())
}

/// Returns the mount points of a kind of file system, each once: the kernel lists a mount point for
/// each mount on it.
pub fn mounts_of(kind: &str) -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let targets =
        mounts.lines().filter_map(|line| match line.split(' ').collect::<Vec<_>>().as_slice() {
            [_, target, found, ..] if *found == kind => Some((*target).to_owned()),
            _ => None,
        });
    targets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{in_namespace, run};

    #[test]
    fn message_queues_are_mounted_again_in_a_namespace_within_one() {
        const NAME: &str = "message_queues_are_mounted_again_in_a_namespace_within_one";
        if !in_namespace(&format!("system::isolation::tests::{NAME}")) {
            return;
        }
        let queues = tempfile::tempdir().expect("a folder");
        let path = queues.path().to_str().expect("UTF-8");
        run("mount", &["-t", "mqueue", "none", path]);
        for namespace in ["that of a supervisor", "that of its container"] {
            assert_eq!(enter(), Ok(()), "{namespace}");
            fs::write(queues.path().join("left"), "").expect("an empty queue folder");
            assert!(mounts_of("mqueue").contains(path), "{namespace}");
        }
    }
}
