//! Confinement of the programs of a VM: QEMU, swtpm and qemu-img.
//!
//! | module | content |
//! | --- | --- |
//! | `users` | one unprivileged user for each VM |
//! | `cgroup` | resource limits of a VM, and its end |
//! | `cpuset` | dedicated CPUs |
//! | `enter` | the process between agent and program: opens files, isolates itself, drops root, executes the program |
//! | `device` | permissions of /dev/kvm, /dev/net/tun and VFIO groups |
//! | `owned_tree` | ownership of files that the VM's user could have replaced |

pub(super) mod cgroup;
pub(super) mod cpuset;
pub(super) mod device;
pub mod enter;
pub(super) mod owned_tree;
pub(super) mod users;

use self::enter::{PassedFile, VmExec};
use crate::{
    system::Tree,
    vm::{
        host::{config::HostConfig, installed::Programs},
        vm_paths::VmPaths,
    },
};
use meshd_proto::vm::VmSpec;
use meshd_types::failpoint;
use std::path::{Path, PathBuf};

/// User and control group of the programs of one VM.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// Program of the agent, which has the verb [`enter::VERB`].
    agent: PathBuf,
    /// 0 only if a test disabled this defence.
    uid: u32,
    gid: u32,
    /// `cgroup.procs` of the control group.
    procs: Option<PathBuf>,
    /// The group has dedicated CPUs.
    has_cpus: bool,
    /// The folder of the VM.
    folder: PathBuf,
}

impl Confinement {
    /// Assigns user and control group to a VM. After an error no program may run.
    pub fn for_vm(
        spec: &VmSpec,
        files: &VmPaths,
        config: &HostConfig,
        limits: &cgroup::CgroupLimits,
    ) -> Result<Self, String> {
        let confined = failpoint::defends("vm-user");
        let (uid, gid) = if confined { (users::assign(files)?, users::GROUP) } else { (0, 0) };
        let (procs, has_cpus) = match failpoint::defends("vm-cgroup") {
            true => {
                let group = cgroup::VmCgroup::for_vm(files, spec)?;
                (Some(group.make(limits)?), group.dedicate(limits)?)
            }
            false => (None, false),
        };
        let agent = Programs::find(&Tree::new(&config.root))
            .agent
            .unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
        Ok(Confinement { agent, uid, gid, procs, has_cpus, folder: files.folder().to_owned() })
    }

    pub fn has_cpus(&self) -> bool {
        self.has_cpus
    }

    /// Returns user and group ID.
    pub fn owner(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// Returns the command that runs `program` confined. The program gets the files of `pass` as
    /// descriptors.
    pub fn command(
        &self,
        pins: bool,
        pass: Vec<PassedFile>,
        program: &Path,
        args: &[String],
    ) -> (PathBuf, Vec<String>) {
        let procs = self.procs.clone();
        let folder = self.folder.clone();
        let mut all = VmExec { uid: self.uid, gid: self.gid, procs, pins, pass, folder }.args();
        all.push(program.display().to_string());
        all.extend(args.iter().cloned());
        (self.agent.clone(), all)
    }
}
