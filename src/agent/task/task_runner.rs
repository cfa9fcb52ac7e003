//! Runs one task on this node, from its order until its release.

use super::{
    TaskEvent,
    cgroup::Cgroup,
    exit_code::exit_code,
    mounts,
    scratch_storage::Storage,
    task_enter::{self, TaskExec},
    task_input::{InputRequest, feed},
};
use crate::{
    link::acked_stream::{AckedOffsets, forward},
    networks::firewall::user::{CentralServices, UserFirewall},
    system::{keyrings, user_ids},
};
use meshd_proto::task::{
    Output, Stream, TaskFault, TaskNodeState, TaskRole, TaskRun, TaskUser, check_argv,
    check_mpi_argv,
};
use meshd_types::TaskId;
use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::OwnedFd,
    process::ExitStatus,
    time::Duration,
};
use tokio::{
    io::AsyncRead,
    net::unix::pipe::{Receiver, Sender},
    process::{Child, Command},
    sync::{mpsc, watch},
    task::{JoinSet, spawn_blocking},
    time::timeout,
};

/// Timeout for the acknowledgement of the last output of a killed task.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);

pub struct TaskRunner {
    pub task: TaskId,
    pub run: TaskRun,
    /// User and group ID of the processes, once assigned.
    pub user: Option<u32>,
    pub central: CentralServices,
    pub cgroup: Cgroup,
    pub storage: Storage,
    pub events: mpsc::Sender<TaskEvent>,
    pub acked: watch::Receiver<AckedOffsets<Stream>>,
    /// True once the task must be released.
    pub release: watch::Receiver<bool>,
    /// Requests to connect the standard input; the first one counts.
    pub input: Option<mpsc::Receiver<InputRequest>>,
}

/// The error of a task that does not run on this node.
pub(super) struct TaskError(pub(super) TaskFault, pub(super) String);

impl From<io::Error> for TaskError {
    fn from(error: io::Error) -> Self {
        TaskError(TaskFault::Prepare, error.to_string())
    }
}

impl TaskRunner {
    /// Runs the task to its end, then waits for its release.
    pub async fn run(mut self) {
        let mut forwarders = JoinSet::new();
        let mut release = self.release.clone();
        let mut input = None;
        let result = tokio::select! {
            result = self.execute(&mut forwarders, &mut input) => Some(result),
            _ = wait_for_release(&mut release) => None,
        };
        // Background processes of the program end with the task.
        self.cgroup.kill_and_remove().await;
        // Not earlier: a program would take input that broke off for all of it.
        drop(input);
        mounts::kill_processes(&self.storage.shm()).await;
        clear_keys(self.user).await;
        if let Some(result) = result {
            let state = match result {
                Ok(code) => TaskNodeState::Exited { code },
                Err(TaskError(kind, detail)) => TaskNodeState::Failed { kind, detail },
            };
            tokio::select! {
                () = wait_for_all(&mut forwarders) => self.report_state(state).await,
                _ = wait_for_release(&mut release) => {}
            }
        }
        if !wait_for_release(&mut release).await {
            return;
        }
        let _ = timeout(LAST_OUTPUT_TIMEOUT, wait_for_all(&mut forwarders)).await;
        remove_storage(self.storage.clone()).await;
        let _ = self.events.send(TaskEvent::Released(self.task)).await;
    }

    pub(super) async fn report_state(&self, state: TaskNodeState) {
        // An error means that the agent stops.
        let _ = self.events.send(TaskEvent::State(self.task, state)).await;
    }

    /// Starts the processes of this node and waits for them. Returns the exit code.
    async fn execute(
        &mut self,
        forwarders: &mut JoinSet<()>,
        input: &mut Option<Sender>,
    ) -> Result<u8, TaskError> {
        let checked = match self.run.role {
            TaskRole::Ranks { .. } => check_argv(&self.run.argv),
            TaskRole::Head { .. } | TaskRole::Proxy { .. } => check_mpi_argv(&self.run.argv),
        };
        checked.map_err(|error| TaskError(TaskFault::Prepare, error.to_string()))?;
        let failed = |error| {
            TaskError(TaskFault::Prepare, format!("cannot create the files of the task: {error}"))
        };
        let uid = self.assign_user().await.map_err(|error| TaskError(TaskFault::Prepare, error))?;
        self.user = Some(uid);
        self.storage.create(uid).map_err(failed)?;
        match self.run.role.clone() {
            TaskRole::Ranks { count, first } => {
                let requests = self.input.take().filter(|_| self.run.has_input);
                self.ranks(count, first, forwarders, requests.map(|from| (from, input))).await
            }
            TaskRole::Head { hosts, ranks_per_node } => {
                self.head(&hosts, ranks_per_node, forwarders).await
            }
            TaskRole::Proxy { control, proxy, launch } => {
                let (writers, out) = self.pipes(forwarders)?;
                self.forward(Stream::Out, out, forwarders);
                let mut child = self.proxy(control, proxy, &launch, &writers)?;
                drop(writers);
                self.report_state(TaskNodeState::Running { launch: None }).await;
                Ok(exit_code(child.wait().await?))
            }
        }
    }

