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

/// Longest command line that is read, in bytes.
const MAX_COMMAND_LINE: usize = 256 * 1024;
/// The kernel ends a machine before the agent when memory runs out.
const OOM_SCORE: &str = "500";

/// A process that is watched.
#[derive(Debug)]
pub struct WatchedProcess {
    pid: Pid,
    fd: AsyncFd<OwnedFd>,
}

/// Runs a program in a process group of its own, its words going to `log`, on these processors of the node.
///
/// # Errors
/// When it cannot be run.
pub fn spawn(program: &Path, args: &[String], log: &Path, cpus: Option<&[u32]>) -> io::Result<WatchedProcess> {
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(log)?;
    // Appended to, so that who keeps it short does not leave a hole.
    let words = OpenOptions::new().append(true).open(log)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words).process_group(0);
    // A new process runs where the thread that makes it runs: before it has threads of its own.
    let before = match cpus.map(pin).transpose() {
        // All of them belong to other machines' cpusets: better elsewhere than not at all.
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
        // One that nobody knows of would keep its units.
        child.kill()?;
        child.wait()?;
    }
    // Else not waited for by its handle: `WatchedProcess::ended` does, for this one as for one that an earlier agent ran.
    watched
}

/// Binds this thread to processors, and gives back where it ran before.
fn pin(cpus: &[u32]) -> io::Result<CpuSet> {
    let before = sched_getaffinity(None)?;
    let mut wanted = CpuSet::new();
    for cpu in cpus.iter().filter_map(|cpu| usize::try_from(*cpu).ok()).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        wanted.set(cpu);
    }
    sched_setaffinity(None, &wanted)?;
    Ok(before)
}

/// The QEMU that was told to write its ID to this file; `None` where none runs. It is `user`'s, or root's where it is about to become that
/// user's.
pub fn find(pidfile: &Path, user: Option<u32>) -> Option<WatchedProcess> {
    find_by("-pidfile", pidfile.as_os_str().as_encoded_bytes(), user)
}

/// The process of a user, or of root, that has this option with this value on its command line.
pub fn find_by(option: &str, value: &[u8], user: Option<u32>) -> Option<WatchedProcess> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Pid::from_raw);
    // A process writes its own command line as it likes: that of another machine's user is never this one's.
    let ours = |pid: Pid| is_of(pid, user) && has_option(pid, option, value);
    // Looked at again once it is held: the ID may have changed hands in between.
    pids.filter(|pid| ours(*pid)).filter_map(|pid| WatchedProcess::watch(pid).ok()).find(|process| ours(process.pid))
}

fn is_of(pid: Pid, user: Option<u32>) -> bool {
    let found = fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).map(|found| found.uid());
    found.is_ok_and(|found| found == 0 || Some(found) == user)
}

/// A zombie has no command line any more, so it is nobody's.
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

    /// Its process ID.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until it has gone; says how, as far as that can be known. It may be called again.
    pub async fn ended(&self) -> String {
        if let Err(error) = self.fd.readable().await {
            return format!("cannot be watched ({error})");
        }
        // Only who ran it may know more; for one that an earlier agent ran, init does.
        match waitid(WaitId::PidFd(self.fd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("ended with exit code {code}"),
                (None, Some(signal)) => format!("was killed by signal {signal}"),
                (None, None) => "ended".to_owned(),
            },
            _ => "ended".to_owned(),
        }
    }

    /// Sends a signal; one that has gone needs none.
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
