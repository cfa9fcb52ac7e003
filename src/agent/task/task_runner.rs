//! Runs one task on this node, from its order until its release.

use super::{
    TaskEvent,
    cgroup::Cgroup,
    hydra_launch_parser, mounts,
    scratch_storage::Storage,
    task_enter::{self, TaskExec},
};
use crate::link::forward::{AckedOffsets, forward};
use meshd_proto::task::{
    HydraLaunch, Output, Stream, TaskFault, TaskNodeState, TaskRole, TaskRun, check_argv, check_mpi_argv,
};
use meshd_types::TaskId;
use std::{
    io::{self, PipeReader, PipeWriter},
    net::{Ipv4Addr, SocketAddrV4},
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    path::Path,
    process::ExitStatus,
    time::Duration,
};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader},
    net::unix::pipe::Receiver,
    process::{Child, Command},
    sync::{mpsc, watch},
    task::{JoinSet, spawn_blocking},
    time::timeout,
};

/// Timeout for the acknowledgement of the last output of a killed task.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of Hydra's launch commands.
const HYDRA_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of Hydra's launch commands: one line each for 4,096 nodes.
const MAX_HYDRA: u64 = 2 << 20;
/// Programs of Hydra.
const MPIEXEC: &str = "mpiexec.hydra";
const PROXY: &str = "hydra_pmi_proxy";

pub struct TaskRunner {
    pub task: TaskId,
    pub run: TaskRun,
    pub cgroup: Cgroup,
    pub storage: Storage,
    pub events: mpsc::Sender<TaskEvent>,
    pub acked: watch::Receiver<AckedOffsets<Stream>>,
    /// True once the task must be released.
    pub release: watch::Receiver<bool>,
}

/// The error of a task that does not run on this node.
struct TaskError(TaskFault, String);

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
        let result = tokio::select! {
            result = self.execute(&mut forwarders) => Some(result),
            _ = wait_for_release(&mut release) => None,
        };
        // Background processes of the program end with the task.
        self.cgroup.kill_and_remove().await;
        mounts::kill_processes(&self.storage.shm()).await;
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

    async fn report_state(&self, state: TaskNodeState) {
        // An error means that the agent stops.
        let _ = self.events.send(TaskEvent::State(self.task, state)).await;
    }

    /// Starts the processes of this node and waits for them. Returns the exit code.
    async fn execute(&mut self, forwarders: &mut JoinSet<()>) -> Result<u8, TaskError> {
        let checked = match self.run.role {
            TaskRole::Ranks { .. } => check_argv(&self.run.argv),
            TaskRole::Head { .. } | TaskRole::Proxy { .. } => check_mpi_argv(&self.run.argv),
        };
        checked.map_err(|error| TaskError(TaskFault::Prepare, error.to_owned()))?;
        let failed = |error| TaskError(TaskFault::Prepare, format!("cannot create the files of the task: {error}"));
        self.storage.create(self.run.user.uid()).map_err(failed)?;
        match self.run.role.clone() {
            TaskRole::Ranks { count, first } => self.ranks(count, first, forwarders).await,
            TaskRole::Head { hosts, ranks_per_node } => self.head(&hosts, ranks_per_node, forwarders).await,
            TaskRole::Proxy { control, proxy, launch } => {
                let (writers, out) = self.pipes(forwarders)?;
                self.forward(Stream::Out, out, forwarders);
                let mut child = self.proxy(control, proxy, &launch, &writers)?;
                drop(writers);
                self.report_state(TaskNodeState::Running { launch: None }).await;
                Ok(code(child.wait().await?))
            }
        }
    }

    fn spawn(&self, argv: &[String], env: &[(&str, String)], pipes: &Writers) -> Result<Child, TaskError> {
        let (procs, uid, dir) = (self.cgroup.procs(), self.run.user.uid(), self.storage.work());
        let mut command =
            task_enter::command(&TaskExec { procs, uid, dir: dir.clone(), shm: self.storage.shm() }, argv);
        let dir = dir.display().to_string();
        command.envs(&self.run.env).envs([("HOME", &dir), ("TMPDIR", &dir)]);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.stdout(pipes.out.try_clone()?).stderr(pipes.err.try_clone()?);
        Ok(Command::from(command).spawn()?)
    }

    /// Creates the output pipes of all processes on this node. Forwarding ends with the last writer.
    fn pipes(&self, forwarders: &mut JoinSet<()>) -> Result<(Writers, Receiver), TaskError> {
        let (out, err) = (std::io::pipe()?, std::io::pipe()?);
        self.forward(Stream::Err, reader(err.0)?, forwarders);
        Ok((Writers { out: out.1, err: err.1 }, reader(out.0)?))
    }

    fn forward(&self, stream: Stream, from: impl AsyncRead + Unpin + Send + 'static, forwarders: &mut JoinSet<()>) {
        let task = self.task;
        let message = move |at, data| TaskEvent::Output(Output { task, stream, at, data });
        forwarders.spawn(forward(stream, from, self.events.clone(), self.acked.clone(), message));
    }

    /// Runs the program once per rank. The first failure ends the task.
    async fn ranks(&self, count: u16, first: u32, forwarders: &mut JoinSet<()>) -> Result<u8, TaskError> {
        let (writers, out) = self.pipes(forwarders)?;
        self.forward(Stream::Out, out, forwarders);
        let mut children = JoinSet::new();
        for local in 0..u32::from(count) {
            let env = [("MESHD_RANK", (first + local).to_string()), ("MESHD_LOCAL_RANK", local.to_string())];
            let mut child = self.spawn(&self.run.argv, &env, &writers)?;
            children.spawn(async move { child.wait().await });
        }
        drop(writers);
        self.report_state(TaskNodeState::Running { launch: None }).await;
        while let Some(ended) = children.join_next().await {
            let ended = ended.map_err(|error| TaskError(TaskFault::Prepare, error.to_string()))??;
            if code(ended) != 0 {
                return Ok(code(ended));
            }
        }
        Ok(0)
    }

    /// Runs `mpiexec`, and the proxy of this node once its command is known.
    async fn head(&self, hosts: &[Ipv4Addr], ranks: u16, forwarders: &mut JoinSet<()>) -> Result<u8, TaskError> {
        let head = hosts.first().ok_or_else(|| TaskError(TaskFault::Prepare, "the task has no nodes".to_owned()))?;
        let (mpiexec, _) = (self.find(MPIEXEC)?, self.find(PROXY)?);
        let names: Vec<String> = hosts.iter().map(Ipv4Addr::to_string).collect();
        let count = hosts.len() * usize::from(ranks);
        let options = [
            ["-launcher", "manual"].map(str::to_owned),
            ["-localhost".to_owned(), head.to_string()],
            ["-wdir".to_owned(), self.storage.work().display().to_string()],
            ["-hosts".to_owned(), names.join(",")],
            ["-ppn".to_owned(), ranks.to_string()],
            ["-n".to_owned(), count.to_string()],
        ];
        let argv: Vec<String> =
            [mpiexec].into_iter().chain(options.into_iter().flatten()).chain(self.run.argv.clone()).collect();
        let (writers, out) = self.pipes(forwarders)?;
        let mut child = self.spawn(&argv, &[], &writers)?;
        let mut out = BufReader::new(out);
        let commands = tokio::select! {
            commands = timeout(HYDRA_TIMEOUT, read_launch_commands(&mut out)) => commands.unwrap_or_else(|_| Err("timeout".to_owned())),
            status = child.wait() => Err(format!("exit code {}", code(status?))),
        };
        let failed =
            |error| TaskError(TaskFault::LaunchFailed, format!("{MPIEXEC} printed no launch commands: {error}"));
        let launch = hydra_launch_parser::parse(&commands.map_err(failed)?, hosts.len())
            .map_err(|error| TaskError(TaskFault::LaunchFailed, error.to_string()))?;
        // The rest of the buffer is output of the ranks.
        self.forward(Stream::Out, out, forwarders);
        let mut proxy = self.proxy(SocketAddrV4::new(*head, launch.port()), 0, &launch, &writers)?;
        drop(writers);
        self.report_state(TaskNodeState::Running { launch: Some(launch) }).await;
        let status = child.wait().await?;
        // The proxy ends with mpiexec. Wait for the proxy, so that no zombie remains.
        self.cgroup.kill_and_remove().await;
        proxy.wait().await?;
        Ok(code(status))
    }

    fn proxy(
        &self,
        control: SocketAddrV4,
        number: u32,
        launch: &HydraLaunch,
        pipes: &Writers,
    ) -> Result<Child, TaskError> {
        let mut argv = vec![self.find(PROXY)?, "--control-port".to_owned(), control.to_string()];
        argv.extend(launch.args());
        argv.extend(["--proxy-id".to_owned(), number.to_string()]);
        self.spawn(&argv, &[], pipes)
    }

    /// Finds a program of Hydra in PATH.
    fn find(&self, program: &str) -> Result<String, TaskError> {
        let path = self.run.env.get("PATH").map(String::as_str).unwrap_or_default();
        let found = path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.exists());
        let missing = || {
            let detail = format!(
                "{program} is not installed; add the bundle `mpi` or MPICH to the profile, or use --launcher none"
            );
            TaskError(TaskFault::LauncherMissing, detail)
        };
        Ok(found.ok_or_else(missing)?.display().to_string())
    }
}

