//! Errors of orders about tasks.

use meshd_store::StoreError;
use meshd_types::{GroupName, Hint as _, NodeId, ParseError};
use std::io;

/// Why a task is not started or not found.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("there is no task {id}")]
    None { id: String },
    #[error("{}", .0.message())]
    Spec(ParseError),
    #[error("there is no group `{group}`")]
    NoGroup { group: String, known: String },
    #[error("cannot run the task as root: the site file has [agent].root_tasks = false")]
    RootForbidden,
    #[error(
        "cannot start the task: group {group} has too few free nodes: {free} free, {wanted} requested"
    )]
    NotEnough {
        group: GroupName,
        wanted: usize,
        free: usize,
        /// Why the other nodes are not free.
        why: String,
    },
    #[error("cannot start the task: node {name} ({id}) {why}")]
    NotFree { id: NodeId, name: String, why: String },
    #[error("the output of a task cannot be read")]
    Output(#[from] io::Error),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(TaskError {
    TaskError::None { .. } => "`meshd task list` shows recorded tasks";
    TaskError::NoGroup { group, known } => "there are: {known}. Write [groups.{group}] into the site file";
    TaskError::RootForbidden => "set --user to a user ID";
    TaskError::NotEnough { why, .. } => "{why}";
    TaskError::NotFree { id, .. } => "a task needs an online node without VMs, containers and tasks; `meshd node show {id}` shows this one";
    TaskError::Output(_) => "check the disk";
    @source TaskError::Spec(fault) => fault;
    @source TaskError::Store(source) => source;
});
