//! Storage of a task: a bounded file system in memory that is removed with the task. A full one
//! does not affect the agent's files.
//!
//! ```text
//! FOLDER            tmpfs; the agent's
//!   TASK            sub-folder with the task ID, so that mounts name the task
//!     work          working folder, HOME, TMPDIR
//!     shm           /dev/shm
//!     tmp, ...      /tmp, /var/tmp, /run/lock
//! ```

use crate::system::{self, Tree, isolation::TEMPORARY_FOLDERS};
use meshd_types::failpoint;
use rustix::{
    fs::{Gid, Uid},
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount},
};
use std::{
    ffi::CString,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// Fraction of the node's memory that the files of a task may use.
const SHARE: u64 = 2;
/// Assumed memory of a machine that does not report it, in bytes.
const UNKNOWN: u64 = 512 << 20;
/// Maximum number of mounts of a folder that are undone; a killed agent may leave one.
const MAX_MOUNTS: usize = 8;

/// The folders of a task.
#[derive(Clone, Debug)]
pub struct Storage {
    folder: PathBuf,
}

impl Storage {
    pub fn new(folder: PathBuf) -> Self {
        Storage { folder }
    }

    fn task_folder(&self) -> PathBuf {
        self.folder.join(self.folder.file_name().unwrap_or_default())
    }

    pub fn work(&self) -> PathBuf {
        self.task_folder().join("work")
    }

    pub fn shm(&self) -> PathBuf {
        self.task_folder().join("shm")
    }

    /// Creates the file system and its folders for a user.
    pub fn create(&self, uid: u32) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.folder)?;
        if failpoint::defends("task-storage") {
            let bytes =
                system::memory(&Tree::new(Path::new("/"))).total_kib.saturating_mul(1024) / SHARE;
            let options = format!("mode=0755,size={}", if bytes == 0 { UNKNOWN } else { bytes });
            let options = CString::new(options).map_err(io::Error::other)?;
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            mount("meshd-task", &self.folder, "tmpfs", flags, Some(options.as_c_str()))?;
        }
        DirBuilder::new().mode(0o755).create(self.task_folder())?;
        let replacements = TEMPORARY_FOLDERS.map(|target| replacement(&self.shm(), target));
        for folder in [self.work(), self.shm()].into_iter().chain(replacements) {
            DirBuilder::new().mode(0o700).create(&folder)?;
            rustix::fs::chown(&folder, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
        }
        Ok(())
    }

    /// Removes everything. Blocks: without a separate file system a task may have millions of
    /// files.
    pub fn remove(&self) -> io::Result<()> {
        for _ in 0..MAX_MOUNTS {
            match unmount(&self.folder, UnmountFlags::DETACH) {
                Ok(()) => {}
                // Nothing is mounted there, or the folder does not exist.
                Err(Errno::INVAL | Errno::NOENT) => break,
                Err(error) => return Err(error.into()),
            }
        }
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Folder of the task that replaces `target`.
pub fn replacement(shm: &Path, target: &str) -> PathBuf {
    shm.with_file_name(target.trim_start_matches('/').replace('/', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn task_scratch_storage_is_bounded_and_removed_with_the_task() {
        let dir = tempfile::tempdir().expect("a folder");
        let storage = Storage::new(dir.path().join("0a"));
        storage.create(65_534).expect("made");
        let device = |path: &Path| fs::metadata(path).expect("there").dev();
        assert_ne!(device(&storage.work()), device(dir.path()), "a separate file system");
        let space = rustix::fs::statvfs(storage.work()).expect("readable");
        let memory = system::memory(&Tree::new(Path::new("/"))).total_kib * 1024;
        // tmpfs rounds its size up to whole pages.
        assert!(space.f_blocks <= (memory / SHARE).div_ceil(space.f_frsize));
        fs::write(storage.work().join("left"), "x").expect("written");
        storage.remove().expect("removed");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0);
        storage.remove().expect("nothing is there");
    }
}
