//! Process identity: process ID and start time.

use super::wait::{self, Interrupt, Wait};
use crate::LabError;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::{fs, time::Duration};

/// How long a process may take to end after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// One process: its ID, and its start time so that a reused ID is never mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process ID.
    pub pid: i32,
    /// Field `starttime` of `/proc/PID/stat`: clock ticks since the host started.
    pub started: u64,
}

/// State letter and start time of a process as `/proc/PID/stat` has them.
fn stat(pid: i32) -> Option<(char, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The command name may hold blanks and brackets, so fields are counted from its last closing bracket.
fn parse_stat(line: &str) -> Option<(char, u64)> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

impl ProcessId {
    /// The process that has this ID now.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        stat(pid).map(|(_, started)| ProcessId { pid, started })
    }

    /// True while it runs; a zombie does not.
    pub fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|(state, started)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    /// Sends a signal if it still is the same process. The pidfd is taken before the start time is compared, so the ID
    /// cannot change hands in between.
    fn signal(self, signal: Signal) {
        let pidfd = Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(pidfd) = pidfd.filter(|_| self.is_alive()) {
            // It may end at any moment, which is what is wanted.
            let _ = pidfd_send_signal(&pidfd, signal);
        }
    }

    /// Asks it to end, waits `grace`, then kills it.
    pub fn end(self, what: &str, grace: Duration) -> Result<(), LabError> {
        self.signal(Signal::TERM);
        self.gone(what, grace).or_else(|_| self.kill(what))
    }

    /// Kills it (-9), and waits until it is gone.
    pub fn kill(self, what: &str) -> Result<(), LabError> {
        self.signal(Signal::KILL);
        self.gone(what, KILL_LIMIT).map_err(|_| LabError::Immortal { pid: self.pid, what: what.to_owned() })
    }

    fn gone(self, what: &str, limit: Duration) -> Result<(), LabError> {
        // Cleaning up goes on when the user presses Ctrl-C again.
        let never = Interrupt::default();
        wait::until_soon(&never, limit, &format!("the end of {what}"), || Ok(Wait::on(!self.is_alive(), "it runs")))
    }
}

/// Names this start of the host: process IDs of an earlier one mean nothing.
pub fn host_boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn command_name_with_brackets_does_not_shift_the_fields() {
        let line = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse_stat(line), Some(('S', 777)));
        assert_eq!(parse_stat("42 (x"), None);
    }

    #[test]
    fn process_is_ended_and_another_with_its_id_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep exists");
        let id = ProcessId::of(child.id()).expect("it runs");
        let impostor = ProcessId { started: id.started + 1, ..id };
        impostor.kill("somebody else").expect("not ours is as good as gone");
        assert!(id.is_alive());
        id.end("sleep", Duration::from_secs(5)).expect("it ends");
        assert!(!id.is_alive());
        child.wait().expect("reaped");
    }
}
