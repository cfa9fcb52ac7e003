//! Limits of connections and transfers of authenticated nodes, counted by node: each node has a
//! share.

use meshd_types::{NodeId, failpoint};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Maximum number of links and consoles per node. A node usually has one link, and one console for
/// each VM that an operator watches.
pub(super) const MAX_CONNECTIONS_OF_NODE: usize = 64;
/// Maximum number of concurrent file transfers per node. An agent fetches one volume at a time for
/// each VM that it starts.
pub(super) const MAX_TRANSFERS_OF_NODE: usize = 8;

/// Counters of one kind.
pub(super) struct NodePermits {
    total: usize,
    share: usize,
    of_node: Mutex<BTreeMap<NodeId, usize>>,
}

/// Counts for a node until it is dropped.
pub(super) struct NodePermit {
    permits: Arc<NodePermits>,
    node: NodeId,
}

impl NodePermits {
    /// Creates the counters. `total` is the maximum for all nodes together, `share` for one node.
    pub(super) fn new(total: usize, share: usize) -> Arc<Self> {
        Arc::new(NodePermits { total, share, of_node: Mutex::default() })
    }

    /// Returns a permit for a node; `None` at the limit of the node or at the total limit.
    pub(super) fn take(self: &Arc<Self>, node: NodeId) -> Option<NodePermit> {
        let mut all = self.lock();
        let taken: usize = all.values().sum();
        let own = all.entry(node).or_default();
        if *own >= self.share && failpoint::defends("node-share") || taken >= self.total {
            return None;
        }
        *own += 1;
        Some(NodePermit { permits: Arc::clone(self), node })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, usize>> {
        self.of_node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NodePermit {
    fn drop(&mut self) {
        let mut all = self.permits.lock();
        if let Some(own) = all.get_mut(&self.node) {
            *own -= 1;
            if *own == 0 {
                all.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_permits_are_limited_per_node() {
        let permits = NodePermits::new(9, 8);
        let node = |text: &str| text.parse().expect("an ID");
        let mut taken: Vec<_> = (0..9).filter_map(|_| permits.take(node("aaaaaaaa"))).collect();
        assert_eq!(taken.len(), 8);
        assert!(permits.take(node("aaaaaaaa")).is_none());
        let _other = permits.take(node("bbbbbbbb")).expect("one is left");
        taken.pop();
        assert!(permits.take(node("bbbbbbbb")).is_some());
    }
}
