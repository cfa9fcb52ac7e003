//! Chooses a node for a replica, or names what is against each node.
//!
//! Replicas share memory and threads of a node with its VMs. Each replica of a container has a node
//! of its own; among the nodes that fit, the one with the largest free part is chosen.

use super::Container;
use crate::work::CandidateNode;
use meshd_proto::{
    container::{MAX_NODE_REPLICAS, ReplicaId, ReplicaSpec},
    vm::NODE_RESERVE,
};
use meshd_types::{Architecture, NodeId};
use std::{cmp::Reverse, fmt};

/// Thousandths of a CPU.
const MILLIS: u64 = 1000;

/// A node as the placement of replicas sees it.
#[derive(Clone, Debug)]
pub struct ContainerHost<'a> {
    /// Capacity, and what is against work of any kind.
    pub node: CandidateNode<'a>,
    /// Architecture of its image; `None` if unknown.
    pub arch: Option<Architecture>,
    /// The node has a program that runs containers.
    pub has_runtime: bool,
}

/// The first reason against a node. Lasting reasons come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ReplicaReject {
    /// The node does not say that it can run containers.
    RunsNoContainers,
    /// The image is for another architecture.
    OtherArchitecture,
    /// More memory than the node has.
    MemoryExceeded,
    /// More CPU time than the node has.
    CpusExceeded,
    /// Another replica of this container is there.
    HasReplica,
    /// The node could not run this start.
    Refused,
    /// The node takes no work now.
    NotReady,
    /// The node has the maximum number of replicas.
    Full,
    /// Another container has the port.
    PortTaken,
    /// Other work has the memory.
    MemoryTaken,
    /// Other work has the CPU time.
    CpusTaken,
}

as_str!(ReplicaReject);

/// No node takes a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoReplicaPlacement {
    pub replica: ReplicaId,
    /// Number of nodes that were considered.
    pub nodes: usize,
    /// Number of nodes with each reason, the most lasting first.
    pub counts: Vec<(ReplicaReject, usize)>,
    /// Details of the node that is nearest to fit.
    pub nearest: String,
    /// Memory of the node that has most, in MiB.
    pub most_memory_mib: u64,
}

impl fmt::Display for NoReplicaPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no node takes replica {}", self.replica)?;
        if self.nodes == 0 {
            return f.write_str(": no node is approved");
        }
        let counts = self.counts.iter().map(|(why, count)| format!("{} on {count}", why.as_str()));
        let noun = if self.nodes == 1 { "node" } else { "nodes" };
        let counts = counts.collect::<Vec<_>>().join(", ");
        write!(f, " ({} {noun}: {counts}). {}", self.nodes, self.nearest)
    }
}

impl NoReplicaPlacement {
    /// Returns what an operator can do about the nearest node.
    pub fn remedy(&self) -> String {
        let Some((nearest, _)) = self.counts.last() else {
            return "approve nodes: meshd node list --state pending".to_owned();
        };
        match nearest {
            ReplicaReject::RunsNoContainers => {
                "boot nodes with crun: bundles = [\"crun\"] in a profile of an Alpine image, the \
                 package crun in the recipe of a root image"
                    .to_owned()
            }
            ReplicaReject::OtherArchitecture => {
                "import the image for their architecture: meshd image import --arch".to_owned()
            }
            ReplicaReject::MemoryExceeded => {
                format!("ask for at most {} MiB: --memory", self.most_memory_mib)
            }
            ReplicaReject::CpusExceeded => "ask for fewer CPUs: --cpus".to_owned(),
            ReplicaReject::HasReplica => "ask for fewer replicas: --replicas".to_owned(),
            ReplicaReject::Refused => {
                "correct these nodes, then start it again: meshd container start".to_owned()
            }
            ReplicaReject::NotReady => "`meshd node list` shows which nodes are ready".to_owned(),
            ReplicaReject::PortTaken => "publish another port of the node: --publish".to_owned(),
            ReplicaReject::Full | ReplicaReject::MemoryTaken | ReplicaReject::CpusTaken => {
                "stop other work of these nodes, or ask for less: --memory, --cpus".to_owned()
            }
        }
    }
}

