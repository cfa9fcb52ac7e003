//! The control group (version 2) of a task: holds all its processes and ends them together.
//!
//! Any process can leave its process group, session and parent, but only root can leave a control group. Without one the agent cannot
//! guarantee that a task has ended, so it runs none.

use crate::system::{self, Tree};
use meshd_types::{NodeId, TaskId, fail};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// Interval of checks whether a killed group is empty.
const LOOK: Duration = Duration::from_millis(20);
/// Time after which a killed process that does not end is logged: it hangs in the kernel.
const IMMORTAL: Duration = Duration::from_secs(30);

/// Memory that no task gets: this fraction of the node's memory, and at least this many bytes.
const MEMORY_RESERVE: u64 = 10;
const LEAST_RESERVE: u64 = 256 << 20;
/// Maximum number of processes and threads of a task.
const MAX_PROCESSES: u32 = 32_768;

/// The parent of all groups of tasks of this agent.
#[derive(Clone, Debug)]
pub struct Cgroups {
    base: PathBuf,
}

impl Cgroups {
    /// Finds the hierarchy, or mounts it at `place`. Each node's agent has its own parent group.
    ///
    /// # Errors
    /// There is no hierarchy.
    pub fn open(node: NodeId, place: &Path) -> Result<Self, String> {
        let root = match mounted() {
            Some(root) => root,
            None => mount(place).map_err(|error| format!("cannot mount the control groups: {error}"))?,
        };
        Ok(Cgroups { base: root.join(format!("meshd-{node}")) })
    }

    /// Makes the group of a task, empty.
    ///
    /// # Errors
    /// The group cannot be made or killed.
    pub fn make(&self, task: TaskId) -> Result<Cgroup, String> {
        let group = self.of(task);
        fs::create_dir_all(&self.base).map_err(|error| format!("cannot make {}: {error}", self.base.display()))?;
        fs::create_dir_all(&group.path).map_err(|error| format!("cannot make {}: {error}", group.path.display()))?;
        if !group.path.join("cgroup.kill").exists() {
            remove(&group.path);
            return Err("the kernel cannot kill a control group (it takes Linux 5.14)".to_owned());
        }
        if let Err(why) = self.limit(&group, memory_bytes()) {
            remove(&group.path);
            return Err(why);
        }
        Ok(group)
    }

    /// Limits a task, so that the agent and its link always have resources. A missing controller sets no limit.
    fn limit(&self, group: &Cgroup, memory: u64) -> Result<(), String> {
        let root = self.base.parent().unwrap_or(&self.base);
        let offered = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let reserve = (memory / MEMORY_RESERVE).max(LEAST_RESERVE).min(memory / 2);
        let limits = [
            ("memory", "memory.max", (memory - reserve).to_string()),
            ("memory", "memory.oom.group", "1".to_owned()),
            ("pids", "pids.max", MAX_PROCESSES.to_string()),
        ];
        for (controller, file, value) in limits {
            if !offered.split_ascii_whitespace().any(|name| name == controller) {
                tracing::warn!(controller, "this kernel bounds no tasks by this");
                continue;
            }
            if !fail::defends("task-limits") {
                continue;
            }
            for above in [root, &self.base] {
                put(&above.join("cgroup.subtree_control"), &format!("+{controller}"))?;
            }
            put(&group.path.join(file), &value)?;
        }
        Ok(())
    }

    /// Returns the group of a task, which need not exist.
    pub fn of(&self, task: TaskId) -> Cgroup {
        Cgroup { path: self.base.join(task.to_string()) }
    }

    /// Returns the tasks that have a group.
    pub fn tasks(&self) -> Vec<TaskId> {
        let entries = fs::read_dir(&self.base).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }
}

fn put(file: &Path, value: &str) -> Result<(), String> {
    fs::write(file, value).map_err(|error| format!("cannot write {value} to {}: {error}", file.display()))
}

/// Memory of the machine in bytes.
fn memory_bytes() -> u64 {
    system::memory(&Tree::new(Path::new("/"))).total_kib.saturating_mul(1024)
}

/// The group of one task.
#[derive(Clone, Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Returns the file by which a process enters the group.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Kills all processes of the group and its children, waits until it is empty, and removes it. Kills again at each check: the kernel
    /// kills processes that fork meanwhile, but not those that enter meanwhile.
    pub async fn end(&self) {
        let mut waited = Duration::ZERO;
        loop {
            self.kill(waited.is_zero());
            if !self.is_populated() && remove(&self.path) {
                break;
            }
            tokio::time::sleep(LOOK).await;
            waited += LOOK;
            if waited == IMMORTAL {
                tracing::error!(group = %self.path.display(), "a killed process of a task does not end; the node needs a reboot");
            }
        }
        // The parent is removed with its last task.
        let _ = self.path.parent().map(fs::remove_dir);
    }

    fn kill(&self, is_first: bool) {
        let file = OpenOptions::new().write(true).open(self.path.join("cgroup.kill"));
        if let Err(error) = file.and_then(|mut file| file.write_all(b"1"))
            && error.kind() != io::ErrorKind::NotFound
            && is_first
        {
            tracing::error!(%error, group = %self.path.display(), "a task cannot be killed");
        }
    }

    fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }
}

/// Removes child groups first. Returns false if the group still exists because a process entered it.
fn remove(path: &Path) -> bool {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    match fs::remove_dir(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty) => false,
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, group = %path.display(), "the empty group of a task stays");
            true
        }
        _ => true,
    }
}

/// Mount point of the hierarchy.
fn mounted() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found =
        fields.find(|fields| matches!(fields.as_slice(), [_, _, "cgroup2", options, ..] if options.starts_with("rw")));
    found.and_then(|fields| fields.get(1).map(PathBuf::from))
}

fn mount(place: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(place)?;
    let flags =
        rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV | rustix::mount::MountFlags::NOEXEC;
    rustix::mount::mount("cgroup2", place, "cgroup2", flags, None::<&std::ffi::CStr>)?;
    Ok(place.to_owned())
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
