//! Ends the builds of this process with the programs that they run.
//!
//! Each program has its own process group, so Ctrl-C at a terminal reaches this process only.

use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    collections::BTreeSet,
    io,
    os::unix::process::CommandExt as _,
    process::{Child, Command},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Longest time that programs may take to remove their files before they are killed.
const GRACE: Duration = Duration::from_secs(20);

/// Programs of all builds: a signal concerns the whole process.
static PROGRAMS: Mutex<Programs> =
    Mutex::new(Programs { is_interrupted: false, groups: BTreeSet::new() });
/// A program has ended.
static ENDED: Condvar = Condvar::new();

struct Programs {
    is_interrupted: bool,
    /// Process groups of programs that run.
    groups: BTreeSet<i32>,
}

impl Programs {
    fn signal(&self, signal: Signal) {
        for group in self.groups.iter().filter_map(|group| Pid::from_raw(*group)) {
            // It fails only if the program has ended.
            let _ = kill_process_group(group, signal);
        }
    }
}

fn programs() -> MutexGuard<'static, Programs> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all builds of this process: ends the programs that run, and starts no others. Each build
/// then fails and removes its work folder. Blocks until the programs have ended.
pub fn interrupt() {
    let mut running = programs();
    running.is_interrupted = true;
    running.signal(Signal::TERM);
    let waited = ENDED.wait_timeout_while(running, GRACE, |running| !running.groups.is_empty());
    let (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
    running.signal(Signal::KILL);
}

/// Returns whether [`interrupt`] was called.
pub fn is_interrupted() -> bool {
    programs().is_interrupted
}

/// A program that runs; drop it when the program was waited for.
pub(crate) struct RunningProgram(i32);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        programs().groups.remove(&self.0);
        ENDED.notify_all();
    }
}

/// Starts a program in a new process group. Returns `None` if builds are interrupted, unless the
/// program removes files of a build.
pub(super) fn start(
    command: &mut Command,
    is_removal: bool,
) -> io::Result<Option<(Child, RunningProgram)>> {
    let mut running = programs();
    if running.is_interrupted && !is_removal {
        return Ok(None);
    }
    let child = command.process_group(0).spawn()?;
    let group = Pid::from_child(&child).as_raw_nonzero().get();
    // An interrupt ends no removal: it would leave the files of the build.
    if !is_removal {
        running.groups.insert(group);
    }
    Ok(Some((child, RunningProgram(group))))
}
