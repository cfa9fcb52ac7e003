//! Heartbeat deadlines: one timer for each node.
//!
//! A message arms the timer of its node only if no timer runs. When a timer is due, the caller
//! computes the silence of the node and arms the timer for the rest. So messages cost nothing, and
//! a look-up reads only due timers.

use meshd_types::NodeId;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// All timers of one monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct DeadlineQueue {
    deadlines: BTreeMap<NodeId, Duration>,
    queue: BTreeSet<(Duration, NodeId)>,
}

impl DeadlineQueue {
    /// Starts the timer of a node unless one runs.
    pub fn arm(&mut self, node: NodeId, at: Duration) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.deadlines.entry(node) {
            entry.insert(at);
            self.queue.insert((at, node));
        }
    }

    /// Sets the timer of a node.
    pub fn set(&mut self, node: NodeId, at: Duration) {
        if let Some(earlier) = self.deadlines.insert(node, at) {
            self.queue.remove(&(earlier, node));
        }
        self.queue.insert((at, node));
    }

    /// Removes and returns the due timers, the earliest first.
    pub fn due(&mut self, now: Duration) -> Vec<NodeId> {
        let mut due = Vec::new();
        while let Some((at, node)) = self.queue.first().copied().filter(|(at, _)| *at < now) {
            self.queue.remove(&(at, node));
            self.deadlines.remove(&node);
            due.push(node);
        }
        due
    }

    /// Returns the number of running timers.
    pub fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// Returns true if no timer runs.
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
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
    fn armed_deadline_is_not_postponed_by_arming_again() {
        let mut queue = DeadlineQueue::default();
        queue.arm(node(1), SECOND * 60);
        queue.arm(node(1), SECOND * 90);
        assert_eq!(queue.due(SECOND * 60), [], "the deadline itself is in time");
        assert_eq!(queue.due(SECOND * 61), [node(1)]);
        assert_eq!(queue.due(SECOND * 600), [], "the caller sets it again");
        queue.set(node(1), SECOND * 700);
        queue.set(node(1), SECOND * 650);
        assert_eq!((queue.len(), queue.due(SECOND * 651)), (1, vec![node(1)]));
        assert!(queue.is_empty());
    }

    proptest! {
        #[test]
        fn deadline_is_due_once_and_never_early(times in prop::collection::vec((0u8..20, 0u64..100), 0..60)) {
            let mut queue = DeadlineQueue::default();
            let mut first: BTreeMap<NodeId, Duration> = BTreeMap::new();
            for (number, at) in times {
                queue.arm(node(number), SECOND * u32::try_from(at).unwrap_or(0));
                first.entry(node(number)).or_insert(Duration::from_secs(at));
            }
            for now in 0..102 {
                for due in queue.due(Duration::from_secs(now)) {
                    let at = first.remove(&due);
                    prop_assert_eq!(at.map(|at| at.as_secs() + 1), Some(now));
                }
            }
            prop_assert!(first.is_empty() && queue.is_empty());
        }
    }
}
