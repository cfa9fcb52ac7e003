//! Work that nodes report and that is not on record: after a restore, most likely. It is shown, and ended only by an operator. In
//! memory: nodes report again after each welcome.

use super::locks::{Leaf, LeafGuard};
use meshd_proto::vm::VmReport;
use meshd_types::{JobId, NodeId, SystemUuid};
use std::collections::{BTreeMap, BTreeSet};

/// All such work.
#[derive(Default)]
pub(crate) struct OrphanWork {
    pub(crate) vms: OrphanVms,
    pub(crate) jobs: OrphanJobs,
}

impl OrphanWork {
    /// Nodes that have any: their free capacity is not known, and a task would not have such a node to itself.
    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        let mut nodes = self.jobs.nodes();
        nodes.extend(self.vms.nodes());
        nodes
    }

    /// Forgets what a node reported: an operator says that it runs no more.
    pub(crate) fn forget(&self, node: NodeId) {
        self.vms.are(node, BTreeMap::new());
        self.jobs.are(node, BTreeSet::new());
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
pub(crate) struct OrphanJobs(Leaf<BTreeMap<NodeId, BTreeSet<JobId>>>);

impl OrphanJobs {
    /// A node has one no more.
    pub(crate) fn forget(&self, node: NodeId, job: JobId) {
        let left = self.0.lock().get(&node).map(|jobs| jobs.iter().copied().filter(|id| *id != job).collect());
        if let Some(left) = left {
            self.are(node, left);
        }
    }

    /// Nodes that have any.
    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        self.0.lock().keys().copied().collect()
    }

    /// What a node has now; true if there is one that it had not.
    pub(crate) fn are(&self, node: NodeId, jobs: BTreeSet<JobId>) -> bool {
        let mut all = self.0.lock();
        if jobs.is_empty() {
            all.remove(&node);
            return false;
        }
        let new = all.get(&node).is_none_or(|before| !jobs.is_subset(before));
        all.insert(node, jobs);
        new
    }

    pub(crate) fn with(&self, job: JobId) -> Vec<NodeId> {
        self.0.lock().iter().filter(|(_, jobs)| jobs.contains(&job)).map(|(node, _)| *node).collect()
    }
}
