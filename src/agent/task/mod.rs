//! Tasks on this node: programs on bare metal, each with all its processes in one control group.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `rank_runner` | runs one task: prepare, start, wait, kill, clean up |
//! | `task_enter` | the process that becomes the program: control group, limits, user |
//! | `scratch_storage` | the file system of a task, bounded, in memory |
//! | `mounts` | the mounts of a task: /dev/shm, /tmp, read-only control groups |
//! | `hydra_launch_parser` | parses the launch commands of `mpiexec`; pure |
//! | `cgroup` | the control group, which ends all processes together |
//!
//! An agent that ends kills its tasks, and an agent that starts kills the remains of an earlier one. The central node records them as failed.

mod cgroup;
pub mod task_enter;
mod hydra_launch_parser;
mod scratch_storage;
mod mounts;
mod rank_runner;

use self::{cgroup::Cgroups, rank_runner::TaskRunner};
use crate::link::forward::AckedOffsets;
use meshd_proto::task::{
    MAX_DETAIL, MAX_TASKS, Output, OutputStored, Stream, TaskDesiredState, TaskFault, TaskNodeState, TaskOrder,
    TaskReport, TaskUpdate,
};
use meshd_types::{NodeId, TaskId};
use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

/// Length of the queue to the driver.
const QUEUE_LENGTH: usize = 16;
/// Released tasks that are remembered, so that a late order does not start them again.
const MAX_RELEASED: usize = 256;

/// Timeout for the end of all tasks when the agent stops.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A message of a task's runner.
#[derive(Debug)]
pub(crate) enum TaskEvent {
    State(TaskId, TaskNodeState),
    Output(Output),
    Released(TaskId),
}

/// All tasks of this node.
pub struct Tasks {
    folder: PathBuf,
    cgroups: Result<Cgroups, String>,
    tasks: BTreeMap<TaskId, RunningTask>,
    released: VecDeque<TaskId>,
    runners: JoinSet<()>,
    events: mpsc::Sender<TaskEvent>,
    inbox: mpsc::Receiver<TaskEvent>,
    reports: VecDeque<TaskUpdate>,
}

struct RunningTask {
    state: TaskNodeState,
    acked: watch::Sender<AckedOffsets<Stream>>,
    gone: watch::Sender<bool>,
    /// A runner works on it.
    alive: bool,
}

impl Tasks {
    /// Opens the folder of tasks and kills what an earlier agent left. `cgroups` is the mount point of the control groups if the system has
    /// none.
    pub fn open(folder: &Path, cgroups: &Path, node: NodeId) -> Self {
        let (events, inbox) = mpsc::channel(QUEUE_LENGTH);
        let cgroups = Cgroups::open(node, cgroups);
        let (folder, runners) = (folder.to_owned(), JoinSet::new());
        let (tasks, released, reports) = Default::default();
        let mut tasks = Tasks { folder, cgroups, tasks, released, runners, events, inbox, reports };
        tasks.clean();
        tasks
    }

    /// Remains of an earlier agent.
    fn clean(&mut self) {
        let folders = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut left: Vec<TaskId> = folders.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        if let Ok(cgroups) = &self.cgroups {
            left.extend(cgroups.tasks());
        }
        left.sort_unstable();
        left.dedup();
        for task in left {
            tracing::warn!(%task, "a task of an earlier agent is killed");
            let (gone, gone_receiver) = watch::channel(false);
            let (group, folder) = (self.cgroups.clone().ok(), self.folder.join(task.to_string()));
            // In its own task: processes that hang in the kernel must not block the link.
            self.runners.spawn(end_remains(task, group, folder, gone_receiver, self.events.clone()));
            let detail = "the agent was started anew while the task ran; what was left of it is killed".to_owned();
            let state = TaskNodeState::Failed { kind: TaskFault::AgentRestarted, detail };
            self.tasks.insert(task, RunningTask { gone, alive: true, ..RunningTask::ended(state) });
        }
    }

