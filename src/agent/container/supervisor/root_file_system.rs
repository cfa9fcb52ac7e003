//! The root of a replica: the image, read-only, and an overlay in memory; and its volumes, which the
//! container runtime shows at their paths. All mounts are in the mount namespace of the supervisor,
//! so the kernel undoes them with its last process.

use super::{Launch, LaunchError};
use crate::container::replica_paths::ReplicaPaths;
use rustix::mount::{MountFlags, mount};
use std::{
    ffi::CString,
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    process::{Command, Stdio},
};

const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
/// Name of the mounts.
const SOURCE: &str = "meshd-container";

pub(super) fn mount_all(paths: &ReplicaPaths, launch: &Launch) -> Result<(), LaunchError> {
    mount_file(&launch.image, &paths.image()).map_err(LaunchError::of_step("mount the image"))?;
    for (index, file) in launch.volumes.iter().enumerate() {
        let folder = paths.volume(index);
        make_folder(&folder)
            .map_err(|error| error.to_string())
            .and_then(|()| mount_file(file, &folder))
            .map_err(LaunchError::of_step("mount a volume"))?;
    }
    let size = format!("mode=0755,size={}m", launch.spec.scratch_mib);
    mount_at(&paths.scratch(), "tmpfs", &size)
        .map_err(LaunchError::of_step("mount the scratch space"))?;
    let upper = paths.scratch().join("upper");
    let work = paths.scratch().join("work");
    for folder in [&upper, &work] {
        make_folder(folder).map_err(LaunchError::of_step("make the scratch space"))?;
    }
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        paths.image().display(),
        upper.display(),
        work.display()
    );
    mount_at(&paths.root(), "overlay", &layers)
        .map_err(LaunchError::of_step("mount the root file system"))
}

fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(folder)
}

fn mount_at(target: &Path, kind: &str, options: &str) -> io::Result<()> {
    let options = CString::new(options)?;
    Ok(mount(SOURCE, target, kind, FLAGS, Some(options.as_c_str()))?)
}

/// Mounts a squashfs file by a loop device, which the kernel frees with the mount.
fn mount_file(file: &Path, target: &Path) -> Result<(), String> {
    let mounted = Command::new("mount")
        .args(["-t", "squashfs", "-o", "loop,ro,nosuid,nodev"])
        .args([file, target])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run mount: {error}"))?;
    if mounted.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&mounted.stderr).trim().to_owned())
}
