//! What runs in the terminal of a shell: the login shell of root, an SSH client that logs in at a
//! guest, or a program in a replica of a container.

use super::{
    super::{cgroup::Cgroup, exit_code::exit_code},
    guest_enter::{self, GuestShellExec},
    login_wait::{LIMIT, until_login},
    server_wait::until_server,
    shell_enter,
    vm_end::until_vm_ends,
};
use crate::{
    container::ReplicaExec,
    vm::{GUEST_ALIVE_INTERVAL, GuestAccess, LoginFault},
};
use meshd_proto::{
    shell::{GuestUser, ShellOrder},
    vm::ConsoleNote,
};
use meshd_types::failpoint;
use rustix::fs::{OFlags, fcntl_setfl};
use std::{
    io,
    net::SocketAddrV4,
    os::fd::OwnedFd,
    process::{Command as StdCommand, Stdio},
    time::Duration,
};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStderr, Command},
    sync::oneshot,
    time::timeout,
};

/// Port of SSH servers.
const SSH_PORT: u16 = 22;
/// Exit code of an SSH client that failed.
const CLIENT_FAILED: i32 = 255;
/// Bytes at the end of the messages of an SSH client that are read. A guest may send a banner.
const MAX_MESSAGES: usize = 8 * 1024;
/// Time after the end of a client in which its last messages are read.
const LAST_MESSAGES: Duration = Duration::from_secs(2);

/// What runs in the terminal of a shell.
pub(in crate::task) enum ShellProgram {
    /// The login shell of root.
    Root,
    /// A login at a guest.
    Guest(GuestLogin),
    /// A program in a replica of a container.
    Replica(oneshot::Receiver<Result<ReplicaExec, LoginFault>>),
}

/// A login at a guest.
pub(in crate::task) struct GuestLogin {
    pub(in crate::task) user: GuestUser,
    pub(in crate::task) forget_host_key: bool,
    pub(in crate::task) access: oneshot::Receiver<Result<GuestAccess, LoginFault>>,
}

impl ShellProgram {
    /// Runs the program to its end. `terminal` is its side of the terminal. Returns the last
    /// message to the user.
    pub(super) async fn run(
        self,
        order: &ShellOrder,
        group: &Cgroup,
        terminal: OwnedFd,
    ) -> ConsoleNote {
        let ran = match self {
            ShellProgram::Root => {
                run_root(order, group, terminal).await.map_err(|error| LoginFault {
                    reason: format!("cannot start the shell: {error}"),
                    hint: String::new(),
                })
            }
            ShellProgram::Guest(login) => run_client(login, order, group, terminal).await,
            ShellProgram::Replica(exec) => run_in_replica(exec, terminal).await,
        };
        ran.unwrap_or_else(|LoginFault { reason, hint }| ConsoleNote::Ended {
            reason,
            hint: Some(hint).filter(|hint| !hint.is_empty()),
        })
    }
}

async fn run_root(
    order: &ShellOrder,
    group: &Cgroup,
    terminal: OwnedFd,
) -> io::Result<ConsoleNote> {
    let command = shell_enter::command(&group.procs(), &order.terminal);
    let errors = Stdio::from(terminal.try_clone()?);
    let mut child = start(command, terminal, errors)?;
    tracing::info!("a shell of an administrator starts");
    Ok(ConsoleNote::Exited { code: exit_code(child.wait().await?) })
}

/// Runs a program in a replica. Its processes are in a group below that of the replica, and end
/// with this function.
async fn run_in_replica(
    exec: oneshot::Receiver<Result<ReplicaExec, LoginFault>>,
    terminal: OwnedFd,
) -> Result<ConsoleNote, LoginFault> {
    let mut exec = exec
        .await
        .map_err(|_| LoginFault::new("the agent stops", "try again when the node is online"))??;
    let errors = Stdio::from(terminal.try_clone().map_err(failed("cannot copy the terminal"))?);
    let mut child =
        start(exec.take_command(), terminal, errors).map_err(failed("cannot start the program"))?;
    tracing::info!("an administrator runs a program in a container");
    let status = child.wait().await.map_err(failed("cannot wait for the program"))?;
    Ok(ConsoleNote::Exited { code: exit_code(status) })
}

