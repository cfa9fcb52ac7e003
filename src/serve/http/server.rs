//! Accepts connections and serves each within its limits. All tasks are joined before the server
//! ends.

use super::backend::BootBackend;
use super::request_rate::MAX_PER_SECOND;
use super::routes::{Client, router};
use super::sendfile_writer::{PendingWrites, SendfileWriter, WriteTimeouts};
use crate::bind;
use crate::connections::{
    accept::AcceptLoop,
    limiter::{ConnectionLimiter, ConnectionPermit, HTTP},
    lingering_close::{LingerLimits, LingeringClose},
};
use crate::log::Log;
use axum::Router;
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use meshd_central::LanClient;
use meshd_model::boot::Endpoint;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

/// Limits of one server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections. A new one replaces the connection with the least progress.
    /// Each uses about 20 KiB and a file descriptor.
    pub connections: usize,
    /// Timeout for a request head, and for a connection without a request.
    pub head: Duration,
    /// Time limits for reading a response.
    pub timeouts: WriteTimeouts,
    /// Timeout for running responses at shutdown.
    pub drain: Duration,
    /// Requests per second of one address that the central node has to decide.
    pub requests_per_second: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 4096,
            head: Duration::from_secs(10),
            // 256 machines that share 100 Mbit/s have 48 KB/s each; TCP does not share evenly.
            timeouts: WriteTimeouts {
                write: Duration::from_secs(30),
                response: Duration::from_secs(60),
                rate: 4 * 1024,
            },
            drain: Duration::from_secs(5),
            requests_per_second: MAX_PER_SECOND,
        }
    }
}

/// Maximum size of a request head, in bytes. iPXE's longest is below 2 KiB.
const MAX_HEAD: usize = 16 * 1024;
/// Maximum number of headers per request. iPXE sends three.
const MAX_HEADERS: usize = 64;

/// Serves until `shutdown`, then finishes running responses. URLs in scripts contain the server
/// address of the connection, which is in the machine's segment. A failed accept is logged and
/// retried.
pub async fn run<P: BootBackend>(
    limits: Limits,
    api: P,
    listener: TcpListener,
    shutdown: CancellationToken,
) {
    let router = router(api.clone(), limits.requests_per_second);
    let limiter = ConnectionLimiter::new(HTTP, limits.connections);
    let tasks = TaskTracker::new();
    let interface = bind::bound_interface(&listener);
    let log = Arc::<Log>::default();
    let accept = AcceptLoop { api: HTTP, limiter: &limiter, shutdown: &shutdown, drain: None };
    let serve = |(stream, from): (TcpStream, SocketAddr), permit| {
        let at = stream.local_addr().ok()?;
        let client = api.client(interface.as_deref(), from, at);
        let connection = Connection {
            limits,
            router: router.clone(),
            tasks: tasks.clone(),
            shutdown: shutdown.clone(),
            log: Arc::clone(&log),
        };
        Some(connection.serve(stream, client, permit))
    };
    accept.run(listener, serve).await;
    tasks.close();
    tasks.wait().await;
}

struct Connection {
    limits: Limits,
    router: Router,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    log: Arc<Log>,
}

impl Connection {
    async fn serve(self, stream: TcpStream, from: LanClient, permit: ConnectionPermit) {
        let Ok(SocketAddr::V4(at)) = stream.local_addr() else { return };
        // Small responses (scripts) must not wait for the client's delayed acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot turn off Nagle's algorithm");
        }
        let pending = PendingWrites::default();
        let at = Endpoint { address: *at.ip(), http_port: at.port() };
        let client = Client { from: from.clone(), at, pending: pending.clone() };
        let limits = self.limits;
        let meter = permit.meter.clone();
        let writer =
            SendfileWriter::new(stream, pending, self.tasks, limits.timeouts, meter, from.clone());
        let (stream, input) = LingeringClose::new(writer, LingerLimits::default());
        let router = self.router;
        let meter = permit.meter.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = input.watch(request);
            meter.request_started();
            request.extensions_mut().insert(client.clone());
            router.clone().oneshot(request)
        });
        let mut connection = std::pin::pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.head)
                .max_buf_size(MAX_HEAD)
                .max_headers(MAX_HEADERS)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = permit.eviction.cancelled() => {
                tracing::debug!(%from, "an HTTP connection was evicted for a new one");
                return;
            }
            () = from.ended() => {
                tracing::debug!(%from, "an HTTP connection ended: a segment came from another machine");
                return;
            }
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(self.limits.drain, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = ended {
            report(&self.log, &from, &error);
            // This is common: firmware aborts after a size probe, iPXE at a reset.
            tracing::debug!(%from, %error, "an HTTP connection ended early");
        }
    }
}

/// Counts a request that no route has seen, and logs a malformed one.
fn report(log: &Log, from: &LanClient, error: &hyper::Error) {
    let cause = match error {
        error if error.is_parse_too_large() => "too_large",
        error if error.is_parse() => "malformed",
        error if error.is_timeout() => "head_timeout",
        _ => return,
    };
    metrics::counter!("meshd_http_unread_requests_total", "cause" => cause).increment(1);
    if error.is_parse() {
        log.warn(cause, || format!("a request of {from} to the boot API is refused: {error}"));
    }
}