/// Chooses the node for a replica: the one with the largest free part of its scarcest resource.
///
/// # Errors
/// The reasons against every node.
pub fn place_replica<'a>(
    container: &Container,
    index: usize,
    hosts: impl Iterator<Item = ContainerHost<'a>>,
) -> Result<NodeId, NoReplicaPlacement> {
    let mut best: Option<(u64, usize, NodeId)> = None;
    let mut rejections: Vec<(ReplicaReject, NodeId, String)> = Vec::new();
    let mut most_memory_mib = 0;
    for host in hosts {
        let node = host.node.node;
        if host.has_runtime {
            most_memory_mib = most_memory_mib.max(Room::of(&host.node).total_memory >> 20);
        }
        match rejection(container, index, &host) {
            Some((why, detail)) => rejections.push((why, node, detail)),
            None => {
                let used = utilization(&container.spec, &host.node);
                let rank = (used, host.node.allocations.replicas().len(), node);
                best = Some(best.map_or(rank, |other| other.min(rank)));
            }
        }
    }
    if let Some((.., node)) = best {
        return Ok(node);
    }
    let mut counts: Vec<(ReplicaReject, usize)> = Vec::new();
    for (why, ..) in &rejections {
        match counts.iter_mut().find(|(known, _)| known == why) {
            Some((_, count)) => *count += 1,
            None => counts.push((*why, 1)),
        }
    }
    counts.sort_unstable();
    let nearest = rejections.iter().max_by_key(|(why, node, _)| (*why, Reverse(*node)));
    let nearest = nearest.map_or_else(String::new, |(_, node, why)| format!("{node}: {why}"));
    let replica = container.replica_id(index);
    let nodes = rejections.len();
    Err(NoReplicaPlacement { replica, nodes, counts, nearest, most_memory_mib })
}

/// Total and free resources of a node.
struct Room {
    total_memory: u64,
    free_memory: u64,
    total_millis: u64,
    free_millis: u64,
}

impl Room {
    fn of(node: &CandidateNode<'_>) -> Self {
        let allocated = node.allocations.all();
        let total_memory = node.memory.saturating_sub(NODE_RESERVE);
        let ratio = u64::from(node.overcommit.max(1));
        let total_millis = u64::from(node.threads).saturating_mul(MILLIS);
        let unbound = u64::from(node.threads).saturating_sub(allocated.alone);
        let shared = allocated.shared.saturating_mul(MILLIS);
        Room {
            total_memory,
            free_memory: total_memory.saturating_sub(allocated.memory),
            total_millis,
            free_millis: unbound.saturating_mul(ratio * MILLIS).saturating_sub(shared),
        }
    }
}

/// Returns the allocated thousandths of the scarcest resource, with the replica.
fn utilization(spec: &ReplicaSpec, node: &CandidateNode<'_>) -> u64 {
    let room = Room::of(node);
    let used = |free: u64, total: u64, wanted: u64| {
        let left = free.saturating_sub(wanted).min(total);
        let part = u128::from(left) * 1000 / u128::from(total.max(1));
        1000 - u64::try_from(part).unwrap_or(1000).min(1000)
    };
    let memory = used(room.free_memory, room.total_memory, spec.memory().bytes());
    let ratio = u64::from(node.overcommit.max(1));
    let total_millis = room.total_millis.saturating_mul(ratio);
    memory.max(used(room.free_millis, total_millis, spec.cpu_millis.into()))
}

fn rejection(
    container: &Container,
    index: usize,
    host: &ContainerHost<'_>,
) -> Option<(ReplicaReject, String)> {
    let spec = &container.spec;
    let node = &host.node;
    let room = Room::of(node);
    let memory = spec.memory().bytes();
    let millis = u64::from(spec.cpu_millis);
    if !host.has_runtime {
        return Some((ReplicaReject::RunsNoContainers, "it has no crun".to_owned()));
    }
    if let Some(arch) = host.arch.filter(|arch| *arch != container.arch) {
        let detail = format!("it is {arch}, and the image is for {}", container.arch);
        return Some((ReplicaReject::OtherArchitecture, detail));
    }
    if memory > room.total_memory {
        let total = room.total_memory >> 20;
        let detail = format!("it has {total} MiB, and {} are requested", spec.memory_mib);
        return Some((ReplicaReject::MemoryExceeded, detail));
    }
    if millis > room.total_millis {
        let detail = format!("it has {} threads", node.threads);
        return Some((ReplicaReject::CpusExceeded, detail));
    }
    if let Some(other) = container.replicas_on(node.node).find(|other| *other != index) {
        let detail = format!("it has replica {}", container.replica_id(other));
        return Some((ReplicaReject::HasReplica, detail));
    }
    if let Some(why) = container.replicas[index].refused.get(&node.node) {
        return Some((ReplicaReject::Refused, why.clone()));
    }
    if let Some(why) = node.unready {
        return Some((ReplicaReject::NotReady, why.to_owned()));
    }
    if node.allocations.replicas().len() >= MAX_NODE_REPLICAS {
        let detail = format!("it has {MAX_NODE_REPLICAS} replicas");
        return Some((ReplicaReject::Full, detail));
    }
    let taken = spec
        .ports
        .iter()
        .find_map(|port| Some((port.node, node.allocations.port_owner(port.node)?)));
    if let Some((port, owner)) = taken {
        return Some((ReplicaReject::PortTaken, format!("port {port} belongs to {owner}")));
    }
    if memory > room.free_memory {
        let detail = format!("{} MiB are free", room.free_memory >> 20);
        return Some((ReplicaReject::MemoryTaken, detail));
    }
    if millis > room.free_millis {
        let detail = format!("{} thousandths of a CPU are free", room.free_millis);
        return Some((ReplicaReject::CpusTaken, detail));
    }
    None
}
