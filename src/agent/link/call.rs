//! Calls the central node: TCP and TLS, then a POST or a WebSocket. The agent never listens.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header};
use hyper_util::rt::TokioIo;
use meshd_proto::{ActionId, AgentConfig, ErrorBody, FromCentral};
use rustls::{AlertDescription, ClientConfig, pki_types::ServerName};
use serde::{Serialize, de::DeserializeOwned};
use std::{net::SocketAddrV4, sync::Arc, time::Duration};
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{self, client::IntoClientRequest as _, protocol::WebSocketConfig},
};

/// Timeout of TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of a POST or of the upgrade to a WebSocket.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Address of the central node, and the TLS configuration with the certificate of this node.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Address of the central node.
    pub config: AgentConfig,
    /// Certificate of this node, and the authorities that it trusts.
    pub tls: Arc<ClientConfig>,
}

/// A WebSocket to the central node.
pub type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The central node rejects the certificate or token.
    #[error("the central node refuses: {0}")]
    Refused(String),
    /// The certificate of the central node is not trusted.
    #[error("stale_ca: {0}")]
    StaleCa(String),
    /// No usable answer: unreachable, busy, broken connection.
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

/// Returns true if the certificate of the other side is not trusted.
fn is_foreign(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// In TLS 1.3 the rejection of a client certificate arrives after the handshake, as an alert on the first read.
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
    let name = ServerName::try_from(meshd_proto::SERVER_NAME).map_err(|error| CallError::Lost(error.to_string()))?;
    let connected = timeout(CONNECT_TIMEOUT, async {
        let stream = TcpStream::connect(address).await.map_err(lost(&format!("cannot reach {address}")))?;
        // Small messages in both directions.
        let _ = stream.set_nodelay(true);
        let handshake = TlsConnector::from(tls).connect(name, stream).await;
        handshake.map_err(lost(&format!("no TLS with {address} under this site's authority")))
    });
    connected.await.map_err(|_| CallError::Lost(format!("{address} does not answer")))?
}

/// Sends a request and reads the answer. 401 is a rejection; any other error may be retried.
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
        .header(header::HOST, meshd_proto::SERVER_NAME)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| broken(&error))?;
    let whole = async {
        // The connection task ends with this function, because dropping a set of tasks aborts them.
        let (response, _connection) = send(config, tls, request).await?;
        let status = response.status();
        Ok((status, Limited::new(response.into_body(), meshd_proto::MAX_MESSAGE).collect().await))
    };
    let answer = timeout(CALL_TIMEOUT, whole).await.map_err(|_| CallError::Lost("no answer in time".into()))?;
    let (status, body) = answer?;
    let body = body.map_err(|error| broken(&error))?.to_bytes();
    match status {
        StatusCode::OK => serde_json::from_slice(&body).map_err(|error| broken(&error)),
        StatusCode::UNAUTHORIZED => Err(CallError::Refused(message(&body, status))),
        other => Err(CallError::Lost(message(&body, other))),
    }
}

/// Sends a request. Returns the head of the answer and the connection that delivers the body.
async fn send(
    config: &AgentConfig,
    tls: Arc<ClientConfig>,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, JoinSet<Result<(), hyper::Error>>), CallError> {
    let stream = connect(config, tls).await?;
    let exchange = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        Ok((sender.send_request(request).await?, tasks))
    };
    exchange.await.map_err(|error: hyper::Error| broke(&error))
}

fn broke(error: &hyper::Error) -> CallError {
    match alert(error) {
        Some(alert) => CallError::Refused(format!("our certificate ({alert:?})")),
        None => CallError::Lost(format!("the connection broke: {error}")),
    }
}

/// The answer to a request for a piece of a file.
pub enum Piece {
    /// The requested byte range and the total file size.
    Body {
        body: Body,
        /// Total file size.
        of: u64,
    },
    /// The file ends before the range.
    Beyond,
    /// The node may not have the file, with the cause.
    None(String),
}

/// The body of an answer.
pub struct Body {
    body: Incoming,
    _connection: JoinSet<Result<(), hyper::Error>>,
}

