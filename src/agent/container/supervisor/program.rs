//! The program of a replica, started by the container runtime. The supervisor is its parent.

use super::{Launch, LaunchError};
use crate::container::{replica_paths::ReplicaPaths, runtime};
use meshd_proto::container::ContainerFault;
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use std::{
    fs::{self, File},
    io::{self, PipeWriter},
    os::fd::OwnedFd,
    path::PathBuf,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Exit code if the kernel does not tell one.
const UNKNOWN_CODE: u8 = 255;
/// Time after which a program that is no child of this process will not be one.
const ADOPTION_LIMIT: Duration = Duration::from_secs(10);
const ADOPTION_PAUSE: Duration = Duration::from_millis(5);
/// Maximum length of a message of the container runtime, in bytes.
const MAX_MESSAGE: usize = 400;

pub(super) struct Program {
    pid: Pid,
    /// The agent probes the program while this file exists.
    pid_file: PathBuf,
}

/// Starts the program with its output to `output`.
pub(super) fn start(
    paths: &ReplicaPaths,
    launch: &Launch,
    output: PipeWriter,
) -> Result<Program, LaunchError> {
    // The runtime ends when the program runs; the program becomes a child of this process.
    set_child_subreaper(Some(getpid())).map_err(LaunchError::of_step("adopt the program"))?;
    let errors = output.try_clone().map_err(LaunchError::of_step("copy a pipe"))?;
    let mut command = runtime::enter(&launch.cgroup.program_procs(), &launch.hierarchy, false);
    command.args(launch.runtime().run(&launch.replica, paths));
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    let status = command.status().map_err(LaunchError::of_step("run the container runtime"))?;
    if !status.success() {
        let messages = fs::read_to_string(paths.runtime_log()).unwrap_or_default();
        return Err(runtime_error(&messages));
    }
    let pid_file = paths.pid();
    let text = fs::read_to_string(&pid_file).map_err(LaunchError::of_step("read the PID"))?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| LaunchError::of_step("read the PID")("it is no number"))?;
    Ok(Program { pid, pid_file })
}

/// Removes what the runtime knows of an ended program.
pub(super) fn forget(launch: &Launch) {
    let mut command = runtime::enter(&launch.cgroup.supervisor_procs(), &launch.hierarchy, false);
    command.args(launch.runtime().delete(&launch.replica));
    // What is left is removed with the replica.
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Explains why the runtime did not start a program, by its messages.
fn runtime_error(messages: &str) -> LaunchError {
    let message = messages.lines().map(str::trim).rfind(|line| !line.is_empty());
    let message = message.unwrap_or("the container runtime failed without a message");
    let message: String = message.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
    let names_program = message.contains("executable file") || message.contains("open executable");
    let kind = if names_program { ContainerFault::ProgramMissing } else { ContainerFault::Prepare };
    LaunchError::new(kind, message)
}

impl Program {
    /// Returns the network namespace; `None` if the program has ended.
    pub fn network(&self) -> Option<OwnedFd> {
        let path = format!("/proc/{}/ns/net", self.pid.as_raw_nonzero());
        File::open(path).ok().map(OwnedFd::from)
    }

    /// Waits for the end of the program. Returns its exit code.
    pub async fn wait(&self) -> u8 {
        let pid = self.pid;
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || sender.send(wait_for(pid)));
        let code = receiver.await.ok().and_then(Result::ok).unwrap_or(UNKNOWN_CODE);
        let _ = fs::remove_file(&self.pid_file);
        code
    }
}

/// Waits for a child of this process. Blocks.
///
/// crun 1.8.1 starts the program by a process between, which ends some milliseconds after crun
/// itself on a busy machine: until then, the program is no child of this process.
fn wait_for(pid: Pid) -> io::Result<u8> {
    let begin = Instant::now();
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                let code = status.exit_status().or(signal);
                if let Some(code) = code {
                    return Ok(u8::try_from(code).unwrap_or(UNKNOWN_CODE));
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) if begin.elapsed() < ADOPTION_LIMIT => {
                thread::park_timeout(ADOPTION_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_recognised_by_the_message_of_the_runtime() {
        for (messages, kind) in [
            (
                "executable file `x` not found in $PATH: No such file or directory\n",
                ContainerFault::ProgramMissing,
            ),
            ("open executable: Permission denied\n", ContainerFault::ProgramMissing),
            ("mount `proc` to `proc`: Operation not permitted\n", ContainerFault::Prepare),
            ("", ContainerFault::Prepare),
        ] {
            assert_eq!(runtime_error(messages).kind, kind, "{messages}");
        }
        assert!(runtime_error(&"x\u{1b}".repeat(1000)).detail.len() <= MAX_MESSAGE);
    }
}
