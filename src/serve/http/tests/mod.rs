//! The boot API on a real socket with a small service behind it.

mod answers;
mod limits;
mod overlay;

use super::fuzz_invariants::{CAPABILITY, ENDPOINT};
use super::sendfile_writer::WriteTimeouts;
use super::server::{Limits, run};
use super::*;
use crate::bind::{self, Service};
use bytes::Bytes;
use meshd_central::{Fetched, LanClient, OverlayDenied};
use meshd_config::Delivery;
use meshd_model::boot::{BootFailure, Endpoint, QueryError, ScriptRequest};
use meshd_types::Digest;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Busy,
    Spent,
}

/// One blob, one loader and one overlay. Reports each request as an event.
struct Fake {
    blobs: BTreeMap<Digest, Bytes>,
    overlay: Bytes,
    state: Arc<Mutex<State>>,
    events: mpsc::UnboundedSender<String>,
}

struct FakeTransfer {
    state: Arc<Mutex<State>>,
    events: mpsc::UnboundedSender<String>,
}

impl Drop for FakeTransfer {
    fn drop(&mut self) {
        let mut state = self.state.lock().expect("no panic elsewhere");
        if *state == State::Busy {
            *state = State::Ready;
            let _ = self.events.send("aborted".into());
        }
    }
}

impl FakeTransfer {
    async fn finished(self) {
        *self.state.lock().expect("no panic elsewhere") = State::Spent;
        let _ = self.events.send("spent".into());
    }
}

impl Fake {
    fn new(blob: Bytes, overlay: Bytes) -> (Arc<Self>, mpsc::UnboundedReceiver<String>) {
        let (events, seen) = mpsc::unbounded_channel();
        let state = Arc::new(Mutex::new(State::Ready));
        let blobs = BTreeMap::from([(Digest::of(&blob), blob)]);
        (Arc::new(Fake { blobs, overlay, state, events }), seen)
    }
}

impl BootBackend for Arc<Fake> {
    fn folder(&self) -> std::path::PathBuf {
        std::env::temp_dir()
    }

    fn blob(&self, digest: Digest) -> Option<Bytes> {
        self.blobs.get(&digest).cloned()
    }

    fn loader(&self, name: &str) -> Option<Bytes> {
        (name == "snponly.efi").then(|| Bytes::from_static(b"MZ"))
    }

    async fn record_fetch(&self, _: LanClient, what: Fetched) {
        let _ = self.events.send(match what {
            Fetched::Loader => "loader".into(),
            Fetched::Blob(digest) => format!("blob {}", digest.short()),
        });
    }

    async fn script(
        &self,
        request: Result<ScriptRequest, QueryError>,
        from: LanClient,
        _: Endpoint,
    ) -> String {
        let _ = self.events.send("script".into());
        match request {
            Ok(request) => format!("#!ipxe\n# {} at {from}\n", request.mac),
            Err(error) => format!("#!ipxe\n# {error}\n"),
        }
    }

    async fn record_failed_boot(&self, from: LanClient, failure: BootFailure) -> bool {
        let _ = self.events.send(format!("failed {from} {}", failure.reason));
        failure.reason != "unknown"
    }

    async fn open_overlay(
        &self,
        text: &str,
        _: Delivery,
        _: LanClient,
    ) -> Result<Transfer, OverlayDenied> {
        self.probe_overlay(text, Ipv4Addr::LOCALHOST.into()).await?;
        *self.state.lock().expect("no panic elsewhere") = State::Busy;
        let transfer = FakeTransfer { state: self.state.clone(), events: self.events.clone() };
        let middle = self.overlay.len() / 3;
        let pieces = vec![self.overlay.slice(..middle), Bytes::new(), self.overlay.slice(middle..)];
        Ok(Transfer { pieces, completion: Box::pin(transfer.finished()) })
    }

    async fn probe_overlay(&self, text: &str, _: LanClient) -> Result<(), OverlayDenied> {
        match *self.state.lock().expect("no panic elsewhere") {
            _ if text != CAPABILITY => Err(OverlayDenied::NotFound),
            State::Ready => Ok(()),
            State::Busy => Err(OverlayDenied::Busy),
            State::Spent => Err(OverlayDenied::Gone),
        }
    }
}

/// A server that runs until it is dropped.
struct Server {
    at: SocketAddr,
    events: mpsc::UnboundedReceiver<String>,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Server {
    fn start(limits: Limits, blob: impl Into<Bytes>, overlay: impl Into<Bytes>) -> Self {
        let (api, events) = Fake::new(blob.into(), overlay.into());
        let listener = bind::tcp(Service::Http, None, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))
            .expect("port 0 is free");
        let at = listener.local_addr().expect("it is bound");
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(run(limits, api, listener, shutdown.clone()));
        Server { at, events, shutdown, running }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.at).await.expect("it listens")
    }

    /// Sends one request on a separate connection.
    async fn ask(&self, method: &str, path: &str, headers: &str) -> Answer {
        let mut stream = self.connect().await;
        send(&mut stream, method, path, headers).await;
        let mut stream = BufReader::new(stream);
        read_answer(&mut stream, method).await
    }

    async fn event(&mut self) -> String {
        let event = tokio::time::timeout(DEADLINE, self.events.recv()).await;
        event.expect("in time").expect("the server runs")
    }
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

async fn send(stream: &mut TcpStream, method: &str, path: &str, headers: &str) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
}

async fn read_answer(stream: &mut BufReader<TcpStream>, method: &str) -> Answer {
    let read = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head comes"));
        }
        let head = String::from_utf8(head).expect("ASCII");
        let status =
            head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut answer = Answer { status, head, body: Vec::new() };
        let length = answer.header("content-length").and_then(|length| length.parse().ok());
        if method != "HEAD" && status != 304 {
            answer.body = vec![0; length.expect("every body has a length")];
            stream.read_exact(&mut answer.body).await.expect("the whole body comes");
        }
        answer
    };
    tokio::time::timeout(DEADLINE, read).await.expect("an answer in time")
}

/// Waits until the server closes the connection.
async fn closed(mut stream: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest));
    let _ = read.await.expect("closed in time");
    rest
}
