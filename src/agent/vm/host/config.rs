//! Folders of VMs and images, and the devices that the profile assigns to VMs.

use super::cpu_models::CpuModels;
use meshd_proto::Check;
use meshd_types::VfioSelector;
use std::{fmt, net::Ipv4Addr, path::PathBuf, sync::Arc};

#[derive(Clone, Debug)]
pub struct HostConfig {
    pub root: PathBuf,
    /// Address of the central node, which no guest reaches.
    pub central: Option<Ipv4Addr>,
    /// Folder of VMs; each VM has a folder in it.
    pub vms_dir: PathBuf,
    /// Folder of volumes; each file has its digest as its name.
    pub volumes_dir: PathBuf,
    /// PCI devices that the profile assigns to VMs.
    pub vfio: Vec<VfioSelector>,
    /// WWIDs and serial numbers of disks that the profile marks as data.
    pub data_disks: Vec<String>,
    pub models: CpuModels,
    /// Runs before a disk is written.
    pub checks: CheckRunner,
}

#[cfg(test)]
impl HostConfig {
    /// A configuration without devices, whose folders are below `root`.
    pub fn of_root(root: &std::path::Path) -> Self {
        HostConfig {
            vms_dir: root.join("vms"),
            volumes_dir: root.join("images"),
            models: CpuModels::default(),
            central: None,
            vfio: Vec::new(),
            data_disks: Vec::new(),
            checks: CheckRunner::new(Vec::new),
            root: root.to_owned(),
        }
    }
}

/// Runs the checks of the node (`mesh-agent doctor`). Blocks.
#[derive(Clone)]
pub struct CheckRunner(Arc<dyn Fn() -> Vec<Check> + Send + Sync>);

impl CheckRunner {
    pub fn new(checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Self {
        CheckRunner(Arc::new(checks))
    }

    pub fn run(&self) -> Vec<Check> {
        (self.0)()
    }
}

impl fmt::Debug for CheckRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckRunner")
    }
}
