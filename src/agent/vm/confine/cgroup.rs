//! The control group (version 2) of a VM: limits of memory, CPU, processes and I/O, and the common end of its processes. A controller that
//! the kernel lacks sets no limit; without the hierarchy nothing runs.

use super::cpuset::{self, DedicatedCpus};
use crate::vm::vm_paths::VmPaths;
use meshd_proto::vm::VmSpec;
use meshd_types::Digest;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Where the hierarchy is mounted if the system has not.
const PLACE: &str = "/run/meshd/cgroup";
/// Controllers that set limits.
const CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuset", "pids", "io"];
/// Microseconds in which a quota of processors counts.
const PERIOD_US: u64 = 100_000;
/// Processes and threads beside those of virtual processors: I/O threads, helpers.
const THREADS: u64 = 256;
/// Share of I/O, as of every other group: no machine takes more than another where disks are busy.
const IO_WEIGHT: &str = "default 100";

/// What one machine may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes of memory, of the guest and of all that serves it.
    pub memory: u64,
    /// Virtual processors; one more serves them.
    pub vcpus: u32,
    /// Processors that it has for itself; it shares the node's if absent.
    pub dedicated: Option<DedicatedCpus>,
}

/// The group of one machine.
#[derive(Clone, Debug)]
pub struct VmCgroup {
    path: PathBuf,
}

impl VmCgroup {
    /// Of a machine by its folder: two agents of one computer do not meet.
    ///
    /// # Errors
    /// In words: there is no hierarchy.
    pub fn of(files: &VmPaths, spec: &VmSpec) -> Result<Self, String> {
        let root = root().map_err(|error| format!("cannot mount the control groups: {error}"))?;
        let machines = files.folder().parent().unwrap_or(Path::new("/"));
        let (base, uuid) = (Digest::of(machines.as_os_str().as_encoded_bytes()).to_string(), spec.uuid);
        let path = match spec.shares_processors() {
            true => root.join(format!("meshd-vms-{}", &base[..12])).join(uuid.to_string()),
            false => root.join(format!("{}{}-{uuid}", cpuset::PREFIX, &base[..12])),
        };
        Ok(VmCgroup { path })
    }

    /// Makes it with its limits; gives the file by which a process enters it.
    ///
    /// # Errors
    /// In words: it cannot be made, or a limit that the kernel has is not set.
    pub fn make(&self, limits: &CgroupLimits) -> Result<PathBuf, String> {
        let failed = |error: io::Error| format!("cannot make {}: {error}", self.path.display());
        fs::create_dir_all(&self.path).map_err(failed)?;
        let is_group = |folder: &&Path| folder.join("cgroup.subtree_control").exists();
        let above: Vec<&Path> = self.path.ancestors().skip(1).take(2).filter(is_group).collect();
        for folder in above.into_iter().rev() {
            for controller in CONTROLLERS {
                // One that is not there, or belongs to version 1, is told below.
                let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        let quota = (u64::from(limits.vcpus) + 1) * PERIOD_US;
        let values = [
            ("memory.max", limits.memory.to_string()),
            ("cpu.max", format!("{quota} {PERIOD_US}")),
            ("pids.max", (u64::from(limits.vcpus) + THREADS).to_string()),
            ("io.weight", IO_WEIGHT.to_owned()),
        ];
        for (name, value) in values {
            let file = self.path.join(name);
            if file.exists() {
                fs::write(&file, value).map_err(|error| format!("cannot set {}: {error}", file.display()))?;
            } else {
                tracing::warn!(limit = name, group = %self.path.display(), "the kernel has no such limit for machines");
            }
        }
        Ok(self.path.join("cgroup.procs"))
    }

    /// Binds it, once made, to the processors that it has for itself. Returns whether it is bound.
    ///
    /// # Errors
    /// In words: the kernel does not accept them.
    pub fn dedicate(&self, limits: &CgroupLimits) -> Result<bool, String> {
        let Some(dedicated) = &limits.dedicated else { return Ok(false) };
        let failed = |error| format!("cannot set the processors of {}: {error}", self.path.display());
        cpuset::dedicate(&self.path, dedicated).map_err(failed)
    }

    /// Kills what is left in it, and removes it. It may be called for one that is not there.
    pub fn end(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        cpuset::give_back(&self.path);
        // One that a dying process is still in goes with the machine's next end; it holds nothing.
        let _ = fs::remove_dir(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

fn root() -> io::Result<PathBuf> {
    // One that another file system lies over is named there, too.
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    if let Some(root) = mounted(&mounts).find(|root| root.join("cgroup.procs").exists()) {
        return Ok(root);
    }
    fs::create_dir_all(PLACE)?;
    let flags =
        rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV | rustix::mount::MountFlags::NOEXEC;
    rustix::mount::mount("cgroup2", PLACE, "cgroup2", flags, None::<&std::ffi::CStr>)?;
    Ok(PLACE.into())
}

/// Where the hierarchy is mounted and can be written. Pure.
fn mounted(mounts: &str) -> impl Iterator<Item = PathBuf> {
    let place = |line: &str| match line.split(' ').collect::<Vec<_>>().as_slice() {
        [_, place, "cgroup2", options, ..] if options.starts_with("rw") => Some(PathBuf::from(place)),
        _ => None,
    };
    mounts.lines().filter_map(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_where_it_can_be_written() {
        let line = |place: &str, kind: &str, options: &str| format!("cgroup2 {place} {kind} {options},nosuid 0 0\n");
        let text = line("/a", "cgroup", "rw") + &line("/b", "cgroup2", "ro") + &line("/c", "cgroup2", "rw");
        assert_eq!(mounted(&text).collect::<Vec<_>>(), [PathBuf::from("/c")]);
        assert_eq!(mounted("junk\n").count(), 0);
    }
}
