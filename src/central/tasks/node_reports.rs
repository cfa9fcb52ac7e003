//! What nodes report of their tasks: state, output, release.

use crate::{enrolment::enrol::PlaneError, links::LinkId, tasks::Tasks};
use meshd_model::{
    fleet::{Actor, Event, EventKind},
    work::task::NodeObservation,
};
use meshd_proto::{
    FromCentral,
    task::{MAX_TASKS, Output, OutputStored, TaskDesiredState, TaskOrder, TaskReport, TaskUpdate},
};
use meshd_store::LogLine;
use meshd_types::{BootSessionId, NodeId, TaskId};
use std::sync::Arc;

impl Tasks {
    /// Handles a report about tasks.
    pub(crate) async fn task_update(&self, link: LinkId, news: TaskUpdate) -> Result<Option<FromCentral>, PlaneError> {
        let (node, now) = (link.node(), self.env.now());
        match news {
            TaskUpdate::Output(output) => return Ok(self.store_output(node, output).await),
            TaskUpdate::Released { task } => {
                self.edit_tasks(&[task], |task| task.released(node, now)).await?;
                self.orphans.tasks.forget(node, task);
            }
            TaskUpdate::All { tasks } => self.tasks_reported(node, tasks).await?,
        }
        Ok(None)
    }

    /// Processes the report of all tasks of a node.
    async fn tasks_reported(&self, node: NodeId, mut tasks: Vec<TaskReport>) -> Result<(), PlaneError> {
        tasks.truncate(MAX_TASKS);
        let now = self.env.now();
        let own = self.env.store.read(|model| model.task_on(node).map(|task| task.id));
        if let Some(own) = own {
            let state = tasks.iter().find(|report| report.task == own).map(|report| &report.state);
            self.edit_tasks(&[own], |task| task.reported(node, state, now)).await?;
        }
        let (over, strange): (Vec<TaskId>, Vec<TaskId>) = self.env.store.read(|model| {
            let others = tasks.iter().map(|report| report.task).filter(|task| Some(*task) != own);
            others.partition(|task| model.task(*task).is_some())
        });
        // The task is on record, but no longer on this node, which was considered lost and has returned.
        for task in over {
            self.order_gone(node, task);
        }
        // The task has ended on record: the node may release it.
        let ended = tasks.iter().filter(|report| report.state.has_ended() && strange.contains(&report.task));
        ended.for_each(|report| self.order_gone(node, report.task));
        let names: Vec<String> = strange.iter().map(TaskId::to_string).collect();
        let is_news = self.orphans.tasks.are(node, strange.into_iter().collect());
        // A node that invents tasks must not evict events of others.
        if is_news && self.env.allows(&format!("strange tasks of {node}")) {
            let detail = format!("the node runs {}, not on record; `meshd task cancel` ends it", names.join(" "));
            self.env.record(Event::new(now, Actor::Node, EventKind::Task, detail).of_node(node)).await;
        }
        Ok(())
    }

    /// Processes the start of a link, in the same boot or in another one.
    pub(crate) async fn task_node_linked(&self, node: NodeId, session: BootSessionId) {
        let now = self.env.now();
        let Some(task) = self.env.store.read(|model| model.task_on(node).map(|task| task.id)) else { return };
        if let Err(error) =
            self.edit_tasks(&[task], |task| task.seen(node, NodeObservation::Linked(session), now)).await
        {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot record what became of a task");
        }
        self.send_order(node);
    }

    /// Ends a task that is not on record; true if a node has it.
    pub(crate) fn release_orphan(&self, task: TaskId) -> bool {
        let nodes = self.orphans.tasks.with(task);
        nodes.iter().for_each(|node| self.order_gone(*node, task));
        !nodes.is_empty()
    }

    fn order_gone(&self, node: NodeId, task: TaskId) {
        // If this message is lost, the next welcome repeats it.
        self.links.try_send(node, FromCentral::Task(TaskOrder { task, want: TaskDesiredState::Gone }));
    }

    /// Stores a piece of output if the task has the node. If that fails, no acknowledgement is sent, and the node repeats the piece.
    async fn store_output(&self, node: NodeId, output: Output) -> Option<FromCentral> {
        let Output { task, stream, at, data } = output;
        if !self.env.store.read(|model| model.task(task).is_some_and(|task| task.holds(node))) {
            // Output of an unknown or ended task is acknowledged and dropped, so that the node stops repeating it.
            return Some(FromCentral::OutputStored(OutputStored { task, stream, upto: u64::MAX }));
        }
        let line = LogLine { when: self.env.now(), node, stream, at, data };
        let outputs = Arc::clone(&self.outputs);
        let kept = tokio::task::spawn_blocking(move || outputs.append(task, line)).await;
        match kept.map_err(std::io::Error::other).and_then(|kept| kept) {
            Ok(upto) => Some(FromCentral::OutputStored(OutputStored { task, stream, upto })),
            Err(error) => {
                tracing::error!(%task, %node, %error, "the output of a task is not kept; check the disk");
                None
            }
        }
    }
}
