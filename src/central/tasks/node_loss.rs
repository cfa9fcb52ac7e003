//! Watches open tasks: a lost node fails its task, and so does an expired time limit.

use super::{Tasks, lifecycle::edit_task};
use crate::environment::alarms::log_failure;
use meshd_model::{
    fleet::Phase,
    work::task::{NodeObservation, Task},
};
use meshd_store::Tx;
use meshd_types::{NodeId, TaskId, Timestamp};

impl Tasks {
    /// Checks the time limit and the nodes of every open task.
    pub(crate) async fn check_open_tasks(&self) {
        let now = self.env.now();
        let unfinished: Vec<(TaskId, Vec<(NodeId, NodeObservation)>)> = self.env.store.read(|model| {
            let observation = |task: &Task| {
                task.holding().map(|id| (id, observation(model.node(id).map(|node| node.phase)))).collect()
            };
            model.open_tasks().map(|task| (task.id, observation(task))).collect()
        });
        for (id, nodes) in unfinished {
            let ids = [id];
            let edited = self.edit_tasks(&ids, |task| {
                for (node, observation) in &nodes {
                    task.observe(*node, observation.clone(), now);
                }
                task.timer(now);
            });
            log_failure(edited.await, "cannot record the state of a task");
        }
    }
}

/// Derives the state of a task's part from the phase of its node.
fn observation(phase: Option<Phase>) -> NodeObservation {
    match phase {
        None | Some(Phase::Removed) => NodeObservation::Gone("an operator removed the node".to_owned()),
        Some(Phase::Online | Phase::Degraded | Phase::Draining | Phase::Enrolling) => NodeObservation::There,
        Some(phase) => NodeObservation::Lost(format!("the node is {phase}")),
    }
}

/// Marks a node's part of a task as lost, in the transaction of the cause. The other nodes receive their orders at the next reminder
/// at the latest.
pub(crate) fn mark_node_lost(tx: &mut Tx<'_>, node: NodeId, why: &str, now: Timestamp) {
    let task = tx.task_on(node).map(|task| task.id);
    edit_task(tx, task, now, |task| task.observe(node, NodeObservation::Gone(why.to_owned()), now));
}
