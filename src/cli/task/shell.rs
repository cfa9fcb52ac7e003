//! `meshd node shell` and `meshd vm shell`: the user's terminal as that of a shell.

use super::attached::Interrupts;
use crate::cli::{
    Failure,
    client::AdminClient,
    output::{
        clean::clean,
        keyboard::{Input, Keyboard, read_keyboard},
        writer::{ForeignOutput, raw_output, write_message, write_raw},
    },
};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use meshd_api::routes::{self as api, Empty, GetPath};
use meshd_lab::RawTerminal;
use meshd_proto::{
    shell::{GuestUser, InputNote, TerminalName, WindowSize},
    vm::ConsoleNote,
};
use rustix::termios::tcgetwinsize;
use std::{
    env,
    io::{IsTerminal as _, stdin, stdout},
    time::Duration,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Exit code if the shell did not end by itself, as of ssh.
const OF_CONNECTION: u8 = 255;
/// Timeout for the server to close the connection of a user who leaves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Undoes what a program may have left: the alternate screen, mouse reports, bracketed paste, a
/// hidden cursor, application keys, colours.
const RESET: &[u8] =
    b"\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[?25h\x1b[0m\r\n";

/// How a shell ended.
#[derive(Debug, PartialEq, Eq)]
enum ShellEnd {
    /// The shell ended by itself, with this exit code.
    Exited(u8),
    /// The user typed Ctrl-].
    Left,
    /// The command got a signal; its exit code.
    Signal(u8),
    /// The node, meshd or the connection ended the shell.
    Cut { why: String, hint: Option<String> },
}

/// A shell that a user opens: how to ask for it, and how to name it.
pub(in crate::cli) struct Shell {
    /// Without the terminal of the user.
    path: GetPath<Empty>,
    /// `n1 as root`
    title: String,
    /// Shows why the shell broke off.
    show: String,
    /// For a user without a terminal.
    without_terminal: String,
}

impl Shell {
    pub(in crate::cli) fn of_node(node: &str) -> Self {
        Shell {
            path: api::OPEN_NODE_SHELL.path([&node]),
            title: format!("{node} as root"),
            show: format!("meshd node show {node}"),
            without_terminal: format!(
                "run programs by `meshd node exec {node} -- PROGRAM`; --stdin passes data on"
            ),
        }
    }

    pub(in crate::cli) fn of_vm(vm: &str, user: Option<&GuestUser>, forget_host_key: bool) -> Self {
        let path = api::OPEN_VM_SHELL.path([&vm]).with_optional("user", user);
        Shell {
            path: path.with_optional("forget_host_key", forget_host_key.then_some(true)),
            title: user.map_or_else(|| format!("VM {vm}"), |user| format!("VM {vm} as {user}")),
            show: format!("meshd vm show {vm}"),
            without_terminal: format!("meshd vm console {vm} takes input from a pipe"),
        }
    }
}

impl Shell {
    /// A program in a replica of a container.
    pub(in crate::cli) fn of_replica(replica: &str, argv: &[String]) -> Result<Self, Failure> {
        let argv = serde_json::to_string(argv).map_err(|error| Failure::without_hint(&error))?;
        Ok(Shell {
            path: api::OPEN_CONTAINER_EXEC.path([&replica]).with("argv", argv),
            title: format!("container {replica}"),
            show: format!("meshd container show {replica}"),
            without_terminal: format!("meshd container logs {replica} shows its output"),
        })
    }
}

/// Opens a shell, and returns its exit code. The terminal is restored in every case.
pub(in crate::cli) async fn open_shell(client: &AdminClient, shell: Shell) -> Result<(), Failure> {
    let Shell { path, title, show: show_it, without_terminal } = shell;
    let keyboard = stdin();
    if !keyboard.is_terminal() || !stdout().is_terminal() {
        return Err(Failure::new(
            "a shell needs a terminal at standard input and output",
            without_terminal,
        ));
    }
    let window = window();
    let terminal: TerminalName =
        env::var("TERM").ok().and_then(|name| name.parse().ok()).unwrap_or_default();
    let path = path
        .with("rows", window.rows())
        .with("columns", window.columns())
        .with("terminal", terminal);
    // Signals must not end the command between here and the restored terminal.
    let mut interrupts = Interrupts::new()?;
    let mut resizes = signal(SignalKind::window_change())
        .map_err(|error| Failure::new(format!("cannot watch signals: {error}"), ""))?;
    let socket = tokio::select! {
        opened = client.socket(path.as_str()) => opened?,
        code = interrupts.next() => return Err(Failure::of_program(code)),
    };
    let raw = RawTerminal::of(&keyboard)
        .map_err(|error| Failure::new(format!("cannot use the terminal: {error}"), ""))?;
    write_message(&format!("shell of {title}; Ctrl-] ends it\r\n"));
    let mut output = ForeignOutput::of_terminal();
    let (mut out, mut incoming) = socket.split();
    let end = tokio::select! {
        // A flood of output uses up the turn of this task: what the user does comes before it.
        biased;
        code = interrupts.next() => ShellEnd::Signal(code),
        () = send_keys(&mut out, read_keyboard(), &mut resizes) => ShellEnd::Left,
        end = show(&mut incoming, &mut output) => end?,
    };
    if !matches!(end, ShellEnd::Exited(_)) {
        // The server may be gone.
        let _ = timeout(CLOSE_TIMEOUT, meshd_client::close(&mut out, &mut incoming)).await;
        write_raw(RESET)?;
    }
    // Restoring it drops input that was not read: answers of the terminal to requests of a program
    // must not reach the user's own shell.
    drop(raw);
    output.end();
    match end {
        ShellEnd::Exited(0) => Ok(()),
        ShellEnd::Exited(code) | ShellEnd::Signal(code) => Err(Failure::of_program(code)),
        ShellEnd::Left => {
            message!("left the shell of {title}; all its processes are ended");
            Ok(())
        }
        ShellEnd::Cut { why, hint } => {
            let hint = hint.unwrap_or(show_it);
            message!("error: the shell of {title} ended: {why}\n  hint: {hint}");
            Err(Failure::of_program(OF_CONNECTION))
        }
    }
}

fn window() -> WindowSize {
    tcgetwinsize(raw_output()).map_or_else(
        |_| WindowSize::default(),
        |size| match (size.ws_row, size.ws_col) {
            // A serial line does not know its size.
            (0, _) | (_, 0) => WindowSize::default(),
            (rows, columns) => WindowSize::new(rows, columns),
        },
    )
}

/// Shows output until the end of the shell.
async fn show(
    incoming: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    output: &mut ForeignOutput,
) -> Result<ShellEnd, Failure> {
    let lost = "the connection to meshd was lost";
    let cut = |why: String| Ok(ShellEnd::Cut { why, hint: None });
    loop {
        let note = match incoming.next().await {
            Some(Ok(Message::Binary(bytes))) => {
                output.out(&bytes)?;
                continue;
            }
            Some(Ok(Message::Text(text))) => serde_json::from_str::<ConsoleNote>(&text),
            Some(Ok(Message::Close(_))) | None => return cut(lost.to_owned()),
            Some(Ok(_)) => continue,
            Some(Err(error)) => return cut(format!("{lost}: {error}")),
        };
        match note {
            Ok(ConsoleNote::Exited { code }) => return Ok(ShellEnd::Exited(code)),
            Ok(ConsoleNote::Ended { reason, hint }) => {
                let hint = hint.map(|hint| clean(&hint));
                return Ok(ShellEnd::Cut { why: clean(&reason), hint });
            }
            Ok(ConsoleNote::EndsSoon { seconds, reason }) => {
                let reason = clean(&reason);
                write_message(&format!("\r\n[meshd: the shell ends in {seconds} s: {reason}]\r\n"));
            }
            Ok(ConsoleNote::Lost { .. } | ConsoleNote::InputQueued) | Err(_) => {}
        }
    }
}

/// Sends keys and window sizes until the user types Ctrl-].
async fn send_keys(
    out: &mut (impl Sink<Message, Error = Error> + Unpin),
    Keyboard { mut typed, mut leaves }: Keyboard,
    resizes: &mut Signal,
) {
    let sent = async {
        loop {
            let message = tokio::select! {
                key = typed.recv() => match key {
                    Some(Input::Bytes(bytes)) => Message::Binary(bytes.into()),
                    Some(Input::Leave) => return,
                    // The terminal is gone: SIGHUP follows.
                    None => return,
                },
                _ = resizes.recv() => {
                    let note = InputNote::Resize { window: window() };
                    Message::Text(serde_json::to_string(&note).unwrap_or_default().into())
                }
            };
            if out.send(message).await.is_err() {
                // `show` reports the end.
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = sent => {}
        // Leaving does not wait for a program that reads nothing.
        Ok(()) = &mut leaves => {}
    }
}
