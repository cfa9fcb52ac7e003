//! The hierarchy of control groups (version 2).
//!
//! systemd owns the hierarchy, and delegates the group of [`DELEGATED`] to the agent: it removes no
//! group and no controller there, and gives the group all controllers that it delegates.

use rustix::mount::{MountFlags, mount};
use std::{
    ffi::CStr,
    fs, io,
    path::{Path, PathBuf},
};

/// The unit of the overlay `agent` whose group belongs to the agent.
const DELEGATED: &str = "system.slice/mesh-workloads.service";

/// Returns the group in which the agent makes groups: the delegated one, or the root.
pub fn workloads(root: &Path) -> PathBuf {
    let delegated = root.join(DELEGATED);
    if delegated.join("cgroup.procs").exists() { delegated } else { root.to_owned() }
}

/// Returns the root of the writable hierarchy. Mounts the hierarchy at `mount_point` if the system
/// has not mounted it.
pub fn open_hierarchy(mount_point: &Path) -> io::Result<PathBuf> {
    // The list also has mounts that another file system covers.
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    if let Some(root) = writable_mounts(&mounts).find(|root| root.join("cgroup.procs").exists()) {
        return Ok(root);
    }
    fs::create_dir_all(mount_point)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("cgroup2", mount_point, "cgroup2", flags, None::<&CStr>)?;
    Ok(mount_point.to_owned())
}

/// Returns the writable mount points of cgroup2. Pure.
fn writable_mounts(mounts: &str) -> impl Iterator<Item = PathBuf> {
    mounts.lines().filter_map(|line| match line.split(' ').collect::<Vec<_>>().as_slice() {
        [_, path, "cgroup2", options, ..] if options.starts_with("rw") => Some(PathBuf::from(path)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_made_in_the_delegated_group() {
        let unit = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../overlays/agent/rootfs.systemd/etc/systemd/system/mesh-workloads.service"
        ));
        assert!(unit.contains("\nDelegate=cpu cpuset io memory pids\n"));
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(workloads(dir.path()), dir.path(), "no systemd");
        let delegated = dir.path().join(DELEGATED);
        fs::create_dir_all(&delegated).expect("made");
        fs::write(delegated.join("cgroup.procs"), "").expect("written");
        assert_eq!(workloads(dir.path()), delegated);
    }

    #[test]
    fn writable_cgroup2_mount_is_found() {
        let line = |path: &str, kind: &str, options: &str| {
            format!("cgroup2 {path} {kind} {options},nosuid 0 0\n")
        };
        let text = line("/a", "cgroup", "rw")
            + &line("/b", "cgroup2", "ro")
            + &line("/c", "cgroup2", "rw");
        assert_eq!(writable_mounts(&text).collect::<Vec<_>>(), [PathBuf::from("/c")]);
        assert_eq!(writable_mounts("junk\n").count(), 0);
    }
}
