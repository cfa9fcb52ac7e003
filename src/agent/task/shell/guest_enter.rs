//! `mesh-agent guest-shell-enter`: the process between agent and SSH client. It enters the control
//! group, takes the terminal, hides the files of other users, drops root and executes the client,
//! because a guest may try to exploit it.

use crate::system::isolation;
use rustix::{
    mount::mount_bind,
    process::{ioctl_tiocsctty, setsid},
    thread::set_no_new_privs,
};
use std::{
    convert::Infallible,
    ffi::OsString,
    fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// The hidden verb of mesh-agent.
pub const VERB: &str = "guest-shell-enter";
/// Exit code if the client cannot be executed, as in shells.
pub const CANNOT_RUN: u8 = 127;
/// OOM score: the kernel kills the client before the agent.
const OOM_SCORE: &str = "500";

/// Control group, user and files of a client.
#[derive(Clone, Debug)]
pub struct GuestShellExec {
    /// `cgroup.procs` of the shell's group.
    pub procs: PathBuf,
    /// User and group of the client; 0 only if a test disabled this defence.
    pub uid: u32,
    /// File that the client sees as `/etc/passwd`.
    pub passwd: PathBuf,
    /// The folder of the VM.
    pub folder: PathBuf,
}

/// Returns the command that becomes the client. The caller gives it its terminal and arguments.
pub(super) fn command(exec: &GuestShellExec) -> Command {
    // An upgrade may have replaced the file of the agent. This path is the running program.
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg("--procs").arg(&exec.procs).arg("--uid").arg(exec.uid.to_string());
    command.arg("--passwd").arg(&exec.passwd).arg("--folder").arg(&exec.folder).arg("--");
    command
}

/// Replaces this process by the client. Returns only an error.
pub fn enter(
    exec: &GuestShellExec,
    program: &Path,
    args: &[OsString],
) -> Result<Infallible, String> {
    let failed = |step: &'static str| move |error: io::Error| format!("{step}: {error}");
    // "0" means the writing process.
    fs::write(&exec.procs, "0").map_err(failed("cannot enter the control group of the shell"))?;
    setsid().map_err(|error| format!("cannot create a session: {error}"))?;
    ioctl_tiocsctty(io::stdin()).map_err(|error| format!("cannot take the terminal: {error}"))?;
    fs::write("/proc/self/oom_score_adj", OOM_SCORE).map_err(failed("cannot set the OOM score"))?;
    isolation::enter()?;
    isolation::mount_empty_folders(&exec.folder)?;
    isolation::hide_system_log()?;
    mount_bind(&exec.passwd, "/etc/passwd")
        .map_err(|error| format!("cannot give the client its /etc/passwd: {error}"))?;
    let mut command = Command::new(program);
    command.args(args).current_dir("/");
    if exec.uid != 0 {
        set_no_new_privs(true).map_err(|error| format!("cannot set no_new_privs: {error}"))?;
        // Changing the user ID drops supplementary groups and all capabilities.
        command.uid(exec.uid).gid(exec.uid);
    }
    Err(format!("cannot run {}: {}", program.display(), command.exec()))
}
