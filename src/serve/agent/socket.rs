//! A WebSocket of typed messages with an idle timeout.

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use meshd_proto::json_element_limit::ReadError;
use meshd_types::failpoint;
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout, timeout_at};

/// Timeout for the first message.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of pings within the silence timeout: two may be lost.
const PINGS: u32 = 3;

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The node closed the connection.
    #[error("the node closed the connection")]
    Closed,
    /// No message and no pong arrived within the timeout.
    #[error("silent for {0:?}")]
    Silent(Duration),
    /// The connection failed.
    #[error("the connection broke")]
    Broken(#[source] axum::Error),
    /// A message cannot be parsed.
    #[error("a message is not read: {0}")]
    ReadError(ReadError),
    /// A message violates the protocol.
    #[error("{0}")]
    Violation(&'static str),
}

/// A message or pong of the node.
#[derive(Debug)]
pub enum SocketEvent<T> {
    Message(T),
    /// A pong with the payload of its ping.
    Pong(Bytes),
}

/// WebSocket of one node.
pub struct AgentSocket {
    inner: WebSocket,
    silence_limit: Duration,
    last_received: Instant,
    pings: Interval,
}

impl AgentSocket {
    /// Wraps an upgraded connection. The connection ends after `silence_limit` without any message
    /// or pong.
    pub fn new(inner: WebSocket, silence_limit: Duration) -> Self {
        let every = (silence_limit / PINGS).max(Duration::from_millis(10));
        let mut pings = interval_at(Instant::now() + every, every);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        AgentSocket { inner, silence_limit, last_received: Instant::now(), pings }
    }

    /// Receives the first message.
    pub async fn hello<T: DeserializeOwned>(&mut self) -> Result<T, Ended> {
        let first = timeout(HELLO_TIMEOUT, async {
            loop {
                if let SocketEvent::Message(message) = self.next().await? {
                    return Ok(message);
                }
            }
        });
        first.await.unwrap_or(Err(Ended::Silent(HELLO_TIMEOUT)))
    }

    /// Receives the next message or pong. Sends pings by itself; cancel-safe.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<SocketEvent<T>, Ended> {
        loop {
            let silent_at = self.last_received + self.silence_limit;
            let message = tokio::select! {
                message = timeout_at(silent_at, self.inner.recv()) => message,
                _ = self.pings.tick() => {
                    self.ping(Bytes::new()).await?;
                    continue;
                }
            };
            let message =
                message.map_err(|_| Ended::Silent(self.silence_limit))?.ok_or(Ended::Closed)?;
            self.last_received = Instant::now();
            match message.map_err(Ended::Broken)? {
                Message::Text(text) => {
                    failpoint::record("agent", text.as_bytes());
                    return meshd_proto::json_element_limit::read(text.as_bytes())
                        .map(SocketEvent::Message)
                        .map_err(Ended::ReadError);
                }
                Message::Pong(payload) => return Ok(SocketEvent::Pong(payload)),
                Message::Ping(_) => {}
                Message::Binary(_) => return Err(Ended::Violation("a binary message")),
                Message::Close(_) => return Err(Ended::Closed),
            }
        }
    }

    /// Sends a ping with this payload.
    pub async fn ping(&mut self, payload: Bytes) -> Result<(), Ended> {
        self.write(Message::Ping(payload)).await
    }

    /// Sends a message.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), Ended> {
        let text = serde_json::to_string(message)
            .map_err(|_| Ended::Violation("our own message cannot be written"))?;
        failpoint::record("central", text.as_bytes());
        self.write(Message::Text(text.into())).await
    }

    /// Sends a goodbye if the peer still reads.
    pub async fn close(mut self, reason: &str) {
        // A close frame carries at most 123 bytes of reason (RFC 6455, 5.5); a character takes at
        // most four.
        let reason: String = reason.chars().take(30).collect();
        let frame = CloseFrame { code: close_code::NORMAL, reason: reason.into() };
        let goodbye = async {
            self.inner.send(Message::Close(Some(frame))).await?;
            while let Some(Ok(_)) = self.inner.recv().await {}
            Ok::<(), axum::Error>(())
        };
        // The goodbye is best effort: a peer that does not answer is gone.
        let _ = timeout(CLOSE_TIMEOUT, goodbye).await;
    }

    async fn write(&mut self, message: Message) -> Result<(), Ended> {
        let sent = timeout(self.silence_limit, self.inner.send(message)).await;
        sent.map_err(|_| Ended::Silent(self.silence_limit))?.map_err(Ended::Broken)
    }
}
