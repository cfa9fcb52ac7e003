//! Runs one task on this node, from its order until nothing of it is left.

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
    path::{Path, PathBuf},
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
/// Maximum bytes of Hydra's launch commands: a line for each of 4,096 nodes.
const MAX_HYDRA: u64 = 2 << 20;
/// Programs of Hydra.
const MPIEXEC: &str = "mpiexec.hydra";
const PROXY: &str = "hydra_pmi_proxy";

/// Input of a runner.
pub struct TaskRunner {
    pub task: TaskId,
    pub run: TaskRun,
    pub cgroup: Cgroup,
    /// Folder of the task, which does not exist yet.
    pub folder: PathBuf,
    pub events: mpsc::Sender<TaskEvent>,
    pub acked: watch::Receiver<AckedOffsets<Stream>>,
    /// True once the task must be released.
    pub gone: watch::Receiver<bool>,
}

/// Why a task does not run on this node.
struct Fault(TaskFault, String);

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault(TaskFault::Prepare, error.to_string())
    }
}

impl TaskRunner {
    /// Runs the task to its end, then waits for its release.
    pub async fn run(mut self) {
        let mut forwarders = JoinSet::new();
        let mut gone = self.gone.clone();
        let ended = tokio::select! {
            ended = self.attempt(&mut forwarders) => Some(ended),
            _ = is_gone(&mut gone) => None,
        };
        // Background processes of the program end with the task.
        self.cgroup.end().await;
        mounts::end(&shm(&self.folder)).await;
        if let Some(ended) = ended {
            let state = match ended {
                Ok(code) => TaskNodeState::Exited { code },
                Err(Fault(kind, detail)) => TaskNodeState::Failed { kind, detail },
            };
            tokio::select! {
                () = joined(&mut forwarders) => self.report_state(state).await,
                _ = is_gone(&mut gone) => {}
            }
        }
        // An agent that stops reports nothing more.
        if !is_gone(&mut gone).await {
            return;
        }
        let _ = timeout(LAST_OUTPUT_TIMEOUT, joined(&mut forwarders)).await;
        remove_files(self.folder.clone()).await;
        let _ = self.events.send(TaskEvent::Released(self.task)).await;
    }

    async fn report_state(&self, state: TaskNodeState) {
        // The receiver is gone: the agent stops.
        let _ = self.events.send(TaskEvent::State(self.task, state)).await;
    }

    /// Starts the processes of this node and waits for them. Returns the exit code.
    async fn attempt(&mut self, forwarders: &mut JoinSet<()>) -> Result<u8, Fault> {
        let checked = match self.run.role {
            TaskRole::Ranks { .. } => check_argv(&self.run.argv),
            TaskRole::Head { .. } | TaskRole::Proxy { .. } => check_mpi_argv(&self.run.argv),
        };
        checked.map_err(|wrong| Fault(TaskFault::Prepare, wrong.to_owned()))?;
        self.prepare()?;
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

    /// Makes folders for the user of the task.
    fn prepare(&self) -> Result<(), Fault> {
        let failed = |error| Fault(TaskFault::Prepare, format!("cannot make the files of the task: {error}"));
        Storage::new(&self.folder).make(self.run.user.uid()).map_err(failed)
    }

    fn work_folder(&self) -> PathBuf {
        Storage::new(&self.folder).work()
    }

    /// Starts a process of the task.
    fn spawn(&self, argv: &[String], env: &[(&str, String)], pipes: &Writers) -> Result<Child, Fault> {
        let (procs, uid, dir) = (self.cgroup.procs(), self.run.user.uid(), self.work_folder());
        let mut command = task_enter::command(&TaskExec { procs, uid, dir: dir.clone(), shm: shm(&self.folder) }, argv);
        let dir = dir.display().to_string();
        command.envs(&self.run.env).envs([("HOME", &dir), ("TMPDIR", &dir)]);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.stdout(pipes.out.try_clone()?).stderr(pipes.err.try_clone()?);
        Ok(Command::from(command).spawn()?)
    }

    /// Output pipes of all processes on this node. Forwarding ends with the last writer.
    fn pipes(&self, forwarders: &mut JoinSet<()>) -> Result<(Writers, Receiver), Fault> {
        let (out, err) = (std::io::pipe()?, std::io::pipe()?);
        self.forward(Stream::Err, reader(err.0)?, forwarders);
        Ok((Writers { out: out.1, err: err.1 }, reader(out.0)?))
    }

    /// Forwards one stream of the output.
    fn forward(&self, stream: Stream, from: impl AsyncRead + Unpin + Send + 'static, forwarders: &mut JoinSet<()>) {
        let task = self.task;
        let message = move |at, data| TaskEvent::Output(Output { task, stream, at, data });
        forwarders.spawn(forward(stream, from, self.events.clone(), self.acked.clone(), message));
    }

    /// Runs the program once per rank. The first failure ends all.
    async fn ranks(&self, count: u16, first: u32, forwarders: &mut JoinSet<()>) -> Result<u8, Fault> {
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
            let ended = ended.map_err(|error| Fault(TaskFault::Prepare, error.to_string()))??;
            if code(ended) != 0 {
                return Ok(code(ended));
            }
        }
        Ok(0)
    }

