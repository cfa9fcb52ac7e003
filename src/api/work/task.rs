//! Requests and responses for tasks and logs.

use crate::routes::task_user;
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
    /// Group whose nodes run the task. Either `group` or `node` is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// ID or name of the only node that runs the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Program and arguments. meshd starts the program without a shell.
    pub argv: Vec<String>,
    /// Number of nodes. Default: all nodes of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    /// Number of ranks on each node. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_per_node: Option<u16>,
    /// Default: `mpich` for more than one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// User of the program: `default` (a user of this task alone), `root`, or `{"uid": 1000}`.
    /// `root` requires the role admin.
    #[serde(default)]
    #[schema(schema_with = task_user)]
    pub user: TaskUser,
    /// Time limit in seconds, including the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// The caller connects the standard input of the program: `GET tasks/{task}/input`. Requires
    /// one node, one rank and the launcher `none`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_input: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    pub id: TaskId,
    pub state: TaskState,
    /// Cause of the end: `exited`, `cancelled`, `time_limit`, `node_lost`, `node_rebooted`,
    /// `start_timeout`, `proxy_failed`, or a fault of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Description of the end for operators.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Node that caused the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Exit code of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    pub group: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Number of ranks on each node.
    pub ranks_per_node: u16,
    /// Launcher of the ranks.
    pub launcher: Launcher,
    /// User of the program.
    #[schema(schema_with = task_user)]
    pub user: TaskUser,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Actor that ordered the task.
    pub owner: String,
    pub created_at: Timestamp,
    /// Time at which the task ran on all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Time at which the task ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Nodes of the task; the first one is the head node.
    pub nodes: Vec<TaskNode>,
}

/// A node of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskNode {
    pub node: NodeId,
    /// IPv4 address at which the other nodes of the task reach this node.
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    /// `claimed`, `running`, `ended`, `released`.
    pub state: String,
    /// True if the node is lost: the processes of the task may still run on it.
    pub lost: bool,
    /// True while the task holds the node exclusively.
    pub claimed: bool,
    /// Exit code on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
}

/// A line of a task's output, or the number of removed bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TaskOutput {
    Piece(LogLine<Stream>),
    /// Number of bytes that were removed at this position.
    Dropped {
        dropped: u64,
    },
}

/// A line of a boot log, or the number of removed bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BootLogLine {
    Piece(LogLine<LogSource>),
    /// Number of bytes that were removed at this position.
    Dropped {
        dropped: u64,
    },
}

impl TaskView {
    /// Creates the view of a task.
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
