//! Labels and names of nodes, and the search for a node by name.

use super::{
    NodeOps,
    error::{NamingError, OperateError},
    lifecycle::existing_node,
};
use crate::environment::records::name_holder;
use meshd_model::fleet::{
    AuditContext, Event, EventKind, LabelChange, MAX_LABELS, Node, Phase, find_node, find_nodes,
};
use meshd_store::Tx;
use meshd_types::{Hostlist, NodeId, Timestamp, is_host_name, is_reserved_host_name};
use std::sync::Arc;

impl NodeOps {
    /// Finds a node by its ID, else by its name, else by a prefix of one of them.
    pub fn resolve(&self, name: &str) -> Result<NodeId, OperateError> {
        self.env.store.read(|model| {
            if let Some(node) = name.parse().ok().and_then(|id| model.node(id)) {
                return Ok(node.id);
            }
            Ok(find_node(name, model.nodes().map(search_key))?)
        })
    }

    /// Finds all nodes of a hostlist, in its order.
    pub fn resolve_hostlist(&self, hostlist: &Hostlist) -> Result<Vec<NodeId>, OperateError> {
        let found =
            self.env.store.read(|model| find_nodes(hostlist, model.nodes().map(search_key)));
        Ok(found?)
    }

    /// Renames a node. Host name, lease and DNS follow at its next boot.
    pub async fn rename(
        self: &Arc<Self>,
        id: NodeId,
        name: &str,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        if !is_host_name(name) {
            let name = name.chars().take(80).collect();
            return Err(NamingError::InvalidName { node: id, name }.into());
        }
        if is_reserved_name(id, name) {
            return Err(NamingError::ReservedName { node: id, name: name.to_owned() }.into());
        }
        let now = self.env.now();
        self.change_node(id, |tx, mut node| {
            if let Some(holder) = name_holder(tx.before(), id, name) {
                return Err(
                    NamingError::NameTaken { node: id, name: name.to_owned(), holder }.into()
                );
            }
            let expected = tx.before().expected_machine_named(name);
            if let Some(machine) = expected.filter(|it| !node.seen_nics().any(|mac| *mac == it.mac))
            {
                return Err(NamingError::NameExpected {
                    node: id,
                    name: name.to_owned(),
                    mac: machine.mac,
                }
                .into());
            }
            if node.name != name {
                let detail = format!("{} -> {name}", node.name);
                name.clone_into(&mut node.name);
                tx.event(Event::new(now, audit, EventKind::Renamed, detail).of_node(id));
            }
            Ok(node)
        })
        .await
    }
}

/// Returns what a node is found by: ID, name, and whether it is present.
pub(super) fn search_key(node: &Node) -> (NodeId, &str, bool) {
    (node.id, node.name.as_str(), node.phase != Phase::Removed)
}

/// Returns whether a name belongs to something else: to the C library, or to a node whose ID or
/// default name it is. Names of nodes and IDs stand for nodes in all commands.
fn is_reserved_name(id: NodeId, name: &str) -> bool {
    let other: Option<NodeId> = name.strip_prefix("node-").unwrap_or(name).parse().ok();
    is_reserved_host_name(name) || other.is_some_and(|other| other != id)
}

/// Changes the labels of one node, in a transaction.
pub(super) fn label_in(
    tx: &mut Tx<'_>,
    id: NodeId,
    change: &LabelChange,
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    let mut node = existing_node(tx, id)?;
    let labels = change.applied(&node.labels);
    if labels.len() > MAX_LABELS {
        return Err(NamingError::TooManyLabels { node: id, count: labels.len() }.into());
    }
    if labels != node.labels {
        node.labels = labels;
        tx.put_node(node.clone());
        tx.event(Event::new(now, audit, EventKind::LabelsChanged, change.words()).of_node(id));
    }
    Ok(node)
}
