//! `mesh-agent job-enter`: the process between agent and task program. It enters the control group, sets limits, drops privileges and
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

/// The hidden verb.
pub const VERB: &str = "job-enter";
/// Exit code when the program cannot be run, as shells have it.
pub const CANNOT_RUN: u8 = 127;
/// Open files of a job; MPI opens one for each rank that it talks to.
const OPEN_FILES: u64 = 65_536;
/// Processes and threads of a job's user.
const PROCESSES: u64 = 16_384;
/// The kernel ends a job before the agent when memory runs out.
const OOM_SCORE: &str = "500";

/// Where a program is run, and as whom.
#[derive(Clone, Debug)]
pub struct ExecContext {
    /// `cgroup.procs` of the job's group.
    pub procs: PathBuf,
    /// User and group ID.
    pub uid: u32,
    /// Working folder.
    pub dir: PathBuf,
    /// Folder of the job's shared memory.
    pub shm: PathBuf,
}

/// The command that runs `argv` there, with the environment of the caller's choice.
pub fn command(place: &ExecContext, argv: &[String]) -> Command {
    // The agent's own file may have been replaced by an upgrade; the process is still of the old one.
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

/// Sets a limit; where only a lower one may be set, as in a container without that right, the highest that may.
fn bound(resource: Resource, limit: Option<u64>) -> rustix::io::Result<()> {
    let set = |limit| setrlimit(resource, Rlimit { current: limit, maximum: limit });
    match set(limit) {
        Err(rustix::io::Errno::PERM) => set(getrlimit(resource).maximum),
        done => done,
    }
}

/// Becomes the program.
///
/// # Errors
/// The step that failed; on success this process is another program.
pub fn enter(place: &ExecContext, program: &str, args: &[String]) -> Result<Infallible, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    // "0" stands for the process that writes it.
    fs::write(&place.procs, "0").map_err(failed("cannot enter the control group of the task"))?;
    mounts::enter(&place.shm)?;
    fs::write("/proc/self/oom_score_adj", OOM_SCORE).map_err(failed("cannot make itself the first to go"))?;
    let limits = [
        (Resource::Core, Some(0)),
        (Resource::Nofile, Some(OPEN_FILES)),
        (Resource::Nproc, Some(PROCESSES)),
        // Networks of HPC pin their buffers.
        (Resource::Memlock, None),
        (Resource::Stack, None),
    ];
    for (resource, limit) in limits {
        bound(resource, limit).map_err(|error| format!("cannot set the limit {resource:?}: {error}"))?;
    }
    if place.uid != 0 {
        // Programs with the rights of another user, such as su, have no more than this one's.
        set_no_new_privs(true).map_err(|error| format!("cannot give up new rights: {error}"))?;
    }
    let mut command = Command::new(program);
    // A session of its own comes with the control group; supplementary groups go with the user ID.
    command.args(args).uid(place.uid).gid(place.uid).current_dir(&place.dir);
    let error = command.exec();
    let path = env::var("PATH").unwrap_or_default();
    let folder = |folder: &str| Path::new(folder).join(program).exists();
    let known = program.contains('/') || path.split(':').any(folder);
    let hint = if known { "" } else { "; it is not in PATH" };
    Err(format!("cannot run {program}: {error}{hint}"))
}