struct Writers {
    out: PipeWriter,
    err: PipeWriter,
}

fn reader(pipe: PipeReader) -> io::Result<Receiver> {
    Receiver::from_owned_fd(OwnedFd::from(pipe))
}

/// Reads Hydra's launch commands, which precede the output of the ranks.
async fn read_launch_commands(out: &mut (impl AsyncBufRead + Unpin)) -> Result<String, String> {
    let mut commands = String::new();
    loop {
        let mut line = Vec::new();
        let remaining = MAX_HYDRA.saturating_sub(commands.len() as u64);
        let read = out.take(remaining).read_until(b'\n', &mut line).await.map_err(|error| error.to_string())?;
        let line = String::from_utf8_lossy(&line);
        match (read, line.trim()) {
            (0, _) => return Err("the output is empty or too long".to_owned()),
            (_, hydra_launch_parser::END) => return Ok(commands),
            _ => commands.push_str(&line),
        }
    }
}

/// Exit code as in shells: 128 plus the signal number after a signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255);
    u8::try_from(code).unwrap_or(255)
}

/// Waits for the release; returns false if the agent stops.
async fn wait_for_release(release: &mut watch::Receiver<bool>) -> bool {
    release.wait_for(|release| *release).await.is_ok()
}

async fn wait_for_all(forwarders: &mut JoinSet<()>) {
    while forwarders.join_next().await.is_some() {}
}

/// Removes the files of a task in a thread: the thread of the link must not block.
pub(super) async fn remove_storage(storage: Storage) {
    let removed = spawn_blocking(move || storage.remove()).await;
    if let Err(error) = removed.map_err(io::Error::other).and_then(|removed| removed) {
        tracing::error!(%error, "cannot remove the files of a task");
    }
}
