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

/// Mount point of the hierarchy if the system has not mounted it.
const PLACE: &str = "/run/meshd/cgroup";
/// Controllers that set limits.
const CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuset", "pids", "io"];
/// Period of the CPU quota in microseconds.
const PERIOD_US: u64 = 100_000;
/// Processes and threads beside vCPU threads: I/O threads, helpers.
const THREADS: u64 = 256;
/// I/O weight, equal for all VMs.
const IO_WEIGHT: &str = "default 100";

/// Limits of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes of memory for the guest, QEMU and its helpers.
    pub memory: u64,
    /// Number of vCPUs; one more CPU serves QEMU and its helpers.
    pub vcpus: u32,
    /// Dedicated CPUs; absent if the VM shares CPUs.
    pub dedicated: Option<DedicatedCpus>,
}

/// The control group of one VM.
#[derive(Clone, Debug)]
pub struct VmCgroup {
    path: PathBuf,
}

impl VmCgroup {
    /// Names the group of a VM by its folder, so that two agents of one computer use different groups.
    ///
    /// # Errors
    /// The hierarchy is not mounted.
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

    /// Makes the group with its limits. Returns the file by which a process enters it.
    ///
    /// # Errors
    /// The group is not made, or a limit that the kernel has is not set.
    pub fn make(&self, limits: &CgroupLimits) -> Result<PathBuf, String> {
        let failed = |error: io::Error| format!("cannot make {}: {error}", self.path.display());
        fs::create_dir_all(&self.path).map_err(failed)?;
        let is_group = |folder: &&Path| folder.join("cgroup.subtree_control").exists();
        let above: Vec<&Path> = self.path.ancestors().skip(1).take(2).filter(is_group).collect();
        for folder in above.into_iter().rev() {
            for controller in CONTROLLERS {
                // A controller that is missing or belongs to version 1 is reported below.
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

    /// Binds the group to its dedicated CPUs. Returns whether it is bound.
    ///
    /// # Errors
    /// The kernel rejects the CPUs.
    pub fn dedicate(&self, limits: &CgroupLimits) -> Result<bool, String> {
        let Some(dedicated) = &limits.dedicated else { return Ok(false) };
        let failed = |error| format!("cannot set the processors of {}: {error}", self.path.display());
        cpuset::dedicate(&self.path, dedicated).map_err(failed)
    }

    /// Kills all processes of the group and removes it. Does nothing if there is no group.
    pub fn end(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        cpuset::give_back(&self.path);
        // A group with a dying process is removed at the next end of the VM; it holds no resources.
        let _ = fs::remove_dir(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

fn root() -> io::Result<PathBuf> {
    // A mount that another file system covers is listed too.
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

/// Writable mount points of the hierarchy. Pure.
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
