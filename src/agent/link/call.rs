//! Calls the central node: TCP and TLS, then a POST or a WebSocket. The agent never listens.

use crate::link_state::Event;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, StatusCode, header};
pub use meshd_client::Socket;
use meshd_client::{Client, ClientError, ResponseBody, Timeouts, collect};
use meshd_proto::{ActionId, AgentConfig, ErrorBody, warm_boot::OVERLAY_DIGEST_HEADER};
use meshd_types::Digest;
use rustls::{AlertDescription, ClientConfig, pki_types::ServerName};
use serde::{Serialize, de::DeserializeOwned};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{client::IntoClientRequest as _, protocol::WebSocketConfig};

/// The central node answers small requests at once, but it may be restarting.
const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(15), response: Duration::from_secs(30) };

/// The central node, and the TLS configuration with the certificate of this node.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub config: AgentConfig,
    pub tls: Arc<ClientConfig>,
}

/// An error of a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The central node rejects the certificate or token.
    #[error("the central node refuses: {0}")]
    Refused(String),
    /// The certificate of the central node is not trusted.
    #[error("stale_ca: {0}")]
    StaleCa(String),
    /// No usable response: unreachable, busy, broken connection.
    #[error("{0}")]
    Failed(String),
}

impl From<ClientError> for CallError {
    fn from(error: ClientError) -> Self {
        match error.tls_error() {
            Some(rustls::Error::InvalidCertificate(_)) => CallError::StaleCa(format!(
                "{error}; another central node answered, or its certificate authority was replaced: reboot this node, or install \
                 a new ticket"
            )),
            Some(rustls::Error::AlertReceived(alert)) if rejects_certificate(*alert) => {
                CallError::Refused(format!("our certificate ({alert:?})"))
            }
            _ => CallError::Failed(error.to_string()),
        }
    }
}

/// Returns true if the alert is about the certificate of this node.
fn rejects_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
            | A::DecryptError
    )
}

fn client(endpoint: &Endpoint) -> Result<Client, CallError> {
    let name = ServerName::try_from(meshd_proto::SERVER_NAME)
        .map_err(|error| CallError::Failed(error.to_string()))?;
    let host = endpoint.config.central.to_string();
    let port = endpoint.config.port;
    let endpoint = meshd_client::Endpoint::Tls { host, port, name, config: endpoint.tls.clone() };
    Ok(Client { endpoint, timeouts: TIMEOUTS })
}

/// Posts a request and parses the response. 401 is a rejection; any other error may be retried.
pub async fn post<Q: Serialize, A: DeserializeOwned>(
    endpoint: &Endpoint,
    path: &str,
    request: &Q,
) -> Result<A, CallError> {
    let response = client(endpoint)?.send(post_request(path, request)?).await?;
    let status = response.status();
    let body = small_body(response.into_body()).await?;
    if status != StatusCode::OK {
        return Err(status_error(status, &body));
    }
    serde_json::from_slice(&body).map_err(|error| invalid(&error))
}

/// Posts a request whose response is bytes, with their digest in a header.
pub async fn post_for_bytes<Q: Serialize>(
    endpoint: &Endpoint,
    path: &str,
    request: &Q,
) -> Result<(Body, Option<Digest>), CallError> {
    let response = client(endpoint)?.send(post_request(path, request)?).await?;
    let status = response.status();
    if status != StatusCode::OK {
        return Err(status_error(status, &small_body(response.into_body()).await?));
    }
    let header = response.headers().get(OVERLAY_DIGEST_HEADER);
    let digest = header.and_then(|value| value.to_str().ok()?.parse().ok());
    Ok((Body(response.into_body()), digest))
}

fn post_request<Q: Serialize>(path: &str, request: &Q) -> Result<Request<Full<Bytes>>, CallError> {
    let body = serde_json::to_vec(request).map_err(|error| invalid(&error))?;
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, meshd_proto::SERVER_NAME)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| invalid(&error))
}

fn invalid(error: &dyn std::fmt::Display) -> CallError {
    CallError::Failed(format!("invalid request or response: {error}"))
}

async fn small_body(body: ResponseBody) -> Result<Bytes, CallError> {
    let body = timeout(TIMEOUTS.response, collect(body, meshd_proto::MAX_MESSAGE)).await;
    Ok(body.map_err(|_| CallError::Failed("no response: timeout".into()))??)
}

/// The response to a request for a byte range of a file.
pub enum Piece {
    /// The requested byte range and the total file size.
    Body { body: Body, total: u64 },
    /// The file ends before the range.
    PastEnd,
    /// The file does not exist or the node has no access, with the cause.
    Unavailable(String),
}

/// The body of a response.
pub struct Body(ResponseBody);

