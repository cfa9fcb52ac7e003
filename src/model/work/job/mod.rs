//! A task (internally: job): one run of a program on bare metal. It has its nodes for itself until nothing of it is left on them.
//!
//! ```text
//!            all run            an end: exit, fault, a node lost, cancelled, time over
//! starting ──────────▶ running ─────────────────▶ ending ──────────▶ succeeded, failed, cancelled, timed_out
//!     └───────────────────────────────────────────▶┘   every node has said that it is free, or is lost
//! ```
//! What the end will be is decided once, by what comes first. A node stays claimed until it has said that nothing is left, or came up by
//! another boot, or an operator removed it: a lost one also when the job is long over.

mod transitions;
mod node_order;

#[cfg(test)]
mod tests;

pub use transitions::{HEAD_PATIENCE, NodeObservation, START_LIMIT};

use meshd_proto::job::{HydraLaunch, JobFault, JobUser, MAX_NODES, MAX_RANKS_PER_NODE};
use meshd_types::{BootSessionId, GroupName, JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, net::Ipv4Addr};

/// Who starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Launcher {
    /// MPICH's Hydra: one `mpiexec` on the first node, its proxies on all.
    Mpich,
    /// The nodes themselves: each runs the program.
    None,
}

impl Launcher {
    /// Who starts them where nobody says so: Hydra as soon as there is more than one rank.
    pub fn of(nodes: usize, ranks_per_node: u16) -> Self {
        if nodes > 1 || ranks_per_node > 1 { Launcher::Mpich } else { Launcher::None }
    }

    /// The word that is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Launcher::Mpich => "mpich",
            Launcher::None => "none",
        }
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Its nodes are claimed and told.
    Starting,
    /// It runs on all of them.
    Running,
    /// Its end is decided; what is left of it is being killed.
    Ending,
    /// It has ended with exit code 0.
    Succeeded,
    /// It has ended otherwise.
    Failed,
    /// An operator ended it.
    Cancelled,
    /// Its time was over.
    TimedOut,
}

impl JobState {
    /// The word of the store, which is also shown.
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Starting => "starting",
            JobState::Running => "running",
            JobState::Ending => "ending",
            JobState::Succeeded => "succeeded",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
            JobState::TimedOut => "timed_out",
        }
    }

    /// True when nothing of it changes any more but for nodes that were lost.
    pub fn is_final(self) -> bool {
        matches!(self, JobState::Succeeded | JobState::Failed | JobState::Cancelled | JobState::TimedOut)
    }
}

/// How a job ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// What it is when all of it is gone.
    pub state: JobState,
    /// Cause.
    pub cause: JobCause,
    /// Description with names and numbers.
    pub detail: String,
    /// On which node, where one is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Exit code of the program, where it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    /// When that was decided.
    pub at: Timestamp,
}

/// What ends a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobCause {
    /// The program ended.
    Exited,
    /// A node could not run its part.
    Fault(JobFault),
    /// A node was not heard of for too long, or is not in service any more.
    NodeLost,
    /// A node was started anew.
    NodeRebooted,
    /// Not all nodes ran it in time.
    StartTimeout,
    /// A proxy of Hydra failed, and the head did not notice.
    ProxyFailed,
    /// An operator.
    Cancelled,
    /// Its time limit was over.
    TimeLimit,
}

impl JobCause {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            JobCause::Exited => "exited",
            JobCause::Fault(fault) => fault.as_str(),
            JobCause::NodeLost => "node_lost",
            JobCause::NodeRebooted => "node_rebooted",
            JobCause::StartTimeout => "start_timeout",
            JobCause::ProxyFailed => "proxy_failed",
            JobCause::Cancelled => "cancelled",
            JobCause::TimeLimit => "time_limit",
        }
    }
}

