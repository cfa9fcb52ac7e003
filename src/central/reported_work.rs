//! What nodes report of their work, in memory: VMs and tasks without a record, for example after a
//! restore, and details of their VMs.
//!
//! Nodes report again after each welcome. A node that loses its credentials is forgotten at once:
//! see [`ReportedWork::forget`]. meshd never ends work that is not on record; only an operator
//! does.

use super::locks::{Leaf, LeafGuard};
use meshd_proto::{
    Section,
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
    pub(crate) orphan_tasks: TasksByNode,
    /// Reported tasks that their node must remove.
    pub(crate) removals: TasksByNode,
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
    /// It has VMs or tasks that are not on record.
    NotOnRecord,
}

impl ReportedWork {
    /// `running`: nodes that were online when meshd ended. They may have work that is not on
    /// record.
    pub(crate) fn new(running: impl IntoIterator<Item = NodeId>) -> Self {
        let all = BTreeSet::from([Section::Vms, Section::Tasks]);
        let unreported = running.into_iter().map(|node| (node, all.clone())).collect();
        ReportedWork { unreported: Leaf::new(unreported), ..ReportedWork::default() }
    }

    /// Nodes whose work is not known.
    pub(crate) fn nodes_with_unknown_work(&self) -> BTreeMap<NodeId, UnknownWork> {
        let orphans = self.orphan_tasks.nodes().into_iter().chain(self.orphan_vms.nodes());
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

/// Reported tasks, by node.
#[derive(Default)]
pub(crate) struct TasksByNode(Leaf<BTreeMap<NodeId, BTreeSet<TaskId>>>);

impl TasksByNode {
    pub(crate) fn remove(&self, node: NodeId, task: TaskId) {
        let left = self
            .0
            .lock()
            .get(&node)
            .map(|tasks| tasks.iter().copied().filter(|id| *id != task).collect());
        if let Some(left) = left {
            self.set(node, left);
        }
    }

    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        self.0.lock().keys().copied().collect()
    }

    /// Returns the tasks of a node.
    pub(crate) fn of(&self, node: NodeId) -> BTreeSet<TaskId> {
        self.0.lock().get(&node).cloned().unwrap_or_default()
    }

    /// Replaces the tasks of a node. Returns those that are new.
    pub(crate) fn set(&self, node: NodeId, tasks: BTreeSet<TaskId>) -> BTreeSet<TaskId> {
        let mut all = self.0.lock();
        let before = all.remove(&node).unwrap_or_default();
        let new = tasks.difference(&before).copied().collect();
        if !tasks.is_empty() {
            all.insert(node, tasks);
        }
        new
    }

    pub(crate) fn find(&self, task: TaskId) -> Vec<NodeId> {
        self.0
            .lock()
            .iter()
            .filter(|(_, tasks)| tasks.contains(&task))
            .map(|(node, _)| *node)
            .collect()
    }
}
