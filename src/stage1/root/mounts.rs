//! Mounts file systems. For a root image, stage 1 keeps its own mounts below `/meshd`.

use rustix::mount::{MountFlags, mount};
use std::{
    ffi::CString,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// Where the fetched root is.
const IMAGE_STORE: &str = "/meshd/image";
/// Where the squashfs is mounted.
const LOWER: &str = "/meshd/lower";
/// The writable layer: a tmpfs with the folders `data` and `work`.
const UPPER: &str = "/meshd/upper";
/// Where the new root is mounted until it becomes `/`.
const NEW_ROOT: &str = "/meshd/root";

/// A file system cannot be mounted.
#[derive(Debug, thiserror::Error)]
#[error("mount {kind} at {target}: {cause}")]
pub struct MountError {
    kind: &'static str,
    target: String,
    cause: io::Error,
}

struct Mount<'a> {
    source: &'a str,
    target: &'a str,
    kind: &'static str,
    flags: MountFlags,
    options: &'a str,
}

impl Mount<'_> {
    fn mount(&self) -> Result<(), MountError> {
        self.try_mount().map_err(|cause| {
            let target = self.target.to_owned();
            MountError { kind: self.kind, target, cause }
        })
    }

    fn try_mount(&self) -> io::Result<()> {
        fs::create_dir_all(self.target)?;
        let options = CString::new(self.options)?;
        mount(self.source, self.target, self.kind, self.flags, options.as_c_str())?;
        Ok(())
    }
}

/// Mounts `/proc`, `/sys`, `/dev` and `/run`.
pub fn mount_early() -> Result<(), MountError> {
    let strict = MountFlags::NOSUID | MountFlags::NODEV;
    let early = [
        ("/proc", "proc", strict | MountFlags::NOEXEC, ""),
        ("/sys", "sysfs", strict | MountFlags::NOEXEC, ""),
        ("/dev", "devtmpfs", MountFlags::NOSUID, "mode=0755"),
        ("/run", "tmpfs", strict, "mode=0755,size=20%"),
    ];
    for (target, kind, flags, options) in early {
        Mount { source: kind, target, kind, flags, options }.mount()?;
    }
    Ok(())
}

/// Mounts the file system by which programs talk to SELinux.
pub(super) fn mount_selinux() -> Result<(), MountError> {
    let target = "/sys/fs/selinux";
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    Mount { source: "selinuxfs", target, kind: "selinuxfs", flags, options: "" }.mount()
}

/// Mounts a tmpfs for a root of a size in bytes. Returns the path for the file.
pub fn mount_image_store(size: u64) -> Result<PathBuf, MountError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let options = format!("mode=0700,size={size},nr_inodes=8");
    let target = IMAGE_STORE;
    Mount { source: "meshd-image", target, kind: "tmpfs", flags, options: &options }.mount()?;
    Ok(Path::new(IMAGE_STORE).join("root"))
}

/// Mounts the squashfs of a block device as the root below the writable layer.
pub fn mount_lower(device: &str) -> Result<(), MountError> {
    mount_squashfs(device, LOWER)
}

/// Mounts the squashfs of a block device at a new or present folder, read-only.
pub fn mount_squashfs(device: &str, target: &str) -> Result<(), MountError> {
    let flags = MountFlags::RDONLY;
    Mount { source: device, target, kind: "squashfs", flags, options: "" }.mount()
}

/// Folders of the two layers of the new root.
pub struct Layers {
    /// What was written since the boot began.
    pub upper: PathBuf,
    /// The root of the image.
    pub lower: PathBuf,
}

/// The layers below the new root.
pub fn layers() -> Layers {
    Layers { upper: Path::new(UPPER).join("data"), lower: LOWER.into() }
}

/// Mounts a writable layer of a size in bytes above the squashfs. Returns the new root.
pub fn mount_overlay(upper_bytes: u64) -> Result<PathBuf, MountError> {
    let options = format!("mode=0755,size={upper_bytes}");
    let flags = MountFlags::empty();
    Mount { source: "meshd-upper", target: UPPER, kind: "tmpfs", flags, options: &options }
        .mount()?;
    for folder in ["data", "work"] {
        let path = Path::new(UPPER).join(folder);
        DirBuilder::new().mode(0o755).create(&path).map_err(|cause| MountError {
            kind: "overlay",
            target: path.display().to_string(),
            cause,
        })?;
    }
    let options = format!("lowerdir={LOWER},upperdir={UPPER}/data,workdir={UPPER}/work");
    Mount { source: "meshd-root", target: NEW_ROOT, kind: "overlay", flags, options: &options }
        .mount()?;
    Ok(PathBuf::from(NEW_ROOT))
}
