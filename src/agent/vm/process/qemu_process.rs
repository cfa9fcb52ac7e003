//! QEMU as a process that outlives the agent: a later agent finds it by its command line. A pidfd watches it, because process IDs are
//! reused.

use rustix::{
    fd::{AsFd as _, OwnedFd},
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::{
        fs::{MetadataExt as _, OpenOptionsExt as _},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
};
use tokio::io::unix::AsyncFd;

/// Maximum bytes of a command line that are read.
const MAX_COMMAND_LINE: usize = 256 * 1024;
/// OOM score: the kernel kills VMs before the agent.
const OOM_SCORE: &str = "500";

/// A process that a pidfd watches.
#[derive(Debug)]
pub struct WatchedProcess {
    pid: Pid,
    fd: AsyncFd<OwnedFd>,
}

/// Starts a program in its own process group, with output to `log`, on these CPUs.
///
/// # Errors
/// The program cannot be started.
pub fn spawn(program: &Path, args: &[String], log: &Path, cpus: Option<&[u32]>) -> io::Result<WatchedProcess> {
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(log)?;
    // Append mode: trimming the log must not leave a hole.
    let words = OpenOptions::new().append(true).open(log)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words).process_group(0);
    // A process inherits the CPU affinity of the thread that starts it.
    let before = match cpus.map(pin).transpose() {
        // All these CPUs belong to partitions of other VMs: run on other CPUs rather than not at all.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            tracing::warn!(?cpus, "no processor that a machine is bound to is free; it runs on others");
            None
        }
        pinned => pinned?,
    };
    let spawned = command.spawn();
    let before = before.map(|before| sched_setaffinity(None, &before).map_err(io::Error::from));
    let mut child = spawned?;
    let watched = before.transpose().and_then(|_| {
        if let Err(error) = fs::write(format!("/proc/{}/oom_score_adj", child.id()), OOM_SCORE) {
            tracing::warn!(%error, pid = child.id(), "the kernel may end others before this machine");
        }
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        WatchedProcess::watch(pid)
    });
    if watched.is_err() {
        // An unwatched process would keep its devices.
        child.kill()?;
        child.wait()?;
    }
    // [`WatchedProcess::ended`] waits for it, also for one that an earlier agent started.
    watched
}

/// Binds this thread to CPUs and returns its former affinity.
fn pin(cpus: &[u32]) -> io::Result<CpuSet> {
    let before = sched_getaffinity(None)?;
    let mut wanted = CpuSet::new();
    for cpu in cpus.iter().filter_map(|cpu| usize::try_from(*cpu).ok()).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        wanted.set(cpu);
    }
    sched_setaffinity(None, &wanted)?;
    Ok(before)
}

/// Finds the QEMU with this pidfile. It belongs to `user`, or to root until it drops its privileges.
pub fn find(pidfile: &Path, user: Option<u32>) -> Option<WatchedProcess> {
    find_by("-pidfile", pidfile.as_os_str().as_encoded_bytes(), user)
}

/// Finds a process of a user or of root by an option and its value.
pub fn find_by(option: &str, value: &[u8], user: Option<u32>) -> Option<WatchedProcess> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Pid::from_raw);
    // A process can change its command line, so the user must match.
    let ours = |pid: Pid| is_of(pid, user) && has_option(pid, option, value);
    // Check again with the pidfd open: the ID may have been reused.
    pids.filter(|pid| ours(*pid)).filter_map(|pid| WatchedProcess::watch(pid).ok()).find(|process| ours(process.pid))
}

fn is_of(pid: Pid, user: Option<u32>) -> bool {
    let found = fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).map(|found| found.uid());
    found.is_ok_and(|found| found == 0 || Some(found) == user)
}

/// A zombie has no command line and does not match.
fn has_option(pid: Pid, option: &str, value: &[u8]) -> bool {
    let Ok(line) = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())) else { return false };
    let line = &line[..line.len().min(MAX_COMMAND_LINE)];
    let args: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    args.windows(2).any(|pair| pair == [option.as_bytes(), value])
}

