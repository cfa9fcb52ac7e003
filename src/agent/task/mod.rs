//! Tasks on this node: programs on bare metal, each with all its processes in one control group; and
//! shells for administrators.
//!
//! | module | content |
//! | --- | --- |
//! | `task_runner` | runs one task: prepare, start, wait, kill, clean up |
//! | `task_enter` | the process that becomes the program: control group, session, limits, user |
//! | `task_input` | the standard input of a task |
//! | `shell` | shells of this node for administrators |
//! | `scratch_storage` | the file system of a task, bounded, in memory |
//! | `mounts` | the mounts of a task: /dev/shm, /tmp, /run/lock, read-only control groups |
//! | `hydra_launch` | runs `mpiexec` and the proxies of an MPI program |
//! | `hydra_launch_parser` | parses the launch commands of `mpiexec`; pure |
//! | `exit_code` | the exit code of a program |
//! | `cgroup` | the control group, which ends all processes together |
//! | `leftover_tasks` | ends the tasks of an earlier agent |
//!
//! An agent kills its tasks when it stops, and the tasks of an earlier agent when it starts. The
//! central node records these tasks as failed.

mod cgroup;
mod exit_code;
pub mod task_enter;
mod hydra_launch;
mod hydra_launch_parser;
mod leftover_tasks;
mod scratch_storage;
mod mounts;
pub mod shell;
mod task_input;
mod task_runner;

use self::{
    cgroup::Cgroups,
    scratch_storage::Storage,
    shell::{GuestLogin, ShellProgram, Shells},
    task_input::InputRequest,
    task_runner::TaskRunner,
};
use crate::{
    container::ReplicaExec,
    link::{acked_stream::AckedOffsets, call::Endpoint},
    networks::firewall::user::CentralServices,
    vm::{GuestAccess, LoginFault},
};
use meshd_proto::{
    FromAgent, NodeReport, SectionReport,
    shell::{GuestShellOrder, ShellOrder},
    task::{
        InputOrder, MAX_DETAIL, MAX_TASKS, Output, OutputStored, Stream, TaskDesiredState,
        TaskEntry, TaskFault, TaskNodeState, TaskReport, TaskUpdate,
    },
};
use meshd_types::{NodeId, TaskId};
use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

/// Length of the queue to the driver.
const QUEUE_LENGTH: usize = 16;
/// Maximum number of stored IDs of released tasks. They prevent a late order from starting a task
/// again.
const MAX_RELEASED: usize = 256;

/// Timeout for the end of all tasks when the agent stops.
const END_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// Services that no task reaches.
    central: CentralServices,
    tasks: BTreeMap<TaskId, TaskRecord>,
    released: VecDeque<TaskId>,
    runners: JoinSet<()>,
    events: mpsc::Sender<TaskEvent>,
    inbox: mpsc::Receiver<TaskEvent>,
    /// Generation of the last entry of this link.
    observed: u64,
    messages: VecDeque<FromAgent>,
    /// The central node, for connections of users; `None` without a certificate.
    endpoint: Option<Endpoint>,
    shells: Shells,
}

struct TaskRecord {
    state: TaskNodeState,
    acked: watch::Sender<AckedOffsets<Stream>>,
    release: watch::Sender<bool>,
    has_runner: bool,
    /// Takes the one connection of the standard input.
    input: Option<mpsc::Sender<InputRequest>>,
}

impl Tasks {
    /// Opens the folder of tasks and kills tasks of an earlier agent. `cgroups` is the mount point
    /// of the control groups if the system has none.
    pub fn open(folder: &Path, cgroups: &Path, node: NodeId, central: CentralServices) -> Self {
        let (events, inbox) = mpsc::channel(QUEUE_LENGTH);
        let cgroups = Cgroups::open(node, cgroups);
        let mut tasks = Tasks {
            folder: folder.to_owned(),
            cgroups,
            central,
            tasks: BTreeMap::new(),
            released: VecDeque::new(),
            runners: JoinSet::new(),
            events,
            inbox,
            observed: 0,
            messages: VecDeque::new(),
            endpoint: None,
            shells: Shells::default(),
        };
        if let Ok(cgroups) = &tasks.cgroups {
            tasks.shells.end_leftovers(cgroups);
        }
        tasks.end_leftovers();
        tasks
    }

    /// Sets the keys for connections of users.
    pub fn set_endpoint(&mut self, endpoint: Endpoint) {
        self.endpoint = Some(endpoint);
    }

    /// Opens a shell for an administrator.
    pub fn open_shell(&mut self, order: ShellOrder) {
        let cgroups = self.cgroups.as_ref().map_err(Clone::clone);
        self.shells.open(order, ShellProgram::Root, self.endpoint.clone(), cgroups);
    }

    /// Opens a login at a guest for an administrator. `access` is what it needs.
    pub fn open_guest_shell(
        &mut self,
        order: GuestShellOrder,
        access: oneshot::Receiver<Result<GuestAccess, LoginFault>>,
    ) {
        let GuestShellOrder { user, forget_host_key, shell, .. } = order;
        let program = ShellProgram::Guest(GuestLogin { user, forget_host_key, access });
        let cgroups = self.cgroups.as_ref().map_err(Clone::clone);
        self.shells.open(shell, program, self.endpoint.clone(), cgroups);
    }

    /// Opens a program in a replica of a container for an administrator.
    pub fn open_replica_shell(
        &mut self,
        order: ShellOrder,
        exec: oneshot::Receiver<Result<ReplicaExec, LoginFault>>,
    ) {
        let cgroups = self.cgroups.as_ref().map_err(Clone::clone);
        self.shells.open(order, ShellProgram::Replica(exec), self.endpoint.clone(), cgroups);
    }

