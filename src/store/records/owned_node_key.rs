//! The key of the record of one node of an operation or of a rollout.

use meshd_model::{operations::NodeOperation, rollouts::RolloutNode};
use meshd_types::{NodeId, OperationId, RolloutId};
use std::{fmt, str::FromStr};

/// Owner and node; in the journal `<owner ID>/<node ID>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnedNodeKey<O> {
    pub(crate) owner: O,
    pub(crate) node: NodeId,
}

/// The key of the record of one node of an operation.
pub(crate) type NodeOperationKey = OwnedNodeKey<OperationId>;
/// The key of the record of one node of a rollout.
pub(crate) type RolloutNodeKey = OwnedNodeKey<RolloutId>;

impl<O> OwnedNodeKey<O> {
    pub(crate) fn new(owner: O, node: NodeId) -> Self {
        OwnedNodeKey { owner, node }
    }
}

impl NodeOperationKey {
    pub(crate) fn of(record: &NodeOperation) -> Self {
        OwnedNodeKey { owner: record.operation, node: record.node }
    }
}

impl From<&RolloutNode> for RolloutNodeKey {
    fn from(record: &RolloutNode) -> Self {
        OwnedNodeKey { owner: record.rollout, node: record.node }
    }
}

impl<O: FromStr> FromStr for OwnedNodeKey<O> {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (owner, node) = text.split_once('/').ok_or(())?;
        Ok(OwnedNodeKey { owner: owner.parse().map_err(drop)?, node: node.parse().map_err(drop)? })
    }
}

impl<O: fmt::Display> fmt::Display for OwnedNodeKey<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.node)
    }
}
