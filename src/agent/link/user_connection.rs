//! A connection of its own for the bytes of one user: a console of a VM, a shell, the log of a
//! replica, or the standard input of a task.

use super::call::{self, CallError, Endpoint, Socket};
use bytes::Bytes;
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use meshd_proto::{
    CONSOLE_PATH,
    shell::InputNote,
    vm::{ConsoleId, ConsoleNote, MAX_PIECE},
};
use std::time::Duration;
use tokio::time::{interval, timeout};
use tokio_tungstenite::tungstenite::{self, Message};

/// Timeout without a message of the central node, which pings more often.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(90);
/// Ping interval. A broken connection is noticed by a failed ping, also while a program that reads
/// nothing holds up the input.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Timeout for the last messages, and for the central node to close the connection after them. A user
/// who reads slowly holds them up.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A message of the user.
#[derive(Debug, PartialEq, Eq)]
pub enum UserMessage {
    Bytes(Bytes),
    Note(InputNote),
    /// The user left, or the connection broke.
    Gone,
}

/// The way to the user.
pub struct UserOutput(SplitSink<Socket, Message>);

/// What the user sends.
pub struct UserInput(SplitStream<Socket>);

/// Connects to the user of a request.
pub async fn connect(
    endpoint: &Endpoint,
    console: ConsoleId,
) -> Result<(UserOutput, UserInput), CallError> {
    let socket = call::open(endpoint, &format!("{CONSOLE_PATH}/{}", console.0)).await?;
    let (output, input) = socket.split();
    Ok((UserOutput(output), UserInput(input)))
}

impl UserOutput {
    /// Sends bytes. Waits while the user does not read.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), tungstenite::Error> {
        for piece in bytes.chunks(MAX_PIECE) {
            self.0.send(Message::Binary(Bytes::copy_from_slice(piece))).await?;
        }
        Ok(())
    }

    pub async fn ping(&mut self) -> Result<(), tungstenite::Error> {
        self.0.send(Message::Ping(Bytes::new())).await
    }

    /// Sends a note to the user.
    pub async fn note(&mut self, note: &ConsoleNote) -> Result<(), tungstenite::Error> {
        let text = serde_json::to_string(note).unwrap_or_default();
        self.0.send(Message::Text(text.into())).await
    }

    /// Sends the last message, and closes the connection. The user may be gone.
    pub async fn end(mut self, mut input: UserInput, note: Option<&ConsoleNote>) {
        let last = async {
            if let Some(note) = note {
                self.note(note).await?;
            }
            meshd_client::close(&mut self.0, &mut input.0).await;
            Ok::<(), tungstenite::Error>(())
        };
        match timeout(CLOSE_TIMEOUT, last).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "cannot say why a connection ends"),
            Err(_) => tracing::debug!("a user does not read the last messages"),
        }
    }

    /// Pings until the connection is broken.
    pub async fn keep_alive(&mut self) -> tungstenite::Error {
        let mut pings = interval(PING_INTERVAL);
        loop {
            pings.tick().await;
            if let Err(error) = self.ping().await {
                return error;
            }
        }
    }
}

/// Returns the ticks at which [`UserOutput::ping`] is due.
pub fn pings() -> tokio::time::Interval {
    interval(PING_INTERVAL)
}

impl UserInput {
    /// Returns the next message. Unknown notes of a later version are skipped. Cancel-safe.
    pub async fn next(&mut self) -> UserMessage {
        while let Ok(Some(Ok(message))) = timeout(RECEIVE_TIMEOUT, self.0.next()).await {
            match message {
                Message::Binary(bytes) => return UserMessage::Bytes(bytes),
                Message::Text(text) => match serde_json::from_str(&text) {
                    Ok(note) => return UserMessage::Note(note),
                    Err(_) => continue,
                },
                Message::Close(_) => return UserMessage::Gone,
                _ => {}
            }
        }
        UserMessage::Gone
    }
}
