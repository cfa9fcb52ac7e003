//! `mesh-agent shell-enter`: the process between agent and shell. It enters the control group,
//! takes the terminal and executes the login shell of root, because these steps are not safe
//! between `fork` and `exec`.

use super::login::Login;
use meshd_proto::shell::TerminalName;
use rustix::process::{ioctl_tiocsctty, setsid};
use std::{
    convert::Infallible, fs, io, os::unix::process::CommandExt as _, path::Path, process::Command,
};

/// The hidden verb of mesh-agent.
pub const VERB: &str = "shell-enter";
/// Exit code if the shell cannot be executed, as in shells.
pub const CANNOT_RUN: u8 = 127;
/// OOM score: the kernel kills a shell before the agent.
const OOM_SCORE: &str = "500";
/// `PATH` until the profile of the shell sets another one.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns the command that becomes the shell. The caller gives it its terminal.
pub(super) fn command(procs: &Path, terminal: &TerminalName) -> Command {
    // An upgrade may have replaced the file of the agent. This path is the running program.
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg("--procs").arg(procs);
    command.env_clear().env("TERM", terminal.as_str());
    command
}

/// Replaces this process by the login shell of root. Returns only an error.
pub fn enter(procs: &Path) -> Result<Infallible, String> {
    let failed = |step: &'static str| move |error: io::Error| format!("{step}: {error}");
    // "0" means the writing process.
    fs::write(procs, "0").map_err(failed("cannot enter the control group of the shell"))?;
    setsid().map_err(|error| format!("cannot create a session: {error}"))?;
    ioctl_tiocsctty(io::stdin()).map_err(|error| format!("cannot take the terminal: {error}"))?;
    fs::write("/proc/self/oom_score_adj", OOM_SCORE).map_err(failed("cannot set the OOM score"))?;
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let login = Login::of_root(&passwd, |path| Path::new(path).exists());
    let mut command = Command::new(&login.shell);
    command.arg0(login.argument_zero()).current_dir(&login.home);
    command.envs([("HOME", login.home.as_str()), ("SHELL", &login.shell), ("PATH", PATH)]);
    command.envs([("USER", "root"), ("LOGNAME", "root"), ("LANG", "C.UTF-8")]);
    Err(format!("cannot run {}: {}", login.shell, command.exec()))
}
