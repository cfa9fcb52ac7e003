//! The root of a replica: the image, read-only, and an overlay in memory; and its volumes, which the
//! container runtime shows at their paths. All mounts are in the mount namespace of the supervisor,
//! so the kernel undoes them with its last process.

use super::{Launch, LaunchError};
use crate::container::replica_paths::ReplicaPaths;
use meshd_proto::container::ContainerFault;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, mkdirat, open, openat2},
    io::Errno,
    mount::{MountFlags, mount},
};
use std::{
    ffi::CString,
    fs::DirBuilder,
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt as _},
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
        .map_err(LaunchError::of_step("mount the root file system"))?;
    launch.mount_points.iter().try_for_each(|path| make_mount_point(&paths.root(), path))
}

/// Makes a folder of a root for a mount. The container runtime follows links of the image, so a
/// volume would cover another folder than the ordered one, such as the root or procfs.
fn make_mount_point(root: &Path, path: &str) -> Result<(), LaunchError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let failed = LaunchError::of_step("make a mount point");
    let mut folder = open(root, flags, Mode::empty()).map_err(&failed)?;
    let mut end = 0;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        end += 1 + name.len();
        folder = enter_or_make(&folder, name).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => {
                let kind = if error == Errno::LOOP { "a link" } else { "no folder" };
                let detail =
                    format!("cannot mount at {path}: {} of the image is {kind}", &path[..end]);
                LaunchError::new(ContainerFault::MountPath, detail)
            }
            error => failed(error),
        })?;
    }
    Ok(())
}

/// Opens a folder of a folder, and makes it if it is missing. A link is an error.
fn enter_or_make(folder: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    match mkdirat(folder, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(folder, name, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn mount_point_is_made_without_following_links_of_the_image() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("srv")).expect("made");
        fs::write(root.join("file"), "").expect("written");
        symlink("..", root.join("proc")).expect("linked");
        symlink("/srv", root.join("link")).expect("linked");
        for path in ["/srv", "/srv/a/b", "/new"] {
            make_mount_point(&root, path).expect(path);
            assert!(root.join(&path[1..]).is_dir(), "{path}");
        }
        for (path, wrong) in [
            ("/proc", "/proc of the image is a link"),
            ("/link/a", "/link of the image is a link"),
            ("/srv/../file/a", "cannot make a mount point"),
            ("/file/a", "/file of the image is no folder"),
        ] {
            let error = make_mount_point(&root, path).expect_err(path);
            assert!(error.detail.contains(wrong), "{path}: {}", error.detail);
        }
        assert!(!dir.path().join("a").exists() && !root.join("srv/a/a").exists());
    }
}
