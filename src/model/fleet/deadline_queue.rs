//! Heartbeat deadlines: one timer for each node.
//!
//! Armed when something is heard and not armed already; what is heard meanwhile costs nothing. When a timer is due, whoever asks looks
//! how long the node has really been silent, and arms it again for the rest. So looking costs as much as there are timers due, not
//! as there are nodes.

use meshd_types::NodeId;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// All timers, by one monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct DeadlineQueue {
    of: BTreeMap<NodeId, Duration>,
    queue: BTreeSet<(Duration, NodeId)>,
}

impl DeadlineQueue {
    /// Sets a node's timer, unless one runs: an earlier one is due first, and is set again then.
    pub fn arm(&mut self, node: NodeId, at: Duration) {
        if let std::collections::btree_map::Entry::Vacant(place) = self.of.entry(node) {
            place.insert(at);
            self.queue.insert((at, node));
        }
    }

    /// Sets a node's timer to this very time.
    pub fn set(&mut self, node: NodeId, at: Duration) {
        if let Some(earlier) = self.of.insert(node, at) {
            self.queue.remove(&(earlier, node));
        }
        self.queue.insert((at, node));
    }

    /// Takes out all timers whose time is over, the first one first.
    pub fn due(&mut self, now: Duration) -> Vec<NodeId> {
        let mut due = Vec::new();
        while let Some((at, node)) = self.queue.first().copied().filter(|(at, _)| *at < now) {
            self.queue.remove(&(at, node));
            self.of.remove(&node);
            due.push(node);
        }
        due
    }

    /// How many timers run.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// True while none runs.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::{Basis, MacAddr};
    use proptest::prelude::*;

    fn node(number: u8) -> NodeId {
        Basis::Mac(MacAddr([2, 0, 0, 0, 0, number])).node_id()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_timer_runs_once_and_is_not_put_off_by_what_is_heard() {
        let mut vigil = DeadlineQueue::default();
        vigil.arm(node(1), SECOND * 60);
        vigil.arm(node(1), SECOND * 90);
        assert_eq!(vigil.due(SECOND * 60), [], "the bound itself is in time");
        assert_eq!(vigil.due(SECOND * 61), [node(1)]);
        assert_eq!(vigil.due(SECOND * 600), [], "whoever took it sets it again");
        vigil.set(node(1), SECOND * 700);
        vigil.set(node(1), SECOND * 650);
        assert_eq!((vigil.len(), vigil.due(SECOND * 651)), (1, vec![node(1)]));
        assert!(vigil.is_empty());
    }

    proptest! {
        #[test]
        fn every_timer_is_due_once_after_its_time_and_never_before(times in prop::collection::vec((0u8..20, 0u64..100), 0..60)) {
            let mut vigil = DeadlineQueue::default();
            let mut first: BTreeMap<NodeId, Duration> = BTreeMap::new();
            for (number, at) in times {
                vigil.arm(node(number), SECOND * u32::try_from(at).unwrap_or(0));
                first.entry(node(number)).or_insert(Duration::from_secs(at));
            }
            for now in 0..102 {
                for due in vigil.due(Duration::from_secs(now)) {
                    let at = first.remove(&due);
                    prop_assert_eq!(at.map(|at| at.as_secs() + 1), Some(now));
                }
            }
            prop_assert!(first.is_empty() && vigil.is_empty());
        }
    }
}
