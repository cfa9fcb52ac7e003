//! Work that nodes report and that is not on record: after a restore, most likely. It is shown, and ended only by an operator. In
//! memory: nodes report again after each welcome.

use super::locks::{Leaf, LeafGuard};
use meshd_proto::vm::VmReport;
use meshd_types::{NodeId, SystemUuid, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// All such work.
#[derive(Default)]
pub(crate) struct OrphanWork {
    pub(crate) vms: OrphanVms,
    pub(crate) tasks: OrphanTasks,
}

impl OrphanWork {
    /// Nodes that have any: their free capacity is not known, and a task would not have such a node to itself.
    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        let mut nodes = self.tasks.nodes();
        nodes.extend(self.vms.nodes());
        nodes
    }

    /// Forgets what a node reported: an operator says that it runs no more.
    pub(crate) fn forget(&self, node: NodeId) {
        self.vms.are(node, BTreeMap::new());
        self.tasks.are(node, BTreeSet::new());
    }
}

type VmsByNode = BTreeMap<NodeId, BTreeMap<SystemUuid, VmReport>>;

/// Virtual machines.
#[derive(Default)]
pub(crate) struct OrphanVms(Leaf<VmsByNode>);

impl OrphanVms {
    pub(crate) fn lock(&self) -> LeafGuard<'_, VmsByNode> {
        self.0.lock()
    }

    fn nodes(&self) -> BTreeSet<NodeId> {
        self.0.lock().keys().copied().collect()
    }

    pub(crate) fn with(&self, uuid: SystemUuid) -> Option<NodeId> {
        self.0.lock().iter().find(|(_, vms)| vms.contains_key(&uuid)).map(|(node, _)| *node)
    }

    /// What a node has now.
    pub(crate) fn are(&self, node: NodeId, vms: BTreeMap<SystemUuid, VmReport>) {
        let mut all = self.0.lock();
        if vms.is_empty() { drop(all.remove(&node)) } else { drop(all.insert(node, vms)) }
    }
}

/// Tasks. meshd never kills a task that is not on record.
#[derive(Default)]
pub(crate) struct OrphanTasks(Leaf<BTreeMap<NodeId, BTreeSet<TaskId>>>);

impl OrphanTasks {
    /// A node has one no more.
    pub(crate) fn forget(&self, node: NodeId, task: TaskId) {
        let left = self.0.lock().get(&node).map(|tasks| tasks.iter().copied().filter(|id| *id != task).collect());
        if let Some(left) = left {
            self.are(node, left);
        }
    }

    /// Nodes that have any.
    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        self.0.lock().keys().copied().collect()
    }

    /// What a node has now; true if there is one that it had not.
    pub(crate) fn are(&self, node: NodeId, tasks: BTreeSet<TaskId>) -> bool {
        let mut all = self.0.lock();
        if tasks.is_empty() {
            all.remove(&node);
            return false;
        }
        let new = all.get(&node).is_none_or(|before| !tasks.is_subset(before));
        all.insert(node, tasks);
        new
    }

    pub(crate) fn with(&self, task: TaskId) -> Vec<NodeId> {
        self.0.lock().iter().filter(|(_, tasks)| tasks.contains(&task)).map(|(node, _)| *node).collect()
    }
}
