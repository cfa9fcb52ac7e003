//! HTTP client of the admin API, over the Unix socket or TLS.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `remote` | `--server URL`: the admin API over HTTPS |

pub(crate) mod remote;

use super::{Failure, shown};
use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    header::{self, HeaderMap, HeaderValue},
};
use meshd_api::{ErrorView, FORCE_HEADER, REASON_HEADER};
use meshd_client::{Client, ClientError, Endpoint, ResponseBody, Socket, Timeouts, collect};
use meshd_types::Secret;
use remote::Server;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio_tungstenite::tungstenite::{client::IntoClientRequest as _, protocol::WebSocketConfig};

/// The central node gives up a request by itself a little earlier.
const TIMEOUTS: Timeouts = Timeouts { connect: Duration::from_secs(40), response: Duration::from_secs(40) };
/// Largest answer that is read, in bytes.
const MAX_ANSWER: usize = 256 << 20;

/// Talks to one central node.
#[derive(Debug)]
pub(super) struct AdminClient {
    client: Client,
    /// The site file that names the socket.
    site: Option<PathBuf>,
    /// API token, for a central node on another machine.
    token: Option<Secret<String>>,
    /// Why whatever is ordered is ordered.
    reason: Option<String>,
    /// Virtual machines may be lost by it.
    force: bool,
}

impl AdminClient {
    pub(super) fn of_socket(socket: PathBuf, site: Option<PathBuf>, reason: Option<String>) -> Self {
        let client = Client { endpoint: Endpoint::Unix(socket), timeouts: TIMEOUTS };
        AdminClient { client, site, token: None, reason, force: false }
    }

    pub(super) fn of_server(server: Server, reason: Option<String>) -> Self {
        let client = Client { endpoint: server.endpoint, timeouts: TIMEOUTS };
        AdminClient { client, site: None, token: Some(server.token), reason, force: false }
    }

    /// Orders are given although virtual machines may be lost by them.
    pub(super) fn forced(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Asks for something.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let response = self.send(Method::GET, path, None).await?;
        self.read(response).await
    }

