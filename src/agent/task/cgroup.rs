//! The control group (version 2) of a task: contains all its processes and ends them together.
//!
//! A shell has such a group, too.
//!
//! Any process can leave its process group, session and parent, but only root can leave a control
//! group. Without control groups the agent cannot guarantee the end of a task, so it refuses tasks.

use crate::system::{self, Tree, cgroup2};
use meshd_proto::vm::ConsoleId;
use meshd_types::{NodeId, TaskId, failpoint};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// Interval of checks whether a killed group is empty.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a killed process that does not end is logged: it hangs in the kernel.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// Memory reserved for the system: one tenth of the node's memory.
const RESERVE_DIVISOR: u64 = 10;
/// Minimum of reserved memory, in bytes.
const MIN_RESERVE: u64 = 256 << 20;
/// Beginning of the name of a shell's group. No task ID begins with it.
const SHELL_PREFIX: &str = "shell-";
/// Maximum number of processes and threads of a task.
const MAX_PROCESSES: u32 = 32_768;

/// The parent of all groups of tasks of this agent.
#[derive(Clone, Debug)]
pub struct Cgroups {
    base: PathBuf,
}

impl Cgroups {
    /// Finds the hierarchy, or mounts it at `mount_point`. Each node has its own parent group.
    pub fn open(node: NodeId, mount_point: &Path) -> Result<Self, String> {
        let root = cgroup2::open_hierarchy(mount_point)
            .map_err(|error| format!("cannot mount the control groups: {error}"))?;
        Ok(Cgroups { base: cgroup2::workloads(&root).join(format!("meshd-{node}")) })
    }

    /// Creates the group of a task with its limits.
    pub fn create(&self, task: TaskId) -> Result<Cgroup, String> {
        self.create_group(self.group(task))
    }

    /// Creates the group of a shell, with the limits of a task.
    pub fn create_shell(&self, console: ConsoleId) -> Result<Cgroup, String> {
        let name = format!("{SHELL_PREFIX}{:016x}", console.0);
        self.create_group(Cgroup { path: self.base.join(name) })
    }

    fn create_group(&self, group: Cgroup) -> Result<Cgroup, String> {
        fs::create_dir_all(&group.path)
            .map_err(|error| format!("cannot create {}: {error}", group.path.display()))?;
        if !group.path.join("cgroup.kill").exists() {
            remove(&group.path);
            return Err("the kernel has no cgroup.kill; use Linux 5.14 or later".to_owned());
        }
        let memory = system::memory(&Tree::new(Path::new("/"))).total_kib.saturating_mul(1024);
        if let Err(error) = self.limit(&group, memory) {
            remove(&group.path);
            return Err(error);
        }
        Ok(group)
    }

    /// Limits a task, so that the agent keeps enough memory and processes. A missing controller
    /// sets no limit.
    fn limit(&self, group: &Cgroup, memory: u64) -> Result<(), String> {
        let root = self.base.parent().unwrap_or(&self.base);
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let reserve = (memory / RESERVE_DIVISOR).max(MIN_RESERVE).min(memory / 2);
        let limits = [
            ("memory", "memory.max", (memory - reserve).to_string()),
            ("memory", "memory.oom.group", "1".to_owned()),
            ("pids", "pids.max", MAX_PROCESSES.to_string()),
        ];
        for (controller, file, value) in limits {
            if !controllers.split_ascii_whitespace().any(|name| name == controller) {
                tracing::warn!(
                    controller,
                    "the kernel lacks a controller: tasks have no such limit"
                );
                continue;
            }
            if !failpoint::defends("task-limits") {
                continue;
            }
            for parent in [root, &self.base] {
                write(&parent.join("cgroup.subtree_control"), &format!("+{controller}"))?;
            }
            write(&group.path.join(file), &value)?;
        }
        Ok(())
    }

    /// Returns the group of a task, which need not exist.
    pub fn group(&self, task: TaskId) -> Cgroup {
        Cgroup { path: self.base.join(task.to_string()) }
    }

    /// Returns the tasks that have a group.
    pub fn tasks(&self) -> Vec<TaskId> {
        self.names().filter_map(|name| name.parse().ok()).collect()
    }

    /// Returns the groups of shells.
    pub fn shells(&self) -> Vec<Cgroup> {
        let shells = self.names().filter(|name| name.starts_with(SHELL_PREFIX));
        shells.map(|name| Cgroup { path: self.base.join(name) }).collect()
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let entries = fs::read_dir(&self.base).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    }
}

fn write(file: &Path, value: &str) -> Result<(), String> {
    fs::write(file, value)
        .map_err(|error| format!("cannot write {value} to {}: {error}", file.display()))
}

/// The group of one task.
#[derive(Clone, Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Returns the file to which a process writes to enter the group.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Kills all processes of the group and its children, waits until the group is empty, and
    /// removes it. Kills again at each check, because processes may enter the group between the
    /// kill and the removal.
    pub async fn kill_and_remove(&self) {
        let mut waited = Duration::ZERO;
        loop {
            self.kill(waited.is_zero());
            if !self.is_populated() && remove(&self.path) {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            waited += POLL_INTERVAL;
            if waited == HANG_TIMEOUT {
                tracing::error!(group = %self.path.display(), "a killed process of a task does not end; reboot the node");
            }
        }
        // Succeeds after the last task.
        let _ = self.path.parent().map(fs::remove_dir);
    }

    fn kill(&self, is_first: bool) {
        let file = OpenOptions::new().write(true).open(self.path.join("cgroup.kill"));
        if let Err(error) = file.and_then(|mut file| file.write_all(b"1"))
            && error.kind() != io::ErrorKind::NotFound
            && is_first
        {
            tracing::error!(%error, group = %self.path.display(), "cannot kill a task");
        }
    }

    fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }
}

/// Removes child groups first. Returns false if the group still exists because a process entered
/// it.
fn remove(path: &Path) -> bool {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    match fs::remove_dir(path) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            false
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, group = %path.display(), "cannot remove the empty group of a task");
            true
        }
        _ => true,
    }
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
