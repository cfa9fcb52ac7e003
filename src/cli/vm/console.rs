//! `meshd vm console` and `meshd vm logs`: the serial console of a VM.

use crate::cli::{
    Failure,
    client::AdminClient,
    output::{
        clean::clean,
        keyboard::{Input, Keyboard, read_keyboard},
        writer::{ForeignOutput, RawOutput, write_message},
    },
};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use meshd_api::routes as api;
use meshd_lab::RawTerminal;
use meshd_proto::vm::ConsoleNote;
use std::{
    io::{IsTerminal as _, stdin},
    time::Duration,
};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Time to send earlier input after Ctrl-], at a terminal.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Time to send earlier input from a pipe: a script expects all input to arrive.
const DRAIN_TIME_PIPED: Duration = Duration::from_secs(60);

/// The path of a console in the API, and its VM or node.
pub(crate) struct ConsolePath<'t> {
    pub(crate) path: String,
    pub(crate) title: &'t str,
}

/// Connects the terminal to a console until Ctrl-] or the end of the console. A terminal with input
/// belongs to the guest: editors and menus need its escape sequences. Without input, they are
/// removed.
pub(crate) async fn console(
    client: &AdminClient,
    ConsolePath { path, title }: ConsolePath<'_>,
    input: bool,
    option: RawOutput,
) -> Result<(), Failure> {
    let socket = client.socket(&path).await?;
    let keyboard = stdin();
    let raw = (input && keyboard.is_terminal()).then(|| RawTerminal::of(&keyboard));
    let raw = raw
        .transpose()
        .map_err(|error| Failure::new(format!("no terminal: {error}"), "use --no-input"))?;
    if raw.is_some() {
        write_message(&format!("console of {title}; Ctrl-] ends it\r\n"));
    }
    let mut output =
        if raw.is_some() { ForeignOutput::of_terminal() } else { ForeignOutput::new(option) };
    let drain_time = if raw.is_some() { DRAIN_TIME } else { DRAIN_TIME_PIPED };
    let (out, mut incoming) = socket.split();
    tokio::select! {
        biased;
        ended = print_console(&mut incoming, &mut output) => ended?,
        sent = send_input(out, input.then(read_keyboard), drain_time) => {
            sent?;
            // The server may still read: closing the connection now would discard earlier input.
            let _ = timeout(drain_time, print_console(&mut incoming, &mut output)).await;
            output.end();
            return Ok(());
        }
    }
    drop(raw);
    output.end();
    message!("the console of {title} ended");
    Ok(())
}

/// Prints the output of a console until the server closes it.
async fn print_console(
    incoming: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    output: &mut ForeignOutput,
) -> Result<(), Failure> {
    loop {
        match incoming.next().await {
            Some(Ok(Message::Binary(bytes))) => output.out(&bytes)?,
            Some(Ok(Message::Text(text))) => {
                if let Ok(note) = serde_json::from_str::<ConsoleNote>(&text) {
                    write_message(&format!("\r\n{}\r\n", note_text(&note)));
                }
            }
            Some(Ok(Message::Close(_))) | None => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(connection_failure(&error)),
        }
    }
}

/// Sends input until the user leaves the console. A guest that does not read blocks input, but
/// neither output nor leaving.
async fn send_input(
    mut out: impl Sink<Message, Error = Error> + Unpin,
    keys: Option<Keyboard>,
    drain_time: Duration,
) -> Result<(), Failure> {
    let Some(Keyboard { mut typed, leaves }) = keys else { return std::future::pending().await };
    let sent = async {
        while let Some(key) = typed.recv().await {
            match key {
                Input::Bytes(bytes) => out
                    .send(Message::Binary(bytes.into()))
                    .await
                    .map_err(|error| connection_failure(&error))?,
                Input::Leave => {
                    // Leaving does not depend on the server.
                    let _ = out.send(Message::Close(None)).await;
                    return Ok(());
                }
            }
        }
        // Piped input has an end; the output of the guest may follow later.
        std::future::pending().await
    };
    let stuck = async {
        match leaves.await {
            Ok(()) => sleep(drain_time).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        sent = sent => sent,
        () = stuck => Ok(()),
    }
}

fn connection_failure(error: &Error) -> Failure {
    Failure::new(format!("the console broke off: {error}"), "try again")
}

/// Prints the log of a console or a container, and new output if it is followed.
pub(crate) async fn logs(
    client: &AdminClient,
    log: api::GetPath<api::Binary>,
    option: RawOutput,
) -> Result<(), Failure> {
    let mut output = ForeignOutput::new(option);
    client.stream(log, |bytes| output.out(bytes)).await?;
    output.end();
    Ok(())
}

fn note_text(note: &ConsoleNote) -> String {
    match note {
        ConsoleNote::Lost { bytes } => {
            format!("[meshd: {bytes} bytes of output are missing: this terminal was too slow]")
        }
        ConsoleNote::InputQueued => "[meshd: the guest does not read: input is queued]".to_owned(),
        ConsoleNote::Ended { reason, .. } => format!("[meshd: {}]", clean(reason)),
        ConsoleNote::Exited { code } => format!("[meshd: exit code {code}]"),
        ConsoleNote::EndsSoon { seconds, reason } => {
            format!("[meshd: the console ends in {seconds} s: {}]", clean(reason))
        }
    }
}
