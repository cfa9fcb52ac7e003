//! Processes reports of nodes about their tasks: state, output, release.

use crate::{
    enrolment::AgentApiError, environment::alarms::log_failure, links::SpecPart, tasks::Tasks,
};
use meshd_model::{
    fleet::{Actor, Event, EventKind},
    work::task::NodeObservation,
};
use meshd_proto::{
    Section,
    task::{MAX_TASKS, TaskReport, TaskUpdate},
};
use meshd_types::{BootSessionId, NodeId, TaskId};
use std::collections::BTreeSet;

impl Tasks {
    /// Handles a report about tasks.
    pub(crate) async fn task_update(
        &self,
        node: NodeId,
        update: TaskUpdate,
    ) -> Result<(), AgentApiError> {
        let now = self.env.now();
        match update {
            TaskUpdate::Released { task } => {
                self.edit_tasks(&[task], |task| task.record_release(node, now)).await?;
                self.reported.orphan_tasks.remove(node, &task);
                self.reported.removals.remove(node, &task);
            }
            TaskUpdate::All { tasks } => {
                let applied = self.apply_reports(node, tasks).await;
                if applied.is_ok() {
                    self.reported.record_section(node, Section::Tasks);
                }
                self.links.forget_unlinked(node);
                applied?;
            }
        }
        Ok(())
    }

    /// Processes the report of all tasks of a node.
    async fn apply_reports(
        &self,
        node: NodeId,
        mut tasks: Vec<TaskReport>,
    ) -> Result<(), AgentApiError> {
        tasks.truncate(MAX_TASKS);
        let now = self.env.now();
        let task_of_node = self.env.store.read(|model| model.task_on(node).map(|task| task.id));
        if let Some(task_of_node) = task_of_node {
            let state =
                tasks.iter().find(|report| report.task == task_of_node).map(|report| &report.state);
            self.edit_tasks(&[task_of_node], |task| task.apply_report(node, state, now)).await?;
        }
        let (stale, orphans): (Vec<TaskId>, Vec<TaskId>) = self.env.store.read(|model| {
            let others =
                tasks.iter().map(|report| report.task).filter(|task| Some(*task) != task_of_node);
            others.partition(|task| model.task(*task).is_some())
        });
        // The node must remove tasks that are on record, but not there any more: it was considered
        // lost and has returned. It may remove tasks without a record that have ended. A report
        // causes the first order only, or each order would cause the next one.
        let ended = tasks
            .iter()
            .filter(|report| report.state.has_ended() && orphans.contains(&report.task));
        let removals = stale.into_iter().chain(ended.map(|report| report.task)).collect();
        for task in self.reported.removals.set(node, removals) {
            self.links.notify_node(node, SpecPart::Task(task));
        }
        let names: Vec<String> = orphans.iter().map(TaskId::to_string).collect();
        let new = self.reported.orphan_tasks.set(node, orphans.into_iter().collect());
        // A node that invents tasks must not evict events of others.
        if !new.is_empty() && self.env.allows(&format!("strange tasks of {node}")) {
            let detail = format!(
                "the node runs {}, not on record; `meshd task cancel` ends it",
                names.join(" ")
            );
            self.env
                .record(Event::new(now, Actor::Node, EventKind::Task, detail).of_node(node))
                .await;
        }
        Ok(())
    }

    /// Processes the start of a link, in the same boot or in another one.
    pub(crate) async fn node_linked(&self, node: NodeId, session: BootSessionId) {
        let now = self.env.now();
        self.reported.removals.set(node, BTreeSet::new());
        let Some(task) = self.env.store.read(|model| model.task_on(node).map(|task| task.id))
        else {
            return;
        };
        let ids = [task];
        let edited =
            self.edit_tasks(&ids, |task| task.observe(node, NodeObservation::Linked(session), now));
        log_failure(edited.await, "cannot record the state of a task");
    }

    /// Ends a task that is not on record; true if a node has it.
    pub(crate) fn release_orphan(&self, task: TaskId) -> bool {
        let nodes = self.reported.orphan_tasks.find(&task);
        nodes.iter().for_each(|node| self.links.notify_node(*node, SpecPart::Task(task)));
        !nodes.is_empty()
    }
}
