//! Programs that a bench starts, with what they cost.

use super::cleanup;
use anyhow::Context as _;
use meshd_lab::{Namespace, ProcessId};
use std::{
    fs,
    path::Path,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Clock ticks a second in `/proc/PID/stat`, the same on every Linux.
const TICKS: f64 = 100.0;

/// Whether a program is there; where not, the row is skipped and says so.
pub fn installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    // Daemons are in sbin, which a user's PATH may lack.
    let folders = path.split(':').chain(["/usr/local/sbin", "/usr/sbin", "/sbin"]);
    folders.into_iter().any(|folder| Path::new(folder).join(program).is_file())
}

/// One program; ended when dropped.
pub struct Process {
    child: Child,
    id: Option<ProcessId>,
}

impl Process {
    /// Starts it in a namespace.
    pub fn start(namespace: &Namespace, command: &mut Command) -> anyhow::Result<Self> {
        let mut made = cleanup::made();
        let child = namespace.spawn(command)?;
        let id = ProcessId::of(child.id());
        made.processes.extend(id);
        Ok(Process { child, id })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if it has ended.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("look at a process")
    }

    /// Waits for its end.
    pub fn wait(mut self) -> anyhow::Result<ExitStatus> {
        self.child.wait().context("wait for a process")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        cleanup::made().processes.retain(|id| Some(*id) != self.id);
    }
}

/// The one server in its namespace: the process that was started and its children.
pub struct Server {
    process: Process,
    namespace: Namespace,
}

impl Server {
    /// Starts it and waits until `ready` says so.
    pub fn start(
        namespace: &Namespace,
        command: &mut Command,
        mut ready: impl FnMut() -> bool,
    ) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut server =
            Server { process: Process::start(namespace, command)?, namespace: namespace.clone() };
        let end = Instant::now() + PATIENCE;
        while !ready() {
            if let Some(status) = server.process.ended()? {
                anyhow::bail!("{program} ended at once: {status}");
            }
            anyhow::ensure!(Instant::now() < end, "{program} does not answer within {PATIENCE:?}");
            thread::park_timeout(LOOK);
        }
        Ok(server)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        // One that has ended already is as dead.
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
    }

    /// CPU time so far, user and system, of the server, its children, and its children that have
    /// ended.
    pub fn cpu(&self) -> Duration {
        self.namespace.processes().into_iter().map(cpu_of).sum()
    }

    /// Largest resident memory so far, in bytes, of the process that was started.
    pub fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
            * 1024
    }
}

/// CPU time so far, user and system, of a process and its children that have ended.
pub fn cpu_of(pid: u32) -> Duration {
    Duration::from_secs_f64(ticks(pid).unwrap_or(0) as f64 / TICKS)
}

fn ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold blanks: fields are counted from its last bracket. utime, stime,
    // cutime, cstime are 14 to 17.
    let (_, rest) = stat.rsplit_once(')')?;
    Some(
        rest.split_ascii_whitespace()
            .skip(11)
            .take(4)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum(),
    )
}

impl Drop for Server {
    fn drop(&mut self) {
        // Politely first: some servers only end their children so.
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let end = Instant::now() + PATIENCE;
        while matches!(self.process.ended(), Ok(None)) && Instant::now() < end {
            thread::park_timeout(LOOK);
        }
        cleanup::kill_inside(&self.namespace);
    }
}
