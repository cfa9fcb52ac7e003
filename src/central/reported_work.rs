//! What nodes report of their work, in memory: VMs, tasks and replicas without a record, for example
//! after a restore, and details of their VMs.
//!
//! Nodes report again after each welcome. A node that loses its credentials is forgotten at once:
//! see [`ReportedWork::forget`]. meshd never ends work that is not on record; only an operator
//! does.

use super::locks::{Leaf, LeafGuard};
use meshd_model::fleet::Node;
use meshd_proto::{
    Section,
    container::ReplicaId,
    vm::{VmFetching, VmReport},
};
use meshd_types::{MacAddr, NodeId, SystemUuid, TaskId, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

type ByVm<T> = BTreeMap<SystemUuid, T>;

#[derive(Default)]
pub(crate) struct ReportedWork {
    pub(crate) orphan_vms: OrphanVms,
    /// Tasks without a record. meshd never kills them.
    pub(crate) orphan_tasks: WorkByNode<TaskId>,
    /// Reported tasks that their node must remove.
    pub(crate) removals: WorkByNode<TaskId>,
    /// Replicas of containers without a record. meshd never ends them without an order.
    pub(crate) orphan_replicas: WorkByNode<ReplicaId>,
    /// Reported replicas that their node must remove.
    pub(crate) replica_removals: WorkByNode<ReplicaId>,
    /// Progress of fetched volumes, reported each second.
    pub(crate) fetching: Leaf<BTreeMap<NodeId, ByVm<VmFetching>>>,
    /// Addresses of NICs in private networks.
    pub(crate) addresses: Leaf<BTreeMap<NodeId, ByVm<BTreeMap<MacAddr, Ipv4Addr>>>>,
    /// Whether guests have answered since their start.
    pub(crate) ready: Leaf<BTreeMap<NodeId, ByVm<bool>>>,
    /// Sections that nodes have not reported since the start of meshd.
    unreported: Leaf<BTreeMap<NodeId, BTreeSet<Section>>>,
}

/// Why a node that serves takes no further work. Its free capacity is unknown, and a task would
/// share the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownWork {
    /// It was online when meshd started, and has not reported its work since.
    NotReported,
    /// It has VMs, tasks or replicas that are not on record.
    NotOnRecord,
}

impl ReportedWork {
    /// `running`: nodes that were online when meshd ended. They may have work that is not on
    /// record. Earlier agents do not report containers, and have no container runtime.
    pub(crate) fn new<'a>(running: impl IntoIterator<Item = &'a Node>) -> Self {
        let sections = |node: &Node| {
            let facts = node.facts.as_ref();
            let containers = facts.is_some_and(|facts| facts.container_runtime.is_some());
            let containers = containers.then_some(Section::Containers);
            [Section::Vms, Section::Tasks].into_iter().chain(containers).collect()
        };
        let unreported = running.into_iter().map(|node| (node.id, sections(node))).collect();
        ReportedWork { unreported: Leaf::new(unreported), ..ReportedWork::default() }
    }

    /// Nodes whose work is not known.
    pub(crate) fn nodes_with_unknown_work(&self) -> BTreeMap<NodeId, UnknownWork> {
        let orphans = self.orphan_tasks.nodes().into_iter().chain(self.orphan_vms.nodes());
        let orphans = orphans.chain(self.orphan_replicas.nodes());
        let mut nodes: BTreeMap<NodeId, UnknownWork> =
            orphans.map(|node| (node, UnknownWork::NotOnRecord)).collect();
        let unreported = self.unreported.lock();
        nodes.extend(unreported.keys().map(|node| (*node, UnknownWork::NotReported)));
        nodes
    }

    /// Records that a node has reported a whole section.
    pub(crate) fn record_section(&self, node: NodeId, section: Section) {
        let mut unreported = self.unreported.lock();
        if let Some(sections) = unreported.get_mut(&node) {
            sections.remove(&section);
            if sections.is_empty() {
                unreported.remove(&node);
            }
        }
    }

    /// Replaces the details of the VMs of a node.
    pub(crate) fn set_details(
        &self,
        node: NodeId,
        fetching: ByVm<VmFetching>,
        addresses: ByVm<BTreeMap<MacAddr, Ipv4Addr>>,
        ready: ByVm<bool>,
    ) {
        replace(&mut self.fetching.lock(), node, fetching);
        replace(&mut self.addresses.lock(), node, addresses);
        replace(&mut self.ready.lock(), node, ready);
    }

    /// Forgets what a node reported: it lost its credentials, or an operator confirmed that the
    /// machine is off.
    pub(crate) fn forget(&self, node: NodeId) {
        if !failpoint::defends("report-forgotten") {
            return;
        }
        self.orphan_vms.set(node, BTreeMap::new());
        self.orphan_tasks.set(node, BTreeSet::new());
        self.removals.set(node, BTreeSet::new());
        self.orphan_replicas.set(node, BTreeSet::new());
        self.replica_removals.set(node, BTreeSet::new());
        self.set_details(node, BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        self.unreported.lock().remove(&node);
    }
}

