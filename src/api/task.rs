//! Requests and responses of tasks.

use meshd_model::work::task::{Launcher, Task, TaskState};
use meshd_proto::log::LogSource;
use meshd_proto::task::{Stream, TaskUser};
use meshd_store::LogLine;
use meshd_types::{NodeId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use utoipa::ToSchema;

/// Body of `POST tasks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunTask {
    /// Group of the site whose nodes run it. Either `group` or `node` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// ID or name of the only node that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Program and arguments. No shell sees them.
    pub argv: Vec<String>,
    /// Number of nodes; all nodes of the group by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    /// Ranks on each node; one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_per_node: Option<u16>,
    /// `mpich` or `none`; `mpich` as soon as there is more than one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub launcher: Option<Launcher>,
    /// `job` (user 64999), `root`, or `{"uid": 1000}`; root requires role admin.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub user: TaskUser,
    /// Seconds that it may take, its start included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    #[schema(value_type = String)]
    pub id: TaskId,
    /// `starting`, `running`, `ending`, `succeeded`, `failed`, `cancelled`, `timed_out`.
    #[schema(value_type = String)]
    pub state: TaskState,
    /// What ended it: `exited`, `cancelled`, `time_limit`, `node_lost`, `node_rebooted`, `start_timeout`, `proxy_failed`, or a
    /// fault of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// In words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The node that is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub node: Option<NodeId>,
    /// Exit code of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    pub group: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Ranks on each node.
    pub ranks_per_node: u16,
    /// Who starts the ranks.
    #[schema(value_type = String)]
    pub launcher: Launcher,
    /// Whose rights it has.
    #[schema(value_type = Object)]
    pub user: TaskUser,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Who asked for it.
    pub owner: String,
    #[schema(value_type = String)]
    pub created_at: Timestamp,
    /// When it ran on all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub started_at: Option<Timestamp>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ended_at: Option<Timestamp>,
    /// Its nodes, the first of which is the head.
    pub nodes: Vec<TaskNode>,
}

/// One node of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskNode {
    #[schema(value_type = String)]
    pub node: NodeId,
    /// Where the others reach it.
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    /// `claimed`, `running`, `ended`, `released`.
    pub state: String,
    /// Nothing is known of it now.
    pub lost: bool,
    /// It is this task's alone.
    pub claimed: bool,
    /// Exit code of its part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
}

/// A line of a task's output: a piece, or the number of bytes that were removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TaskOutput {
    #[schema(value_type = Object)]
    Piece(LogLine<Stream>),
    /// Number of bytes of lines that were removed here.
    Dropped { dropped: u64 },
}

/// A line of the log of a boot: a piece, or the number of bytes that were removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BootLogLine {
    #[schema(value_type = Object)]
    Piece(LogLine<LogSource>),
    /// Number of bytes of lines that were removed here.
    Dropped { dropped: u64 },
}

impl TaskView {
    /// Of a record.
    pub fn new(task: &Task) -> Self {
        let node = |member: &meshd_model::work::task::Member| TaskNode {
            node: member.node,
            address: member.address,
            state: member.state.as_str().to_owned(),
            lost: member.lost,
            claimed: member.is_held(),
            code: member.code,
        };
        let end = task.end.as_ref();
        TaskView {
            id: task.id,
            state: task.state,
            cause: end.map(|end| end.cause.as_str().to_owned()),
            detail: end.map(|end| end.detail.clone()).unwrap_or_default(),
            node: end.and_then(|end| end.node),
            code: end.and_then(|end| end.code),
            group: task.spec.group.to_string(),
            argv: task.spec.argv.clone(),
            ranks_per_node: task.spec.ranks_per_node,
            launcher: task.spec.launcher,
            user: task.spec.user,
            timeout_s: task.spec.timeout_s,
            owner: task.owner.clone(),
            created_at: task.created_at,
            started_at: task.started_at,
            ended_at: task.ended_at,
            nodes: task.members.iter().map(node).collect(),
        }
    }
}
