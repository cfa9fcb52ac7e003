//! Starts, cancels and watches tasks.
//!
//! The transaction that stores a task also claims its nodes, so that no node has two. The order for each node follows from the record
//! ([`Job::order_for`]). It is sent whenever the record changes, at each welcome, and again while a node has not followed it.

use super::node_selection::claim;
use crate::serve::central::{links::LinkCommand, tasks::Tasks};
use meshd_model::{
    fleet::{Actor, AuditContext, Cause, Event, EventKind, Phase},
    work::job::{Job, JobSpec, JobState, Launcher, Member, NodeObservation},
};
use meshd_proto::{FromCentral, job::JobUser};
use meshd_store::{Chunk, Model, StoreError, Tx};
use meshd_types::{GroupName, JobId, NodeId, Timestamp, fail};
use std::{collections::BTreeSet, io, sync::Arc};
use tokio::sync::watch;

/// The request of an operator; missing values follow from the group.
#[derive(Clone, Debug)]
pub struct RunJob {
    /// The group whose nodes it may take.
    pub group: String,
    /// The number of nodes; all nodes of the group by default.
    pub nodes: Option<usize>,
    /// Ranks on each node.
    pub ranks_per_node: u16,
    /// Who starts the ranks; see [`Launcher::of`].
    pub launcher: Option<Launcher>,
    /// The user of the processes.
    pub user: JobUser,
    pub timeout_s: Option<u64>,
    /// Program and arguments.
    pub argv: Vec<String>,
}

