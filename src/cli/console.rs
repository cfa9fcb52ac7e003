//! `meshd vm console` and `meshd vm logs`: the serial console of a virtual machine, from here to its node.

use super::{
    Failure,
    client::{Client, segment},
};
use crate::{
    lab::Raw,
    wire::vm::{ConsoleNote, MAX_PIECE},
};
use futures_util::{SinkExt as _, StreamExt as _};
use std::{
    io::{IsTerminal as _, Read as _, Write as _, stdin, stdout},
    thread,
};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

/// Ctrl-], as in telnet: leaves the console. Everything else is the guest's.
const LEAVE: u8 = 0x1d;
/// Most pieces of typing that wait.
const TYPED: usize = 64;

/// What somebody typed.
enum Typed {
    Bytes(Vec<u8>),
    Leave,
}

/// Sits at a console until it is left or over.
pub(super) async fn console(client: &Client, vm: &str, input: bool) -> Result<(), Failure> {
    let mut socket = client.socket(&format!("/v1/vms/{}/console", segment(vm))).await?;
    let keyboard = stdin();
    let raw = (input && keyboard.is_terminal()).then(|| Raw::of(&keyboard));
    let raw = raw.transpose().map_err(|error| Failure::new(format!("no terminal: {error}"), "use --no-input"))?;
    if raw.is_some() {
        eprint!("at the console of {vm}; Ctrl-] leaves\r\n");
    }
    let mut keys = input.then(typing);
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) => show(&bytes)?,
                Some(Ok(Message::Text(text))) => {
                    if let Ok(note) = serde_json::from_str::<ConsoleNote>(&text) {
                        eprint!("\r\n{}\r\n", told(&note));
                    }
                }
                Some(Ok(Message::Close(_))) | None => break,
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Failure::new(format!("the console broke off: {error}"), "try again")),
            },
            key = next(&mut keys) => match key {
                Some(Typed::Bytes(bytes)) => {
                    let sent = socket.send(Message::Binary(bytes.into())).await;
                    sent.map_err(|error| Failure::new(format!("the console broke off: {error}"), "try again"))?;
                }
                Some(Typed::Leave) => {
                    // What was typed before goes out; whoever does not listen is left all the same.
                    let _ = socket.close(None).await;
                    return Ok(());
                }
                // What is piped in has an end; what the guest says to it may come later.
                None => keys = None,
            },
        }
    }
    drop(raw);
    eprintln!("the console of {vm} is over");
    Ok(())
}

/// What it wrote, and with `follow` what it writes.
pub(super) async fn logs(client: &Client, vm: &str, follow: bool) -> Result<(), Failure> {
    client.stream(&format!("/v1/vms/{}/logs?follow={follow}", segment(vm)), show).await
}

fn show(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

fn told(note: &ConsoleNote) -> String {
    match note {
        ConsoleNote::Lost { bytes } => {
            format!("[meshd: {bytes} bytes of what it wrote are missing here: this terminal was too slow]")
        }
        ConsoleNote::Unheard => "[meshd: the guest does not read: something that was typed is lost]".to_owned(),
        ConsoleNote::Ended { reason } => format!("[meshd: {}]", super::print::clean(reason)),
    }
}

async fn next(keys: &mut Option<mpsc::Receiver<Typed>>) -> Option<Typed> {
    match keys {
        Some(keys) => keys.recv().await,
        None => std::future::pending().await,
    }
}

/// Reads the keyboard, or what is piped in. The thread waits for a key to the end of the program.
fn typing() -> mpsc::Receiver<Typed> {
    let (send, typed) = mpsc::channel(TYPED);
    thread::spawn(move || {
        let mut bytes = vec![0; MAX_PIECE];
        while let Ok(length @ 1..) = stdin().lock().read(&mut bytes) {
            let (before, leaves) = split(&bytes[..length]);
            if !before.is_empty() && send.blocking_send(Typed::Bytes(before.to_vec())).is_err() {
                return;
            }
            if leaves {
                // Nobody may be there any more.
                let _ = send.blocking_send(Typed::Leave);
                return;
            }
        }
    });
    typed
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
