//! HTTP client of the admin API, over the Unix socket or TLS.
//!
//! | module | content |
//! | --- | --- |
//! | `follow` | following a record until it has ended |
//! | `node_names` | names of nodes for tables and messages |
//! | `remote` | `--server URL`: the admin API over HTTPS |

mod follow;
mod node_names;
pub(crate) mod remote;

pub(super) use follow::{RecordProgress, follow_record};
pub(super) use node_names::NodeNames;

use super::{Failure, path_text};
use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    header::{self, HeaderMap, HeaderValue},
};
use meshd_api::{
    ErrorView, FORCE_HEADER, REASON_HEADER,
    routes::{Binary, GetPath, Gzip, Json, JsonLines, PostPath},
};
use meshd_client::{Client, ClientError, Endpoint, ResponseBody, Socket, Timeouts, collect};
use meshd_types::Secret;
use remote::Server;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio_tungstenite::tungstenite::{client::IntoClientRequest as _, protocol::WebSocketConfig};

/// Time limits of a call. The limits exceed that of the central node, which then reports the cause.
const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(40), response: Duration::from_secs(40) };
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 256 << 20;

/// A client of one central node.
#[derive(Debug)]
pub(super) struct AdminClient {
    client: Client,
    /// The site file that names the socket.
    site: Option<PathBuf>,
    /// API token, for a central node on another machine.
    token: Option<Secret<String>>,
    /// Reason of every order, for the audit log.
    reason: Option<String>,
    /// True if orders may lose VMs.
    force: bool,
}

impl AdminClient {
    pub(super) fn of_socket(
        socket: PathBuf,
        site: Option<PathBuf>,
        reason: Option<String>,
    ) -> Self {
        let client = Client { endpoint: Endpoint::Unix(socket), timeouts: TIMEOUTS };
        AdminClient { client, site, token: None, reason, force: false }
    }

    pub(super) fn of_server(server: Server, reason: Option<String>) -> Self {
        let client = Client { endpoint: server.endpoint, timeouts: TIMEOUTS };
        AdminClient { client, site: None, token: Some(server.token), reason, force: false }
    }

    pub(super) fn with_force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    pub(super) async fn get<R>(&self, path: GetPath<R>) -> Result<R::Value, Failure>
    where
        R: Json<Value: DeserializeOwned>,
    {
        let response = self.send(Method::GET, path.as_str(), None).await?;
        self.read(response).await
    }

    pub(super) async fn post<B, R>(
        &self,
        path: PostPath<B, R>,
        body: &B::Value,
    ) -> Result<R::Value, Failure>
    where
        B: Json<Value: Serialize>,
        R: Json<Value: DeserializeOwned>,
    {
        let response = self.send(Method::POST, path.as_str(), Some(encode_body(body)?)).await?;
        self.read(response).await
    }

    /// Returns the bytes of an archive and the value of a response header.
    pub(super) async fn fetch(
        &self,
        path: GetPath<Gzip>,
        header: &str,
    ) -> Result<(Bytes, String), Failure> {
        let response = self.send(Method::GET, path.as_str(), None).await?;
        let value = response
            .headers()
            .get(header)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
            .to_owned();
        Ok((self.collect(response.into_body()).await?, value))
    }

