//! The control groups (version 2) of a replica: one of its supervisor without limits, and one of its
//! program with them. Killing the group of the replica ends both.
//!
//! ```text
//! meshd-containers-DIGEST/web.0/supervisor   copies output, forwards ports
//!                               program      the program; below it one group for each `exec`
//! ```

use crate::system::cgroup2;
use meshd_proto::container::{ReplicaId, ReplicaSpec};
use meshd_types::Digest;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Controllers that set limits.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Period of the CPU quota in microseconds.
const PERIOD_US: u64 = 100_000;
/// Maximum number of processes and threads of a replica.
const MAX_PROCESSES: u32 = 4096;
/// Length of the digest in the name of the parent group.
const DIGEST: usize = 12;
const POLL: Duration = Duration::from_millis(10);

/// The parent of the groups of all replicas of this agent.
#[derive(Clone, Debug)]
pub struct ReplicaCgroups {
    hierarchy: PathBuf,
    base: PathBuf,
}

impl ReplicaCgroups {
    /// Finds the hierarchy, or mounts it at `mount_point`. The folder of containers names the
    /// parent, so that two agents of one computer use different groups.
    pub fn open(containers: &Path, mount_point: &Path) -> Result<Self, String> {
        let hierarchy = cgroup2::open_hierarchy(mount_point)
            .map_err(|error| format!("cannot mount the control groups: {error}"))?;
        let digest = Digest::of(containers.as_os_str().as_encoded_bytes()).to_string();
        let name = format!("meshd-containers-{}", &digest[..DIGEST]);
        let base = cgroup2::workloads(&hierarchy).join(name);
        Ok(ReplicaCgroups { hierarchy, base })
    }

    /// Returns the root of the hierarchy.
    pub fn hierarchy(&self) -> &Path {
        &self.hierarchy
    }

    /// Returns the group of a replica, which need not exist.
    pub fn group(&self, replica: &ReplicaId) -> ReplicaCgroup {
        ReplicaCgroup { path: self.base.join(replica.to_string()) }
    }
}

/// The groups of one replica.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplicaCgroup {
    path: PathBuf,
}

impl ReplicaCgroup {
    /// Returns the group of the program.
    pub fn program(&self) -> PathBuf {
        self.path.join("program")
    }

    /// Returns the file to which the program writes to enter its group.
    pub fn program_procs(&self) -> PathBuf {
        self.program().join("cgroup.procs")
    }

    fn supervisor(&self) -> PathBuf {
        self.path.join("supervisor")
    }

    /// Returns the file to which a helper of the supervisor writes to enter its group.
    pub fn supervisor_procs(&self) -> PathBuf {
        self.supervisor().join("cgroup.procs")
    }

    /// Moves the calling process to the group of the supervisor.
    pub fn enter_supervisor(&self) -> io::Result<()> {
        fs::write(self.supervisor_procs(), "0")
    }

