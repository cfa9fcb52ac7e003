//! Launch of an MPI program with MPICH's Hydra: `mpiexec` on the first node, a proxy on each node,
//! without SSH.

use super::{
    exit_code::exit_code,
    hydra_launch_parser,
    task_runner::{ProgramPipes, TaskError, TaskRunner},
};
use meshd_proto::task::{HydraLaunch, Stream, TaskFault, TaskNodeState};
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    time::Duration,
};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::Child,
    task::JoinSet,
    time::timeout,
};

/// Timeout of Hydra's launch commands.
const HYDRA_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of Hydra's launch commands: one line each for 4,096 nodes.
const MAX_HYDRA: u64 = 2 << 20;
/// Programs of Hydra.
const MPIEXEC: &str = "mpiexec.hydra";
const PROXY: &str = "hydra_pmi_proxy";

impl TaskRunner {
    /// Runs `mpiexec`, and the proxy of this node once its command is known.
    pub(super) async fn head(
        &self,
        hosts: &[Ipv4Addr],
        ranks: u16,
        forwarders: &mut JoinSet<()>,
    ) -> Result<u8, TaskError> {
        let head = hosts
            .first()
            .ok_or_else(|| TaskError(TaskFault::Prepare, "the task has no nodes".to_owned()))?;
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
        let argv: Vec<String> = [mpiexec]
            .into_iter()
            .chain(options.into_iter().flatten())
            .chain(self.run.argv.clone())
            .collect();
        let (writers, out) = self.pipes(forwarders)?;
        let mut child = self.spawn(&argv, &[], &writers)?;
        let mut out = BufReader::new(out);
        let commands = tokio::select! {
            commands = timeout(HYDRA_TIMEOUT, read_launch_commands(&mut out)) => commands.unwrap_or_else(|_| Err("timeout".to_owned())),
            status = child.wait() => Err(format!("exit code {}", exit_code(status?))),
        };
        let failed = |error| {
            TaskError(
                TaskFault::LaunchFailed,
                format!("{MPIEXEC} printed no launch commands: {error}"),
            )
        };
        let launch = hydra_launch_parser::parse(&commands.map_err(failed)?, hosts.len())
            .map_err(|error| TaskError(TaskFault::LaunchFailed, error.to_string()))?;
        // The rest of the buffer is output of the ranks.
        self.forward(Stream::Out, out, forwarders);
        let mut proxy =
            self.proxy(SocketAddrV4::new(*head, launch.port()), 0, &launch, &writers)?;
        drop(writers);
        self.report_state(TaskNodeState::Running { launch: Some(launch) }).await;
        let status = child.wait().await?;
        // The proxy ends with mpiexec. Wait for the proxy, so that no zombie remains.
        self.cgroup.kill_and_remove().await;
        proxy.wait().await?;
        Ok(exit_code(status))
    }

    pub(super) fn proxy(
        &self,
        control: SocketAddrV4,
        number: u32,
        launch: &HydraLaunch,
        pipes: &ProgramPipes,
    ) -> Result<Child, TaskError> {
        let mut argv = vec![self.find(PROXY)?, "--control-port".to_owned(), control.to_string()];
        argv.extend(launch.args());
        argv.extend(["--proxy-id".to_owned(), number.to_string()]);
        self.spawn(&argv, &[], pipes)
    }

    /// Finds a program of Hydra in PATH.
    fn find(&self, program: &str) -> Result<String, TaskError> {
        let path = self.run.env.get("PATH").map(String::as_str).unwrap_or_default();
        let found = path
            .split(':')
            .map(|folder| Path::new(folder).join(program))
            .find(|file| file.exists());
        let hint = "add the bundle `mpi` or MPICH to the profile, or use --launcher none";
        let missing =
            || TaskError(TaskFault::LauncherMissing, format!("{program} is not installed; {hint}"));
        let found = found.ok_or_else(missing)?;
        Ok(found.display().to_string())
    }
}

/// Reads Hydra's launch commands, which precede the output of the ranks.
async fn read_launch_commands(out: &mut (impl AsyncBufRead + Unpin)) -> Result<String, String> {
    let mut commands = String::new();
    loop {
        let mut line = Vec::new();
        let remaining = MAX_HYDRA.saturating_sub(commands.len() as u64);
        let read = out
            .take(remaining)
            .read_until(b'\n', &mut line)
            .await
            .map_err(|error| error.to_string())?;
        let line = String::from_utf8_lossy(&line);
        match (read, line.trim()) {
            (0, _) => return Err("the output is empty or too long".to_owned()),
            (_, hydra_launch_parser::END) => return Ok(commands),
            _ => commands.push_str(&line),
        }
    }
}
