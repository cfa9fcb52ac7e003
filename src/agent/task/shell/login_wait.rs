//! Waits until the SSH client of a login is logged in. OpenSSH bounds the time between two packets
//! only: a server that sends something now and then would hold the shell open.

use crate::vm::LoginFault;
use meshd_proto::shell::GuestUser;
use rustix::termios::{LocalModes, tcgetattr};
use std::{os::fd::OwnedFd, time::Duration};
use tokio::{
    process::Child,
    time::{sleep, timeout},
};

/// Time from the start of the client to its login. More than the `LoginGraceTime` of OpenSSH's
/// server, 120 s.
pub(super) const LIMIT: Duration = Duration::from_secs(150);
/// The kernel does not notify of changes of a terminal's mode.
const INTERVAL: Duration = Duration::from_millis(500);

/// Waits until the client logged in or ended. `terminal` is its side of the terminal.
pub(super) async fn until_login(
    client: &mut Child,
    terminal: OwnedFd,
    user: &GuestUser,
    limit: Duration,
) -> Result<(), LoginFault> {
    let login = async {
        while edits_lines(&terminal) {
            sleep(INTERVAL).await;
        }
    };
    let login_or_end = async {
        tokio::select! {
            // The caller waits again, for the exit code.
            _ = client.wait() => {}
            () = login => {}
        }
    };
    timeout(limit, login_or_end).await.map_err(|_| {
        let seconds = limit.as_secs();
        let reason = format!(
            "the SSH server of the guest did not complete the login of {user} within {seconds} s"
        );
        let hint = "the guest is busy or hangs: look at it with `meshd vm console`, or try again";
        LoginFault::new(reason, hint)
    })
}

/// Returns true while the kernel edits lines. OpenSSH's client ends that after the login, in
/// `client_loop` (clientloop.c): unlike a message, this is nothing that a guest can send.
fn edits_lines(terminal: &OwnedFd) -> bool {
    tcgetattr(terminal).is_ok_and(|mode| mode.local_modes.contains(LocalModes::ICANON))
}

#[cfg(test)]
mod tests {
    use super::{super::pseudo_terminal::PseudoTerminal, *};
    use meshd_proto::shell::WindowSize;
    use tokio::process::Command;

    /// Runs a client in a terminal.
    async fn result(client: &str, limit: Duration) -> Result<(), LoginFault> {
        let (_terminal, side) = PseudoTerminal::open(WindowSize::default()).expect("opened");
        let mut command = Command::new("sh");
        command.args(["-c", client]).stdin(side.try_clone().expect("cloned")).kill_on_drop(true);
        let mut client = command.spawn().expect("started");
        until_login(&mut client, side, &"debian".parse().expect("a user"), limit).await
    }

    #[tokio::test]
    async fn client_without_login_is_cut_off_and_one_with_login_stays() {
        let long = Duration::from_secs(300);
        assert_eq!(result("stty raw; exec sleep 1000", long).await, Ok(()));
        assert_eq!(result("exit 3", long).await, Ok(()), "its end is no matter of this limit");
        let fault = result("exec sleep 1000", Duration::from_secs(1)).await.expect_err("no login");
        assert!(fault.reason.contains("login of debian within 1 s"), "{fault:?}");
    }
}
