//! What the agent tells the supervisor of a replica, and how it starts one.

use super::VERB;
use crate::container::{
    bundle,
    replica_cgroup::ReplicaCgroup,
    replica_paths::{self, ReplicaPaths},
    runtime::ContainerRuntime,
};
use meshd_proto::container::{ReplicaId, ReplicaSpec};
use meshd_types::Architecture;
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::PathBuf,
    process::{Command, Stdio},
};

/// What a supervisor needs to start a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launch {
    pub replica: ReplicaId,
    pub spec: ReplicaSpec,
    /// Squashfs file of the image.
    pub image: PathBuf,
    /// Squashfs files of the volumes, in the order of the mounts.
    pub volumes: Vec<PathBuf>,
    /// Folders of the root that the runtime mounts to.
    pub mount_points: Vec<String>,
    pub cgroup: ReplicaCgroup,
    /// Root of the control groups.
    pub hierarchy: PathBuf,
    /// The container runtime.
    pub program: PathBuf,
    /// Folder of its state.
    pub runtime_state: PathBuf,
}

impl Launch {
    pub fn runtime(&self) -> ContainerRuntime {
        ContainerRuntime { program: self.program.clone(), state: self.runtime_state.clone() }
    }
}

/// Starts a supervisor, which outlives the agent.
pub fn start(paths: &ReplicaPaths, launch: &Launch) -> io::Result<()> {
    paths.make()?;
    let lock = paths.lock()?;
    paths.forget_attempt()?;
    // The runtime refuses a name that it knows, and a killed supervisor has not removed it.
    replica_paths::remove_folder(&launch.runtime_state.join(launch.replica.to_string()))?;
    replica_paths::write(&paths.launch(), launch)?;
    let architecture = Architecture::host().unwrap_or(Architecture::X86_64);
    let config = bundle::config(&launch.replica, &launch.spec, paths, architecture);
    replica_paths::write(&paths.config(), &config)?;
    // An upgrade may have replaced the file of the agent. This path is the running program.
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg("--folder").arg(paths.folder());
    // The supervisor inherits the lock with its input.
    command.env_clear().stdin(Stdio::from(lock)).stdout(Stdio::null()).stderr(Stdio::null());
    // Reaped by the runtime when it ends before the agent.
    drop(tokio::process::Command::from(command).spawn()?);
    Ok(())
}
