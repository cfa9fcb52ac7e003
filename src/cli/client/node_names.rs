//! Names of nodes for tables and messages: the API returns IDs.

use super::AdminClient;
use crate::cli::output::print::{Format, Output};
use meshd_api::routes as api;
use meshd_types::NodeId;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The names of all nodes, including removed ones.
#[derive(Debug, Default)]
pub(in crate::cli) struct NodeNames(BTreeMap<NodeId, String>);

#[derive(Deserialize)]
struct NamedNode {
    id: NodeId,
    name: String,
}

impl AdminClient {
    /// Returns the names of nodes; none if they cannot be read, because the command itself succeeds
    /// without them.
    pub(in crate::cli) async fn node_names(&self) -> NodeNames {
        let path = api::LIST_NODES.path([]).with("fields", "id,name").with("removed", true);
        let mut body = Vec::new();
        let read = self.stream(path, |bytes| {
            body.extend_from_slice(bytes);
            Ok(())
        });
        let nodes: Vec<NamedNode> =
            read.await.ok().and_then(|()| serde_json::from_slice(&body).ok()).unwrap_or_default();
        NodeNames(nodes.into_iter().map(|node| (node.id, node.name)).collect())
    }

    /// Returns the names for a table; no other format contains them.
    pub(in crate::cli) async fn node_names_for(&self, output: Output) -> NodeNames {
        if output.format() == Format::Table {
            self.node_names().await
        } else {
            NodeNames::default()
        }
    }
}

impl NodeNames {
    /// Returns the name with the ID in brackets; the ID of a node whose record is deleted.
    pub(in crate::cli) fn label(&self, node: NodeId) -> String {
        self.0.get(&node).map_or_else(|| node.to_string(), |name| format!("{name} ({node})"))
    }

    /// Returns the label of a node, if there is one.
    pub(in crate::cli) fn maybe_label(&self, node: Option<NodeId>) -> String {
        node.map(|node| self.label(node)).unwrap_or_default()
    }

    #[cfg(test)]
    pub(in crate::cli) fn of(node: NodeId, name: &str) -> Self {
        NodeNames([(node, name.to_owned())].into())
    }
}
