//! The hierarchy of control groups (version 2).

use rustix::mount::{MountFlags, mount};
use std::{
    ffi::CStr,
    fs, io,
    path::{Path, PathBuf},
};

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
