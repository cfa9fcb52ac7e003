//! Starts and cancels tasks.
//!
//! The transaction that stores a task also claims its nodes, so that no node has two. The order for
//! each node follows from the record ([`Task::entry_for`]). It is sent whenever the record changes,
//! at each welcome, and again while a node has not followed it.

use super::{
    error::TaskError,
    node_selection::{TaskTarget, candidates, claim, count_nodes},
};
use crate::{links::SpecPart, tasks::Tasks};
use meshd_model::{
    fleet::{Actor, AuditContext, Cause, Event, EventKind},
    work::task::{InputOwner, Launcher, Member, Task, TaskSpec, TaskState},
};
use meshd_proto::{
    Section,
    task::{TaskDesiredState, TaskEntry, TaskUser},
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{NodeId, ParseError, TaskId, Timestamp, failpoint};

/// Missing values follow from the target.
#[derive(Clone, Debug)]
pub struct TaskRequest {
    pub target: TaskTarget,
    /// The number of nodes; all nodes of the target by default.
    pub nodes: Option<usize>,
    pub ranks_per_node: u16,
    /// Default: [`Launcher::of`].
    pub launcher: Option<Launcher>,
    pub user: TaskUser,
    pub timeout_s: Option<u64>,
    /// The caller that connects the standard input of the program; none reads it by default.
    pub input_owner: Option<InputOwner>,
    /// Program and arguments.
    pub argv: Vec<String>,
}

impl Tasks {
    /// Claims nodes and starts the task on them.
    pub async fn run_task(
        &self,
        request: TaskRequest,
        audit: &AuditContext,
    ) -> Result<Task, TaskError> {
        let site = self.env.site();
        let (group, candidates) =
            self.env.store.read(|model| candidates(model, &site, &request.target))?;
        let TaskRequest { target, ranks_per_node, user, timeout_s, input_owner, argv, .. } =
            request;
        if user == TaskUser::Root && !site.agent.root_tasks && failpoint::defends("root-tasks") {
            return Err(TaskError::RootForbidden);
        }
        let nodes = request
            .nodes
            .unwrap_or_else(|| self.env.store.read(|model| count_nodes(model, &candidates)));
        let launcher =
            request.launcher.unwrap_or_else(|| Launcher::default_for(nodes, ranks_per_node));
        let has_input = input_owner.is_some();
        let spec =
            TaskSpec { group, argv, nodes, ranks_per_node, launcher, user, timeout_s, has_input };
        spec.check().map_err(TaskError::Spec)?;
        let id = TaskId(self.env.random());
        let now = self.env.now();
        let committed = self.env.store.commit(|tx| {
            if tx.task(id).is_some() {
                let fault = ParseError::new("the new task's ID exists already", "retry");
                return Err(TaskError::Spec(fault));
            }
            let unknown = self.reported.nodes_with_unknown_work();
            let members = claim(tx, &spec, &target, &candidates, &unknown)?;
            let owner = audit.principal.to_string();
            let task = Task { input_owner, ..Task::claim(id, spec, owner, members, now) };
            tx.event(Event::new(now, audit, EventKind::Task, start_detail(&task)));
            tx.put_task(task.clone());
            Ok::<_, TaskError>(task)
        });
        let task = committed.await?;
        self.send_orders(&task);
        self.remove_old_outputs().await;
        Ok(task)
    }

    /// Cancels a task: all its processes on all nodes end.
    pub async fn cancel_task(
        &self,
        id: TaskId,
        audit: &AuditContext,
    ) -> Result<Option<Task>, TaskError> {
        let now = self.env.now();
        let not_found = || TaskError::None { id: id.to_string() };
        let detail = audit.reason.clone().unwrap_or_else(|| format!("by {}", audit.principal));
        let cancelled = self.env.store.commit(|tx| {
            let Some(mut task) = tx.task(id).cloned() else { return Err(not_found()) };
            if task.cancel(detail, now) {
                tx.event(Event::new(
                    now,
                    audit,
                    EventKind::Task,
                    format!("task {id} is cancelled"),
                ));
                tx.put_task(task.clone());
            }
            Ok(task)
        });
        match cancelled.await {
            Ok(task) => {
                self.send_orders(&task);
                Ok(Some(task))
            }
            // The task is not on record, but a node runs it.
            Err(TaskError::None { .. }) if self.release_orphan(id) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Collects a view of each task, by ID.
    pub fn collect<R>(&self, view: impl FnMut(&Task) -> R) -> Vec<R> {
        self.env.store.read(|model| model.tasks().map(view).collect())
    }

    pub fn task_record(&self, id: TaskId) -> Result<Task, TaskError> {
        let found = self.env.store.read(|model| model.task(id).cloned());
        found.ok_or_else(|| TaskError::None { id: id.to_string() })
    }

    /// Changes tasks, stores the changes, and sends orders to their nodes.
    pub(crate) async fn edit_tasks(
        &self,
        ids: &[TaskId],
        edit: impl Fn(&mut Task),
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let changes = |task: &Task| {
            let mut after = task.clone();
            edit(&mut after);
            after != *task
        };
        // Most reports change nothing and cause no write.
        let is_changed = |model: &Model| ids.iter().any(|id| model.task(*id).is_some_and(&changes));
        if !self.env.store.read(is_changed) {
            return Ok(());
        }
        let stored = self.env.store.commit(|tx| {
            let changed = ids.iter().filter_map(|id| edit_task(tx, Some(*id), now, &edit));
            Ok::<_, StoreError>(changed.collect::<Vec<_>>())
        });
        let changed = stored.await?;
        for task in &changed {
            self.send_orders(task);
        }
        Ok(())
    }

    fn send_orders(&self, task: &Task) {
        task.members.iter().for_each(|member| self.send_order(member.node));
    }

    /// Sends orders to all nodes of the task on this node.
    pub(crate) fn send_orders_of_task_on(&self, node: NodeId) {
        if let Some(task) = self.env.store.read(|model| model.task_on(node).cloned()) {
            self.send_orders(&task);
        }
    }

    /// Makes the link of a node send the order of its task.
    fn send_order(&self, node: NodeId) {
        if let Some(task) = self.env.store.read(|model| model.task_on(node).map(|task| task.id)) {
            self.links.notify_node(node, SpecPart::Task(task));
        }
    }

    /// Repeats orders that nodes have taken and not followed yet.
    pub(crate) fn repeat_orders(&self) {
        let has_observed = |node: &NodeId| self.links.has_observed_all(*node, Section::Tasks);
        self.nodes_of_unfinished()
            .into_iter()
            .filter(has_observed)
            .for_each(|node| self.send_order(node));
        for node in self.reported.removals.nodes().into_iter().filter(has_observed) {
            for task in self.reported.removals.of(node) {
                self.links.notify_node(node, SpecPart::Task(task));
            }
        }
    }

    /// Sends the orders that nodes have not followed yet.
    pub(crate) fn send_unfinished_orders(&self) {
        self.nodes_of_unfinished().into_iter().for_each(|node| self.send_order(node));
    }

    /// Returns the nodes of tasks that start or end.
    fn nodes_of_unfinished(&self) -> Vec<NodeId> {
        let is_unfinished = |task: &&Task| {
            matches!(task.state, TaskState::Starting | TaskState::Ending) || task.state.is_final()
        };
        self.env.store.read(|model| {
            let unfinished = model.open_tasks().filter(is_unfinished);
            unfinished.flat_map(|task| task.members.iter().map(|member| member.node)).collect()
        })
    }
}

/// Returns the order of the task that has a node, as it is now.
pub(crate) fn entry_of_node(model: &Model, node: NodeId) -> Option<TaskEntry> {
    model.task_on(node)?.entry_for(node)
}

/// Returns the order of one task for a node, as it is now. A node removes a task that does not have
/// it.
pub(crate) fn entry_of_task(model: &Model, node: NodeId, task: TaskId) -> Option<TaskEntry> {
    match model.task(task).filter(|task| task.holds(node)) {
        Some(task) => task.entry_for(node),
        None => Some(TaskEntry { task, desired_state: TaskDesiredState::Gone }),
    }
}

/// Changes a task and stores the change; `None` if nothing changed.
pub(crate) fn edit_task(
    tx: &mut Tx<'_>,
    id: Option<TaskId>,
    now: Timestamp,
    edit: impl FnOnce(&mut Task),
) -> Option<Task> {
    let before = tx.task(id?).cloned()?;
    let mut after = before.clone();
    edit(&mut after);
    if after == before {
        return None;
    }
    for event in change_events(&before, &after, now) {
        tx.event(event);
    }
    measure(&before, &after);
    tx.put_task(after.clone());
    Some(after)
}

/// Measures a task that begins to run on all its nodes, and one that has ended.
fn measure(before: &Task, after: &Task) {
    if let (None, Some(started)) = (before.started_at, after.started_at) {
        metrics::histogram!("meshd_task_start_seconds")
            .record(started.since(after.created_at).as_secs_f64());
    }
    if let (None, Some(ended)) = (before.ended_at, after.ended_at) {
        let begin = after.started_at.unwrap_or(after.created_at);
        let seconds = ended.since(begin).as_secs_f64();
        metrics::histogram!("meshd_task_seconds", "state" => after.state.as_str()).record(seconds);
    }
}

/// Describes the start of a task without its arguments. An argument may be a secret, and events and
/// audit log are copied to other places.
fn start_detail(task: &Task) -> String {
    let nodes: Vec<String> = task.members.iter().map(|member| member.node.to_string()).collect();
    let argv = &task.spec.argv;
    let shown = if failpoint::defends("event-values") { argv.len().min(1) } else { argv.len() };
    format!(
        "task {} of {} on {}: {}",
        task.id,
        task.spec.group,
        nodes.join(" "),
        argv[..shown].join(" ")
    )
}

/// The events of a change of a task.
fn change_events(before: &Task, after: &Task, now: Timestamp) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add_event = |node: Option<NodeId>, text: String| {
        let cause: Cause = Actor::Central.into();
        events.push(
            Event::new(now, cause, EventKind::Task, format!("task {} {text}", after.id))
                .of_node(node),
        );
    };
    if before.state == TaskState::Starting && after.started_at != before.started_at {
        add_event(None, "runs".to_owned());
    }
    if let (None, Some(end)) = (&before.end, &after.end) {
        let detail =
            if end.detail.is_empty() { String::new() } else { format!(": {}", end.detail) };
        add_event(
            end.node,
            format!("ends, {}, {}{detail}", end.state.as_str(), end.cause.as_str()),
        );
    }
    if !before.state.is_final() && after.state.is_final() {
        add_event(None, format!("is {}", after.state.as_str()));
    }
    for member in &after.members {
        let previous = before.members.iter().find(|other| other.node == member.node);
        if before.state.is_final() && !member.is_held() && previous.is_some_and(Member::is_held) {
            add_event(Some(member.node), "has left the node".to_owned());
        }
    }
    events
}