fn replace<T>(all: &mut BTreeMap<NodeId, ByVm<T>>, node: NodeId, now: ByVm<T>) {
    if now.is_empty() { drop(all.remove(&node)) } else { drop(all.insert(node, now)) }
}

type VmsByNode = BTreeMap<NodeId, ByVm<VmReport>>;

#[derive(Default)]
pub(crate) struct OrphanVms(Leaf<VmsByNode>);

impl OrphanVms {
    pub(crate) fn lock(&self) -> LeafGuard<'_, VmsByNode> {
        self.0.lock()
    }

    fn nodes(&self) -> BTreeSet<NodeId> {
        self.0.lock().keys().copied().collect()
    }

    pub(crate) fn nodes_with(&self, uuid: SystemUuid) -> Vec<NodeId> {
        self.0
            .lock()
            .iter()
            .filter(|(_, vms)| vms.contains_key(&uuid))
            .map(|(node, _)| *node)
            .collect()
    }

    /// Replaces the orphans of a node.
    pub(crate) fn set(&self, node: NodeId, vms: ByVm<VmReport>) {
        replace(&mut self.0.lock(), node, vms);
    }
}

/// IDs of reported tasks or replicas, by node.
pub(crate) struct WorkByNode<T>(Leaf<BTreeMap<NodeId, BTreeSet<T>>>);

impl<T> Default for WorkByNode<T> {
    fn default() -> Self {
        WorkByNode(Leaf::new(BTreeMap::new()))
    }
}

impl<T: Ord + Clone> WorkByNode<T> {
    pub(crate) fn remove(&self, node: NodeId, work: &T) {
        let left = self
            .0
            .lock()
            .get(&node)
            .map(|all| all.iter().filter(|id| *id != work).cloned().collect());
        if let Some(left) = left {
            self.set(node, left);
        }
    }

    /// Adds work of a node.
    pub(crate) fn extend(&self, node: NodeId, more: &BTreeSet<T>) {
        self.0.lock().entry(node).or_default().extend(more.iter().cloned());
    }

    /// Returns the work that fulfils a condition, by node.
    pub(crate) fn matching(&self, is_wanted: impl Fn(&T) -> bool) -> BTreeMap<NodeId, BTreeSet<T>> {
        let all = self.0.lock();
        let wanted = all.iter().map(|(node, work)| {
            (*node, work.iter().filter(|id| is_wanted(id)).cloned().collect::<BTreeSet<T>>())
        });
        wanted.filter(|(_, work)| !work.is_empty()).collect()
    }

    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        self.0.lock().keys().copied().collect()
    }

    /// Returns the work of a node.
    pub(crate) fn of(&self, node: NodeId) -> BTreeSet<T> {
        self.0.lock().get(&node).cloned().unwrap_or_default()
    }

    /// Replaces the work of a node. Returns what is new.
    pub(crate) fn set(&self, node: NodeId, work: BTreeSet<T>) -> BTreeSet<T> {
        let mut all = self.0.lock();
        let before = all.remove(&node).unwrap_or_default();
        let new = work.difference(&before).cloned().collect();
        if !work.is_empty() {
            all.insert(node, work);
        }
        new
    }

    pub(crate) fn find(&self, work: &T) -> Vec<NodeId> {
        self.0.lock().iter().filter(|(_, all)| all.contains(work)).map(|(node, _)| *node).collect()
    }
}