    /// Calls `each` with each piece of the response body while it arrives.
    pub(super) async fn download<B>(
        &self,
        path: PostPath<B, Binary>,
        body: &B::Value,
        each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure>
    where
        B: Json<Value: Serialize>,
    {
        let response = self.send(Method::POST, path.as_str(), Some(encode_body(body)?)).await?;
        self.chunks(response, each).await
    }

    /// Calls `each` with each line of the response and its length in bytes, until the response ends
    /// or `each` fails.
    pub(super) async fn lines<T: DeserializeOwned>(
        &self,
        path: GetPath<JsonLines<T>>,
        mut each: impl FnMut(T, usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut rest: Vec<u8> = Vec::new();
        let lines = self.stream(path, |bytes| {
            rest.extend_from_slice(bytes);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                // An empty line is a keepalive.
                if line.len() > 1 {
                    each(
                        serde_json::from_slice(&line)
                            .map_err(|error| Failure::without_hint(&error))?,
                        line.len(),
                    )?;
                }
            }
            if rest.len() > MAX_RESPONSE {
                return Err(Failure::new(
                    "a line of the response is too long",
                    "is meshd of the same version?",
                ));
            }
            Ok(())
        });
        lines.await
    }

    /// Calls `each` with the bytes of the response while they arrive.
    pub(super) async fn stream<R>(
        &self,
        path: GetPath<R>,
        each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.chunks(self.send(Method::GET, path.as_str(), None).await?, each).await
    }

    async fn chunks(
        &self,
        response: Response<ResponseBody>,
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.failure(&ClientError::Connection(error)))?;
            each(frame.data_ref().map_or(&[][..], Bytes::as_ref))?;
        }
        Ok(())
    }

    pub(super) async fn socket(&self, path: &str) -> Result<Socket, Failure> {
        let request = format!("ws://meshd{path}").into_client_request();
        let mut request = request.map_err(|error| Failure::without_hint(&error))?;
        self.add_headers(request.headers_mut())?;
        let opened = self.client.web_socket(request, WebSocketConfig::default()).await;
        opened.map_err(|error| match error {
            ClientError::Rejected { status, body } => refusal(status, &body),
            error => self.failure(&error),
        })
    }

    /// Adds the reason, the flag for forced orders and the token.
    fn add_headers(&self, headers: &mut HeaderMap) -> Result<(), Failure> {
        if let Some(reason) = &self.reason {
            let value = HeaderValue::from_bytes(reason.as_bytes());
            let value = value
                .map_err(|_| Failure::new("the reason has several lines", "write it in one"))?;
            headers.insert(REASON_HEADER, value);
        }
        if self.force {
            headers.insert(FORCE_HEADER, HeaderValue::from_static("true"));
        }
        if let Some(token) = &self.token {
            let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
            let mut value = value.map_err(|error| Failure::without_hint(&error))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(())
    }

    /// Forwards a request of the web UI.
    pub(super) async fn forward(
        &self,
        request: Request<Body>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let (mut parts, body) = request.into_parts();
        self.add_headers(&mut parts.headers)?;
        parts.headers.insert(header::HOST, HeaderValue::from_static("meshd"));
        self.client
            .send(Request::from_parts(parts, body))
            .await
            .map_err(|error| self.failure(&error))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "meshd")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.unwrap_or_default()));
        let mut request = request.map_err(|error| Failure::without_hint(&error))?;
        self.add_headers(request.headers_mut())?;
        let response = self.client.send(request).await.map_err(|error| self.failure(&error))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(self.refusal(response).await)
        }
    }

    async fn refusal(&self, response: Response<ResponseBody>) -> Failure {
        let status = response.status();
        let body = match self.collect(response.into_body()).await {
            Ok(body) => body,
            Err(failure) => return failure,
        };
        refusal(status, &body)
    }

    async fn read<T: DeserializeOwned>(
        &self,
        response: Response<ResponseBody>,
    ) -> Result<T, Failure> {
        let body = self.collect(response.into_body()).await?;
        let invalid = |error| {
            let message = format!("the answer of meshd is not understood: {error}");
            Failure::new(message, "is it of the same version as this program?")
        };
        serde_json::from_slice(&body).map_err(invalid)
    }

    async fn collect(&self, body: ResponseBody) -> Result<Bytes, Failure> {
        collect(body, MAX_RESPONSE).await.map_err(|error| self.failure(&error))
    }

    /// Converts an error of a call, with a hint.
    fn failure(&self, error: &ClientError) -> Failure {
        let failure = match (error, &self.client.endpoint) {
            (ClientError::Connect { source, .. }, Endpoint::Unix(socket)) => {
                unreachable(socket, self.site.as_deref(), source)
            }
            (ClientError::Connect { .. } | ClientError::Tls { .. }, server) => {
                remote::unreachable(server, error)
            }
            (ClientError::Timeout { server, .. }, _) => {
                let message =
                    format!("{server} did not answer within {} s", TIMEOUTS.response.as_secs());
                Failure::new(message, "look at the log of meshd")
            }
            (_, server) => {
                let hint = "is meshd still running? look at its log";
                Failure::new(format!("{server}: {error}"), hint)
            }
        };
        failure.temporary()
    }
}

fn encode_body(body: &impl Serialize) -> Result<Bytes, Failure> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| Failure::without_hint(&error))
}

/// Returns the failure for an error response.
fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    let failure = match serde_json::from_slice::<ErrorView>(body) {
        Ok(error) if status.is_server_error() && error.hint.is_empty() => {
            let hint = format!("look for {} in the log of meshd", error.correlation_id);
            Failure::new(error.message, hint)
        }
        Ok(error) => Failure::new(error.message, error.hint),
        Err(_) => Failure::new(
            format!("meshd answered {status}"),
            "is it of the same version as this program?",
        ),
    };
    if status.is_server_error() { failure.temporary() } else { failure }
}

fn unreachable(socket: &Path, site: Option<&Path>, error: &std::io::Error) -> Failure {
    let socket = path_text(socket);
    match (error.kind(), site.map(path_text)) {
        (ErrorKind::NotFound | ErrorKind::ConnectionRefused, Some(site)) => Failure::new(
            format!("cannot connect to {socket}, the [admin].socket of {site}"),
            format!(
                "is meshd running? start it with `meshd serve --site {site}`, or name its site with --site FILE"
            ),
        ),
        (ErrorKind::NotFound | ErrorKind::ConnectionRefused, None) => Failure::new(
            format!("cannot connect to {socket}"),
            "is meshd running? name its site with --site FILE, or its socket with --socket FILE",
        ),
        (ErrorKind::PermissionDenied, _) => Failure::new(
            format!("permission denied for {socket}"),
            "run the command as meshd's user, or join the group of the socket",
        ),
        _ => Failure::new(
            format!("cannot connect to {socket}: {error}"),
            "check [admin].socket of the site",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_meshd_itself_are_temporary() {
        let client = AdminClient::of_socket("/nonexistent/socket".into(), None, None);
        let source = std::io::Error::from(ErrorKind::ConnectionRefused);
        let error = ClientError::Connect { server: client.client.endpoint.clone(), source };
        assert!(client.failure(&error).is_temporary());
        assert!(refusal(StatusCode::SERVICE_UNAVAILABLE, b"").is_temporary());
        for status in [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND] {
            assert!(!refusal(status, b"").is_temporary(), "{status}");
        }
    }
}
