//! A task: one run of a program on bare metal. A task owns its nodes exclusively until no process
//! of it is left on them.
//!
//! ```text
//!            all run            an end: exit, fault, a node lost, cancelled, time over
//! starting ──────────▶ running ─────────────────▶ ending ──────────▶ succeeded, failed, cancelled, timed_out
//!     └───────────────────────────────────────────▶┘   every node has reported that it is free, or is lost
//! ```
//! The first cause of an end decides the result. A node stays claimed until it reports that nothing
//! is left, boots again, or is removed by an operator.
//!
//! | module | content |
//! | --- | --- |
//! | `transitions` | events of a task |
//! | `node_loss` | a node of a task is lost, boots again, or is removed |
//! | `time_limits` | time limits of a task |
//! | `desired_state` | desired state of a task on one node |
//! | `mpi_roles` | roles of the nodes: head, proxies, or ranks without a launcher |

mod desired_state;
mod mpi_roles;
mod node_loss;
mod time_limits;
mod transitions;

#[cfg(test)]
mod tests;

pub use node_loss::NodeObservation;
pub use time_limits::{HEAD_EXIT_LIMIT, START_LIMIT, TaskAges};

use meshd_proto::task::{HydraLaunch, MAX_NODES, MAX_RANKS_PER_NODE, TaskFault, TaskUser};
use meshd_types::{BootSessionId, Digest, GroupName, NodeId, ParseError, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, net::Ipv4Addr};
use strum::VariantArray as _;

/// Program that starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum Launcher {
    /// MPICH's Hydra: one `mpiexec` on the first node, and a proxy on every node.
    Mpich,
    /// No launcher: each node runs the program.
    None,
}

impl Launcher {
    /// Returns the default launcher: Hydra for more than one rank.
    pub fn default_for(nodes: usize, ranks_per_node: u16) -> Self {
        if nodes > 1 || ranks_per_node > 1 { Launcher::Mpich } else { Launcher::None }
    }
}

as_str!(Launcher);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(utoipa::ToSchema, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum TaskState {
    /// The nodes are claimed and start the program.
    Starting,
    /// The program runs on all nodes.
    Running,
    /// The result is decided; remaining processes are being killed.
    Ending,
    /// Exit code 0.
    Succeeded,
    /// Any other end.
    Failed,
    /// Cancelled by an operator.
    Cancelled,
    TimedOut,
}

impl TaskState {
    pub const ALL: [TaskState; TaskState::VARIANTS.len()] =
        *TaskState::VARIANTS.first_chunk().expect("the same length");

    /// Returns true if the task ended; only lost nodes may still change.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled | TaskState::TimedOut
        )
    }
}

as_str!(TaskState);

/// The end of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEnd {
    /// State once all nodes are free.
    pub state: TaskState,
    pub cause: TaskCause,
    /// Description with names and numbers.
    pub detail: String,
    /// Node that caused the end, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Exit code of the program, if it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    /// Time of the decision.
    pub at: Timestamp,
}

/// The cause of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskCause {
    Exited,
    /// A node could not run the program.
    Fault(TaskFault),
    /// A node was offline for too long, or left service.
    NodeLost,
    NodeRebooted,
    StartTimeout,
    /// A Hydra proxy failed, and the head did not notice.
    ProxyFailed,
    /// Cancelled by an operator.
    Cancelled,
    TimeLimit,
}

impl TaskCause {
    /// Returns the word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskCause::Exited => "exited",
            TaskCause::Fault(fault) => fault.as_str(),
            TaskCause::NodeLost => "node_lost",
            TaskCause::NodeRebooted => "node_rebooted",
            TaskCause::StartTimeout => "start_timeout",
            TaskCause::ProxyFailed => "proxy_failed",
            TaskCause::Cancelled => "cancelled",
            TaskCause::TimeLimit => "time_limit",
        }
    }
}

/// One node of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    /// Boot session in which the node was claimed.
    pub session: BootSessionId,
    /// Address for the other nodes.
    pub address: Ipv4Addr,
    /// Last reported state.
    pub state: MemberState,
    /// True if the node is lost; processes of the task may still run there.
    #[serde(default)]
    pub lost: bool,
    /// Exit code on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    /// Time of the reported end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// The state of a task on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum MemberState {
    /// No report yet.
    Claimed,
    Running,
    /// The program ended; cleanup is pending.
    Ended,
    /// No process is left: the node is free.
    Released,
}

