//! `mesh-agent task-enter`: the process between agent and task program. It enters the control
//! group, sets limits, drops privileges and executes the program, because these steps are not safe
//! between `fork` and `exec`.

use super::mounts;
use crate::system::{isolation, limits};
use meshd_types::failpoint;
use rustix::{
    process::{Resource, setsid},
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
/// Limit of processes and threads of the user.
const PROCESSES: u64 = 16_384;
/// OOM score: the kernel kills tasks before the agent.
const OOM_SCORE: &str = "500";

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
pub fn command(exec: &TaskExec, argv: &[String]) -> Command {
    // An upgrade may have replaced the file of the agent. This path is the running program.
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg("--procs").arg(&exec.procs).arg("--uid").arg(exec.uid.to_string());
    command.arg("--dir").arg(&exec.dir).arg("--shm").arg(&exec.shm).arg("--").args(argv);
    command.env_clear().stdin(Stdio::null());
    command
}

/// Replaces this process by the program. Returns only an error.
pub fn enter(exec: &TaskExec, program: &str, args: &[String]) -> Result<Infallible, String> {
    let failed = |step: &'static str| move |error: io::Error| format!("{step}: {error}");
    // "0" means the writing process.
    fs::write(&exec.procs, "0").map_err(failed("cannot enter the control group of the task"))?;
    if failpoint::defends("task-session") {
        // The program has no terminal of the agent, and signals none of the agent's processes.
        setsid().map_err(|error| format!("cannot create a session: {error}"))?;
    }
    mounts::enter(&exec.shm)?;
    fs::write("/proc/self/oom_score_adj", OOM_SCORE).map_err(failed("cannot set the OOM score"))?;
    let limits = [
        (Resource::Core, Some(0)),
        (Resource::Nofile, Some(limits::OPEN_FILES)),
        (Resource::Nproc, Some(PROCESSES)),
        // HPC networks lock their buffers in memory.
        (Resource::Memlock, None),
        (Resource::Stack, None),
    ];
    limits::set(&limits)?;
    if exec.uid != 0 {
        isolation::hide_system_log()?;
        // Setuid programs such as su get no additional rights.
        set_no_new_privs(true).map_err(|error| format!("cannot set no_new_privs: {error}"))?;
    }
    let mut command = Command::new(program);
    // Changing the user ID drops supplementary groups.
    command.args(args).uid(exec.uid).gid(exec.uid).current_dir(&exec.dir);
    let error = command.exec();
    let path = env::var("PATH").unwrap_or_default();
    let is_in = |folder: &str| Path::new(folder).join(program).exists();
    let is_found = program.contains('/') || path.split(':').any(is_in);
    let hint = if is_found { "" } else { "; the program is not in PATH" };
    Err(format!("cannot run {program}: {error}{hint}"))
}
