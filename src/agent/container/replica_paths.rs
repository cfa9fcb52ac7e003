//! The files of one replica, in one folder in memory. The file systems of its root are mounted in
//! the mount namespace of its supervisor, so they end with it.
//!
//! ```text
//! FOLDER/web.0
//!   record.json   what a restarted agent continues with
//!   launch.json   what the supervisor reads
//!   config.json   bundle of the container runtime
//!   lock          locked by the supervisor as long as it lives
//!   pid           process ID of the program, written by the container runtime
//!   end.json      how the program ended, written by the supervisor
//!   runtime.log   messages of the container runtime
//!   log           output of the program; the newest part has blocks, older parts are holes
//!   image, scratch, root, volume-0    mount points
//! ```

use super::replica_machine::{ProgramEnd, ReplicaRecord, SupervisorState};
use meshd_proto::container::ReplicaId;
use rustix::fs::{FlockOperation, flock};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Folder of the container runtime's own state. No replica has this name.
const RUNTIME_STATE: &str = "runtime";

#[derive(Clone, Debug)]
pub struct ReplicaPaths {
    folder: PathBuf,
}

impl ReplicaPaths {
    pub fn new(containers: &Path, replica: &ReplicaId) -> Self {
        ReplicaPaths { folder: containers.join(replica.to_string()) }
    }

    pub fn of_folder(folder: &Path) -> Self {
        ReplicaPaths { folder: folder.to_owned() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub fn pid(&self) -> PathBuf {
        self.folder.join("pid")
    }

    pub fn launch(&self) -> PathBuf {
        self.folder.join("launch.json")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.join("config.json")
    }

    /// Description of the program of a health check.
    pub fn health_process(&self) -> PathBuf {
        self.folder.join("health.json")
    }

    /// Description of a program of a user.
    pub fn exec_process(&self, console: u64) -> PathBuf {
        self.folder.join(format!("exec-{console:016x}.json"))
    }

    pub fn end(&self) -> PathBuf {
        self.folder.join("end.json")
    }

    pub fn runtime_log(&self) -> PathBuf {
        self.folder.join("runtime.log")
    }

    pub fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// Mount point of a volume, by its place among the mounts.
    pub fn volume(&self, index: usize) -> PathBuf {
        self.folder.join(format!("volume-{index}"))
    }

    pub fn scratch(&self) -> PathBuf {
        self.folder.join("scratch")
    }

    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    fn record(&self) -> PathBuf {
        self.folder.join("record.json")
    }

    fn lock_file(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Makes the folders. Only root may enter them.
    pub fn make(&self) -> io::Result<()> {
        for folder in [self.folder.clone(), self.image(), self.scratch(), self.root()] {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        Ok(())
    }

    /// Locks the folder for a supervisor. The lock ends when the last copy of the file is closed.
    pub fn lock(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.create(true).write(true).truncate(false).mode(0o600);
        let file = file.open(self.lock_file())?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }

    fn is_locked(&self) -> bool {
        let file = File::open(self.lock_file());
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Reads what is left of a supervisor.
    pub fn supervisor_state(&self) -> SupervisorState {
        // The supervisor writes the end before its lock ends.
        if self.is_locked() {
            let has_started = self.pid().exists();
            return if has_started { SupervisorState::Running } else { SupervisorState::Starting };
        }
        match read::<ProgramEnd>(&self.end()) {
            Some(end) => SupervisorState::Ended(end),
            None => SupervisorState::Absent,
        }
    }

    /// Removes what an earlier attempt left, except the log.
    pub fn forget_attempt(&self) -> io::Result<()> {
        for file in [self.pid(), self.end(), self.runtime_log()] {
            remove_file(&file)?;
        }
        Ok(())
    }

    pub fn store_record(&self, record: &ReplicaRecord) -> io::Result<()> {
        write(&self.record(), record)
    }

    /// Removes the folder. Succeeds if it does not exist.
    pub fn remove(&self) -> io::Result<()> {
        remove_folder(&self.folder)
    }
}

/// Removes a folder with its content. Succeeds if it does not exist.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the folder of the container runtime's own state.
pub fn runtime_state(containers: &Path) -> PathBuf {
    containers.join(RUNTIME_STATE)
}

/// Returns the replicas that have a folder with a record.
pub fn records(containers: &Path) -> Vec<(ReplicaId, ReplicaRecord)> {
    let entries = fs::read_dir(containers).into_iter().flatten().flatten();
    let replicas = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<(ReplicaId, ReplicaRecord)> = replicas
        .filter_map(|replica: ReplicaId| {
            let record = read(&ReplicaPaths::new(containers, &replica).record())?;
            Some((replica, record))
        })
        .collect();
    found.sort_by(|(left, _), (right, _)| left.cmp(right));
    found
}

/// Reads a file; `None` if it is missing or unreadable.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Replaces a file. A reader finds the old or the new one.
pub fn write(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut options = OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(&serde_json::to_vec(content)?)?;
    drop(file);
    fs::rename(part, path)
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_supervisor_follows_its_lock_and_files() {
        let dir = tempfile::tempdir().expect("a folder");
        let paths = ReplicaPaths::new(dir.path(), &"web.0".parse().expect("a replica"));
        assert_eq!(paths.supervisor_state(), SupervisorState::Absent, "no folder");
        paths.make().expect("made");
        let lock = paths.lock().expect("locked");
        let copy = lock.try_clone().expect("copied");
        drop(lock);
        assert_eq!(paths.supervisor_state(), SupervisorState::Starting, "a copy has the lock");
        assert!(paths.lock().is_err(), "no second supervisor");
        fs::write(paths.pid(), "7").expect("written");
        assert_eq!(paths.supervisor_state(), SupervisorState::Running);
        drop(copy);
        assert_eq!(paths.supervisor_state(), SupervisorState::Absent, "it was killed");
        let end = ProgramEnd::Exited { code: 3, out_of_memory: false };
        write(&paths.end(), &end).expect("written");
        assert_eq!(paths.supervisor_state(), SupervisorState::Ended(end));
        paths.forget_attempt().expect("removed");
        assert_eq!(paths.supervisor_state(), SupervisorState::Absent);
        paths.remove().expect("removed");
        paths.remove().expect("nothing is there");
    }
}
