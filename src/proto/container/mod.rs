//! Containers: desired state of the replicas of a node, and what the node reports on them. Both are
//! repeated after each welcome.
//!
//! | module | content |
//! | --- | --- |
//! | `faults` | faults of a specification |
//! | `mount` | volumes that a replica mounts |
//! | `replica` | identity of a replica: `web.0` |
//! | `spec` | what a replica runs, with its limits, which central node and agent check |
//!
//! ```text
//! central  ContainerEntry Run ──▶ agent      fetch, start, restart, check health
//!          ◀── ContainerUpdate All           the state of every replica of the node
//!          ContainerEntry Stopped ──▶        no process is left, the log stays
//!          ContainerEntry Gone ──▶           nothing is left
//!          ◀── ContainerUpdate Released
//!          ContainerLogs, ContainerExec ──▶  open a connection for the bytes of a user
//! ```

mod faults;
mod mount;
mod replica;
mod spec;

pub use mount::{MAX_MOUNTS, ReplicaMount};
pub use replica::ReplicaId;
pub use spec::{
    ContainerRestart, HealthCheck, HealthProbe, MAX_ENV, MAX_ENV_BYTES, MAX_PORTS, PublishedPort,
    ReplicaSpec,
};

use crate::{shell::ShellOrder, vm::ConsoleId};
use serde::{Deserialize, Serialize};

/// Maximum number of replicas of one container.
pub const MAX_REPLICAS: u16 = 64;
/// Maximum number of replicas on one node.
pub const MAX_NODE_REPLICAS: usize = 64;
/// Maximum length of a fault's detail, in bytes.
pub const MAX_FAULT_DETAIL: usize = 500;
/// Maximum length of the name and version of a container runtime, in bytes.
pub const MAX_RUNTIME_TEXT: usize = 64;

/// An entry of the section `containers`: the desired state of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerEntry {
    pub replica: ReplicaId,
    pub desired_state: ContainerDesiredState,
}

/// The desired state of a replica on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ContainerDesiredState {
    /// Run it. A replica that runs under a lower number of start is replaced. One that ended under
    /// this number stays ended.
    Run(Box<ReplicaSpec>),
    /// No process runs. The log stays.
    Stopped,
    /// Remove everything; the answer is [`ContainerUpdate::Released`], also if the node does not
    /// have the replica.
    Gone,
}

/// A report of a node on its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "update", rename_all = "snake_case")]
pub enum ContainerUpdate {
    /// All replicas, at most [`MAX_NODE_REPLICAS`]: after each welcome and each change.
    All {
        /// Ordered by ID.
        replicas: Vec<ReplicaReport>,
    },
    /// Nothing of the replica is left on this node.
    Released { replica: ReplicaId },
}

/// The report of a node on one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaReport {
    pub replica: ReplicaId,
    /// Number of the start that the node last executed.
    pub run: u32,
    /// Automatic restarts of this start.
    #[serde(default)]
    pub restarts: u32,
    #[serde(flatten)]
    pub state: ReplicaState,
}

/// The state of a replica on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ReplicaState {
    /// The node fetches the image and the volumes.
    Fetching { percent: u8 },
    /// The program starts.
    Starting,
    /// The program runs.
    Running {
        /// Result of the health check; `None` without a check, and before its first result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        healthy: Option<bool>,
    },
    /// The program ended, and restarts after a delay.
    Waiting {
        /// As in [`ReplicaState::Exited`].
        code: u8,
        /// The kernel ended the program: it exceeded its memory.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        out_of_memory: bool,
    },
    /// The program ended, and does not restart.
    Exited {
        /// Exit code; 128 plus the signal number if it was killed.
        code: u8,
    },
    /// The program does not run, for a reason that a restart does not remove.
    Failed {
        kind: ContainerFault,
        /// Description, at most [`MAX_FAULT_DETAIL`] bytes.
        detail: String,
    },
}

impl ReplicaState {
    /// Returns true if no process runs, and none will without an order.
    pub fn has_ended(&self) -> bool {
        matches!(self, ReplicaState::Exited { .. } | ReplicaState::Failed { .. })
    }
}

/// Why a node could not run a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ContainerFault {
    /// The node has no program that runs containers.
    RuntimeMissing,
    /// The central node does not have the image or a volume.
    ImageMissing,
    /// The image or a volume does not have its digest.
    ImageDiffers,
    /// The node has no control groups, so it could not enforce limits.
    CgroupMissing,
    /// The path of a mount leads through a link or a file of the image.
    MountPath,
    /// The kernel ended the program: it exceeded its memory.
    OutOfMemory,
    /// A published port is in use on the node.
    PortInUse,
    /// File system, network or process could not be created.
    Prepare,
    /// The image does not have the program.
    ProgramMissing,
    /// A fault of a later version.
    #[serde(other)]
    Unknown,
}

serialised_name!(ContainerFault);

/// Connects a user to the recorded output of a replica: opens [`crate::CONSOLE_PATH`]/ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsOrder {
    pub console: ConsoleId,
    pub replica: ReplicaId,
    /// Continue with new output; otherwise the node closes the connection after the recorded
    /// output.
    pub follow: bool,
}

/// Starts a program in a running replica, in a terminal, and connects it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOrder {
    pub replica: ReplicaId,
    /// Program and arguments; no shell interprets them.
    pub argv: Vec<String>,
    pub shell: ShellOrder,
}

#[cfg(test)]
mod tests;
