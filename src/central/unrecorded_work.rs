//! VMs and tasks that nodes report and that have no record, for example after a restore. Only an operator ends them.
//!
//! Kept in memory: nodes report again after each welcome.

use super::locks::{Leaf, LeafGuard};
use meshd_proto::vm::VmReport;
use meshd_types::{NodeId, SystemUuid, TaskId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct OrphanWork {
    pub(crate) vms: OrphanVms,
    pub(crate) tasks: OrphanTasks,
}

impl OrphanWork {
    /// Nodes with orphans. Their free capacity is unknown, and a task would share them.
    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        let mut nodes = self.tasks.nodes();
        nodes.extend(self.vms.nodes());
        nodes
    }

    /// Removes the orphans of a node: an operator confirmed that the machine is off.
    pub(crate) fn forget(&self, node: NodeId) {
        self.vms.set(node, BTreeMap::new());
        self.tasks.set(node, BTreeSet::new());
    }
}

type VmsByNode = BTreeMap<NodeId, BTreeMap<SystemUuid, VmReport>>;

#[derive(Default)]
pub(crate) struct OrphanVms(Leaf<VmsByNode>);

impl OrphanVms {
    pub(crate) fn lock(&self) -> LeafGuard<'_, VmsByNode> {
        self.0.lock()
    }

    fn nodes(&self) -> BTreeSet<NodeId> {
        self.0.lock().keys().copied().collect()
    }

    pub(crate) fn find(&self, uuid: SystemUuid) -> Option<NodeId> {
        self.0.lock().iter().find(|(_, vms)| vms.contains_key(&uuid)).map(|(node, _)| *node)
    }

    /// Replaces the orphans of a node.
    pub(crate) fn set(&self, node: NodeId, vms: BTreeMap<SystemUuid, VmReport>) {
        let mut all = self.0.lock();
        if vms.is_empty() { drop(all.remove(&node)) } else { drop(all.insert(node, vms)) }
    }
}

/// Tasks. meshd never kills a task that is not on record.
#[derive(Default)]
pub(crate) struct OrphanTasks(Leaf<BTreeMap<NodeId, BTreeSet<TaskId>>>);

impl OrphanTasks {
    pub(crate) fn remove(&self, node: NodeId, task: TaskId) {
        let left = self.0.lock().get(&node).map(|tasks| tasks.iter().copied().filter(|id| *id != task).collect());
        if let Some(left) = left {
            self.set(node, left);
        }
    }

    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        self.0.lock().keys().copied().collect()
    }

    /// Replaces the orphans of a node. Returns true if one of them is new.
    pub(crate) fn set(&self, node: NodeId, tasks: BTreeSet<TaskId>) -> bool {
        let mut all = self.0.lock();
        if tasks.is_empty() {
            all.remove(&node);
            return false;
        }
        let new = all.get(&node).is_none_or(|before| !tasks.is_subset(before));
        all.insert(node, tasks);
        new
    }

    pub(crate) fn find(&self, task: TaskId) -> Vec<NodeId> {
        self.0.lock().iter().filter(|(_, tasks)| tasks.contains(&task)).map(|(node, _)| *node).collect()
    }
}
