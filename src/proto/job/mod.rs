//! Tasks on a node: the desired state in one direction, the whole actual state in the other. Both are repeated after
//! every welcome.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `hydra` | launch options of Hydra proxies, as typed values parsed from `mpiexec -launcher manual` |
//! | `output` | output of a task in pieces with offsets |
//!
//! ```text
//! central  JobOrder Run ──▶ agent      a part of the job: ranks, the head of Hydra, or one of its proxies
//!          ◀── JobNews All             starting, running (the head: with how proxies are started), exited, failed
//!          ◀── JobNews Output ──▶ OutputKept     one piece of each stream at a time
//!          JobOrder Gone ──▶           all its processes are killed
//!          ◀── JobNews Released        none is left
//! ```

mod hydra;
mod output;

pub use hydra::{HydraLaunch, HydraLaunchError};
pub use output::{MAX_PIECE, Output, OutputKept, Piece, Stream};

use meshd_types::JobId;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

/// Most arguments of a job, its program included.
pub const MAX_ARGS: usize = 256;
/// Most bytes of all arguments together.
pub const MAX_ARG_BYTES: usize = 8 * 1024;
/// Most nodes of one job.
pub const MAX_NODES: usize = 4096;
/// Most ranks of one job on one node.
pub const MAX_RANKS_PER_NODE: u16 = 1024;
/// Most jobs that a node tells of; more than one are there only for as long as an old one ends.
pub const MAX_JOBS: usize = 16;
/// Most characters of a detail.
pub const MAX_DETAIL: usize = 500;

/// What the central node wants of one job on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOrder {
    pub job: JobId,
    pub want: JobWant,
}

/// How a job shall be on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "want", rename_all = "snake_case")]
pub enum JobWant {
    /// It shall run. One that runs, or has run, is left alone.
    Run(Box<JobRun>),
    /// Nothing of it shall be left; answered by [`JobNews::Released`], also where it is not there.
    Gone,
}

/// A node's part of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRun {
    /// Program and arguments, as somebody typed them; no shell sees them.
    pub argv: Vec<String>,
    /// The whole environment, but for what the node adds of itself.
    pub env: BTreeMap<String, String>,
    /// Whose rights it has.
    pub user: JobUser,
    /// What of it is run here.
    pub role: JobRole,
}

/// Whose rights a job has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobUser {
    /// The user ID that is for jobs alone.
    #[default]
    Job,
    /// Another user ID, which is its group ID too; for files of a network.
    Uid(u32),
    Root,
}

/// The user and group ID of jobs. No package and no overlay uses it.
pub const JOB_UID: u32 = 64_999;
/// The least user ID that a job may be given: those below are the system's.
pub const MIN_UID: u32 = 1000;

impl JobUser {
    /// Its user ID, which is its group ID too.
    pub fn uid(self) -> u32 {
        match self {
            JobUser::Job => JOB_UID,
            JobUser::Uid(uid) => uid,
            JobUser::Root => 0,
        }
    }
}

/// What of a job is run on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum JobRole {
    /// The program itself, so many times.
    Ranks {
        count: u16,
        /// The number of the first one in the whole job.
        first: u32,
    },
    /// Hydra's `mpiexec`, and the proxy of this node.
    Head {
        /// All nodes of the job, this one first.
        hosts: Vec<Ipv4Addr>,
        /// Ranks on each.
        ranks_per_node: u16,
    },
    /// A proxy of Hydra, which starts the ranks of this node.
    Proxy {
        /// Where the head waits for it.
        control: SocketAddrV4,
        /// Which of the job's proxies it is.
        proxy: u32,
        /// What else the head's Hydra wants it to know.
        launch: HydraLaunch,
    },
}

/// What a node tells of its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub enum JobNews {
    /// All of them, at most [`MAX_JOBS`]: after each welcome, and whenever one has changed.
    All {
        /// By ID.
        jobs: Vec<JobReport>,
    },
    /// Nothing of it is on this node any more.
    Released { job: JobId },
    /// A job wrote something; told again until it is kept.
    Output(Output),
}

/// One job on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    pub job: JobId,
    #[serde(flatten)]
    pub state: JobNodeState,
}

/// Where a job stands on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JobNodeState {
    /// Its processes are being started.
    Starting,
    /// They run.
    Running {
        /// Of a head: how the other nodes start their proxies.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        launch: Option<HydraLaunch>,
    },
    /// They have ended, and what they wrote is kept.
    Exited {
        /// Exit code of the first that failed, else 0; 128 and the signal's number for one that was killed.
        code: u8,
    },
    /// They could not be run, or are gone without having ended.
    Failed {
        kind: JobFault,
        /// In words, at most [`MAX_DETAIL`] characters.
        detail: String,
    },
}

impl JobNodeState {
    /// Nothing of it runs any more, and nothing will.
    pub fn has_ended(&self) -> bool {
        match self {
            JobNodeState::Starting | JobNodeState::Running { .. } => false,
            JobNodeState::Exited { .. } | JobNodeState::Failed { .. } => true,
        }
    }
}

/// Why a node could not run its part of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobFault {
    /// The node has no Hydra.
    LauncherMissing,
    /// Hydra ended, or said what nobody understands, before it was known how to launch.
    LaunchFailed,
    /// The node cannot hold processes together, so it could not be sure to kill them all.
    CgroupMissing,
    /// Folder or processes could not be made.
    Prepare,
    /// The agent was started anew; it has killed what was left of the job.
    AgentRestarted,
}

impl JobFault {
    /// The word of the wire, which is also shown.
    pub fn as_str(self) -> &'static str {
        match self {
            JobFault::LauncherMissing => "launcher_missing",
            JobFault::LaunchFailed => "launch_failed",
            JobFault::CgroupMissing => "cgroup_missing",
            JobFault::Prepare => "prepare",
            JobFault::AgentRestarted => "agent_restarted",
        }
    }
}

/// What is wrong with a command line. It is asked by the central node and again by the node that shall run it.
pub fn check_argv(argv: &[String]) -> Result<(), &'static str> {
    let bytes: usize = argv.iter().map(String::len).sum();
    match argv.first() {
        None => Err("there is no program; write it after `--`"),
        Some(program) if program.is_empty() || program.starts_with('-') => {
            Err("the program begins with `-` or is empty; write its path")
        }
        _ if argv.len() > MAX_ARGS => Err("more than 256 arguments; put them into a file"),
        _ if bytes > MAX_ARG_BYTES => Err("more than 8 KiB of arguments; put them into a file"),
        _ if argv.iter().any(|arg| arg.contains('\0')) => {
            Err("an argument has a zero byte; no program can be given one")
        }
        _ => Ok(()),
    }
}

/// As [`check_argv`], for what Hydra runs.
pub fn check_mpi_argv(argv: &[String]) -> Result<(), &'static str> {
    check_argv(argv)?;
    if argv.iter().any(|arg| arg == ":") {
        return Err("mpiexec takes the argument `:` for the beginning of another program; leave it out");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
