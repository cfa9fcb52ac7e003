//! Nodes that names or a selector select, and machines of a list that are no nodes yet.

use super::{count_text, joined};
use crate::cli::{Failure, client::AdminClient, output::print::clean};
use meshd_api::{NodeView, routes as api};
use meshd_model::fleet::{NodeSearchError, Phase, Selector, Verb, find_nodes};
use meshd_types::{Basis, Hostlist, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes of a list.
pub(crate) struct SeveralNodes {
    pub(crate) nodes: Vec<NodeView>,
    /// Names of expected machines that have not booted, so they are no nodes yet. They do not stop
    /// the others.
    pub(crate) absent: Vec<String>,
}

impl From<Vec<NodeView>> for SeveralNodes {
    fn from(nodes: Vec<NodeView>) -> Self {
        SeveralNodes { nodes, absent: Vec::new() }
    }
}

impl SeveralNodes {
    /// Prints why an order does not reach the absent machines. Returns their number.
    pub(crate) fn report_absent(&self) -> usize {
        for name in &self.absent {
            let reason = "the machine has not booted yet, so it is no node";
            let name = clean(name);
            let hint = format!(
                "repeat the command for {name} after its first boot; `meshd node import --approve` approves it then"
            );
            message!("{name}: {}", Failure::new(reason, hint));
        }
        self.absent.len()
    }

    /// Returns the nodes, or an error if only absent machines are named.
    pub(super) fn or_absent(self) -> Result<Self, Failure> {
        if self.nodes.is_empty() && self.report_absent() > 0 {
            let hint = "read the error of each machine above; nothing was changed";
            return Err(Failure::new("no machine of the list is a node", hint));
        }
        Ok(self)
    }

    /// Returns an error if some machines are absent, after an order to the nodes.
    pub(crate) fn fail_if_absent(
        &self,
        verb: Verb,
        done: Result<(), Failure>,
    ) -> Result<(), Failure> {
        match self.report_absent() {
            0 => done,
            absent => done.and(Err(partly_failed(verb, absent, absent + self.nodes.len()))),
        }
    }
}

/// Returns the failure of an order that some nodes did not follow. Their errors are printed.
pub(super) fn partly_failed(verb: Verb, failed: usize, all: usize) -> Failure {
    let rest = if failed < all { "; the other nodes are changed" } else { "" };
    let message = format!("{verb}: {failed} of {} failed", count_text(all));
    Failure::new(message, format!("read the error of each node above{rest}"))
}

pub(super) async fn find_selected(
    client: &AdminClient,
    selector: &Selector,
) -> Result<Vec<NodeView>, Failure> {
    let nodes = client.get(api::LIST_NODES.path([]).with("label", selector)).await?;
    if nodes.is_empty() {
        let message = format!("no node matches the selector `{selector}`");
        return Err(Failure::new(message, "list the labels with `meshd node list --labels`"));
    }
    Ok(nodes)
}

/// Finds nodes by ID, name, unique prefix or hostlist. Returns each node once, in the order of the
/// names. The result depends on all names: if one is unknown, no node is returned.
pub(super) async fn find_named(
    client: &AdminClient,
    names: &[Hostlist],
) -> Result<Vec<NodeView>, Failure> {
    match find_present(client, names).await? {
        SeveralNodes { nodes, absent } if absent.is_empty() => Ok(nodes),
        SeveralNodes { absent, .. } => {
            Err(Failure::of(&NodeSearchError::Missing { names: absent }))
        }
    }
}

/// Finds nodes as [`find_named`]. A name of an expected machine that has not booted stops nothing.
pub(super) async fn find_present(
    client: &AdminClient,
    names: &[Hostlist],
) -> Result<SeveralNodes, Failure> {
    let names = joined(names)?;
    let all = client.get(api::LIST_NODES.path([]).with("removed", true)).await?;
    let key = |node: &NodeView| (node.id, node.name.clone(), node.phase != Phase::Removed);
    let mut keys: Vec<(NodeId, String, bool)> = all.iter().map(key).collect();
    let find = |keys: &[(NodeId, String, bool)]| {
        find_nodes(
            &names,
            keys.iter().map(|(id, name, is_present)| (*id, name.as_str(), *is_present)),
        )
    };
    let mut found = find(&keys);
    let mut absent = BTreeMap::new();
    if let Err(NodeSearchError::Missing { names: missing }) = &found {
        let missing: BTreeSet<&str> = missing.iter().map(String::as_str).collect();
        for view in client.get(api::LIST_MACHINES.path([])).await? {
            let name = view.machine.name.filter(|name| missing.contains(name.as_str()));
            if let Some(name) = name.filter(|_| view.machine.node.is_none()) {
                let id = Basis::Mac(view.machine.mac).node_id();
                keys.push((id, name.clone(), true));
                absent.insert(id, name);
            }
        }
        found = find(&keys);
    }
    let ids = found.map_err(|error| Failure::of(&error))?;
    let mut nodes: BTreeMap<NodeId, NodeView> =
        all.into_iter().map(|node| (node.id, node)).collect();
    Ok(SeveralNodes {
        absent: ids.iter().filter_map(|id| absent.remove(id)).collect(),
        nodes: ids.iter().filter_map(|id| nodes.remove(id)).collect(),
    })
}