    /// Processes the desired state of a task.
    pub fn order(&mut self, TaskOrder { task, want }: TaskOrder) {
        match want {
            TaskDesiredState::Gone => match self.tasks.get(&task) {
                Some(entry) if entry.alive => drop(entry.gone.send_replace(true)),
                _ => self.release(task),
            },
            TaskDesiredState::Run(_) if self.tasks.contains_key(&task) => {}
            // A late order for a task that was released.
            TaskDesiredState::Run(_) if self.released.contains(&task) => {
                self.reports.push_back(TaskUpdate::Released { task })
            }
            TaskDesiredState::Run(run) => {
                let (acked, acked_receiver) = watch::channel(AckedOffsets::default());
                let (gone, gone_receiver) = watch::channel(false);
                let group = self.cgroups.as_ref().map_err(Clone::clone);
                let group = group.and_then(|groups| groups.make(task));
                let entry = match group {
                    Ok(cgroup) => {
                        let (folder, events) = (self.folder.join(task.to_string()), self.events.clone());
                        let work = TaskRunner {
                            task,
                            run: *run,
                            cgroup,
                            folder,
                            events,
                            acked: acked_receiver,
                            gone: gone_receiver,
                        };
                        self.runners.spawn(work.run());
                        RunningTask { state: TaskNodeState::Starting, acked, gone, alive: true }
                    }
                    Err(detail) => RunningTask::ended(TaskNodeState::Failed { kind: TaskFault::CgroupMissing, detail }),
                };
                self.tasks.insert(task, entry);
                self.reports.push_back(self.all());
            }
        }
    }

    /// The central node acknowledged a piece of output.
    pub fn output_stored(&mut self, OutputStored { task, stream, upto }: OutputStored) {
        let Some(entry) = self.tasks.get(&task) else { return };
        entry.acked.send_modify(|acked| acked.acknowledge(stream, upto));
    }

    /// The central node welcomed a new link: repeat all reports.
    pub fn welcome(&mut self) {
        self.reports.push_back(self.all());
        for entry in self.tasks.values() {
            entry.acked.send_modify(AckedOffsets::welcome);
        }
    }

    /// Returns the number of tasks that run or whose end is not acknowledged.
    pub fn count(&self) -> u32 {
        u32::try_from(self.tasks.len()).unwrap_or(u32::MAX)
    }

    /// Waits for the next message. Cancel-safe.
    pub async fn next(&mut self) -> TaskUpdate {
        loop {
            if let Some(reports) = self.reports.pop_front() {
                return reports;
            }
            tokio::select! {
                // The channel never closes, because this value holds a sender.
                Some(event) = self.inbox.recv() => self.handle(event),
                Some(ended) = self.runners.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the runner of a task ended unexpectedly");
                    }
                }
            }
        }
    }

    fn handle(&mut self, event: TaskEvent) {
        match event {
            TaskEvent::Output(output) => self.reports.push_back(TaskUpdate::Output(output)),
            TaskEvent::Released(task) => self.release(task),
            TaskEvent::State(task, mut state) => {
                let Some(entry) = self.tasks.get_mut(&task) else { return };
                if let TaskNodeState::Failed { detail, .. } = &mut state {
                    *detail = detail.chars().take(MAX_DETAIL).collect();
                }
                tracing::info!(%task, ?state, "task");
                entry.state = state;
                self.reports.push_back(self.all());
            }
        }
    }

    fn release(&mut self, task: TaskId) {
        self.tasks.remove(&task);
        if !self.released.contains(&task) {
            self.released.push_back(task);
            if self.released.len() > MAX_RELEASED {
                self.released.pop_front();
            }
        }
        self.reports.push_back(TaskUpdate::Released { task });
    }

    fn all(&self) -> TaskUpdate {
        let report = |(task, entry): (&TaskId, &RunningTask)| TaskReport { task: *task, state: entry.state.clone() };
        TaskUpdate::All { tasks: self.tasks.iter().take(MAX_TASKS).map(report).collect() }
    }

    /// Ends all tasks without reports when the agent stops.
    pub async fn end(self) {
        let Tasks { mut runners, cgroups, tasks, inbox, folder, .. } = self;
        drop(inbox);
        if let Ok(cgroups) = &cgroups {
            let all = async {
                for task in tasks.keys() {
                    cgroups.of(*task).end().await;
                    mounts::end(&rank_runner::shm(&folder.join(task.to_string()))).await;
                }
            };
            // A later agent cleans up the rest.
            let _ = timeout(END_TIMEOUT, all).await;
        }
        runners.shutdown().await;
    }
}

/// Ends what an earlier agent left of a task.
async fn end_remains(
    task: TaskId,
    groups: Option<Cgroups>,
    folder: PathBuf,
    mut gone: watch::Receiver<bool>,
    events: mpsc::Sender<TaskEvent>,
) {
    if let Some(groups) = groups {
        groups.of(task).end().await;
    }
    mounts::end(&rank_runner::shm(&folder)).await;
    rank_runner::remove_files(folder).await;
    if gone.wait_for(|gone| *gone).await.is_ok() {
        let _ = events.send(TaskEvent::Released(task)).await;
    }
}

impl RunningTask {
    fn ended(state: TaskNodeState) -> Self {
        RunningTask { state, acked: watch::Sender::default(), gone: watch::Sender::new(false), alive: false }
    }
}

#[cfg(test)]
mod tests;
