//! Names of nodes. A page shows a node by its name with the ID in brackets, also where the API
//! returns the ID only.

use crate::{
    client::{ApiClient, ApiError},
    html,
};
use maud::Markup;
use meshd_api::routes as api;
use meshd_types::NodeId;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct NamedNode {
    id: NodeId,
    name: String,
}

/// The names of all nodes, including removed ones.
pub(crate) struct NodeNames(BTreeMap<NodeId, String>);

impl ApiClient {
    pub(crate) async fn node_names(&self) -> Result<NodeNames, ApiError> {
        let path = api::LIST_NODES.path([]).with("fields", "id,name").with("removed", true);
        let nodes: Vec<NamedNode> = self.get_fields(path).await?;
        Ok(NodeNames(nodes.into_iter().map(|node| (node.id, node.name)).collect()))
    }
}

impl NodeNames {
    pub(crate) fn new(names: impl IntoIterator<Item = (NodeId, String)>) -> Self {
        NodeNames(names.into_iter().collect())
    }

    /// Renders a link to a node. The link of a node whose record is deleted shows the ID only.
    pub(crate) fn link(&self, node: NodeId) -> Markup {
        let id = node.to_string();
        self.0
            .get(&node)
            .map_or_else(|| html::name_link(&id, &id), |name| html::node_link(&id, name))
    }

    /// Renders a link to a node, if there is one.
    pub(crate) fn maybe_link(&self, node: Option<NodeId>) -> Markup {
        node.map(|node| self.link(node)).unwrap_or_default()
    }
}