impl WatchedProcess {
    #[expect(
        deprecated,
        reason = "its successor is unsafe; what it asks for, an own descriptor that stays, holds here"
    )]
    fn watch(pid: Pid) -> io::Result<Self> {
        let fd = AsyncFd::new(pidfd_open(pid, PidfdFlags::NONBLOCK)?)?;
        Ok(WatchedProcess { pid, fd })
    }

    /// Returns the process ID.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits for the end and describes it as far as known. May be called again.
    pub async fn ended(&self) -> String {
        if let Err(error) = self.fd.readable().await {
            return format!("cannot be watched ({error})");
        }
        // Only the parent gets the exit status; init is the parent of a QEMU that an earlier agent started.
        match waitid(WaitId::PidFd(self.fd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("ended with exit code {code}"),
                (None, Some(signal)) => format!("was killed by signal {signal}"),
                (None, None) => "ended".to_owned(),
            },
            _ => "ended".to_owned(),
        }
    }

    /// Sends a signal; ignores a process that ended.
    pub fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(self.fd.as_fd(), signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(pid = self.id(), ?signal, %error, "a signal was not delivered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
        let looking = async {
            let mut looks = tokio::time::interval(Duration::from_millis(10));
            loop {
                looks.tick().await;
                if let Some(seen) = look() {
                    return seen;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), looking).await.unwrap_or_else(|_| panic!("not in time: {what}"))
    }

    #[tokio::test]
    async fn a_process_is_found_by_its_file_killed_and_told_how_it_ended() {
        let dir = tempfile::tempdir().expect("a folder");
        let pidfile = dir.path().join("qemu.pid");
        assert!(find(&pidfile, None).is_none());
        let args = ["-c", "sleep 600; :", "-pidfile"].map(str::to_owned);
        let args: Vec<String> = args.into_iter().chain([pidfile.display().to_string()]).collect();
        let process = spawn(Path::new("/bin/sh"), &args, &dir.path().join("log"), None).expect("it runs");
        // A process that was just made has no command line for a moment: the kernel writes it after it has let go of who made it.
        let found = until("it is found", || find(&pidfile, None)).await;
        let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", process.id())).expect("Linux has it");
        assert_eq!(score.trim(), OOM_SCORE, "it goes before the agent");
        assert_eq!(found.id(), process.id());
        assert!(find(&dir.path().join("qemu"), None).is_none(), "another file is another machine");
        // The shell alone is signalled; its own group goes with it.
        let group = Pid::from_raw(process.id()).expect("a process ID");
        rustix::process::kill_process_group(group, Signal::KILL).expect("its own group");
        assert_eq!(process.ended().await, "was killed by signal 9");
        assert_eq!(process.ended().await, "ended", "the second time nobody knows more");
        found.signal(Signal::KILL);
        assert_eq!(found.ended().await, "ended");
        // What the shell had just forked carries its command line until the kernel is done with it.
        until("nothing of it is left", || find(&pidfile, None).is_none().then_some(())).await;
    }

    #[tokio::test]
    async fn a_pinned_process_leaves_this_thread_where_it_was() {
        let dir = tempfile::tempdir().expect("a folder");
        let before = sched_getaffinity(None).expect("known");
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).expect("it runs somewhere");
        let cpu = u32::try_from(cpu).expect("small");
        let log = dir.path().join("log");
        let args = ["Cpus_allowed_list".to_owned(), "/proc/self/status".to_owned()];
        let process = spawn(Path::new("/bin/grep"), &args, &log, Some(&[cpu])).expect("it runs");
        assert_eq!(process.ended().await, "ended with exit code 0");
        assert_eq!(fs::read_to_string(log).expect("its words"), format!("Cpus_allowed_list:\t{cpu}\n"));
        assert!(sched_getaffinity(None).expect("known") == before);
    }
}
