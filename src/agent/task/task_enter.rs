//! `mesh-agent task-enter`: the process between agent and task program. It enters the control group, sets limits, drops privileges and
//! executes the program, because these steps are not safe between `fork` and `exec`.

use super::mounts;
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::set_no_new_privs,
};
use std::{
    convert::Infallible,
    env, fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The hidden verb of mesh-agent.
pub const VERB: &str = "task-enter";
/// Exit code if the program cannot be executed, as in shells.
pub const CANNOT_RUN: u8 = 127;
/// Limit of open files; MPI opens one for each rank that it talks to.
const OPEN_FILES: u64 = 65_536;
/// Limit of processes and threads of the user.
const PROCESSES: u64 = 16_384;
/// OOM score: the kernel kills tasks before the agent.
const OOM_SCORE: &str = "500";

/// User, group and folders of a program.
#[derive(Clone, Debug)]
pub struct TaskExec {
    /// `cgroup.procs` of the task's group.
    pub procs: PathBuf,
    /// User and group ID.
    pub uid: u32,
    /// Working folder.
    pub dir: PathBuf,
    /// Folder of shared memory.
    pub shm: PathBuf,
}

/// Returns the command that runs `argv`. The caller sets the environment.
pub fn command(place: &TaskExec, argv: &[String]) -> Command {
    // An upgrade may have replaced the file of the agent; this process still runs the old one.
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg("--procs").arg(&place.procs).arg("--uid").arg(place.uid.to_string());
    command
        .arg("--dir")
        .arg(&place.dir)
        .arg("--shm")
        .arg(&place.shm)
        .arg("--")
        .args(argv)
        .env_clear()
        .stdin(Stdio::null());
    command
}

/// Sets a limit. In a container that may not raise limits, sets the highest permitted value.
fn bound(resource: Resource, limit: Option<u64>) -> rustix::io::Result<()> {
    let set = |limit| setrlimit(resource, Rlimit { current: limit, maximum: limit });
    match set(limit) {
        Err(rustix::io::Errno::PERM) => set(getrlimit(resource).maximum),
        done => done,
    }
}

/// Replaces this process by the program.
///
/// # Errors
/// The step that failed. On success this function does not return.
pub fn enter(place: &TaskExec, program: &str, args: &[String]) -> Result<Infallible, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    // "0" stands for the writing process.
    fs::write(&place.procs, "0").map_err(failed("cannot enter the control group of the task"))?;
    mounts::enter(&place.shm)?;
    fs::write("/proc/self/oom_score_adj", OOM_SCORE).map_err(failed("cannot make itself the first to go"))?;
    let limits = [
        (Resource::Core, Some(0)),
        (Resource::Nofile, Some(OPEN_FILES)),
        (Resource::Nproc, Some(PROCESSES)),
        // HPC networks lock their buffers in memory.
        (Resource::Memlock, None),
        (Resource::Stack, None),
    ];
    for (resource, limit) in limits {
        bound(resource, limit).map_err(|error| format!("cannot set the limit {resource:?}: {error}"))?;
    }
    if place.uid != 0 {
        // Setuid programs such as su get no additional rights.
        set_no_new_privs(true).map_err(|error| format!("cannot give up new rights: {error}"))?;
    }
    let mut command = Command::new(program);
    // Changing the user ID drops supplementary groups.
    command.args(args).uid(place.uid).gid(place.uid).current_dir(&place.dir);
    let error = command.exec();
    let path = env::var("PATH").unwrap_or_default();
    let folder = |folder: &str| Path::new(folder).join(program).exists();
    let known = program.contains('/') || path.split(':').any(folder);
    let hint = if known { "" } else { "; it is not in PATH" };
    Err(format!("cannot run {program}: {error}{hint}"))
}
