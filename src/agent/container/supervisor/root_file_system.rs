//! The root of a replica: the image, read-only, and an overlay in memory. All mounts are in the
//! mount namespace of the supervisor, so the kernel undoes them with its last process.

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
    mount_image(&launch.image, &paths.image())?;
    let size = format!("mode=0755,size={}m", launch.spec.scratch_mib);
    mount_at(&paths.scratch(), "tmpfs", &size)
        .map_err(LaunchError::of_step("mount the scratch space"))?;
    let upper = paths.scratch().join("upper");
    let work = paths.scratch().join("work");
    for folder in [&upper, &work] {
        DirBuilder::new()
            .mode(0o755)
            .create(folder)
            .map_err(LaunchError::of_step("make the scratch space"))?;
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

fn mount_at(target: &Path, kind: &str, options: &str) -> io::Result<()> {
    let options = CString::new(options)?;
    Ok(mount(SOURCE, target, kind, FLAGS, Some(options.as_c_str()))?)
}

/// Mounts the file by a loop device, which the kernel frees with the mount.
fn mount_image(image: &Path, target: &Path) -> Result<(), LaunchError> {
    let mounted = Command::new("mount")
        .args(["-t", "squashfs", "-o", "loop,ro,nosuid,nodev"])
        .args([image, target])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .map_err(LaunchError::of_step("run mount"))?;
    if mounted.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&mounted.stderr).trim().to_owned();
    Err(LaunchError::of_step("mount the image")(message))
}
