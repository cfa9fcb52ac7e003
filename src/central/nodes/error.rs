//! Why an order about a node is refused.

use super::{NamingError, OrderError};
use crate::{generations::RenderError, links::LinkError, vms::RunningWorkError};
use meshd_model::fleet::UnlawfulTransition;
use meshd_store::StoreError;
use meshd_types::{MacAddr, NodeId, OperationId};
use std::sync::Arc;

/// Why an order about a node is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    #[error("there is no node `{name}`")]
    NoNode { name: String },
    #[error("`{name}` is ambiguous, {count} nodes match: {candidates}")]
    Ambiguous {
        name: String,
        count: usize,
        /// The first matches.
        candidates: String,
    },
    #[error("cannot replace node {node} by itself")]
    SameNode { node: NodeId },
    #[error("cannot accept NIC {mac} for node {node}: it belongs to {holder}")]
    NicTaken { node: NodeId, mac: MacAddr, holder: String },
    #[error("cannot fence node {node}: its last message was {seconds} s ago")]
    NotSilent {
        node: NodeId,
        seconds: u64,
        /// Remaining seconds of silence.
        wait: u64,
    },
    #[error("there is no profile `{profile}`")]
    NoProfile { profile: String, known: String },
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(transparent)]
    Naming(#[from] NamingError),
    #[error(transparent)]
    Render(#[from] Arc<RenderError>),
    /// The order would end or lose work.
    #[error(transparent)]
    RunningWork(#[from] RunningWorkError),
    /// The link of the node is down, or up.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The phase forbids the change.
    #[error(transparent)]
    Unlawful(#[from] UnlawfulTransition),
    /// An earlier order to the node has not started, or its reboot is not answered.
    #[error("node {node} has another order: operation {operation} is not finished")]
    Busy { node: NodeId, operation: OperationId },
    #[error("cannot accept the order: {open} orders to nodes are not finished")]
    TooManyOrders { open: usize },
    /// The store failed after it had accepted the order.
    #[error("the result of the order to node {node} is not known yet: operation {operation} is not finished")]
    Unfinished { node: NodeId, operation: OperationId },
    #[error("the order to node {node} was cancelled: {reason}")]
    Cancelled { node: NodeId, reason: String },
    #[error("node {node} refused the order: {reason}")]
    ActionFailed { node: NodeId, reason: String },
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(OperateError {
    OperateError::NoNode { .. } => "`meshd node list` lists all nodes";
    OperateError::Ambiguous { .. } => "write more of the name, or use the node ID";
    OperateError::SameNode { .. } => "name two nodes";
    OperateError::NotSilent { wait, .. } => "switch it off and retry after {wait} s";
    OperateError::NoProfile { known, .. } => "there are: {known}";
    OperateError::Busy { operation, .. } => "wait for it, or cancel it: meshd operation cancel {operation}";
    OperateError::Unfinished { operation, .. } => "follow it: meshd operation follow {operation}";
    OperateError::TooManyOrders { .. } => "retry later, or see `meshd operation list`";
    @source OperateError::Order(source) => source;
    @source OperateError::Naming(source) => source;
    @source OperateError::Render(source) => source;
    @source OperateError::RunningWork(source) => source;
    @source OperateError::Link(source) => source;
    @source OperateError::Unlawful(source) => source;
});
