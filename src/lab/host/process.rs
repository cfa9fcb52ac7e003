//! Process identity: process ID and start time.

use super::wait::{self, Interrupt, Wait};
use crate::LabError;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    process::{Child, ExitStatus},
    time::Duration,
};

/// Longest time that a process may take to end after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Process ID and start time, which detects a reused ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// Field `starttime` of `/proc/PID/stat`: clock ticks since the host started.
    pub started: u64,
}

/// Parses state letter and start time of `/proc/PID/stat`.
fn stat(pid: i32) -> Option<(char, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the line from its last closing bracket, because the command name may contain blanks and
/// brackets.
fn parse_stat(line: &str) -> Option<(char, u64)> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

impl ProcessId {
    /// Returns the process that has this ID now.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        stat(pid).map(|(_, started)| ProcessId { pid, started })
    }

    /// Returns whether the process runs; a zombie does not.
    pub fn is_alive(self) -> bool {
        stat(self.pid)
            .is_some_and(|(state, started)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    /// Sends a signal if the process is still the same. The pidfd is opened before the start time
    /// is compared, so the ID cannot be reused in between.
    fn signal(self, signal: Signal) {
        let pidfd =
            Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(pidfd) = pidfd.filter(|_| self.is_alive()) {
            // Ignore the error: the process may have ended already, which is the purpose of the
            // signal.
            let _ = pidfd_send_signal(&pidfd, signal);
        }
    }

    /// Sends SIGTERM, waits `grace`, then sends SIGKILL.
    pub fn end(self, program: &str, grace: Duration) -> Result<(), LabError> {
        self.signal(Signal::TERM);
        self.wait_for_end(program, grace).or_else(|_| self.kill(program))
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(self, program: &str) -> Result<(), LabError> {
        self.signal(Signal::KILL);
        let ended = self.wait_for_end(program, KILL_LIMIT);
        ended.map_err(|_| LabError::Unkillable { pid: self.pid, program: program.to_owned() })
    }

    fn wait_for_end(self, program: &str, limit: Duration) -> Result<(), LabError> {
        // Ctrl-C does not interrupt clean-up.
        let never = Interrupt::default();
        wait::until_soon(&never, limit, &format!("the end of {program}"), || {
            Ok(Wait::on(!self.is_alive(), "it runs"))
        })
    }
}

/// Waits for the end of a child and reaps it. Ctrl-C does not interrupt the wait.
pub fn wait_for_child(
    child: &mut Child,
    limit: Duration,
    program: &str,
) -> Result<ExitStatus, LabError> {
    wait::until_soon(&Interrupt::default(), limit, &format!("the end of {program}"), || {
        Ok(Wait::some(child.try_wait().ok().flatten(), "it runs"))
    })
}

/// Returns the boot ID of the host: process IDs of an earlier boot are invalid.
pub fn host_boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn process_stat_is_parsed_after_name_with_brackets() {
        let line = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse_stat(line), Some(('S', 777)));
        assert_eq!(parse_stat("42 (x"), None);
    }

    #[test]
    fn process_is_ended_but_not_another_with_reused_pid() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep exists");
        let id = ProcessId::of(child.id()).expect("it runs");
        let impostor = ProcessId { started: id.started + 1, ..id };
        impostor.kill("another process").expect("another process with this ID counts as ended");
        assert!(id.is_alive());
        id.end("sleep", Duration::from_secs(5)).expect("it ends");
        assert!(!id.is_alive());
        child.wait().expect("reaped");
    }
}
