//! The control group (version 2) of a VM: limits memory, CPU, processes and I/O, and kills all
//! processes at once. A missing controller sets no limit. Without the cgroup2 hierarchy no VM
//! starts.

use super::cpuset::{self, DedicatedCpus};
use crate::{system::cgroup2, vm::vm_paths::VmPaths};
use meshd_proto::vm::VmSpec;
use meshd_types::Digest;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Mount point of the hierarchy if the system has not mounted it.
const MOUNT_POINT: &str = "/run/meshd/cgroup";
/// Controllers that set limits.
const CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuset", "pids", "io"];
/// Period of the CPU quota in microseconds.
const PERIOD_US: u64 = 100_000;
/// Processes and threads beside vCPU threads: I/O threads, helpers.
const EXTRA_THREADS: u64 = 256;
/// I/O weight, equal for all VMs.
const IO_WEIGHT: &str = "default 100";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes of memory for the guest, QEMU and its helpers.
    pub memory: u64,
    /// Number of vCPUs. QEMU and its helpers get one more CPU.
    pub vcpus: u32,
    /// Dedicated CPUs; absent if the VM shares CPUs.
    pub dedicated: Option<DedicatedCpus>,
}

#[derive(Clone, Debug)]
pub struct VmCgroup {
    path: PathBuf,
}

impl VmCgroup {
    /// Names the group by the folder of the VM, so that two agents of one computer use different
    /// groups.
    pub fn for_vm(files: &VmPaths, spec: &VmSpec) -> Result<Self, String> {
        let root = cgroup2::open_hierarchy(Path::new(MOUNT_POINT))
            .map_err(|error| format!("cannot mount cgroup2: {error}"))?;
        let machines = files.folder().parent().unwrap_or(Path::new("/"));
        let base = Digest::of(machines.as_os_str().as_encoded_bytes()).to_string();
        let uuid = spec.uuid;
        let path = match spec.shares_processors() {
            true => cgroup2::workloads(&root)
                .join(format!("meshd-vms-{}", &base[..12]))
                .join(uuid.to_string()),
            // Linux before 6.7 accepts partitions of CPUs only below the root.
            false => root.join(format!("{}{}-{uuid}", cpuset::PREFIX, &base[..12])),
        };
        Ok(VmCgroup { path })
    }

    /// Makes the group with its limits. Returns its `cgroup.procs`.
    pub fn make(&self, limits: &CgroupLimits) -> Result<PathBuf, String> {
        let path = self.path.display();
        fs::create_dir_all(&self.path).map_err(|error| format!("cannot make {path}: {error}"))?;
        let is_group = |folder: &&Path| folder.join("cgroup.subtree_control").exists();
        let parents: Vec<&Path> = self.path.ancestors().skip(1).take(2).filter(is_group).collect();
        for folder in parents.into_iter().rev() {
            for controller in CONTROLLERS {
                // A controller that is missing or belongs to version 1 is reported below.
                let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        let quota = (u64::from(limits.vcpus) + 1) * PERIOD_US;
        let values = [
            ("memory.max", limits.memory.to_string()),
            ("cpu.max", format!("{quota} {PERIOD_US}")),
            ("pids.max", (u64::from(limits.vcpus) + EXTRA_THREADS).to_string()),
            ("io.weight", IO_WEIGHT.to_owned()),
        ];
        for (name, value) in values {
            let file = self.path.join(name);
            if file.exists() {
                fs::write(&file, value)
                    .map_err(|error| format!("cannot set {}: {error}", file.display()))?;
            } else {
                tracing::warn!(limit = name, group = %path, "the kernel has no such limit for VMs");
            }
        }
        Ok(self.path.join("cgroup.procs"))
    }

    /// Binds the group to its dedicated CPUs. Returns whether it is bound.
    pub fn dedicate(&self, limits: &CgroupLimits) -> Result<bool, String> {
        let Some(dedicated) = &limits.dedicated else { return Ok(false) };
        cpuset::dedicate(&self.path, dedicated)
            .map_err(|error| format!("cannot set the CPUs of {}: {error}", self.path.display()))
    }

    /// Kills all processes of the group and removes it. Does nothing if there is no group.
    pub fn kill_and_remove(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        cpuset::free(&self.path);
        // A group with a dying process holds no resources. It is removed at the next end of the VM.
        let _ = fs::remove_dir(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}
