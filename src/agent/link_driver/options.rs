//! Paths of the agent, and why it cannot start.

use super::side_effects::wall;
use crate::{
    checks,
    files::FileError,
    link::keys::KeyError,
    system::Tree,
    vm::{self, CheckRunner, HostConfig},
};
use meshd_proto::{AgentConfig, BootPart};
use std::path::PathBuf;

/// Paths and programs of the agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// Public configuration, normally [`meshd_proto::AGENT_CONFIG_FILE`].
    pub config: PathBuf,
    /// Part of this boot, normally [`meshd_proto::BOOT_FILE`].
    pub boot_file: PathBuf,
    /// A ticket for a machine that is not netbooted. Its content is copied into the state folder and replaces `config` and
    /// `boot_file`; the ticket is not needed afterwards.
    pub token_file: Option<PathBuf>,
    /// Key and certificate; tmpfs.
    pub state_dir: PathBuf,
    /// Folders of tasks; tmpfs, and every user may pass it.
    pub jobs_dir: PathBuf,
    /// Root of the file system that facts, checks and the CA certificate are read from.
    pub root: PathBuf,
    /// Program and arguments that restart the machine.
    pub reboot: Vec<String>,
    /// Folder of virtual machines and their volumes; normally [`crate::vm::FOLDER`].
    pub vm_dir: PathBuf,
}

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file of the overlay.
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot start threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// Paths of virtual machines, and the node's resources for them.
pub(super) fn places(options: &Options, tree: &Tree, config: &AgentConfig, boot: &BootPart) -> HostConfig {
    let checks = {
        let (tree, config, boot, state_dir) = (tree.clone(), config.clone(), boot.clone(), options.state_dir.clone());
        let (vms, clock) = (options.vm_dir.clone(), move || checks::Reference::kept(&state_dir));
        CheckRunner::new(move || checks::report(&tree, &vms, &config, &boot, clock(), wall()).checks)
    };
    HostConfig {
        checks,
        root: options.root.clone(),
        machines: options.vm_dir.clone(),
        images: vm::volumes(&options.vm_dir),
        models: vm::CpuModels::default(),
        vfio: config.vfio.clone(),
        data_disks: config.data_disks.clone(),
    }
}
