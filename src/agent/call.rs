//! One call to the central node: TCP, TLS, then a POST or a WebSocket. The agent only dials out.

use crate::wire::{self, AgentConfig, ErrorBody, FromCentral, TaskId};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls::{AlertDescription, ClientConfig, pki_types::ServerName};
use serde::{Serialize, de::DeserializeOwned};
use std::{net::SocketAddrV4, sync::Arc, time::Duration};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{self, client::IntoClientRequest as _, protocol::WebSocketConfig},
};

/// How long TCP and TLS may take together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a whole POST, or the upgrade to a WebSocket, may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A WebSocket to the central node.
pub type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The central node knows us, or our token, and says no.
    #[error("the central node refuses: {0}")]
    Refused(String),
    /// It is not the central node that this node was told to trust.
    #[error("stale_ca: {0}")]
    StaleCa(String),
    /// No usable answer: not there, busy, broken, not ours.
    #[error("{0}")]
    Lost(String),
}

fn lost(what: &str) -> impl FnOnce(std::io::Error) -> CallError {
    let what = what.to_owned();
    move |error| match alert(&error) {
        _ if is_foreign(&error) => CallError::StaleCa(format!(
            "{what}: {error}; it is another central node, or its authority was replaced while this node was away: \
             boot this node again, or give its agent a new token"
        )),
        Some(alert) => CallError::Refused(format!("our certificate ({alert:?})")),
        None => CallError::Lost(format!("{what}: {error}")),
    }
}

/// True if we do not take the other end for the central node of our site.
fn is_foreign(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// With TLS 1.3 the refusal of a client certificate comes after the handshake, as an alert on the first read.
fn alert(error: &(dyn std::error::Error + 'static)) -> Option<AlertDescription> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = inner.or_else(|| error.downcast_ref()) {
            use AlertDescription as A;
            let about_us = matches!(
                alert,
                A::BadCertificate
                    | A::UnsupportedCertificate
                    | A::CertificateRevoked
                    | A::CertificateExpired
                    | A::CertificateUnknown
                    | A::UnknownCA
                    | A::AccessDenied
                    | A::DecryptError
            );
            return about_us.then_some(*alert);
        }
        cause = error.source();
    }
    None
}

async fn connect(config: &AgentConfig, tls: Arc<ClientConfig>) -> Result<TlsStream<TcpStream>, CallError> {
    let address = SocketAddrV4::new(config.central, config.port);
    let name = ServerName::try_from(wire::SERVER_NAME).map_err(|error| CallError::Lost(error.to_string()))?;
    let connected = timeout(CONNECT_TIMEOUT, async {
        let stream = TcpStream::connect(address).await.map_err(lost(&format!("cannot reach {address}")))?;
        // Small messages both ways.
        let _ = stream.set_nodelay(true);
        let handshake = TlsConnector::from(tls).connect(name, stream).await;
        handshake.map_err(lost(&format!("no TLS with {address} under this site's authority")))
    });
    connected.await.map_err(|_| CallError::Lost(format!("{address} does not answer")))?
}

/// Sends a request and reads the answer. 401 is a refusal; anything else that is no success is worth another try.
pub async fn post<Q: Serialize, A: DeserializeOwned>(
    config: &AgentConfig,
    tls: Arc<ClientConfig>,
    path: &str,
    request: &Q,
) -> Result<A, CallError> {
    let broken = |error: &dyn std::fmt::Display| CallError::Lost(format!("the answer is no answer: {error}"));
    let body = serde_json::to_vec(request).map_err(|error| broken(&error))?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, wire::SERVER_NAME)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| broken(&error))?;
    let stream = connect(config, tls).await?;
    let exchange = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Ends with this function: a set of tasks aborts what is left when it is dropped.
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let response = sender.send_request(request).await?;
        let status = response.status();
        Ok((status, Limited::new(response.into_body(), wire::MAX_MESSAGE).collect().await))
    };
    let answer = timeout(CALL_TIMEOUT, exchange).await.map_err(|_| CallError::Lost("no answer in time".into()))?;
    let (status, body) = answer.map_err(|error: hyper::Error| match alert(&error) {
        Some(alert) => CallError::Refused(format!("our certificate ({alert:?})")),
        None => CallError::Lost(format!("the connection broke: {error}")),
    })?;
    let body = body.map_err(|error| broken(&error))?.to_bytes();
    match status {
        StatusCode::OK => serde_json::from_slice(&body).map_err(|error| broken(&error)),
        StatusCode::UNAUTHORIZED => Err(CallError::Refused(message(&body, status))),
        other => Err(CallError::Lost(message(&body, other))),
    }
}

/// Opens a WebSocket. 401 is a refusal.
pub async fn open(config: &AgentConfig, tls: Arc<ClientConfig>, path: &str) -> Result<Socket, CallError> {
    let request = format!("wss://{}{path}", wire::SERVER_NAME);
    let request = request.into_client_request().map_err(|error| CallError::Lost(error.to_string()))?;
    let stream = connect(config, tls).await?;
    let limits = WebSocketConfig::default()
        .read_buffer_size(16 * 1024)
        .max_message_size(Some(wire::MAX_MESSAGE))
        .max_frame_size(Some(wire::MAX_MESSAGE));
    let opened = timeout(CALL_TIMEOUT, client_async_with_config(request, stream, Some(limits))).await;
    match opened.map_err(|_| CallError::Lost("no answer in time".into()))? {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => {
            let said = message(response.body().as_deref().unwrap_or_default(), response.status());
            match response.status() {
                StatusCode::UNAUTHORIZED => Err(CallError::Refused(said)),
                _ => Err(CallError::Lost(said)),
            }
        }
        Err(error) => Err(match alert(&error) {
            Some(alert) => CallError::Refused(format!("our certificate ({alert:?})")),
            None => CallError::Lost(format!("no WebSocket: {error}")),
        }),
    }
}

fn message(body: &[u8], status: StatusCode) -> String {
    let body = serde_json::from_slice::<ErrorBody>(body);
    body.map_or_else(|_| status.to_string(), |body| format!("{}: {}", body.code, body.message))
}

/// A message on the link, as far as this agent can read it.
#[derive(Debug, PartialEq)]
pub enum Read {
    /// One of ours.
    Message(FromCentral),
    /// A task with an action of a later version: it has to be answered.
    UnknownTask(TaskId),
    /// Something else of a later version, or nonsense.
    Unreadable,
}

/// Reads a message of the link. Total.
pub fn read(text: &str) -> Read {
    if let Ok(message) = serde_json::from_str(text) {
        return Read::Message(message);
    }
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let task = value.get("task").and_then(serde_json::Value::as_u64);
    match (value.get("kind").and_then(serde_json::Value::as_str), task) {
        (Some("task"), Some(task)) => Read::UnknownTask(TaskId(task)),
        _ => Read::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_task_of_a_later_version_is_told_from_nonsense() {
        let later = r#"{"kind":"task","task":7,"node":"00000001","expires_at":"2026-01-31T12:00:00Z",
            "action":{"action":"make_coffee"}}"#;
        assert_eq!(read(later), Read::UnknownTask(TaskId(7)));
        assert!(matches!(read(&later.replace("make_coffee", "reboot")), Read::Message(FromCentral::Task(_))));
        assert_eq!(read(r#"{"kind":"later"}"#), Read::Unreadable);
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "\\PC{0,200}|\\{\"kind\":\"task\",\"task\":.{0,20}\\}") {
            let _ = read(&text);
        }
    }
}