/// One node of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Node.
    pub node: NodeId,
    /// The boot in which it was claimed.
    pub session: BootSessionId,
    /// Where the other nodes reach it.
    pub address: Ipv4Addr,
    /// What it told.
    pub state: MemberState,
    /// Nothing is known of it now; what it runs may still be there.
    #[serde(default)]
    pub lost: bool,
    /// Exit code of its part, where that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    /// When it told that its part had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// What a node told of its part of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Nothing yet.
    Claimed,
    /// The program runs.
    Running,
    /// It has ended, and is not cleaned up yet.
    Ended,
    /// Nothing is left of it: the node is free.
    Released,
}

impl MemberState {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            MemberState::Claimed => "claimed",
            MemberState::Running => "running",
            MemberState::Ended => "ended",
            MemberState::Released => "released",
        }
    }
}

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Whose nodes it runs on.
    pub group: GroupName,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// On so many nodes.
    pub nodes: usize,
    /// So many ranks on each.
    pub ranks_per_node: u16,
    /// Who starts the ranks.
    pub launcher: Launcher,
    /// Whose rights it has.
    #[serde(default)]
    pub user: JobUser,
    /// How long it may take from now on, its start included, in seconds; no limit unless it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
}

/// A job on record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// ID.
    pub id: JobId,
    /// What was asked for.
    pub spec: JobSpec,
    /// User who submitted the task.
    pub owner: String,
    /// Submission time.
    pub created_at: Timestamp,
    /// When it ran on all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When all of it was gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Where it stands.
    pub state: JobState,
    /// How it ends, once that is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<JobEnd>,
    /// Its nodes, the head first.
    pub members: Vec<Member>,
    /// How the other nodes start their proxies, as the head told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<HydraLaunch>,
}

impl JobSpec {
    /// What is wrong with it, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        let argv = match self.launcher {
            Launcher::Mpich => meshd_proto::job::check_mpi_argv(&self.argv),
            Launcher::None => meshd_proto::job::check_argv(&self.argv),
        };
        argv?;
        if !(1..=MAX_NODES).contains(&self.nodes) {
            return Err(format!("{} nodes; a task has 1 to {MAX_NODES}", self.nodes));
        }
        if !(1..=MAX_RANKS_PER_NODE).contains(&self.ranks_per_node) {
            return Err(format!("{} ranks on a node; a task has 1 to {MAX_RANKS_PER_NODE}", self.ranks_per_node));
        }
        if let JobUser::Uid(uid) = self.user
            && (uid < meshd_proto::job::MIN_UID || uid == u32::MAX)
        {
            return Err(format!(
                "user {uid} is one of the system's; name one from {} on, or root",
                meshd_proto::job::MIN_UID
            ));
        }
        if self.timeout_s == Some(0) {
            return Err("a time limit of nothing; leave it out for none".to_owned());
        }
        Ok(())
    }
}

impl Job {
    /// A job whose nodes are claimed by storing it. There is at least one member, and no node twice.
    pub fn claim(id: JobId, spec: JobSpec, owner: String, members: Vec<Member>, now: Timestamp) -> Self {
        let nodes: BTreeSet<NodeId> = members.iter().map(|member| member.node).collect();
        debug_assert_eq!(nodes.len(), members.len(), "a node is claimed once");
        let (state, created_at) = (JobState::Starting, now);
        let (started_at, ended_at, end, launch) = (None, None, None, None);
        Job { id, spec, owner, created_at, started_at, ended_at, state, end, members, launch }
    }

    /// The node is this job's alone.
    pub fn holds(&self, node: NodeId) -> bool {
        self.holding().any(|holding| holding == node)
    }

    /// The nodes that are this job's alone.
    pub fn holding(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().filter(|member| member.is_held()).map(|member| member.node)
    }

    /// True while the job, or a node of it, waits for something.
    pub fn is_open(&self) -> bool {
        !self.state.is_final() || self.holding().next().is_some()
    }
}

impl Member {
    /// A node that is claimed.
    pub fn claimed(node: NodeId, session: BootSessionId, address: Ipv4Addr) -> Self {
        Member { node, session, address, state: MemberState::Claimed, lost: false, code: None, ended_at: None }
    }

    /// The node is the job's alone.
    pub fn is_held(&self) -> bool {
        self.state != MemberState::Released
    }
}