    /// Runs `mpiexec`, and the proxy of this node once its command is known.
    async fn head(&self, hosts: &[Ipv4Addr], ranks: u16, forwarders: &mut JoinSet<()>) -> Result<u8, Fault> {
        let own = hosts.first().ok_or_else(|| Fault(TaskFault::Prepare, "a task without nodes".to_owned()))?;
        let (mpiexec, _) = (self.find(MPIEXEC)?, self.find(PROXY)?);
        let names: Vec<String> = hosts.iter().map(Ipv4Addr::to_string).collect();
        let count = hosts.len() * usize::from(ranks);
        let options = [
            ["-launcher", "manual"].map(str::to_owned),
            ["-localhost".to_owned(), own.to_string()],
            ["-wdir".to_owned(), self.work_folder().display().to_string()],
            ["-hosts".to_owned(), names.join(",")],
            ["-ppn".to_owned(), ranks.to_string()],
            ["-n".to_owned(), count.to_string()],
        ];
        let argv: Vec<String> =
            [mpiexec].into_iter().chain(options.into_iter().flatten()).chain(self.run.argv.clone()).collect();
        let (writers, out) = self.pipes(forwarders)?;
        let mut child = self.spawn(&argv, &[], &writers)?;
        let mut out = BufReader::new(out);
        let said = tokio::select! {
            said = timeout(HYDRA_TIMEOUT, preamble(&mut out)) => said.unwrap_or_else(|_| Err("it said nothing".to_owned())),
            ended = child.wait() => Err(format!("it ended with exit code {}", code(ended?))),
        };
        let fault = |why| Fault(TaskFault::LaunchFailed, format!("{MPIEXEC} did not say how to launch: {why}"));
        let said = said.map_err(fault)?;
        let launch = hydra_launch_parser::launch(&said, hosts.len())
            .map_err(|error| Fault(TaskFault::LaunchFailed, error.to_string()))?;
        // The rest of the buffer is output of the ranks.
        self.forward(Stream::Out, out, forwarders);
        let mut proxy = self.proxy(SocketAddrV4::new(*own, launch.port()), 0, &launch, &writers)?;
        drop(writers);
        self.report_state(TaskNodeState::Running { launch: Some(launch) }).await;
        let ended = child.wait().await?;
        // The proxy ends with its head. Wait for it, so that no zombie end_remains.
        self.cgroup.end().await;
        proxy.wait().await?;
        Ok(code(ended))
    }

    fn proxy(&self, control: SocketAddrV4, number: u32, launch: &HydraLaunch, pipes: &Writers) -> Result<Child, Fault> {
        let mut argv = vec![self.find(PROXY)?, "--control-port".to_owned(), control.to_string()];
        argv.extend(launch.args());
        argv.extend(["--proxy-id".to_owned(), number.to_string()]);
        self.spawn(&argv, &[], pipes)
    }

    /// Finds a program of Hydra.
    fn find(&self, program: &str) -> Result<String, Fault> {
        let path = self.run.env.get("PATH").map(String::as_str).unwrap_or_default();
        let found = path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.exists());
        let missing = || {
            let detail =
                format!("there is no {program}; give the profile the bundle `mpi`, or MPICH, or use --launcher none");
            Fault(TaskFault::LauncherMissing, detail)
        };
        Ok(found.ok_or_else(missing)?.display().to_string())
    }
}

/// Writing ends of the pipes.
struct Writers {
    out: PipeWriter,
    err: PipeWriter,
}

fn reader(pipe: PipeReader) -> io::Result<Receiver> {
    Receiver::from_owned_fd(OwnedFd::from(pipe))
}

/// Reads Hydra's launch commands, which come before the output of the ranks.
async fn preamble(out: &mut (impl AsyncBufRead + Unpin)) -> Result<String, String> {
    let mut said = String::new();
    loop {
        let mut line = Vec::new();
        let room = MAX_HYDRA.saturating_sub(said.len() as u64);
        let read = out.take(room).read_until(b'\n', &mut line).await.map_err(|error| error.to_string())?;
        let line = String::from_utf8_lossy(&line);
        match (read, line.trim()) {
            (0, _) => return Err("it said too much, or nothing".to_owned()),
            (_, hydra_launch_parser::END) => return Ok(said),
            _ => said.push_str(&line),
        }
    }
}

/// Exit code as in shells: 128 plus the signal number after a signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255);
    u8::try_from(code).unwrap_or(255)
}

/// Waits for the release; returns false if the agent stops.
async fn is_gone(gone: &mut watch::Receiver<bool>) -> bool {
    gone.wait_for(|gone| *gone).await.is_ok()
}

async fn joined(forwarders: &mut JoinSet<()>) {
    while forwarders.join_next().await.is_some() {}
}

/// Folder of shared memory of a task.
pub(super) fn shm(folder: &Path) -> PathBuf {
    Storage::new(folder).shm()
}

/// Removes the files of a task in a thread: the agent has one thread and must not block.
pub(super) async fn remove_files(folder: PathBuf) {
    let place = folder.clone();
    let removed = spawn_blocking(move || Storage::new(&place).remove()).await;
    if let Err(error) = removed.map_err(io::Error::other).and_then(|removed| removed) {
        tracing::error!(%error, folder = %folder.display(), "the folder of a task stays");
    }
}
