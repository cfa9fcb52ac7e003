//! HTTP client of the admin API, over the Unix socket or TLS.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `remote` | `--server URL`: the admin API over HTTPS |

pub(crate) mod remote;

use super::{Failure, shown};
use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderMap, HeaderValue},
};
use hyper_util::rt::TokioIo;
use meshd_api::{ErrorView, FORCE_HEADER, REASON_HEADER};
use remote::Server;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite, tungstenite::client::IntoClientRequest as _};

/// How long the central node may take to begin its answer; it gives up by itself a little earlier.
const TIME_LIMIT: Duration = Duration::from_secs(40);
/// Largest answer that is read, in bytes.
const MAX_ANSWER: usize = 256 << 20;

/// Talks to one central node.
#[derive(Debug)]
pub(super) struct AdminClient {
    way: Transport,
    /// Why whatever is ordered is ordered.
    reason: Option<String>,
    /// Virtual machines may be lost by it.
    force: bool,
}

#[derive(Debug)]
enum Transport {
    /// A socket on this machine, and the site file that names it.
    Socket {
        socket: PathBuf,
        site: Option<PathBuf>,
    },
    Server(Server),
}

/// Either way's bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl AdminClient {
    pub(super) fn of_socket(socket: PathBuf, site: Option<PathBuf>, reason: Option<String>) -> Self {
        AdminClient { way: Transport::Socket { socket, site }, reason, force: false }
    }

    pub(super) fn of_server(server: Server, reason: Option<String>) -> Self {
        AdminClient { way: Transport::Server(server), reason, force: false }
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
            let frame = frame.map_err(|error| self.broken(&error))?;
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
            let frame = frame.map_err(|error| self.broken(&error))?;
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
            let frame = frame.map_err(|error| self.broken(&error))?;
            each(frame.data_ref().map_or(&[][..], Bytes::as_ref))?;
        }
        Ok(())
    }

    /// Opens a WebSocket.
    pub(super) async fn socket(&self, path: &str) -> Result<WebSocketStream<Box<dyn Stream>>, Failure> {
        let request = format!("ws://meshd{path}").into_client_request();
        let mut request = request.map_err(|error| Failure::of(&error))?;
        self.sign(request.headers_mut())?;
        let opened = tokio::time::timeout(TIME_LIMIT, client_async(request, self.connect().await?)).await;
        match opened.map_err(|_| late())? {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => {
                let (status, body) = (response.status(), response.body().clone().unwrap_or_default());
                Err(refusal(status, &body))
            }
            Err(error) => Err(self.broken(&error)),
        }
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
        if let Transport::Server(server) = &self.way {
            let value = HeaderValue::try_from(format!("Bearer {}", server.token.expose()));
            let mut value = value.map_err(|error| Failure::of(&error))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(())
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, Failure> {
        Ok(match &self.way {
            Transport::Socket { socket, site } => {
                let stream = UnixStream::connect(socket).await;
                Box::new(stream.map_err(|error| unreachable(socket, site.as_deref(), &error))?)
            }
            Transport::Server(server) => Box::new(server.connect().await?),
        })
    }

    /// Hands a request on, and the answer back as it comes.
    pub(super) async fn forward(&self, request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        let (mut parts, body) = request.into_parts();
        self.sign(&mut parts.headers)?;
        parts.headers.insert(header::HOST, HeaderValue::from_static("meshd"));
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(self.connect().await?)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(&error))?;
        tokio::spawn(async move { drop(connection.await) });
        let answer = tokio::time::timeout(TIME_LIMIT, sender.send_request(Request::from_parts(parts, body))).await;
        answer.map_err(|_| late())?.map_err(|error| self.broken(&error))
    }

    async fn send(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Response<Incoming>, Failure> {
        let stream = self.connect().await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(&error))?;
        // It ends with the answer; its error is that of the answer.
        tokio::spawn(async move { drop(connection.await) });
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "meshd")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.unwrap_or_default()));
        let mut request = request.map_err(|error| Failure::of(&error))?;
        self.sign(request.headers_mut())?;
        let answer = tokio::time::timeout(TIME_LIMIT, sender.send_request(request)).await;
        let response = answer.map_err(|_| late())?.map_err(|error| self.broken(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    async fn refusal(&self, response: Response<Incoming>) -> Failure {
        let status = response.status();
        let body = match self.collect(response.into_body()).await {
            Ok(body) => body,
            Err(failure) => return failure,
        };
        refusal(status, &body)
    }

    async fn read<T: DeserializeOwned>(&self, response: Response<Incoming>) -> Result<T, Failure> {
        let body = self.collect(response.into_body()).await?;
        let odd = |error| {
            let message = format!("the answer of meshd is not understood: {error}");
            Failure::new(message, "is it of the same version as this program?")
        };
        serde_json::from_slice(&body).map_err(odd)
    }

    async fn collect(&self, body: Incoming) -> Result<Bytes, Failure> {
        let collected = Limited::new(body, MAX_ANSWER).collect().await;
        collected.map(http_body_util::Collected::to_bytes).map_err(|error| self.broken(error.as_ref()))
    }

    fn broken(&self, error: &dyn std::error::Error) -> Failure {
        let whom = match &self.way {
            Transport::Socket { socket, .. } => shown(socket),
            Transport::Server(server) => server.shown(),
        };
        let message = format!("the connection to {whom} broke: {error}");
        Failure::new(message, "is meshd still running? look at its log")
    }
}

fn late() -> Failure {
    let message = format!("meshd did not answer within {} s", TIME_LIMIT.as_secs());
    Failure::new(message, "look at its log")
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
