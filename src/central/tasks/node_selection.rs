//! Selects the first free nodes of a group for a task, or gives the reason against each.

use super::error::TaskError;
use crate::{
    environment::records::{group_members, open_end_order},
    reported_work::UnknownWork,
};
use meshd_config::Site;
use meshd_model::{
    fleet::{Node, Phase},
    work::task::{Member, TaskSpec},
};
use meshd_store::{Model, Tx};
use meshd_types::{GroupName, NodeId};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Maximum number of nodes in a refusal.
const MAX_NAMED: usize = 8;

#[derive(Clone, Debug)]
pub enum TaskTarget {
    /// Nodes of a group of the site.
    Group(String),
    /// One node. Its ID replaces the name of the group in the record.
    Node(NodeId),
}

/// Returns the name of the target in the record, and its nodes.
pub(super) fn candidates(
    model: &Model,
    site: &Site,
    target: &TaskTarget,
) -> Result<(GroupName, Vec<NodeId>), TaskError> {
    match target {
        TaskTarget::Group(name) => {
            let named = site.groups.iter().find(|group| group.name.as_str() == name);
            let known = || {
                site.groups.iter().map(|group| group.name.to_string()).collect::<Vec<_>>().join(" ")
            };
            let group =
                named.ok_or_else(|| TaskError::NoGroup { group: name.clone(), known: known() })?;
            Ok((group.name.clone(), group_members(model, group)))
        }
        TaskTarget::Node(id) => {
            let name = id.to_string().parse().map_err(TaskError::Spec)?;
            Ok((name, vec![*id]))
        }
    }
}

/// Counts the nodes of a group, which may list a node twice: by its ID, and by the ID of replaced
/// hardware.
pub(super) fn count_nodes(model: &Model, group: &[NodeId]) -> usize {
    let node_ids = group.iter().map(|id| model.current_node(*id).map_or(*id, |node| node.id));
    node_ids.collect::<BTreeSet<NodeId>>().len()
}

/// Claims the node of the target, or nodes of its group in the order of the site file.
pub(super) fn claim(
    tx: &Tx<'_>,
    spec: &TaskSpec,
    target: &TaskTarget,
    group: &[NodeId],
    unknown: &BTreeMap<NodeId, UnknownWork>,
) -> Result<Vec<Member>, TaskError> {
    let mut free = Vec::<Member>::new();
    let mut others = Vec::new();
    for id in group {
        match free_node(tx, *id, unknown).and_then(|member| reads_input(tx, spec, member)) {
            Ok(member) if free.iter().any(|other| other.node == member.node) => {
                others.push(format!("{id} is {}, which the group already contains", member.node));
            }
            Ok(member) => free.push(member),
            Err(why) => match (target, tx.before().current_node(*id)) {
                (TaskTarget::Node(_), Some(Node { id, name, .. })) => {
                    return Err(TaskError::NotFree { id: *id, name: name.clone(), why });
                }
                (_, Some(node)) => others.push(format!("{} ({id}) {why}", node.name)),
                (_, None) => others.push(format!("{id} {why}")),
            },
        }
    }
    if free.len() < spec.nodes {
        let wanted = spec.nodes;
        let free = free.len();
        let more = others.len().saturating_sub(MAX_NAMED);
        others.truncate(MAX_NAMED);
        let mut why = others.join(", ");
        if more > 0 {
            why += &format!(", and {more} more");
        }
        if why.is_empty() {
            why = "the group has no more nodes".to_owned();
        }
        return Err(TaskError::NotEnough { group: spec.group.clone(), wanted, free, why });
    }
    free.truncate(spec.nodes);
    Ok(free)
}

/// Refuses a node whose agent would start a task that reads its input with an empty one.
fn reads_input(tx: &Tx<'_>, spec: &TaskSpec, member: Member) -> Result<Member, String> {
    let node = tx.before().current_node(member.node);
    match node.and_then(|node| node.facts.as_ref()).is_some_and(|facts| facts.task_input) {
        false if spec.has_input => {
            Err("has an older agent, which passes no standard input on; boot it again".to_owned())
        }
        _ => Ok(member),
    }
}

/// Returns a node that the task may claim, or the reason against it.
fn free_node(
    tx: &Tx<'_>,
    id: NodeId,
    unknown: &BTreeMap<NodeId, UnknownWork>,
) -> Result<Member, String> {
    let node = tx.before().current_node(id).ok_or("was never seen")?;
    if node.phase != Phase::Online {
        return Err(format!("is {}", node.phase));
    }
    if open_end_order(tx.before(), node.id).is_some() {
        return Err("is ordered to reboot or to lose its power".to_owned());
    }
    if let Some(task) = tx.task_on(node.id) {
        return Err(format!("has task {}", task.id));
    }
    // This transaction places no VMs and containers, so the state before it decides (BM-5).
    if tx.before().allocations(node.id).is_some() {
        return Err("has VMs or containers".to_owned());
    }
    match unknown.get(&node.id) {
        Some(UnknownWork::NotOnRecord) => return Err("has work that is not on record".to_owned()),
        Some(UnknownWork::NotReported) => {
            return Err("has not reported its work since meshd started".to_owned());
        }
        None => {}
    }
    if tx.before().stray_vms().any(|vm| vm.stray_nodes.contains(&node.id)) {
        return Err("is to release VMs".to_owned());
    }
    let Some(IpAddr::V4(address)) = node.address else {
        return Err("has no IPv4 address".to_owned());
    };
    let session = node.boot.ok_or("has not booted")?;
    Ok(Member::claimed(node.id, session, address))
}