as_str!(MemberState);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    pub group: GroupName,
    pub argv: Vec<String>,
    pub nodes: usize,
    pub ranks_per_node: u16,
    pub launcher: Launcher,
    /// User that runs the program.
    #[serde(default)]
    pub user: TaskUser,
    /// Time limit in seconds, including the start; none if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// The program reads the standard input of the caller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_input: bool,
}

/// The caller that may write the standard input of a task. A hash, because the identity of a caller
/// with a token contains the hash of that token: a later token of the same name is another caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InputOwner(Digest);

impl InputOwner {
    /// Derives the owner from the unique identity of a caller.
    pub fn of(identity: &str) -> Self {
        InputOwner(Digest::of(identity.as_bytes()))
    }
}

/// The record of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub id: TaskId,
    pub spec: TaskSpec,
    /// User who submitted the task.
    pub owner: String,
    /// Caller of the standard input, if the program reads one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_owner: Option<InputOwner>,
    pub created_at: Timestamp,
    /// Time at which the program ran on all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time at which all nodes were free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    pub state: TaskState,
    /// End, once decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<TaskEnd>,
    /// Nodes, the head first.
    pub members: Vec<Member>,
    /// Commands of the Hydra proxies, as reported by the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<HydraLaunch>,
}

impl TaskSpec {
    /// Validates the specification; the error is its fault.
    pub fn check(&self) -> Result<(), ParseError> {
        let argv = match self.launcher {
            Launcher::Mpich => meshd_proto::task::check_mpi_argv(&self.argv),
            Launcher::None => meshd_proto::task::check_argv(&self.argv),
        };
        argv?;
        if !(1..=MAX_NODES).contains(&self.nodes) {
            let message = format!("invalid number of nodes: {}", self.nodes);
            return Err(ParseError::new(message, format!("use 1 to {MAX_NODES}")));
        }
        if !(1..=MAX_RANKS_PER_NODE).contains(&self.ranks_per_node) {
            let message = format!("invalid number of ranks on a node: {}", self.ranks_per_node);
            return Err(ParseError::new(message, format!("use 1 to {MAX_RANKS_PER_NODE}")));
        }
        if let TaskUser::Uid(uid) = self.user
            && (uid < meshd_proto::task::MIN_UID || uid == u32::MAX)
        {
            let hint = format!("use {} or higher, or root", meshd_proto::task::MIN_UID);
            return Err(ParseError::new(format!("user {uid} is a system user"), hint));
        }
        if self.has_input
            && (self.nodes, self.ranks_per_node, self.launcher) != (1, 1, Launcher::None)
        {
            let hint = "use one node, one rank and the launcher none";
            return Err(ParseError::new("several programs cannot share a standard input", hint));
        }
        if self.timeout_s == Some(0) {
            return Err(ParseError::new("the time limit is 0", "omit it for no limit"));
        }
        Ok(())
    }
}

impl Task {
    /// Creates a task; storing it claims its nodes. `members` contains at least one node, and each
    /// node once.
    pub fn claim(
        id: TaskId,
        spec: TaskSpec,
        owner: String,
        members: Vec<Member>,
        now: Timestamp,
    ) -> Self {
        let nodes: BTreeSet<NodeId> = members.iter().map(|member| member.node).collect();
        debug_assert_eq!(nodes.len(), members.len(), "a node is claimed once");
        let state = TaskState::Starting;
        let created_at = now;
        Task {
            id,
            spec,
            owner,
            input_owner: None,
            created_at,
            started_at: None,
            ended_at: None,
            state,
            end: None,
            members,
            launch: None,
        }
    }

    /// Returns whether the task holds a node.
    pub fn holds(&self, node: NodeId) -> bool {
        self.holding().any(|holding| holding == node)
    }

    /// Returns the nodes that the task holds.
    pub fn holding(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().filter(|member| member.is_held()).map(|member| member.node)
    }

    /// Returns true while the task has not ended or still holds a node.
    pub fn is_open(&self) -> bool {
        !self.state.is_final() || self.holding().next().is_some()
    }
}

impl Member {
    /// Returns a claimed node.
    pub fn claimed(node: NodeId, session: BootSessionId, address: Ipv4Addr) -> Self {
        Member {
            node,
            session,
            address,
            state: MemberState::Claimed,
            lost: false,
            code: None,
            ended_at: None,
        }
    }

    /// Returns whether the task still holds the node.
    pub fn is_held(&self) -> bool {
        self.state != MemberState::Released
    }
}