    /// Says something.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::of(&error))?;
        let response = self.send(Method::POST, path, Some(body.into())).await?;
        self.read(response).await
    }

    /// The bytes of an answer, with one of its headers.
    pub(super) async fn fetch(&self, path: &str, header: &str) -> Result<(Bytes, String), Failure> {
        let response = self.send(Method::GET, path, None).await?;
        let value = response.headers().get(header).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        Ok((self.collect(response.into_body()).await?, value))
    }

    /// Says something, and writes the bytes of the answer as they come.
    pub(super) async fn download(
        &self,
        path: &str,
        body: &impl Serialize,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::of(&error))?;
        let mut answer = self.send(Method::POST, path, Some(body.into())).await?.into_body();
        while let Some(frame) = answer.frame().await {
            let frame = frame.map_err(|error| self.failure(&ClientError::Connection(error)))?;
            out.write_all(frame.data_ref().map_or(&[][..], Bytes::as_ref))?;
        }
        Ok(())
    }

    /// Hands over each line of an answer as it comes, until it ends or a line is refused.
    pub(super) async fn lines(
        &self,
        path: &str,
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut body = self.send(Method::GET, path, None).await?.into_body();
        let mut rest: Vec<u8> = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.failure(&ClientError::Connection(error)))?;
            rest.extend_from_slice(frame.data_ref().map_or(&[][..], Bytes::as_ref));
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                // Empty lines only say that the central node still lives.
                if line.len() > 1 {
                    each(&line)?;
                }
            }
            if rest.len() > MAX_ANSWER {
                return Err(Failure::new("a line of the answer never ends", "is meshd of the same version?"));
            }
        }
        Ok(())
    }

    /// Hands over the bytes of an answer as they come.
    pub(super) async fn stream(
        &self,
        path: &str,
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut body = self.send(Method::GET, path, None).await?.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.failure(&ClientError::Connection(error)))?;
            each(frame.data_ref().map_or(&[][..], Bytes::as_ref))?;
        }
        Ok(())
    }

    /// Opens a WebSocket.
    pub(super) async fn socket(&self, path: &str) -> Result<Socket, Failure> {
        let request = format!("ws://meshd{path}").into_client_request();
        let mut request = request.map_err(|error| Failure::of(&error))?;
        self.sign(request.headers_mut())?;
        let opened = self.client.web_socket(request, WebSocketConfig::default()).await;
        opened.map_err(|error| match error {
            ClientError::Rejected { status, body } => refusal(status, &body),
            error => self.failure(&error),
        })
    }

    /// Why, and with which token.
    fn sign(&self, headers: &mut HeaderMap) -> Result<(), Failure> {
        if let Some(reason) = &self.reason {
            let value = HeaderValue::from_bytes(reason.as_bytes());
            let value = value.map_err(|_| Failure::new("the reason is more than one line", "write it in one"))?;
            headers.insert(REASON_HEADER, value);
        }
        if self.force {
            headers.insert(FORCE_HEADER, HeaderValue::from_static("true"));
        }
        if let Some(token) = &self.token {
            let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
            let mut value = value.map_err(|error| Failure::of(&error))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(())
    }

    /// Hands a request on, and the answer back as it comes.
    pub(super) async fn forward(&self, request: Request<Body>) -> Result<Response<ResponseBody>, Failure> {
        let (mut parts, body) = request.into_parts();
        self.sign(&mut parts.headers)?;
        parts.headers.insert(header::HOST, HeaderValue::from_static("meshd"));
        self.client.send(Request::from_parts(parts, body)).await.map_err(|error| self.failure(&error))
    }

    async fn send(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Response<ResponseBody>, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "meshd")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.unwrap_or_default()));
        let mut request = request.map_err(|error| Failure::of(&error))?;
        self.sign(request.headers_mut())?;
        let response = self.client.send(request).await.map_err(|error| self.failure(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    async fn refusal(&self, response: Response<ResponseBody>) -> Failure {
        let status = response.status();
        let body = match self.collect(response.into_body()).await {
            Ok(body) => body,
            Err(failure) => return failure,
        };
        refusal(status, &body)
    }

    async fn read<T: DeserializeOwned>(&self, response: Response<ResponseBody>) -> Result<T, Failure> {
        let body = self.collect(response.into_body()).await?;
        let odd = |error| {
            let message = format!("the answer of meshd is not understood: {error}");
            Failure::new(message, "is it of the same version as this program?")
        };
        serde_json::from_slice(&body).map_err(odd)
    }

    async fn collect(&self, body: ResponseBody) -> Result<Bytes, Failure> {
        collect(body, MAX_ANSWER).await.map_err(|error| self.failure(&error))
    }

    /// What a user can do about an error of a call.
    fn failure(&self, error: &ClientError) -> Failure {
        match (error, &self.client.endpoint) {
            (ClientError::Connect { source, .. }, Endpoint::Unix(socket)) => {
                unreachable(socket, self.site.as_deref(), source)
            }
            (ClientError::Connect { .. } | ClientError::Tls { .. }, server) => remote::unreachable(server, error),
            (ClientError::Timeout { server, .. }, _) => {
                let message = format!("{server} did not answer within {} s", TIMEOUTS.response.as_secs());
                Failure::new(message, "look at the log of meshd")
            }
            (_, server) => {
                let hint = "is meshd still running? look at its log";
                Failure::new(format!("{server}: {error}"), hint)
            }
        }
    }
}

/// What an answer says that is no success.
fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    match serde_json::from_slice::<ErrorView>(body) {
        Ok(error) if status.is_server_error() => {
            let hint = format!("look for {} in the log of meshd", error.correlation_id);
            Failure::new(error.message, if error.hint.is_empty() { hint } else { error.hint })
        }
        Ok(error) => Failure::new(error.message, error.hint),
        Err(_) => Failure::new(format!("meshd answered {status}"), "is it of the same version as this program?"),
    }
}

/// Why nobody answers at a socket.
fn unreachable(socket: &Path, site: Option<&Path>, error: &std::io::Error) -> Failure {
    let socket = shown(socket);
    match (error.kind(), site.map(shown)) {
        (ErrorKind::NotFound | ErrorKind::ConnectionRefused, Some(site)) => Failure::new(
            format!("cannot connect to {socket}, the [admin].socket of {site}"),
            format!("is meshd running? start it with `meshd serve --site {site}`, or name its site with --site FILE"),
        ),
        (ErrorKind::NotFound | ErrorKind::ConnectionRefused, None) => Failure::new(
            format!("cannot connect to {socket}"),
            "is meshd running? name its site with --site FILE, or its socket with --socket FILE",
        ),
        (ErrorKind::PermissionDenied, _) => Failure::new(
            format!("you may not use {socket}"),
            "run this as the user that runs meshd, or join the group that owns the socket",
        ),
        _ => Failure::new(format!("cannot connect to {socket}: {error}"), "check [admin].socket of the site"),
    }
}