    /// Makes the groups, and sets the limits. A missing controller sets no limit.
    pub fn make(&self, spec: &ReplicaSpec) -> Result<(), String> {
        for group in [self.supervisor(), self.program()] {
            fs::create_dir_all(&group)
                .map_err(|error| format!("cannot make {}: {error}", group.display()))?;
        }
        if !self.program().join("cgroup.kill").exists() {
            return Err("the kernel has no cgroup.kill; use Linux 5.14 or later".to_owned());
        }
        let is_group = |folder: &&Path| folder.join("cgroup.subtree_control").exists();
        let parents: Vec<&Path> = self.path.ancestors().take(3).filter(is_group).collect();
        for folder in parents.into_iter().rev() {
            for controller in CONTROLLERS {
                // A controller that is missing or belongs to version 1 is reported below.
                let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        for (name, value) in limits(spec) {
            let file = self.program().join(name);
            if file.exists() {
                fs::write(&file, value)
                    .map_err(|error| format!("cannot set {}: {error}", file.display()))?;
            } else {
                tracing::warn!(limit = name, "the kernel has no such limit for containers");
            }
        }
        Ok(())
    }

    /// Asks the program to end (SIGTERM). It may have ended. `file` has its process ID.
    pub fn terminate(&self, file: &Path) {
        let Some(process) = self.program_of(file) else { return };
        let Some(pid) = Pid::from_raw(process) else { return };
        if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
            // Checked with the pidfd open: the ID may have been reused.
            && self.has_process(process)
            && let Err(error) = pidfd_send_signal(pidfd, Signal::TERM)
        {
            tracing::debug!(%error, "cannot signal a container");
        }
    }

    fn has_process(&self, process: i32) -> bool {
        let processes = fs::read_to_string(self.program_procs()).unwrap_or_default();
        processes.lines().any(|line| line.parse() == Ok(process))
    }

    /// Reads the process ID of the program from its file; `None` if the program has ended.
    pub fn program_of(&self, file: &Path) -> Option<i32> {
        let pid = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        self.has_process(pid).then_some(pid)
    }

    /// Makes a group for another program in the replica, within the limits of the replica.
    pub fn make_exec_group(&self, name: &str) -> io::Result<ExecCgroup> {
        // The program's group ends with the program, and nothing must outlive it.
        let path = self.program().join(name);
        fs::create_dir(&path).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        })?;
        Ok(ExecCgroup { path })
    }

    /// Kills all processes of the program.
    pub fn kill_program(&self) {
        kill(&self.program());
    }

    /// Returns whether the kernel killed a process of the program for its memory.
    pub fn is_out_of_memory(&self) -> bool {
        let events = fs::read_to_string(self.program().join("memory.events")).unwrap_or_default();
        events.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count != "0"))
    }

    /// Kills all processes and removes the program's group, so that the counters of the next start
    /// begin anew. Blocks. Returns false if processes do not end in time.
    pub fn end_program(&self, limit: Duration) -> bool {
        end(&self.program(), limit)
    }

    /// Kills supervisor and program, and removes their groups. Blocks. Returns false if processes do
    /// not end in time.
    pub fn end(&self, limit: Duration) -> bool {
        let is_removed = end(&self.path, limit);
        // Succeeds after the last replica.
        let _ = self.path.parent().map(fs::remove_dir);
        is_removed
    }
}

/// The group of another program in a replica.
#[derive(Clone, Debug)]
pub struct ExecCgroup {
    path: PathBuf,
}

impl ExecCgroup {
    /// Returns the file to which a process writes to enter the group.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Kills all processes. A group with a dying process is removed with the program's.
    pub fn end(&self) {
        kill(&self.path);
        remove(&self.path);
    }
}

fn limits(spec: &ReplicaSpec) -> [(&'static str, String); 5] {
    let quota = u64::from(spec.cpu_millis) * PERIOD_US / 1000;
    [
        ("memory.max", (u64::from(spec.memory_mib) << 20).to_string()),
        ("memory.swap.max", "0".to_owned()),
        ("memory.oom.group", "1".to_owned()),
        ("cpu.max", format!("{quota} {PERIOD_US}")),
        ("pids.max", MAX_PROCESSES.to_string()),
    ]
}

fn kill(group: &Path) {
    if let Err(error) = fs::write(group.join("cgroup.kill"), "1")
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::error!(%error, group = %group.display(), "cannot kill a container");
    }
}

fn end(group: &Path, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        kill(group);
        remove(group);
        if !group.exists() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        thread::park_timeout(POLL);
    }
}

/// Removes child groups first. A group with processes stays.
fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::fixtures::spec;

    #[test]
    fn limits_follow_the_specification() {
        let limits = limits(&spec(1));
        assert_eq!(
            limits.map(|(name, value)| format!("{name} {value}")),
            [
                "memory.max 67108864",
                "memory.swap.max 0",
                "memory.oom.group 1",
                "cpu.max 50000 100000",
                "pids.max 4096",
            ]
        );
    }
}
