//! Makes the new root `/` and starts its first program, as switch_root(8) does.

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2},
    mount::mount_move,
    process::{chdir, chroot},
};
use std::{
    convert::Infallible,
    ffi::OsString,
    fs, io,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// First program of the OS.
const INIT: &str = "/sbin/init";
/// `0`: systemd does not run from an initrd. It passes the variable on to its last program, which
/// otherwise reads `/etc` while it has stopped all other processes: also the one that serves a
/// tethered root, so a shutdown could wait forever.
const IN_INITRD: &str = "SYSTEMD_IN_INITRD";
/// Mounts that move into the new root.
const MOVED: [&str; 4] = ["proc", "sys", "dev", "run"];

/// The new root cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    #[error("find {INIT} in the root: {0}")]
    NoInit(io::Error),
    #[error("find {INIT} in the root: it is not executable")]
    NotExecutable,
    #[error("move {path} into the root: {cause}")]
    Move { path: PathBuf, cause: io::Error },
    #[error("enter the root: {0}")]
    Enter(io::Error),
    #[error("start {INIT}: {0}")]
    Start(io::Error),
}

/// Checks that the root has a first program.
pub fn require_init(root: &Path) -> Result<(), SwitchError> {
    let folder =
        openat2(CWD, root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty())
            .map_err(|error| SwitchError::NoInit(error.into()))?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let init = openat2(&folder, INIT, flags, Mode::empty(), ResolveFlags::IN_ROOT)
        .map_err(|error| SwitchError::NoInit(error.into()))?;
    let metadata = fs::File::from(init).metadata().map_err(SwitchError::NoInit)?;
    let is_program = metadata.is_file() && metadata.mode() & 0o111 != 0;
    if is_program { Ok(()) } else { Err(SwitchError::NotExecutable) }
}

/// Switches to the new root. Returns only if that fails. The kernel's arguments for init are passed
/// on.
pub fn switch_root(
    root: &Path,
    arguments: impl Iterator<Item = OsString>,
) -> Result<Infallible, SwitchError> {
    for name in MOVED {
        let target = root.join(name);
        let moved = fs::create_dir_all(&target)
            .and_then(|()| Ok(mount_move(Path::new("/").join(name), &target)?));
        moved.map_err(|cause| SwitchError::Move { path: target, cause })?;
    }
    chdir(root).map_err(|error| SwitchError::Enter(error.into()))?;
    remove_initramfs();
    let entered = mount_move(".", "/").and_then(|()| chroot(".")).and_then(|()| chdir("/"));
    entered.map_err(|error| SwitchError::Enter(error.into()))?;
    start(Command::new(INIT).args(arguments).env(IN_INITRD, "0"))
}

/// Starts the first program of the OS in place of this one. Returns only if that fails.
pub fn start_init(arguments: impl Iterator<Item = OsString>) -> Result<Infallible, SwitchError> {
    start(Command::new(INIT).args(arguments))
}

fn start(init: &mut Command) -> Result<Infallible, SwitchError> {
    Err(SwitchError::Start(init.exec()))
}

/// Removes the files of the initramfs, which would take memory until the next boot. Mounted file
/// systems are others than that of `/`, and stay.
fn remove_initramfs() {
    let Ok(initramfs) = fs::symlink_metadata("/") else { return };
    remove_contents(Path::new("/"), initramfs.dev());
}

/// A file that cannot be removed takes memory, and does no other harm.
fn remove_contents(folder: &Path, device: u64) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.dev() != device {
            continue;
        }
        if metadata.is_dir() {
            remove_contents(&path, device);
            let _ = fs::remove_dir(&path);
        } else {
            let _ = fs::remove_file(&path);
        }
    }
}
