//! Paths of the agent, and errors of its start.

use super::side_effects::wall;
use crate::{
    checks,
    container::ContainerHost,
    files::{self, FileError},
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
    /// A ticket for a machine that does not netboot. The agent moves its content into the state
    /// folder; `config` and `boot_file` are then ignored.
    pub token_file: Option<PathBuf>,
    /// Key and certificate; tmpfs.
    pub state_dir: PathBuf,
    /// Folders of tasks; tmpfs that every user may traverse.
    pub tasks_dir: PathBuf,
    /// Folders of containers; tmpfs that only root may enter.
    pub containers_dir: PathBuf,
    /// Root of the file system that facts, checks and the CA certificate are read from.
    pub root: PathBuf,
    /// Program and arguments that restart the machine.
    pub reboot: Vec<String>,
    /// Folder of VMs and their volumes; normally [`crate::vm::FOLDER`].
    pub vm_dir: PathBuf,
}

/// An error of the start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("cannot start threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// Returns the configuration of the VM manager.
pub(super) fn host_config(
    options: &Options,
    tree: &Tree,
    config: &AgentConfig,
    boot: &BootPart,
) -> HostConfig {
    let checks = {
        let tree = tree.clone();
        let config = config.clone();
        let boot = boot.clone();
        let state_dir = options.state_dir.clone();
        let vms = options.vm_dir.clone();
        let clock = move || checks::CentralClock::load(&state_dir);
        CheckRunner::new(move || {
            checks::report(&tree, &vms, &config, &boot, clock(), wall()).checks
        })
    };
    HostConfig {
        checks,
        root: options.root.clone(),
        central: Some(config.central),
        vms_dir: options.vm_dir.clone(),
        volumes_dir: vm::volumes(&options.vm_dir),
        models: vm::CpuModels::default(),
        vfio: config.vfio.clone(),
        data_disks: config.data_disks.clone(),
    }
}

/// Returns the configuration of containers.
pub(super) fn container_host(options: &Options) -> ContainerHost {
    ContainerHost {
        folder: options.containers_dir.clone(),
        images: options.vm_dir.join("container-images"),
        cgroup_mount: options.state_dir.join("cgroup"),
        root: options.root.clone(),
    }
}

/// Moves a ticket into the state folder, and returns the options with its paths.
pub(super) fn import_ticket(options: Options) -> Result<Options, FileError> {
    let Some(ticket) = options.token_file.clone() else { return Ok(options) };
    let config = options.state_dir.join("agent.json");
    let boot_file = options.state_dir.join("boot.json");
    // The agent starts without a ticket if it used one before.
    if ticket.exists() || !config.exists() {
        files::import_ticket(&ticket, &config, &boot_file)?;
    }
    Ok(Options { config, boot_file, ..options })
}
