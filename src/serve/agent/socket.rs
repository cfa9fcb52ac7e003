//! A WebSocket of typed messages with an idle timeout.

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use meshd_proto::bounded::ReadError;
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout, timeout_at};

/// How long the first message may take.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a goodbye may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pings in the time after which a silent node is given up: two may be lost.
const PINGS: u32 = 3;

/// Why a conversation is over.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The node hung up.
    #[error("the node closed the connection")]
    Closed,
    /// Nothing came, not even an answer to a ping.
    #[error("nothing heard for {0:?}")]
    Silent(Duration),
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] axum::Error),
    /// It said something that cannot be read.
    #[error("a message is not read: {0}")]
    ReadError(ReadError),
    /// It said something that is not in the protocol.
    #[error("{0}")]
    Violation(&'static str),
}

#[derive(Debug)]
pub enum Heard<T> {
    Message(T),
    /// The answer to a ping, with what the ping carried.
    Pong(Bytes),
}

/// One node's WebSocket.
pub struct AgentSocket {
    inner: WebSocket,
    patience: Duration,
    heard: Instant,
    pings: Interval,
}

impl AgentSocket {
    /// Takes over an upgraded connection. After `patience` without a sign of life it is given up.
    pub fn new(inner: WebSocket, patience: Duration) -> Self {
        let every = (patience / PINGS).max(Duration::from_millis(10));
        let mut pings = interval_at(Instant::now() + every, every);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        AgentSocket { inner, patience, heard: Instant::now(), pings }
    }

    /// The first message.
    pub async fn hello<T: DeserializeOwned>(&mut self) -> Result<T, Ended> {
        let first = timeout(HELLO_TIMEOUT, async {
            loop {
                if let Heard::Message(message) = self.next().await? {
                    return Ok(message);
                }
            }
        });
        first.await.unwrap_or(Err(Ended::Silent(HELLO_TIMEOUT)))
    }

    /// The next message or pong. Pings by itself; cancel-safe.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Heard<T>, Ended> {
        loop {
            let silent_at = self.heard + self.patience;
            let message = tokio::select! {
                message = timeout_at(silent_at, self.inner.recv()) => message,
                _ = self.pings.tick() => {
                    self.ping(Bytes::new()).await?;
                    continue;
                }
            };
            let message = message.map_err(|_| Ended::Silent(self.patience))?.ok_or(Ended::Closed)?;
            self.heard = Instant::now();
            match message.map_err(Ended::Broken)? {
                Message::Text(text) => {
                    return meshd_proto::bounded::read(text.as_bytes()).map(Heard::Message).map_err(Ended::ReadError);
                }
                Message::Pong(payload) => return Ok(Heard::Pong(payload)),
                Message::Ping(_) => {}
                Message::Binary(_) => return Err(Ended::Violation("a binary message")),
                Message::Close(_) => return Err(Ended::Closed),
            }
        }
    }

    /// Sends a ping that carries this.
    pub async fn ping(&mut self, payload: Bytes) -> Result<(), Ended> {
        self.write(Message::Ping(payload)).await
    }

    /// Sends a message.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), Ended> {
        let text = serde_json::to_string(message).map_err(|_| Ended::Violation("our own message cannot be written"))?;
        self.write(Message::Text(text.into())).await
    }

    /// Says goodbye as far as the other end still listens.
    pub async fn close(mut self, reason: &str) {
        // A close frame carries at most 123 bytes of reason (RFC 6455, 5.5); a character takes at most four.
        let reason: String = reason.chars().take(30).collect();
        let frame = CloseFrame { code: close_code::NORMAL, reason: reason.into() };
        let goodbye = async {
            self.inner.send(Message::Close(Some(frame))).await?;
            while let Some(Ok(_)) = self.inner.recv().await {}
            Ok::<(), axum::Error>(())
        };
        // Best effort: whoever does not answer is gone.
        let _ = timeout(CLOSE_TIMEOUT, goodbye).await;
    }

    async fn write(&mut self, message: Message) -> Result<(), Ended> {
        let sent = timeout(self.patience, self.inner.send(message)).await;
        sent.map_err(|_| Ended::Silent(self.patience))?.map_err(Ended::Broken)
    }
}
