//! The key of the record of one node of an operation.

use meshd_model::operations::NodeOperation;
use meshd_types::{NodeId, OperationId};
use std::{fmt, str::FromStr};

/// Operation and node; in the journal `<operation ID>/<node ID>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeOperationKey {
    pub(crate) operation: OperationId,
    pub(crate) node: NodeId,
}

impl NodeOperationKey {
    pub(crate) fn of(record: &NodeOperation) -> Self {
        NodeOperationKey { operation: record.operation, node: record.node }
    }

    pub(crate) fn new(operation: OperationId, node: NodeId) -> Self {
        NodeOperationKey { operation, node }
    }
}

impl FromStr for NodeOperationKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (operation, node) = text.split_once('/').ok_or(())?;
        Ok(NodeOperationKey {
            operation: operation.parse().map_err(drop)?,
            node: node.parse().map_err(drop)?,
        })
    }
}

impl fmt::Display for NodeOperationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.operation, self.node)
    }
}
