//! `meshd vm console` and `meshd vm logs`: the serial console of a virtual machine.

use crate::cli::{Failure, client::AdminClient};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use meshd_api::segment;
use meshd_lab::RawTerminal;
use meshd_proto::vm::{ConsoleNote, MAX_PIECE};
use std::{
    io::{IsTerminal as _, Read as _, Write as _, stdin, stdout},
    thread,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Ctrl-], as in telnet: leaves the console. Everything else is the guest's.
const LEAVE: u8 = 0x1d;
/// Most pieces of typing that wait.
const TYPED: usize = 1024;
/// How long leaving waits for what was typed before, at a terminal.
const LEAVING: Duration = Duration::from_secs(2);
/// The same where input is piped in: a script wants all of it to arrive.
const LEAVING_PIPED: Duration = Duration::from_secs(60);

enum Typed {
    Bytes(Vec<u8>),
    Leave,
}

/// Keyboard input, in order, and a signal that comes ahead of it.
struct Keys {
    typed: mpsc::Receiver<Typed>,
    /// Sent when Ctrl-] is read, though input before it may wait.
    leaves: oneshot::Receiver<()>,
}

/// Sits at a console until it is left or over.
pub(crate) async fn console(client: &AdminClient, vm: &str, input: bool) -> Result<(), Failure> {
    let socket = client.socket(&format!("/v1/vms/{}/console", segment(vm))).await?;
    let keyboard = stdin();
    let raw = (input && keyboard.is_terminal()).then(|| RawTerminal::of(&keyboard));
    let raw = raw.transpose().map_err(|error| Failure::new(format!("no terminal: {error}"), "use --no-input"))?;
    if raw.is_some() {
        eprint!("at the console of {vm}; Ctrl-] leaves\r\n");
    }
    let patience = if raw.is_some() { LEAVING } else { LEAVING_PIPED };
    let (out, mut shown) = socket.split();
    tokio::select! {
        biased;
        over = listen(&mut shown) => over?,
        left = type_in(out, input.then(typing), patience) => {
            left?;
            // The server may still read: hanging up now would discard what was typed before.
            let _ = timeout(patience, listen(&mut shown)).await;
            return Ok(());
        }
    }
    drop(raw);
    eprintln!("the console of {vm} is over");
    Ok(())
}

/// Shows what comes until the server hangs up.
async fn listen(shown: &mut (impl Stream<Item = Result<Message, Error>> + Unpin)) -> Result<(), Failure> {
    loop {
        match shown.next().await {
            Some(Ok(Message::Binary(bytes))) => show(&bytes)?,
            Some(Ok(Message::Text(text))) => {
                if let Ok(note) = serde_json::from_str::<ConsoleNote>(&text) {
                    eprint!("\r\n{}\r\n", note_text(&note));
                }
            }
            Some(Ok(Message::Close(_))) | None => return Ok(()),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(broken(&error)),
        }
    }
}

/// Sends what is typed until the console is left. A guest that does not read holds up input, but neither output nor leaving.
async fn type_in(
    mut out: impl Sink<Message, Error = Error> + Unpin,
    keys: Option<Keys>,
    patience: Duration,
) -> Result<(), Failure> {
    let Some(Keys { mut typed, leaves }) = keys else { return std::future::pending().await };
    let sent = async {
        while let Some(key) = typed.recv().await {
            match key {
                Typed::Bytes(bytes) => out.send(Message::Binary(bytes.into())).await.map_err(|error| broken(&error))?,
                Typed::Leave => {
                    // Who does not listen is left all the same.
                    let _ = out.send(Message::Close(None)).await;
                    return Ok(());
                }
            }
        }
        // What is piped in has an end; what the guest says to it may come later.
        std::future::pending().await
    };
    let stuck = async {
        match leaves.await {
            Ok(()) => sleep(patience).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        sent = sent => sent,
        () = stuck => Ok(()),
    }
}

fn broken(error: &Error) -> Failure {
    Failure::new(format!("the console broke off: {error}"), "try again")
}

/// What it wrote, and with `follow` what it writes.
pub(crate) async fn logs(client: &AdminClient, vm: &str, follow: bool) -> Result<(), Failure> {
    client.stream(&format!("/v1/vms/{}/logs?follow={follow}", segment(vm)), show).await
}

fn show(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

fn note_text(note: &ConsoleNote) -> String {
    match note {
        ConsoleNote::Lost { bytes } => {
            format!("[meshd: {bytes} bytes of what it wrote are missing here: this terminal was too slow]")
        }
        ConsoleNote::Unheard => "[meshd: the guest does not read: what is typed waits]".to_owned(),
        ConsoleNote::Ended { reason } => format!("[meshd: {}]", crate::cli::output::print::clean(reason)),
    }
}

/// Reads the keyboard, or what is piped in. The thread waits for a key to the end of the program.
fn typing() -> Keys {
    let (send, typed) = mpsc::channel(TYPED);
    let (leave, leaves) = oneshot::channel();
    thread::spawn(move || {
        let mut bytes = vec![0; MAX_PIECE];
        while let Ok(length @ 1..) = stdin().lock().read(&mut bytes) {
            let (before, is_last) = split(&bytes[..length]);
            if !before.is_empty() && send.blocking_send(Typed::Bytes(before.to_vec())).is_err() {
                return;
            }
            if is_last {
                // Nobody may be there any more.
                let _ = leave.send(());
                let _ = send.blocking_send(Typed::Leave);
                return;
            }
        }
    });
    Keys { typed, leaves }
}

/// What is typed before somebody leaves, and whether they do.
fn split(typed: &[u8]) -> (&[u8], bool) {
    match typed.iter().position(|key| *key == LEAVE) {
        Some(at) => (&typed[..at], true),
        None => (typed, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_the_guests_but_one() {
        assert_eq!(split(b"ls\x03\r"), (b"ls\x03\r".as_slice(), false));
        assert_eq!(split(b"ls\r\x1dnot this"), (b"ls\r".as_slice(), true));
    }
}
