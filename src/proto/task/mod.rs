//! Tasks: desired state from the central node, reported state from the agent. Both are repeated
//! after each welcome.
//!
//! | module | content |
//! | --- | --- |
//! | `hydra` | launch options of Hydra proxies, parsed from `mpiexec -launcher manual` |
//! | `output` | output of a task in pieces with offsets |
//! | `shell` | a shell of a node for an administrator |
//!
//! ```text
//! central  TaskEntry Run ──▶ agent      the node's part: ranks, the head of Hydra, or one of its proxies
//!          ◀── TaskUpdate All           starting, running (the head: with the launch options of proxies), exited, failed
//!          ◀── Output ──▶ OutputStored  one piece of each stream at a time
//!          TaskEntry Gone ──▶           all processes are killed
//!          ◀── TaskUpdate Released      none is left
//! ```

mod hydra;
mod output;
pub mod shell;

pub use hydra::{HydraLaunch, HydraLaunchError};
pub use output::{MAX_PIECE, Output, OutputStored, Piece, Stream};

use crate::vm::ConsoleId;
use meshd_types::{ParseError, TaskId};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

/// Maximum number of arguments of a task, including the program.
pub const MAX_ARGS: usize = 256;
/// Maximum number of bytes of all arguments.
pub const MAX_ARG_BYTES: usize = 8 * 1024;
/// Maximum number of nodes of a task.
pub const MAX_NODES: usize = 4096;
/// Maximum number of ranks of a task on one node.
pub const MAX_RANKS_PER_NODE: u16 = 1024;
/// Maximum number of tasks in a report. A node has more than one only while an old one ends.
pub const MAX_TASKS: usize = 16;
/// Maximum number of characters of a detail.
pub const MAX_DETAIL: usize = 500;

/// The desired state of a task on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEntry {
    pub task: TaskId,
    pub desired_state: TaskDesiredState,
}

/// Run a task, or remove it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TaskDesiredState {
    /// Run it, unless it runs or has run.
    Run(Box<TaskRun>),
    /// Remove everything; the answer is [`TaskUpdate::Released`], also if the task is unknown.
    Gone,
}

/// A node's part of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRun {
    /// Program and arguments; no shell interprets them.
    pub argv: Vec<String>,
    /// Environment; the node adds its own variables.
    pub env: BTreeMap<String, String>,
    pub user: TaskUser,
    pub role: TaskRole,
    /// The program reads the standard input of an operator, see [`InputOrder`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_input: bool,
}

/// Connects an operator to the standard input of a task: opens [`crate::CONSOLE_PATH`]/ID. The
/// bytes follow in binary frames, up to [`crate::shell::InputNote::End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputOrder {
    pub console: ConsoleId,
    pub task: TaskId,
}

/// The user of a task's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskUser {
    /// A user that the node assigns to this task alone.
    #[default]
    Default,
    /// Another user and group ID, for files on a network file system.
    Uid(u32),
    Root,
}

/// Minimum user ID of a task; lower ones belong to the system.
pub const MIN_UID: u32 = 1000;

/// The part of a task that a node runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum TaskRole {
    /// The program, `count` times.
    Ranks {
        count: u16,
        /// Rank number of the first one in the task.
        first: u32,
    },
    /// Hydra's `mpiexec`, and the proxy of this node.
    Head {
        /// Addresses of all nodes of the task, this one first.
        hosts: Vec<Ipv4Addr>,
        /// Number of ranks on each node.
        ranks_per_node: u16,
    },
    /// A proxy of Hydra, which starts the ranks of this node.
    Proxy {
        /// Address of the head's control port.
        control: SocketAddrV4,
        /// Index of the proxy in the task.
        proxy: u32,
        /// Other options of the head's Hydra.
        launch: HydraLaunch,
    },
}

/// A report of a node on its tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "update", rename_all = "snake_case")]
pub enum TaskUpdate {
    /// State of all tasks, at most [`MAX_TASKS`]: after each welcome and each change.
    All {
        /// Ordered by ID.
        tasks: Vec<TaskReport>,
    },
    /// Nothing of the task is left on this node.
    Released { task: TaskId },
}

/// State of one task on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReport {
    pub task: TaskId,
    #[serde(flatten)]
    pub state: TaskNodeState,
}

/// The state of a task on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TaskNodeState {
    /// Processes start.
    Starting,
    /// Processes run.
    Running {
        /// On the head: launch options of the proxies on other nodes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        launch: Option<HydraLaunch>,
    },
    /// Processes ended, and their output is stored.
    Exited {
        /// Exit code of the first that failed, else 0; 128 plus the signal number if it was killed.
        code: u8,
    },
    /// Processes did not start, or disappeared without an exit code.
    Failed {
        kind: TaskFault,
        /// Description, at most [`MAX_DETAIL`] characters.
        detail: String,
    },
}

impl TaskNodeState {
    /// Returns true if no process runs, and none will.
    pub fn has_ended(&self) -> bool {
        match self {
            TaskNodeState::Starting | TaskNodeState::Running { .. } => false,
            TaskNodeState::Exited { .. } | TaskNodeState::Failed { .. } => true,
        }
    }
}

/// Why a node could not run its part of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum TaskFault {
    /// The node has no Hydra.
    LauncherMissing,
    /// Hydra ended, or printed unknown text, before the launch options were known.
    LaunchFailed,
    /// The node has no control groups, so it could not kill all processes reliably.
    CgroupMissing,
    /// The folder or a process could not be created.
    Prepare,
    /// The agent restarted; it killed the remaining processes.
    AgentRestarted,
    /// The connection with the standard input broke off before its end.
    InputLost,
}

serialised_name!(TaskFault);

/// Returns the fault of a command line. The central node and the node that runs it both check.
pub fn check_argv(argv: &[String]) -> Result<(), ParseError> {
    let bytes: usize = argv.iter().map(String::len).sum();
    match argv.first() {
        None => Err(ParseError::new("there is no program", "write it after `--`")),
        Some(program) if program.is_empty() || program.starts_with('-') => {
            Err(ParseError::new("the program begins with `-` or is empty", "write its path"))
        }
        _ if argv.len() > MAX_ARGS => {
            Err(ParseError::new("more than 256 arguments", "put them into a file"))
        }
        _ if bytes > MAX_ARG_BYTES => {
            Err(ParseError::new("more than 8 KiB of arguments", "put them into a file"))
        }
        _ if argv.iter().any(|arg| arg.contains('\0')) => {
            Err(ParseError::new("an argument contains a zero byte", "remove it"))
        }
        _ => Ok(()),
    }
}

/// As [`check_argv`], for programs that Hydra starts.
pub fn check_mpi_argv(argv: &[String]) -> Result<(), ParseError> {
    check_argv(argv)?;
    if argv.iter().any(|arg| arg == ":") {
        return Err(ParseError::new(
            "mpiexec starts another program after the argument `:`",
            "remove it",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
