//! One shell, from its order to the end of all its processes. Output is read as fast as the user
//! takes it: a program that writes faster waits, and nothing is lost.

use super::{
    super::cgroup::Cgroup, keys::type_in, pseudo_terminal::PseudoTerminal,
    shell_program::ShellProgram,
};
use crate::link::{
    call::Endpoint,
    user_connection::{self, UserInput, UserOutput},
};
use meshd_proto::{
    shell::ShellOrder,
    vm::{ConsoleNote, MAX_PIECE},
};
use std::{io, time::Duration};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_tungstenite::tungstenite;

/// Time without output after which a shell that has ended has no more. A process that left the
/// control group may keep the terminal open.
const QUIET: Duration = Duration::from_secs(2);

/// Runs a program in a terminal for the user of an order. `group` is its control group, or why it
/// has none.
pub(super) async fn run(
    order: ShellOrder,
    program: ShellProgram,
    endpoint: Endpoint,
    group: Result<Cgroup, String>,
) {
    let connected = user_connection::connect(&endpoint, order.console).await;
    let (mut output, mut input) = match connected {
        Ok(connection) => connection,
        Err(error) => {
            tracing::warn!(%error, "cannot connect a shell");
            if let Ok(group) = group {
                group.kill_and_remove().await;
            }
            return;
        }
    };
    let mut remains = None;
    let note = match group {
        Ok(group) => {
            let ended = serve(&order, program, &group, &mut output, &mut input).await;
            // Background processes end with the shell. The user does not wait for a process that
            // the kernel holds.
            let _ = timeout(QUIET, group.kill_and_remove()).await;
            remains = Some(group);
            ended.unwrap_or_else(|error| {
                Some(ConsoleNote::ended(format!("cannot start the shell: {error}")))
            })
        }
        Err(reason) => Some(ConsoleNote::ended(format!("cannot start the shell: {reason}"))),
    };
    output.end(input, note.as_ref()).await;
    if let Some(group) = remains {
        group.kill_and_remove().await;
    }
    tracing::info!("a shell ended");
}

/// Serves the shell until it ends or its user leaves. Returns the last message to the user.
async fn serve(
    order: &ShellOrder,
    program: ShellProgram,
    group: &Cgroup,
    output: &mut UserOutput,
    input: &mut UserInput,
) -> io::Result<Option<ConsoleNote>> {
    let (terminal, shell_side) = PseudoTerminal::open(order.window)?;
    let (exit, exited) = watch::channel(false);
    let shell = async {
        let note = program.run(order, group, shell_side).await;
        // With its last process the terminal ends, and thereby `show`.
        let _ = timeout(QUIET, group.kill_and_remove()).await;
        exit.send_replace(true);
        note
    };
    let shown = async {
        let shell = async { Ok(shell.await) };
        // A broken connection ends a shell that has not ended.
        tokio::try_join!(shell, show(&terminal, output, exited))
    };
    Ok(tokio::select! {
        ended = shown => match ended {
            Ok((note, ())) => Some(note),
            Err(_) => None,
        },
        () = type_in(input, &terminal) => None,
        () = sleep(Duration::from_secs(order.max_s.into())) => {
            Some(ConsoleNote::ended("its time is over"))
        }
    })
}

/// Sends output until no process has the terminal after the end of the shell.
async fn show(
    terminal: &PseudoTerminal,
    output: &mut UserOutput,
    mut exited: watch::Receiver<bool>,
) -> Result<(), tungstenite::Error> {
    let mut pings = user_connection::pings();
    let mut buffer = vec![0; MAX_PIECE];
    loop {
        let has_exited = *exited.borrow_and_update();
        tokio::select! {
            _ = pings.tick() => output.ping().await?,
            read = terminal.read(&mut buffer) => match read {
                Ok(length @ 1..) => output.bytes(&buffer[..length]).await?,
                Ok(0) | Err(_) if has_exited => return Ok(()),
                // The shell closed its terminal, or has not opened it yet.
                Ok(0) | Err(_) => tokio::select! {
                    _ = exited.changed() => {}
                    _ = pings.tick() => output.ping().await?,
                },
            },
            _ = exited.changed() => {}
            () = sleep(QUIET), if has_exited => return Ok(()),
        }
    }
}