/// Why a task is not started or not found.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// No such job.
    #[error("there is no task {id}; `meshd task list` shows those that are kept")]
    None {
        /// The requested ID.
        id: String,
    },
    /// Invalid specification.
    #[error("{0}")]
    Spec(String),
    /// No such group.
    #[error("there is no group `{group}`; there are: {known}. Write [groups.{group}] into the site file")]
    NoGroup {
        group: String,
        /// The groups of the site.
        known: String,
    },
    /// The site forbids tasks of root.
    #[error("cannot run the task as root: the site file has [agent].root_tasks = false; give --user a user ID")]
    RootForbidden,
    /// Too few nodes can take it now.
    #[error("cannot start the task: {wanted} nodes of {group} are requested and {free} are free; {why}")]
    NotEnough {
        group: GroupName,
        /// The number of wanted nodes.
        wanted: usize,
        /// The number of free nodes.
        free: usize,
        /// Why the other nodes are not free.
        why: String,
    },
    /// The output cannot be read.
    #[error("the output of a task cannot be read; check the disk")]
    Output(#[from] io::Error),
    /// The store cannot be written.
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

impl Tasks {
    /// Claims nodes and starts the job on them.
    pub async fn run_job(&self, ask: RunJob, by: &AuditContext) -> Result<Job, JobError> {
        let site = self.env.site();
        let known = || site.groups.iter().map(|group| group.name.to_string()).collect::<Vec<_>>().join(" ");
        let named = site.groups.iter().find(|group| group.name.as_str() == ask.group);
        let group = named.ok_or_else(|| JobError::NoGroup { group: ask.group.clone(), known: known() })?;
        let RunJob { ranks_per_node, user, timeout_s, argv, .. } = ask;
        if user == JobUser::Root && !site.agent.root_tasks && fail::defends("root-tasks") {
            return Err(JobError::RootForbidden);
        }
        let nodes = ask.nodes.unwrap_or_else(|| self.env.store.read(|model| count(model, &group.nodes)));
        let launcher = ask.launcher.unwrap_or_else(|| Launcher::of(nodes, ranks_per_node));
        let spec = JobSpec { group: group.name.clone(), argv, nodes, ranks_per_node, launcher, user, timeout_s };
        spec.check().map_err(JobError::Spec)?;
        let (id, now) = (JobId(self.env.random()), self.env.now());
        let job = self
            .env
            .store
            .commit(|tx| {
                if tx.job(id).is_some() {
                    return Err(JobError::Spec("the new task's ID is taken; ask again".to_owned()));
                }
                let members = claim(tx, &spec, &group.nodes, &self.orphans.nodes())?;
                let job = Job::claim(id, spec, by.who.to_string(), members, now);
                tx.event(Event::new(now, by, EventKind::Job, begun(&job)));
                tx.put_job(job.clone());
                Ok::<_, JobError>(job)
            })
            .await?;
        self.tell_of_job(&job);
        self.sweep_outputs().await;
        Ok(job)
    }

    /// Cancels a task: all its processes on all nodes end.
    pub async fn cancel_job(&self, id: JobId, by: &AuditContext) -> Result<Option<Job>, JobError> {
        let now = self.env.now();
        let none = || JobError::None { id: id.to_string() };
        let detail = by.reason.clone().unwrap_or_else(|| format!("by {}", by.who));
        let cancelled = self.env.store.commit(|tx| {
            let Some(mut job) = tx.job(id).cloned() else { return Err(none()) };
            if job.cancel(detail, now) {
                tx.event(Event::new(now, by, EventKind::Job, format!("task {id} is cancelled")));
                tx.put_job(job.clone());
            }
            Ok(job)
        });
        match cancelled.await {
            Ok(job) => {
                self.tell_of_job(&job);
                Ok(Some(job))
            }
            // The task is not on record, but a node runs it.
            Err(JobError::None { .. }) if self.release_orphan(id) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A job on record.
    pub fn job_record(&self, id: JobId) -> Result<Job, JobError> {
        let found = self.env.store.read(|model| model.job(id).cloned());
        found.ok_or_else(|| JobError::None { id: id.to_string() })
    }

    /// Returns the output of a task from an offset on.
    pub async fn job_output(self: &Arc<Self>, id: JobId, from: u64) -> Result<Chunk, JobError> {
        let outputs = Arc::clone(&self.outputs);
        let read = tokio::task::spawn_blocking(move || outputs.read(id, from)).await;
        Ok(read.map_err(io::Error::other)??)
    }

    /// Returns a signal for new output of a task.
    pub async fn job_output_grows(self: &Arc<Self>, id: JobId) -> Result<watch::Receiver<u64>, JobError> {
        let outputs = Arc::clone(&self.outputs);
        let watched = tokio::task::spawn_blocking(move || outputs.watch(id)).await;
        Ok(watched.map_err(io::Error::other)??)
    }

    /// Removes the output of tasks that are no longer on record.
    async fn sweep_outputs(&self) {
        let jobs: BTreeSet<JobId> = self.env.store.read(|model| model.jobs().map(|job| job.id).collect());
        let outputs = Arc::clone(&self.outputs);
        // The next call removes the rest.
        let _ = tokio::task::spawn_blocking(move || outputs.keep_only(&jobs)).await;
    }

    /// Changes tasks, stores the changes, and sends orders to their nodes.
    pub(crate) async fn edit_jobs(&self, ids: &[JobId], edit: impl Fn(&mut Job)) -> Result<(), StoreError> {
        let now = self.env.now();
        let edited = |job: &Job| {
            let mut after = job.clone();
            edit(&mut after);
            (after != *job).then_some(after)
        };
        // Most reports change nothing and cause no write.
        let changes =
            self.env.store.read(|model| ids.iter().any(|id| model.job(*id).is_some_and(|job| edited(job).is_some())));
        if !changes {
            return Ok(());
        }
        let changed = self
            .env
            .store
            .commit(|tx| {
                let changed = ids.iter().filter_map(|id| edit_job(tx, Some(*id), now, &edit));
                Ok::<_, StoreError>(changed.collect::<Vec<_>>())
            })
            .await?;
        for job in &changed {
            self.tell_of_job(job);
        }
        Ok(())
    }

    /// Sends the present order of a task to each of its nodes.
    fn tell_of_job(&self, job: &Job) {
        job.members.iter().for_each(|member| self.tell_of_work(member.node));
    }

    /// Sends the present order of the task that holds this node to each of its nodes.
    pub(crate) fn tell_job_of(&self, node: NodeId) {
        if let Some(job) = self.env.store.read(|model| model.job_on(node).cloned()) {
            self.tell_of_job(&job);
        }
    }

    /// Sends a node the order of the task that holds it. The record is read under [`Tasks::orders`], so that the newest order is sent last.
    /// The lock of the links is not held meanwhile: transactions take it.
    pub(crate) fn tell_of_work(&self, node: NodeId) {
        let _turn = self.orders.lock();
        let Some(commands) = self.links.commands(node) else { return };
        let order = self.env.store.read(|model| model.job_on(node).and_then(|job| job.order_for(node)));
        if let Some(order) = order {
            // A full queue loses nothing: the order is repeated.
            let _ = commands.try_send(LinkCommand::Send(FromCentral::Job(order)));
        }
    }

    /// Repeats orders that nodes have not followed yet.
    pub(crate) fn remind_of_jobs(&self) {
        let waits = |job: &&Job| matches!(job.state, JobState::Starting | JobState::Ending) || job.state.is_final();
        let open: Vec<Job> = self.env.store.read(|model| model.open_jobs().filter(waits).cloned().collect());
        open.iter().for_each(|job| self.tell_of_job(job));
    }

    /// Checks the time limit and the nodes of every open task.
    pub(crate) async fn watch_jobs(&self) {
        let now = self.env.now();
        let open: Vec<(JobId, Vec<(NodeId, NodeObservation)>)> = self.env.store.read(|model| {
            let seen = |job: &Job| job.holding().map(|id| (id, seen(model.node(id).map(|node| node.phase)))).collect();
            model.open_jobs().map(|job| (job.id, seen(job))).collect()
        });
        for (id, nodes) in open {
            let ids = [id];
            let looked = self.edit_jobs(&ids, |job| {
                for (node, seen) in &nodes {
                    job.seen(*node, seen.clone(), now);
                }
                job.timer(now);
            });
            if let Err(error) = looked.await {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot record what became of a task");
            }
        }
    }
}

/// Changes a task and stores the change; `None` if nothing changed.
pub(crate) fn edit_job(tx: &mut Tx<'_>, id: Option<JobId>, now: Timestamp, edit: impl FnOnce(&mut Job)) -> Option<Job> {
    let before = tx.job(id?).cloned()?;
    let mut after = before.clone();
    edit(&mut after);
    if after == before {
        return None;
    }
    for event in told(&before, &after, now) {
        tx.event(event);
    }
    tx.put_job(after.clone());
    Some(after)
}

/// Derives the state of a task's part from the phase of its node.
fn seen(phase: Option<Phase>) -> NodeObservation {
    match phase {
        None | Some(Phase::Removed) => NodeObservation::Gone("an operator removed the node".to_owned()),
        Some(Phase::Online | Phase::Degraded | Phase::Draining | Phase::Enrolling) => NodeObservation::There,
        Some(phase) => NodeObservation::Lost(format!("the node is {phase}")),
    }
}

/// Marks a node's part of a task as lost, in the transaction of the cause. The other nodes receive their orders at the next reminder
/// at the latest.
pub(crate) fn lose_node(tx: &mut Tx<'_>, node: NodeId, why: &str, now: Timestamp) {
    let job = tx.job_on(node).map(|job| job.id);
    edit_job(tx, job, now, |job| job.seen(node, NodeObservation::Gone(why.to_owned()), now));
}

/// How many nodes a group has: it may name one by two IDs, its own and that of hardware that it replaced.
fn count(model: &Model, group: &[NodeId]) -> usize {
    let standing = group.iter().map(|id| model.standing_for(*id).map_or(*id, |node| node.id));
    standing.collect::<BTreeSet<NodeId>>().len()
}

fn begun(job: &Job) -> String {
    let nodes: Vec<String> = job.members.iter().map(|member| member.node.to_string()).collect();
    format!("task {} of {} on {}: {}", job.id, job.spec.group, nodes.join(" "), job.spec.argv.join(" "))
}

/// The events of a change of a task.
fn told(before: &Job, after: &Job, now: Timestamp) -> Vec<Event> {
    let mut events = Vec::new();
    let mut say = |node: Option<NodeId>, what: String| {
        let cause: Cause = Actor::Central.into();
        events.push(Event::new(now, cause, EventKind::Job, format!("task {} {what}", after.id)).of_node(node));
    };
    if before.state == JobState::Starting && after.started_at != before.started_at {
        say(None, "runs".to_owned());
    }
    if let (None, Some(end)) = (&before.end, &after.end) {
        let detail = if end.detail.is_empty() { String::new() } else { format!(": {}", end.detail) };
        say(end.node, format!("ends, {}, {}{detail}", end.state.as_str(), end.cause.as_str()));
    }
    if !before.state.is_final() && after.state.is_final() {
        say(None, format!("is {}", after.state.as_str()));
    }
    for member in &after.members {
        let was = before.members.iter().find(|other| other.node == member.node);
        if before.state.is_final() && !member.is_held() && was.is_some_and(Member::is_held) {
            say(Some(member.node), "has left the node at last".to_owned());
        }
    }
    events
}