    /// Connects the standard input of a task. Without an answer, the central node gives up.
    pub fn connect_input(&mut self, InputOrder { console, task }: InputOrder) {
        let input = self.tasks.get(&task).and_then(|record| record.input.as_ref());
        let request = self.endpoint.clone().map(|endpoint| (endpoint, console));
        let sent = input.zip(request).map(|(input, request)| input.try_send(request).is_ok());
        if sent != Some(true) {
            tracing::warn!(%task, "cannot connect the standard input of a task");
        }
    }

    /// Applies the desired state of a task. `generation` is its number on the present link.
    pub fn apply(&mut self, generation: u64, TaskEntry { task, desired_state }: TaskEntry) {
        self.observed = generation;
        match desired_state {
            TaskDesiredState::Gone => match self.tasks.get(&task) {
                Some(record) if record.has_runner => {
                    record.release.send_replace(true);
                    self.report_all();
                }
                _ => self.release(task),
            },
            TaskDesiredState::Run(_) if self.tasks.contains_key(&task) => self.report_all(),
            // A late order for a task that was released.
            TaskDesiredState::Run(_) if self.released.contains(&task) => {
                self.report(TaskUpdate::Released { task });
            }
            TaskDesiredState::Run(run) => {
                let (acked, acked_receiver) = watch::channel(AckedOffsets::default());
                let (release, release_receiver) = watch::channel(false);
                let (input, requests) = mpsc::channel(1);
                let cgroup = self
                    .cgroups
                    .as_ref()
                    .map_err(Clone::clone)
                    .and_then(|groups| groups.create(task));
                let record = match cgroup {
                    Ok(cgroup) => {
                        let storage = storage(&self.folder, task);
                        let events = self.events.clone();
                        let runner = TaskRunner {
                            task,
                            run: *run,
                            user: None,
                            central: self.central,
                            cgroup,
                            storage,
                            events,
                            acked: acked_receiver,
                            release: release_receiver,
                            input: Some(requests),
                        };
                        self.runners.spawn(runner.run());
                        TaskRecord {
                            state: TaskNodeState::Starting,
                            acked,
                            release,
                            has_runner: true,
                            input: Some(input),
                        }
                    }
                    Err(detail) => TaskRecord::ended(TaskNodeState::Failed {
                        kind: TaskFault::CgroupMissing,
                        detail,
                    }),
                };
                self.tasks.insert(task, record);
                self.report_all();
            }
        }
    }

    /// Records that the central node stored a piece of output.
    pub fn output_stored(&mut self, OutputStored { task, stream, end }: OutputStored) {
        let Some(record) = self.tasks.get(&task) else { return };
        record.acked.send_modify(|acked| acked.acknowledge(stream, end));
    }

    /// Begins a new link: repeats all reports, and counts generations anew.
    pub fn begin_link(&mut self) {
        self.observed = 0;
        for message in &mut self.messages {
            if let FromAgent::Report(report) = message {
                report.observed = 0;
            }
        }
        self.report_all();
        for record in self.tasks.values() {
            record.acked.send_modify(AckedOffsets::rewind);
        }
    }

    /// Returns the number of tasks that are not released.
    pub fn count(&self) -> u32 {
        u32::try_from(self.tasks.len()).unwrap_or(u32::MAX)
    }

    /// Waits for the next message. Cancel-safe.
    pub async fn next(&mut self) -> FromAgent {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return message;
            }
            tokio::select! {
                // The channel never closes, because `self.events` is a sender.
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
            TaskEvent::Output(output) => self.messages.push_back(FromAgent::Output(output)),
            TaskEvent::Released(task) => self.release(task),
            TaskEvent::State(task, mut state) => {
                let Some(record) = self.tasks.get_mut(&task) else { return };
                if let TaskNodeState::Failed { detail, .. } = &mut state {
                    *detail = detail.chars().take(MAX_DETAIL).collect();
                }
                tracing::info!(%task, ?state, "task");
                record.state = state;
                self.report_all();
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
        self.report(TaskUpdate::Released { task });
    }

    fn report(&mut self, update: TaskUpdate) {
        let report = NodeReport { observed: self.observed, state: SectionReport::Tasks(update) };
        self.messages.push_back(FromAgent::Report(report));
    }

    fn report_all(&mut self) {
        let report = |(task, record): (&TaskId, &TaskRecord)| TaskReport {
            task: *task,
            state: record.state.clone(),
        };
        self.report(TaskUpdate::All {
            tasks: self.tasks.iter().take(MAX_TASKS).map(report).collect(),
        });
    }

    /// Ends all tasks without reports when the agent stops.
    pub async fn end(self) {
        let Tasks { mut runners, cgroups, tasks, inbox, folder, shells, .. } = self;
        drop(inbox);
        if let Ok(cgroups) = &cgroups {
            let all = async {
                shells.end(cgroups).await;
                for task in tasks.keys() {
                    cgroups.group(*task).kill_and_remove().await;
                    mounts::kill_processes(&storage(&folder, *task).shm()).await;
                }
            };
            // After a timeout the next agent ends the rest.
            let _ = timeout(END_TIMEOUT, all).await;
        }
        runners.shutdown().await;
    }
}

fn storage(folder: &Path, task: TaskId) -> Storage {
    Storage::new(folder.join(task.to_string()))
}

impl TaskRecord {
    fn ended(state: TaskNodeState) -> Self {
        TaskRecord {
            state,
            acked: watch::Sender::default(),
            release: watch::Sender::new(false),
            has_runner: false,
            input: None,
        }
    }
}

#[cfg(test)]
mod tests;