impl Body {
    /// Reads the next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            let frame = timeout(TIMEOUTS.response, self.0.frame()).await;
            let Some(frame) = frame.map_err(|_| CallError::Failed("no data: timeout".into()))?
            else {
                return Ok(None);
            };
            // Skip trailers.
            if let Ok(bytes) = frame.map_err(ClientError::Connection)?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }
}

/// Requests a half-open byte range of a file. 401 is a rejection.
pub async fn piece(endpoint: &Endpoint, path: &str, range: (u64, u64)) -> Result<Piece, CallError> {
    let request = Request::builder()
        .uri(path)
        .header(header::HOST, meshd_proto::SERVER_NAME)
        .header(header::RANGE, format!("bytes={}-{}", range.0, range.1.saturating_sub(1)))
        .body(Full::<Bytes>::default())
        .map_err(|error| CallError::Failed(error.to_string()))?;
    let response = client(endpoint)?.send(request).await?;
    let status = response.status();
    let header =
        response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    match (status, content_range(header.unwrap_or_default())) {
        (StatusCode::PARTIAL_CONTENT, Some((first, total))) if first == range.0 => {
            Ok(Piece::Body { body: Body(response.into_body()), total })
        }
        (StatusCode::RANGE_NOT_SATISFIABLE, _) => Ok(Piece::PastEnd),
        (status, _) => {
            let body = small_body(response.into_body()).await.unwrap_or_default();
            match status {
                StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => {
                    Ok(Piece::Unavailable(error_text(status, &body)))
                }
                _ => Err(status_error(status, &body)),
            }
        }
    }
}

/// Parses `bytes 0-99/1000`: first byte and total size.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()?))
}

/// Opens a WebSocket. 401 is a rejection.
pub async fn open(endpoint: &Endpoint, path: &str) -> Result<Socket, CallError> {
    let request = format!("wss://{}{path}", meshd_proto::SERVER_NAME);
    let request =
        request.into_client_request().map_err(|error| CallError::Failed(error.to_string()))?;
    let limits = WebSocketConfig::default()
        .read_buffer_size(16 * 1024)
        .max_message_size(Some(meshd_proto::MAX_MESSAGE))
        .max_frame_size(Some(meshd_proto::MAX_MESSAGE));
    client(endpoint)?.web_socket(request, limits).await.map_err(|error| match error {
        ClientError::Rejected { status, body } => status_error(status, &body),
        other => other.into(),
    })
}

fn status_error(status: StatusCode, body: &[u8]) -> CallError {
    let text = error_text(status, body);
    if status == StatusCode::UNAUTHORIZED {
        CallError::Refused(text)
    } else {
        CallError::Failed(text)
    }
}

fn error_text(status: StatusCode, body: &[u8]) -> String {
    let body = serde_json::from_slice::<ErrorBody>(body);
    body.map_or_else(|_| status.to_string(), |body| format!("{}: {}", body.code, body.message))
}

/// Parses a message of the link. An unknown action must be refused; any other unknown or invalid
/// message is ignored.
pub fn parse(text: &str) -> Event {
    if let Ok(message) = serde_json::from_str(text) {
        return Event::Message(message);
    }
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    match (value["kind"].as_str(), value["id"].as_u64()) {
        (Some("action"), Some(id)) => Event::UnknownAction(ActionId(id)),
        _ => Event::KeepAlive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::FromCentral;
    use proptest::prelude::*;

    #[test]
    fn action_of_a_later_version_is_an_unknown_action() {
        let later = r#"{"kind":"action","id":7,"node":"00000001","expires_at":"2026-01-31T12:00:00Z",
            "action":{"action":"make_coffee"}}"#;
        assert!(matches!(parse(later), Event::UnknownAction(ActionId(7))));
        let known = later.replace("make_coffee", "reboot");
        assert!(matches!(parse(&known), Event::Message(FromCentral::Action(_))));
        assert!(matches!(parse(r#"{"kind":"later"}"#), Event::KeepAlive));
    }

    #[test]
    fn spec_of_a_later_section_is_ignored() {
        let later = r#"{"kind":"spec","generation":1,"entry":{"section":"later","name":"a"}}"#;
        assert!(matches!(parse(later), Event::KeepAlive));
    }

    #[test]
    fn content_range_of_a_server_is_parsed() {
        assert_eq!(content_range("bytes 5-9/1000"), Some((5, 1000)));
        for text in ["", "bytes */1000", "bytes 5-9/*", "5-9/10", "bytes -9/10"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,200}|\\{\"kind\":\"action\",\"id\":.{0,20}\\}") {
            let _ = (parse(&text), content_range(&text));
        }
    }
}
