//! The rack's network namespace.

use crate::{LabError, ProcessId, host::command};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::{self, File},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
};

/// Folder in which iproute2 stores the names of namespaces.
const FOLDER: &str = "/run/netns";
/// Prefix of the names of all lab namespaces.
const PREFIX: &str = "meshlab-";

/// A named network namespace.
#[derive(Clone, Debug)]
pub struct Namespace {
    ip: PathBuf,
    name: String,
}

impl Namespace {
    /// Returns the namespace of the rack in an absolute folder; it need not exist.
    pub fn of(ip: &Path, dir: &Path) -> Self {
        let hash = meshd_types::Digest::of(dir.as_os_str().as_encoded_bytes()).to_string();
        Namespace { ip: ip.to_owned(), name: format!("{PREFIX}{}", &hash[..8]) }
    }

    /// Returns the namespace with exactly this name.
    pub fn with_name(ip: &Path, name: String) -> Self {
        Namespace { ip: ip.to_owned(), name }
    }

    /// Returns a second namespace whose name is derived from this one, for a machine that is not a
    /// node.
    pub fn derived(&self, suffix: &str) -> Self {
        Namespace { ip: self.ip.clone(), name: format!("{}-{suffix}", self.name) }
    }

    /// Returns all existing namespaces that [`Self::derived`] creates from this one.
    pub fn all_derived(&self) -> Vec<Self> {
        let prefix = format!("{}-", self.name);
        let names = fs::read_dir(FOLDER).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| name.starts_with(&prefix))
            .map(|name| Namespace { ip: self.ip.clone(), name })
            .collect()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// Creates the namespace and sets its loopback up.
    pub fn create(&self) -> Result<(), LabError> {
        command::run(Command::new(&self.ip).args(["netns", "add", &self.name]))?;
        self.ip(&["link", "set", "lo", "up"])
    }

    /// Removes the name. The kernel removes the devices when no process is left in the namespace.
    pub fn delete(&self) -> Result<(), LabError> {
        if !self.exists() {
            return Ok(());
        }
        command::run(Command::new(&self.ip).args(["netns", "delete", &self.name])).map(drop)
    }

    /// Runs `ip` on this namespace.
    pub fn ip(&self, args: &[&str]) -> Result<(), LabError> {
        command::run(Command::new(&self.ip).args(["-n", &self.name]).args(args)).map(drop)
    }

    /// Runs `work` on a thread inside the namespace; sockets and processes that it opens stay
    /// inside.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let enter = || {
            let namespace = File::open(self.path())?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(std::io::Error::from)
        };
        let entered = thread::scope(|scope| {
            let worker = scope.spawn(|| enter().map(|()| work()));
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        entered.map_err(|source| LabError::Enter { name: self.name.clone(), source })
    }

    /// Starts a program inside the namespace.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, LabError> {
        let program = command::command_line(command);
        self.inside(|| command.spawn())?.map_err(|source| LabError::Spawn { program, source })
    }

    /// Returns processes inside the namespace whose command line contains the rack's folder. A
    /// crashed `lab up` leaves such processes unrecorded. Shells of users in the namespace are
    /// excluded.
    pub fn processes_of(&self, dir: &Path) -> impl Iterator<Item = ProcessId> + use<> {
        let folder = dir.as_os_str().as_encoded_bytes().to_vec();
        let ours = move |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(folder.len()).any(|part| part == folder)
        };
        self.processes().into_iter().filter(ours).filter_map(ProcessId::of)
    }

    /// Returns the processes inside the namespace.
    pub fn processes(&self) -> Vec<u32> {
        let listed = command::run(Command::new(&self.ip).args(["netns", "pids", &self.name]));
        let text = listed
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default();
        text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_name_is_stable_and_unique_per_folder() {
        let name = |dir: &str| Namespace::of(Path::new("ip"), Path::new(dir)).name().to_owned();
        assert_eq!(name("/a/.lab"), name("/a/.lab"));
        assert_ne!(name("/a/.lab"), name("/b/.lab"));
        assert!(name("/a/.lab").starts_with("meshlab-") && name("/a/.lab").len() == 16);
    }
}
