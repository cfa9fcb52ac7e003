//! Where a job keeps what it writes: a file system of its own in memory, bounded, which goes with the job. The keys of the agent lie on another
//! one, and what a job leaves behind anywhere in it is gone before the next one comes.
//!
//! ```text
//! FOLDER            tmpfs; the agent's
//!   JOB             a folder inside it, so that its mounts name the job
//!     work          working folder, HOME, TMPDIR
//!     shm           /dev/shm
//!     tmp, var-tmp  /tmp, /var/tmp
//! ```

use crate::system::{self, Tree};
use meshd_types::fail;
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

/// The share of the node's memory, 1 of so many, that the files of a job may take.
const SHARE: u64 = 2;
/// Bytes of memory that are taken for a machine that does not tell.
const UNKNOWN: u64 = 512 << 20;
/// Mounts of one folder that are undone: an agent that was killed may leave one.
const MAX_MOUNTS: usize = 8;

/// The folders of a job.
#[derive(Clone, Debug)]
pub struct Storage {
    folder: PathBuf,
}

impl Storage {
    /// Of a job whose folder is that.
    pub fn new(folder: &Path) -> Self {
        Storage { folder: folder.to_owned() }
    }

    fn inside(&self) -> PathBuf {
        self.folder.join(self.folder.file_name().unwrap_or_default())
    }

    /// Working folder.
    pub fn work(&self) -> PathBuf {
        self.inside().join("work")
    }

    /// Shared memory.
    pub fn shm(&self) -> PathBuf {
        self.inside().join("shm")
    }

    /// Makes the file system and its folders, for this user alone.
    ///
    /// # Errors
    /// They cannot be made; nothing of the job may run then.
    pub fn make(&self, uid: u32) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.folder)?;
        if fail::defends("task-storage") {
            let bytes = system::memory(&Tree::new(Path::new("/"))).total_kib.saturating_mul(1024) / SHARE;
            let options = format!("mode=0755,size={}", if bytes == 0 { UNKNOWN } else { bytes });
            let options = CString::new(options).map_err(io::Error::other)?;
            mount(
                "meshd-task",
                &self.folder,
                "tmpfs",
                MountFlags::NOSUID | MountFlags::NODEV,
                Some(options.as_c_str()),
            )?;
        }
        DirBuilder::new().mode(0o755).create(self.inside())?;
        for folder in [self.work(), self.shm(), tmp(&self.shm()), var_tmp(&self.shm())] {
            DirBuilder::new().mode(0o700).create(&folder)?;
            rustix::fs::chown(&folder, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
        }
        Ok(())
    }

    /// Removes all of it. Blocks: without a file system of its own it may hold millions of files.
    ///
    /// # Errors
    /// Something of it stays.
    pub fn remove(&self) -> io::Result<()> {
        for _ in 0..MAX_MOUNTS {
            match unmount(&self.folder, UnmountFlags::DETACH) {
                Ok(()) => {}
                // Nothing is mounted there, or there is no such folder.
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

/// What a job has in place of `/tmp`, by the folder of its shared memory.
pub fn tmp(shm: &Path) -> PathBuf {
    shm.with_file_name("tmp")
}

/// The same in place of `/var/tmp`.
pub fn var_tmp(shm: &Path) -> PathBuf {
    shm.with_file_name("var-tmp")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn task_writes_to_a_bounded_file_system_of_its_own_that_goes_with_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let storage = Storage::new(&dir.path().join("0a"));
        storage.make(65_534).expect("made");
        let device = |path: &Path| fs::metadata(path).expect("there").dev();
        assert_ne!(device(&storage.work()), device(dir.path()), "it shares no file system with its surroundings");
        let space = rustix::fs::statvfs(storage.work()).expect("told");
        let memory = system::memory(&Tree::new(Path::new("/"))).total_kib * 1024;
        assert!(space.f_blocks * space.f_frsize <= memory / SHARE);
        fs::write(storage.work().join("left"), "x").expect("written");
        storage.remove().expect("removed");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0);
        storage.remove().expect("nothing is there");
    }
}
