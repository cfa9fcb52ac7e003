//! Where the agent keeps VMs and images, and what the profile assigns to VMs.

use super::cpu_models::CpuModels;
use meshd_proto::Check;
use meshd_types::VfioSelector;
use std::{fmt, path::PathBuf, sync::Arc};

/// Where the node keeps what is read here.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Root of the file system.
    pub root: PathBuf,
    /// Folder of machines; each has one of its own in it.
    pub machines: PathBuf,
    /// Folder of volumes; each file is named by its digest.
    pub images: PathBuf,
    /// What the profile gives to virtual machines.
    pub vfio: Vec<VfioSelector>,
    /// Disks that the profile marks as data, by what they call themselves.
    pub data_disks: Vec<String>,
    /// What QEMU said of itself.
    pub models: CpuModels,
    /// Asked before a disk is written.
    pub checks: CheckRunner,
}

/// Runs the node's checks. Blocks.
#[derive(Clone)]
pub struct CheckRunner(Arc<dyn Fn() -> Vec<Check> + Send + Sync>);

impl CheckRunner {
    /// One that runs these checks each time.
    pub fn new(checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Self {
        CheckRunner(Arc::new(checks))
    }

    /// What the checks say now.
    pub fn run(&self) -> Vec<Check> {
        (self.0)()
    }
}

impl fmt::Debug for CheckRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckRunner")
    }
}
