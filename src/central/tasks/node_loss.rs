//! Watches open tasks: a lost node fails its task, and so does an expired time limit.

use super::{Tasks, lifecycle::edit_task};
use crate::environment::alarms::log_failure;
use meshd_model::{
    fleet::Phase,
    work::task::{NodeObservation, Task, TaskAges},
};
use meshd_store::Tx;
use meshd_types::{NodeId, TaskId, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// An open task, with what is known of the nodes that it holds.
pub(super) struct OpenTask {
    id: TaskId,
    created_at: Timestamp,
    has_failed_proxy: bool,
    nodes: Vec<(NodeId, NodeObservation)>,
}

/// Ages of open tasks, by the monotonic clock: a time limit must not end a task because the wall
/// clock was corrected. The age at the first check after a start of meshd is that of the wall
/// clock.
#[derive(Default)]
pub(super) struct Ages(BTreeMap<TaskId, FirstCheck>);

#[derive(Clone, Copy)]
struct FirstCheck {
    age: Duration,
    /// Monotonic time.
    at: Duration,
    /// Monotonic time of the first check with a failed proxy.
    proxy_failed_at: Option<Duration>,
}

impl Ages {
    /// Returns the ages of the open tasks, and forgets all others.
    fn update(&mut self, open: &[OpenTask], monotonic: Duration, now: Timestamp) -> Vec<TaskAges> {
        let first = |task: &OpenTask| FirstCheck {
            age: now.since(task.created_at),
            at: monotonic,
            proxy_failed_at: None,
        };
        let check = |task: &OpenTask| {
            let mut check = self.0.get(&task.id).copied().unwrap_or_else(|| first(task));
            if task.has_failed_proxy {
                check.proxy_failed_at.get_or_insert(monotonic);
            }
            (task.id, check)
        };
        self.0 = open.iter().map(check).collect();
        let since = |at: Duration| monotonic.saturating_sub(at);
        let ages = |check: FirstCheck| TaskAges {
            task: check.age + since(check.at),
            failed_proxy: check.proxy_failed_at.map(since).unwrap_or_default(),
        };
        open.iter().map(|task| ages(self.0[&task.id])).collect()
    }
}

impl Tasks {
    /// Checks the time limit and the nodes of every open task.
    pub(crate) async fn check_open_tasks(&self) {
        let now = self.env.now();
        let unfinished: Vec<OpenTask> = self.env.store.read(|model| {
            let observation = |task: &Task| {
                task.holding()
                    .map(|id| (id, observation(model.node(id).map(|node| node.phase))))
                    .collect()
            };
            let open = |task: &Task| OpenTask {
                id: task.id,
                created_at: task.created_at,
                has_failed_proxy: task.failed_proxy().is_some(),
                nodes: observation(task),
            };
            model.open_tasks().map(open).collect()
        });
        let ages = self.ages.lock().update(&unfinished, self.env.monotonic(), now);
        for (OpenTask { id, nodes, .. }, ages) in unfinished.into_iter().zip(ages) {
            let ids = [id];
            let edited = self.edit_tasks(&ids, |task| {
                for (node, observation) in &nodes {
                    task.observe(*node, observation.clone(), now);
                }
                task.timer(ages, now);
            });
            log_failure(edited.await, "cannot record the state of a task");
        }
    }
}

/// Derives the state of a task's part from the phase of its node.
fn observation(phase: Option<Phase>) -> NodeObservation {
    match phase {
        None | Some(Phase::Removed) => {
            NodeObservation::Gone("an operator removed the node".to_owned())
        }
        Some(Phase::Online | Phase::Degraded | Phase::Draining | Phase::Enrolling) => {
            NodeObservation::There
        }
        Some(phase) => NodeObservation::Lost(format!("the node is {phase}")),
    }
}

/// Marks a node's part of a task as lost, in the transaction of the cause. The other nodes receive
/// their orders at the next reminder at the latest.
pub(crate) fn mark_node_lost(tx: &mut Tx<'_>, node: NodeId, why: &str, now: Timestamp) {
    let task = tx.task_on(node).map(|task| task.id);
    edit_task(tx, task, now, |task| task.observe(node, NodeObservation::Gone(why.to_owned()), now));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_of_a_task_does_not_follow_a_clock_that_jumps() {
        let mut ages = Ages::default();
        let seconds = Duration::from_secs;
        let created_at = Timestamp::from_millis(1_800_000_000_000);
        let task = |has_failed_proxy| {
            [OpenTask { id: TaskId([7; 4]), created_at, has_failed_proxy, nodes: Vec::new() }]
        };
        let open = task(false);
        let mut age = |monotonic, now| ages.update(&open, seconds(monotonic), now)[0].task;
        assert_eq!(age(100, created_at.after(seconds(5))), seconds(5));
        assert_eq!(age(110, Timestamp::EPOCH), seconds(15));
        assert_eq!(age(120, Timestamp::from_millis(4_300_000_000_000)), seconds(25), "2106");
        assert!(ages.update(&[], seconds(130), created_at).is_empty());
        assert_eq!(
            ages.update(&open, seconds(140), Timestamp::EPOCH),
            [TaskAges::default()],
            "after a start of meshd"
        );
        let failed = task(true);
        let mut failed_for =
            |monotonic, now| ages.update(&failed, seconds(monotonic), now)[0].failed_proxy;
        assert_eq!(failed_for(150, created_at), Duration::ZERO);
        assert_eq!(failed_for(160, created_at.after(seconds(3600))), seconds(10));
    }
}
