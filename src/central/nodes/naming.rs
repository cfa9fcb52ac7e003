//! Labels and names of nodes.

use super::OperateError;
use crate::{environment::records::name_holder, nodes::NodeOps};
use meshd_model::fleet::{AuditContext, Event, EventKind, LabelChange, MAX_LABELS, Node};
use meshd_store::Tx;
use meshd_types::{MAX_NAME, NodeId, Timestamp, fail, is_host_name};
use std::sync::Arc;

/// Why a node keeps its labels and its name.
#[derive(Debug, thiserror::Error)]
pub enum NamingError {
    #[error("cannot label node {node}: it would have {count} labels; use at most {MAX_LABELS}")]
    TooManyLabels { node: NodeId, count: usize },
    /// The name is no host name.
    #[error(
        "cannot rename node {node}: `{name}` is not a host name; use 1 to {MAX_NAME} of a-z, 0-9 and `-`, with a letter or digit at both ends"
    )]
    InvalidName { node: NodeId, name: String },
    /// Another node has the name, or has it as its ID.
    #[error("cannot rename node {node}: node {holder} has the name `{name}`; use another name")]
    NameTaken {
        node: NodeId,
        name: String,
        /// The other node.
        holder: NodeId,
    },
}

impl NodeOps {
    /// Sets and removes labels of a node. Nothing that the node boots depends on them.
    pub async fn label(&self, id: NodeId, change: &LabelChange, by: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        let labelled = self.env.store.commit(|tx| labelled(tx, id, change, by, now)).await?;
        fail::point("order-committed");
        Ok(labelled)
    }

    /// Gives a node another name. Host name, lease and DNS follow at its next boot.
    pub async fn rename(self: &Arc<Self>, id: NodeId, name: &str, by: &AuditContext) -> Result<Node, OperateError> {
        if !is_host_name(name) {
            let name = name.chars().take(80).collect();
            return Err(NamingError::InvalidName { node: id, name }.into());
        }
        let now = self.env.now();
        self.order(id, |tx, mut node| {
            if let Some(holder) = name_holder(tx.before(), id, name) {
                return Err(NamingError::NameTaken { node: id, name: name.to_owned(), holder }.into());
            }
            if node.name != name {
                let detail = format!("{} -> {name}", node.name);
                name.clone_into(&mut node.name);
                tx.event(Event::new(now, by, EventKind::Renamed, detail).of_node(id));
            }
            Ok(node)
        })
        .await
    }
}

/// One node with changed labels, in a transaction.
pub(super) fn labelled(
    tx: &mut Tx<'_>,
    id: NodeId,
    change: &LabelChange,
    by: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    let mut node = tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })?;
    let labels = change.applied(&node.labels);
    if labels.len() > MAX_LABELS {
        return Err(NamingError::TooManyLabels { node: id, count: labels.len() }.into());
    }
    if labels != node.labels {
        node.labels = labels;
        tx.put_node(node.clone());
        tx.event(Event::new(now, by, EventKind::LabelsChanged, change.words()).of_node(id));
    }
    Ok(node)
}
