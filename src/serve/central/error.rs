//! The error of an operation that an operator orders. The admin API converts it to an HTTP status.

use super::{
    admin::ApiTokenError,
    generations::{RenderError, RollbackError},
    nodes::OrderError,
    tasks::JobError,
    workloads::{SlotError, VmError},
};
use meshd_model::fleet::UnlawfulTransition;
use meshd_store::StoreError;
use meshd_types::{MacAddr, NodeId};
use std::sync::Arc;

/// Why an operator's word was not followed. Nothing has changed then; but where the store could not be written, it may have: look at
/// what is, and say it again.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// No such node.
    #[error("there is no node `{name}`; `meshd node list` shows those that there are")]
    NoNode {
        /// What was asked for.
        name: String,
    },
    /// Several nodes have this name.
    #[error("several nodes are called `{name}`; use the node ID")]
    Ambiguous {
        /// What was asked for.
        name: String,
    },
    /// A node cannot take its own place.
    #[error("{node} is the old hardware and the new; name two nodes")]
    SameNode {
        /// Which.
        node: NodeId,
    },
    /// Hardware that is to be replaced runs.
    #[error("node {node} still answers on its link; switch the old hardware off first, or remove the node")]
    StillLinked {
        /// Which.
        node: NodeId,
    },
    /// A network card that a node is to have is another one's.
    #[error("cannot accept NIC {mac} for node {node}: it belongs to {holder}")]
    NicTaken {
        /// Which node.
        node: NodeId,
        /// Which card.
        mac: MacAddr,
        /// Whose it is.
        holder: String,
    },
    /// A node that is to be fenced was heard of a moment ago.
    #[error("cannot fence node {node}: it was heard of {seconds} s ago; switch it off and retry after {wait} s")]
    StillHeard {
        /// Which.
        node: NodeId,
        /// Seconds since.
        seconds: u64,
        /// Seconds of silence that are left.
        wait: u64,
    },
    /// No such profile.
    #[error("there is no profile `{profile}`; there are: {known}")]
    NoProfile {
        /// What was asked for.
        profile: String,
        /// What there is.
        known: String,
    },
    /// Something that a node cannot be told.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A job cannot be run, or is not there.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A token of the admin plane.
    #[error(transparent)]
    ApiToken(#[from] ApiTokenError),
    /// What it would boot cannot be made, or is not there.
    #[error(transparent)]
    Render(#[from] Arc<RenderError>),
    /// A profile cannot be rolled back.
    #[error(transparent)]
    Rollback(#[from] RollbackError),
    /// A virtual machine.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// A slot.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// The phase does not allow it.
    #[error(transparent)]
    Unlawful(#[from] UnlawfulTransition),
    /// The node's link is down.
    #[error("node {node} has no link, so it cannot be told to reboot; power-cycle it")]
    NotLinked {
        /// Which.
        node: NodeId,
    },
    /// The node did not answer.
    #[error("node {node} did not say that it reboots within {seconds} s; look at its console")]
    NoAnswer {
        /// Which.
        node: NodeId,
        /// How long it had.
        seconds: u64,
    },
    /// The node refused or failed.
    #[error("node {node} did not do it: {reason}")]
    TaskFailed {
        /// Which.
        node: NodeId,
        /// In its own words.
        reason: String,
    },
    /// The store cannot be written.
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}