async fn run_client(
    login: GuestLogin,
    order: &ShellOrder,
    group: &Cgroup,
    terminal: OwnedFd,
) -> Result<ConsoleNote, LoginFault> {
    let GuestLogin { user, forget_host_key, access } = login;
    let access = access
        .await
        .map_err(|_| LoginFault::new("the agent stops", "try again when the node is online"))??;
    if forget_host_key {
        access.forget_host_key().map_err(failed("cannot forget the host key"))?;
    }
    tokio::select! {
        ended = log_in(&access, &user, order, group, terminal) => ended,
        fault = until_vm_ends(&access) => Err(fault),
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> LoginFault {
    move |error| LoginFault::new(format!("{step}: {error}"), "see `meshd node logs`")
}

/// Runs a client to its end, when the guest has an SSH server.
async fn log_in(
    access: &GuestAccess,
    user: &GuestUser,
    order: &ShellOrder,
    group: &Cgroup,
    terminal: OwnedFd,
) -> Result<ConsoleNote, LoginFault> {
    let server = SocketAddrV4::new(access.address, SSH_PORT);
    until_server(server, access.age, |line| tell(&terminal, line)).await?;
    let exec = GuestShellExec {
        procs: group.procs(),
        uid: if failpoint::defends("guest-shell-user") { access.uid } else { 0 },
        passwd: access.passwd.clone(),
        folder: access.folder.clone(),
    };
    let alive_interval = failpoint::time("GUEST_ALIVE", GUEST_ALIVE_INTERVAL);
    let mut command = guest_enter::command(&exec);
    command.arg(&access.program).args(access.client_arguments(user, alive_interval));
    command.env_clear().env("TERM", order.terminal.as_str()).env("LANG", "C.UTF-8");
    // It does not keep the terminal open after the login.
    let login = terminal.try_clone().map_err(failed("cannot copy the terminal"))?;
    let child = start(command, terminal, Stdio::piped());
    let mut child = child.map_err(failed("cannot start the SSH client"))?;
    tracing::info!(vm = %access.uuid, "an administrator logs in to a guest");
    let messages = child.stderr.take();
    let messages = tokio::spawn(async move {
        let mut tail = Vec::new();
        if let Some(mut messages) = messages {
            read_tail(&mut messages, &mut tail).await;
        }
        tail
    });
    until_login(&mut child, login, user, LIMIT).await?;
    let status = child.wait().await.map_err(failed("cannot wait for the SSH client"))?;
    let messages = timeout(LAST_MESSAGES, messages).await;
    let messages = messages.ok().and_then(Result::ok).unwrap_or_default();
    let messages = String::from_utf8_lossy(&messages);
    let is_failed = status.code() == Some(CLIENT_FAILED)
        || (status.code() == Some(guest_enter::CANNOT_RUN.into())
            && messages.starts_with("mesh-agent: "));
    match LoginFault::of_client(&messages, user, alive_interval).filter(|_| is_failed) {
        Some(fault) => Err(fault),
        None => Ok(ConsoleNote::Exited { code: exit_code(status) }),
    }
}

/// Starts a command. It is dropped here with its copies of the terminal, which keep that open.
fn start(mut command: StdCommand, terminal: OwnedFd, errors: Stdio) -> io::Result<Child> {
    command.stdin(terminal.try_clone()?).stdout(terminal).stderr(errors);
    Command::from(command).kill_on_drop(true).spawn()
}

/// Writes a line to the user, unless the terminal is full: the agent has one thread, and must not
/// wait for a user who reads nothing.
fn tell(terminal: &OwnedFd, line: &str) {
    let written = fcntl_setfl(terminal, OFlags::NONBLOCK)
        .and_then(|()| rustix::io::write(terminal, line.as_bytes()));
    // The client expects a terminal that waits.
    if let Err(error) = written.and(fcntl_setfl(terminal, OFlags::empty())) {
        tracing::debug!(%error, "cannot write to the terminal of a shell");
    }
}

async fn read_tail(messages: &mut ChildStderr, tail: &mut Vec<u8>) {
    let mut piece = vec![0; 1024];
    while let Ok(length @ 1..) = messages.read(&mut piece).await {
        tail.extend_from_slice(&piece[..length]);
        let excess = tail.len().saturating_sub(MAX_MESSAGES);
        tail.drain(..excess);
    }
}
