//! The QEMU process. It outlives the agent. A pidfd watches it, because process IDs are reused.

use rustix::{
    fd::{AsFd as _, OwnedFd},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
    },
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
};
use tokio::io::unix::AsyncFd;

/// OOM score: the kernel kills VMs before the agent.
const OOM_SCORE: &str = "500";

#[derive(Debug)]
pub struct WatchedProcess {
    pid: Pid,
    fd: AsyncFd<OwnedFd>,
}

/// Starts a program in its own process group, with output to `log`, on these CPUs.
pub fn spawn(
    program: &Path,
    args: &[String],
    log: &Path,
    cpus: Option<&[u32]>,
) -> io::Result<WatchedProcess> {
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(log)?;
    // Append mode: trimming the log must not leave a hole.
    let output = OpenOptions::new().append(true).open(log)?;
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    // A process inherits the CPU affinity of the thread that starts it.
    let own_affinity = match cpus.map(pin).transpose() {
        // All these CPUs belong to partitions of other VMs: run on other CPUs rather than not at
        // all.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            tracing::warn!(
                ?cpus,
                "all CPUs of a VM are dedicated to others; it runs on other CPUs"
            );
            None
        }
        pinned => pinned?,
    };
    let spawned = command.spawn();
    let restored =
        own_affinity.map(|affinity| sched_setaffinity(None, &affinity).map_err(io::Error::from));
    let mut child = spawned?;
    let watched = restored.transpose().and_then(|_| {
        if let Err(error) = fs::write(format!("/proc/{}/oom_score_adj", child.id()), OOM_SCORE) {
            tracing::warn!(%error, pid = child.id(), "cannot set the OOM score of a VM");
        }
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(io::ErrorKind::InvalidData)?;
        WatchedProcess::watch(pid)
    });
    if watched.is_err() {
        // An unwatched process would keep its devices.
        child.kill()?;
        child.wait()?;
    }
    watched
}

/// Binds this thread to CPUs and returns its former affinity.
fn pin(cpus: &[u32]) -> io::Result<CpuSet> {
    let former = sched_getaffinity(None)?;
    let mut set = CpuSet::new();
    for cpu in cpus
        .iter()
        .filter_map(|cpu| usize::try_from(*cpu).ok())
        .filter(|cpu| *cpu < CpuSet::MAX_CPU)
    {
        set.set(cpu);
    }
    sched_setaffinity(None, &set)?;
    Ok(former)
}

impl WatchedProcess {
    #[expect(
        deprecated,
        reason = "the replacement is unsafe; its precondition holds: the value owns the descriptor and never replaces it"
    )]
    pub fn watch(pid: Pid) -> io::Result<Self> {
        let fd = AsyncFd::new(pidfd_open(pid, PidfdFlags::NONBLOCK)?)?;
        Ok(WatchedProcess { pid, fd })
    }

    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits for the end. The exit status is left to [`Self::wait`].
    pub async fn until_end(&self) {
        if let Err(error) = self.fd.readable().await {
            tracing::warn!(pid = self.id(), %error, "cannot watch a process");
        }
    }

    /// Waits for the end and describes it. May be called again.
    pub async fn wait(&self) -> String {
        if let Err(error) = self.fd.readable().await {
            return format!("cannot be watched: {error}");
        }
        // Only the parent gets the exit status. Init is the parent of a QEMU that an earlier agent
        // started.
        let status =
            waitid(WaitId::PidFd(self.fd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        match status
            .ok()
            .flatten()
            .map(|status| (status.exit_status(), status.terminating_signal()))
        {
            Some((Some(code), _)) => format!("ended with exit code {code}"),
            Some((None, Some(signal))) => format!("was killed by signal {signal}"),
            _ => "ended".to_owned(),
        }
    }

    /// Sends a signal; ignores a process that ended.
    pub fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(self.fd.as_fd(), signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(pid = self.id(), ?signal, %error, "cannot send a signal");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::process::adoption::find;
    use std::time::Duration;

    async fn eventually<T>(condition: &str, check: impl Fn() -> Option<T>) -> T {
        let poll = async {
            let mut ticks = tokio::time::interval(Duration::from_millis(10));
            loop {
                ticks.tick().await;
                if let Some(value) = check() {
                    return value;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), poll)
            .await
            .unwrap_or_else(|_| panic!("timeout: {condition}"))
    }

    #[tokio::test]
    async fn process_is_found_by_its_pidfile_and_its_exit_is_described() {
        let dir = tempfile::tempdir().expect("a folder");
        let pidfile = dir.path().join("qemu.pid");
        assert!(find(&pidfile, None).is_none());
        let args = ["-c", "sleep 600; :", "-pidfile"].map(str::to_owned);
        let args: Vec<String> = args.into_iter().chain([pidfile.display().to_string()]).collect();
        let process =
            spawn(Path::new("/bin/sh"), &args, &dir.path().join("log"), None).expect("it runs");
        // A new process has no command line for a moment.
        let found = eventually("the process is found", || find(&pidfile, None)).await;
        let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", process.id()))
            .expect("Linux has it");
        assert_eq!(score.trim(), OOM_SCORE, "the kernel kills it before the agent");
        assert_eq!(found.id(), process.id());
        assert!(find(&dir.path().join("qemu"), None).is_none(), "another pidfile, another VM");
        // The shell alone is signalled; its own group goes with it.
        let group = Pid::from_raw(process.id()).expect("a process ID");
        rustix::process::kill_process_group(group, Signal::KILL).expect("its own group");
        assert_eq!(process.wait().await, "was killed by signal 9");
        assert_eq!(process.wait().await, "ended", "the exit status is read once");
        found.signal(Signal::KILL);
        assert_eq!(found.wait().await, "ended");
        // A child of the shell may have the command line of the shell for a moment.
        eventually("no process is found", || find(&pidfile, None).is_none().then_some(())).await;
    }

    #[tokio::test]
    async fn pinned_process_leaves_the_affinity_of_the_agent_unchanged() {
        let dir = tempfile::tempdir().expect("a folder");
        let before = sched_getaffinity(None).expect("known");
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).expect("an allowed CPU");
        let cpu = u32::try_from(cpu).expect("small");
        let log = dir.path().join("log");
        let args = ["Cpus_allowed_list".to_owned(), "/proc/self/status".to_owned()];
        let process = spawn(Path::new("/bin/grep"), &args, &log, Some(&[cpu])).expect("it runs");
        assert_eq!(process.wait().await, "ended with exit code 0");
        assert_eq!(
            fs::read_to_string(log).expect("the log"),
            format!("Cpus_allowed_list:\t{cpu}\n")
        );
        assert!(sched_getaffinity(None).expect("known") == before);
    }
}