    /// Returns the user of the task's processes, installs their firewall, and clears the keyrings
    /// of the user. Root has the network of the node.
    async fn assign_user(&self) -> Result<u32, String> {
        let user = self.run.user;
        let central = self.central;
        let task = self.task;
        let assign = move || {
            let uid = match user {
                TaskUser::Root => return Ok(0),
                TaskUser::Uid(uid) if user_ids::is_assigned(uid) => {
                    return Err(format!(
                        "invalid user {uid}: the node assigns it to VMs and tasks"
                    ));
                }
                TaskUser::Uid(uid) => uid,
                TaskUser::Default => user_ids::of_task(task),
            };
            UserFirewall::of_tasks(central).ensure()?;
            // An earlier task of the user may have made its keyring unclearable.
            keyrings::clear_of(uid).map(|()| uid)
        };
        spawn_blocking(assign).await.map_err(|error| error.to_string())?
    }

    pub(super) fn spawn(
        &self,
        argv: &[String],
        env: &[(&str, String)],
        pipes: &ProgramPipes,
    ) -> Result<Child, TaskError> {
        let uid = self
            .user
            .ok_or_else(|| TaskError(TaskFault::Prepare, "the task has no user".to_owned()))?;
        let procs = self.cgroup.procs();
        let dir = self.storage.work();
        let home = dir.display().to_string();
        let mut command =
            task_enter::command(&TaskExec { procs, uid, dir, shm: self.storage.shm() }, argv);
        command.envs(&self.run.env).envs([("HOME", &home), ("TMPDIR", &home)]);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        if let Some(input) = &pipes.input {
            command.stdin(input.try_clone()?);
        }
        command.stdout(pipes.out.try_clone()?).stderr(pipes.err.try_clone()?);
        Ok(Command::from(command).spawn()?)
    }

    /// Creates the output pipes of all processes on this node. Forwarding ends with the last
    /// writer.
    pub(super) fn pipes(
        &self,
        forwarders: &mut JoinSet<()>,
    ) -> Result<(ProgramPipes, Receiver), TaskError> {
        let out = std::io::pipe()?;
        let err = std::io::pipe()?;
        self.forward(Stream::Err, reader(err.0)?, forwarders);
        Ok((ProgramPipes { input: None, out: out.1, err: err.1 }, reader(out.0)?))
    }

    pub(super) fn forward(
        &self,
        stream: Stream,
        from: impl AsyncRead + Unpin + Send + 'static,
        forwarders: &mut JoinSet<()>,
    ) {
        let task = self.task;
        let message = move |at, data| TaskEvent::Output(Output { task, stream, at, data });
        forwarders.spawn(forward(stream, from, self.events.clone(), self.acked.clone(), message));
    }

    /// Runs the program once per rank. The first failure ends the task. The input of the program
    /// stays open unless it is complete.
    async fn ranks(
        &self,
        count: u16,
        first: u32,
        forwarders: &mut JoinSet<()>,
        mut input: Option<(mpsc::Receiver<InputRequest>, &mut Option<Sender>)>,
    ) -> Result<u8, TaskError> {
        let (mut pipes, out) = self.pipes(forwarders)?;
        self.forward(Stream::Out, out, forwarders);
        if let Some((_, open)) = &mut input {
            let (reader, writer) = std::io::pipe()?;
            pipes.input = Some(reader);
            **open = Some(Sender::from_owned_fd(OwnedFd::from(writer))?);
        }
        let mut children = JoinSet::new();
        for local in 0..u32::from(count) {
            let env = [
                ("MESHD_RANK", (first + local).to_string()),
                ("MESHD_LOCAL_RANK", local.to_string()),
            ];
            let mut child = self.spawn(&self.run.argv, &env, &pipes)?;
            children.spawn(async move { child.wait().await });
        }
        drop(pipes);
        self.report_state(TaskNodeState::Running { launch: None }).await;
        let feeding = async {
            match input {
                Some((requests, open)) => feed(requests, open).await,
                None => Ok(()),
            }
        };
        tokio::select! {
            code = first_failure(&mut children) => code,
            Err(reason) = feeding => Err(TaskError(TaskFault::InputLost, reason)),
        }
    }
}

/// Waits for all processes; returns the exit code of the first that fails, else 0.
async fn first_failure(children: &mut JoinSet<io::Result<ExitStatus>>) -> Result<u8, TaskError> {
    while let Some(ended) = children.join_next().await {
        let ended = ended.map_err(|error| TaskError(TaskFault::Prepare, error.to_string()))??;
        if exit_code(ended) != 0 {
            return Ok(exit_code(ended));
        }
    }
    Ok(0)
}

/// The ends of the pipes that the programs of a task have.
pub(super) struct ProgramPipes {
    input: Option<PipeReader>,
    out: PipeWriter,
    err: PipeWriter,
}

fn reader(pipe: PipeReader) -> io::Result<Receiver> {
    Receiver::from_owned_fd(OwnedFd::from(pipe))
}

/// Waits for the release; returns false if the agent stops.
pub(super) async fn wait_for_release(release: &mut watch::Receiver<bool>) -> bool {
    release.wait_for(|release| *release).await.is_ok()
}

async fn wait_for_all(forwarders: &mut JoinSet<()>) {
    while forwarders.join_next().await.is_some() {}
}

/// Removes the keys that the user of a task left in the kernel.
async fn clear_keys(user: Option<u32>) {
    let cleared = spawn_blocking(move || user.map_or(Ok(()), keyrings::clear_of)).await;
    if let Err(error) = cleared.map_err(|error| error.to_string()).and_then(|cleared| cleared) {
        tracing::error!(error, "cannot remove the keys of a task");
    }
}

/// Removes the files of a task in a thread: the thread of the link must not block.
pub(super) async fn remove_storage(storage: Storage) {
    let removed = spawn_blocking(move || storage.remove()).await;
    if let Err(error) = removed.map_err(io::Error::other).and_then(|removed| removed) {
        tracing::error!(%error, "cannot remove the files of a task");
    }
}
