//! Why an order about a node is refused.

use super::{NamingError, OrderError};
use crate::{generations::RenderError, links::LinkError, workloads::HeldWork};
use meshd_model::fleet::UnlawfulTransition;
use meshd_store::StoreError;
use meshd_types::{MacAddr, NodeId};
use std::sync::Arc;

/// Why an order about a node is refused. Nothing has changed then; but where the store could not be written, it may have: look at the
/// node, and repeat the order.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// No such node.
    #[error("there is no node `{name}`; `meshd node list` shows those that there are")]
    NoNode { name: String },
    /// Several nodes have this name.
    #[error("`{name}` is ambiguous, {count} nodes match: {candidates}; write more of the name, or use the node ID")]
    Ambiguous {
        /// The name, or the beginning of one.
        name: String,
        /// How many nodes match.
        count: usize,
        /// The first of them.
        candidates: String,
    },
    /// A node cannot take its own place.
    #[error("cannot replace node {node} by itself; name two nodes")]
    SameNode { node: NodeId },
    /// A network card that a node is to have is another one's.
    #[error("cannot accept NIC {mac} for node {node}: it belongs to {holder}")]
    NicTaken {
        node: NodeId,
        /// The MAC address.
        mac: MacAddr,
        /// The holder of the card.
        holder: String,
    },
    /// A node that is to be fenced was heard of a moment ago.
    #[error("cannot fence node {node}: it was heard of {seconds} s ago; switch it off and retry after {wait} s")]
    StillHeard {
        node: NodeId,
        /// The time in seconds.
        seconds: u64,
        /// Seconds of silence that are left.
        wait: u64,
    },
    /// No such profile.
    #[error("there is no profile `{profile}`; there are: {known}")]
    NoProfile {
        profile: String,
        /// The profiles of the site.
        known: String,
    },
    /// A refused boot setting.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// Labels or a name that it cannot have.
    #[error(transparent)]
    Naming(#[from] NamingError),
    /// Its next boot cannot be rendered.
    #[error(transparent)]
    Render(#[from] Arc<RenderError>),
    /// It would end or lose work.
    #[error(transparent)]
    Held(#[from] HeldWork),
    /// The node's link is down, or is not.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The phase does not allow it.
    #[error(transparent)]
    Unlawful(#[from] UnlawfulTransition),
    /// The node refused or failed.
    #[error("node {node} refused the order: {reason}")]
    TaskFailed {
        node: NodeId,
        /// In its own words.
        reason: String,
    },
    /// The store cannot be written.
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}