impl Body {
    /// Reads the next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            let frame = timeout(CALL_TIMEOUT, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| CallError::Lost("nothing comes any more".into()))? else {
                return Ok(None);
            };
            // Skip trailers.
            if let Ok(bytes) = frame.map_err(|error| broke(&error))?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }
}

/// Requests a half-open byte range of a file. 401 is a rejection.
pub async fn piece(
    config: &AgentConfig,
    tls: Arc<ClientConfig>,
    path: &str,
    range: (u64, u64),
) -> Result<Piece, CallError> {
    let request = Request::builder()
        .uri(path)
        .header(header::HOST, meshd_proto::SERVER_NAME)
        .header(header::RANGE, format!("bytes={}-{}", range.0, range.1.saturating_sub(1)))
        .body(Full::default())
        .map_err(|error| CallError::Lost(error.to_string()))?;
    let sent = timeout(CALL_TIMEOUT, send(config, tls, request)).await;
    let (response, connection) = sent.map_err(|_| CallError::Lost("no answer in time".into()))??;
    let told = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match (response.status(), content_range(told)) {
        (StatusCode::PARTIAL_CONTENT, Some((first, of))) if first == range.0 => {
            Ok(Piece::Body { body: Body { body: response.into_body(), _connection: connection }, of })
        }
        (StatusCode::RANGE_NOT_SATISFIABLE, _) => Ok(Piece::Beyond),
        (status, _) => {
            let body = Limited::new(response.into_body(), meshd_proto::MAX_MESSAGE).collect().await;
            let said = message(&body.map(|body| body.to_bytes()).unwrap_or_default(), status);
            match status {
                StatusCode::UNAUTHORIZED => Err(CallError::Refused(said)),
                StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => Ok(Piece::None(said)),
                _ => Err(CallError::Lost(said)),
            }
        }
    }
}

/// Parses `bytes 0-99/1000`: first byte and total size.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, of) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, of.parse().ok()?))
}

/// Opens a WebSocket. 401 is a rejection.
pub async fn open(config: &AgentConfig, tls: Arc<ClientConfig>, path: &str) -> Result<Socket, CallError> {
    let request = format!("wss://{}{path}", meshd_proto::SERVER_NAME);
    let request = request.into_client_request().map_err(|error| CallError::Lost(error.to_string()))?;
    let stream = connect(config, tls).await?;
    let limits = WebSocketConfig::default()
        .read_buffer_size(16 * 1024)
        .max_message_size(Some(meshd_proto::MAX_MESSAGE))
        .max_frame_size(Some(meshd_proto::MAX_MESSAGE));
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

/// A parsed message of the link.
#[derive(Debug, PartialEq)]
pub enum LinkRead {
    /// A known message.
    Message(FromCentral),
    /// An order of an unknown action, which must be answered.
    UnknownAction(ActionId),
    /// An unknown or invalid message.
    Unreadable,
}

/// Parses a message of the link.
pub fn read(text: &str) -> LinkRead {
    if let Ok(message) = serde_json::from_str(text) {
        return LinkRead::Message(message);
    }
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let id = value.get("task").and_then(serde_json::Value::as_u64);
    match (value.get("kind").and_then(serde_json::Value::as_str), id) {
        (Some("task"), Some(id)) => LinkRead::UnknownAction(ActionId(id)),
        _ => LinkRead::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn action_of_a_later_version_is_told_from_nonsense() {
        let later = r#"{"kind":"task","task":7,"node":"00000001","expires_at":"2026-01-31T12:00:00Z",
            "action":{"action":"make_coffee"}}"#;
        assert_eq!(read(later), LinkRead::UnknownAction(ActionId(7)));
        assert!(matches!(read(&later.replace("make_coffee", "reboot")), LinkRead::Message(FromCentral::Action(_))));
        assert_eq!(read(r#"{"kind":"later"}"#), LinkRead::Unreadable);
    }

    #[test]
    fn a_range_is_read_as_servers_write_it() {
        assert_eq!(content_range("bytes 5-9/1000"), Some((5, 1000)));
        for text in ["", "bytes */1000", "bytes 5-9/*", "5-9/10", "bytes -9/10"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "\\PC{0,200}|\\{\"kind\":\"task\",\"task\":.{0,20}\\}") {
            let _ = (read(&text), content_range(&text));
        }
    }
}
