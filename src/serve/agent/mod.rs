//! The agent API: enrolment, the pending connection, and the link.
//!
//! | module | content |
//! | --- | --- |
//! | `console_relay` | relays a VM console between node and operator |
//! | `link` | the link: receives messages, sends replies and commands, probes, and always reports its end |
//! | `message_rate` | limits how often a node may send messages that cost a write |
//! | `pending` | the pending connection: a node without token or certificate waits for approval |
//! | `backend` | calls of the agent API to the central node |
//! | `refusal` | error responses |
//! | `request` | what the routes have in common: state, client, body, log of refusals |
//! | `routes` | routes of the agent API |
//! | `node_connections` | limits of connections and transfers of authenticated nodes, counted by node |
//! | `socket` | a WebSocket of typed messages with an idle timeout |
//! | `volumes` | serves byte ranges of volume files |
//! | `warm_boot` | routes of boots that a running node fetches |
//!
//! ```text
//! accept ─▶ TLS 1.3 ─▶ node? ─▶ one request ┬─ POST enrol    any client with a boot token
//!                      │                    ├─ POST renew    a certificate, expired or not
//!                      │                    ├─ GET  pending  any client, bounded; becomes a WebSocket
//!                      │                    ├─ GET  link     a valid certificate; becomes a WebSocket
//!                      │                    ├─ GET  console  like link, after a request over the link
//!                      │                    ├─ GET  volumes  a valid certificate, and a VM that uses the file
//!                      ▼                    └─ warm-boot      a valid certificate, and an order to reboot warm
//!          certificate of this site, or none
//! ```
//! Clients without a valid certificate and waiting nodes have separate connection limits, so they
//! cannot exhaust the links of nodes. The listener has no routes of other APIs. [`AgentBackend`],
//! which the central node implements, handles the requests. This module owns sockets, limits and
//! timeouts.

mod console_relay;
mod link;
mod message_rate;
mod pending;
mod backend;
mod refusal;
mod request;
mod routes;
mod node_connections;
mod socket;
mod volumes;
mod warm_boot;

pub use backend::{AgentBackend, PendingReplies};
pub use meshd_central::{AgentApiError, LanClient, LinkCommand, OverlayTransfer};

use crate::{
    bind,
    connections::{
        accept::AcceptLoop,
        limiter::{ConnectionLimiter, ConnectionPermit},
        lingering_close::{LingerLimits, LingeringClose},
    },
};
use hyper::{StatusCode, header, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use meshd_trust::{Peer, TrustError};
use meshd_types::{NodeId, failpoint};
use message_rate::MessageRates;
use node_connections::{MAX_CONNECTIONS_OF_NODE, MAX_TRANSFERS_OF_NODE, NodePermits};
use rustls::pki_types::CertificateDer;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

/// Maximum number of connections, links included.
pub const MAX_CONNECTIONS: usize = 32_768;
/// Maximum number of connections before the decision about their request. They need no credential.
const MAX_ARRIVING: usize = 4096;
/// Maximum number of pending connections. They need no credential.
const MAX_PENDING: usize = 1024;
/// Maximum number of concurrent file transfers.
pub const MAX_TRANSFERS: usize = 64;
/// Timeout for a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the head of a request.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a whole request. The timeout ends when a WebSocket is upgraded.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a request head, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct AgentLimits {
    /// Maximum number of connections, each a file descriptor: links, waiting nodes, and clients
    /// that are not identified yet.
    pub connections: usize,
    /// Interval of checks whether the certificate of a link has expired.
    pub expiry_check: Duration,
}

impl Default for AgentLimits {
    fn default() -> Self {
        AgentLimits { connections: MAX_CONNECTIONS, expiry_check: Duration::from_secs(60) }
    }
}

/// State that all connections share.
struct AgentApi<P> {
    central: Arc<P>,
    pending: Arc<ConnectionLimiter>,
    /// Permits for links and consoles.
    permits: Arc<NodePermits>,
    /// Permits for file transfers.
    transfers: Arc<NodePermits>,
    rates: MessageRates,
    expiry_check: Duration,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// Data about one connection, for the handler of its request.
#[derive(Clone)]
struct AgentConnection {
    from: SocketAddr,
    /// The same client, with its connection on the wire.
    lan: LanClient,
    /// Client certificate and its node.
    client: Option<Arc<AgentClient>>,
    /// Node of a client certificate that a replaced authority issued.
    stale: Option<NodeId>,
    /// Permit of a connection before the decision about its request. Another limit replaces it
    /// later.
    permit: Arc<ConnectionPermit>,
}

/// A connection before its TLS handshake.
struct Accepted {
    stream: TcpStream,
    from: SocketAddr,
    lan: LanClient,
    permit: ConnectionPermit,
}

struct AgentClient {
    peer: Peer,
    certificate: CertificateDer<'static>,
}

/// Serves the agent API until `shutdown`, then sends a goodbye on every link and waits for all
/// connections.
pub async fn run<P: AgentBackend>(
    limits: AgentLimits,
    central: Arc<P>,
    listener: TcpListener,
    shutdown: CancellationToken,
) {
    let arriving = (limits.connections / 4).min(MAX_ARRIVING);
    let waiting = (limits.connections / 8).min(MAX_PENDING);
    let service = Arc::new(AgentApi {
        central,
        pending: ConnectionLimiter::new("agent-pending", waiting),
        permits: NodePermits::new(limits.connections - arriving - waiting, MAX_CONNECTIONS_OF_NODE),
        transfers: NodePermits::new(MAX_TRANSFERS, MAX_TRANSFERS_OF_NODE),
        rates: MessageRates::default(),
        expiry_check: limits.expiry_check,
        shutdown: shutdown.clone(),
        tasks: TaskTracker::new(),
    });
    let router = routes::router(Arc::clone(&service));
    let arriving = ConnectionLimiter::new("agent", arriving);
    let interface = bind::bound_interface(&listener);
    let accept = AcceptLoop { api: "agent", limiter: &arriving, shutdown: &shutdown, drain: None };
    let connection = |(stream, from): (TcpStream, SocketAddr), permit: ConnectionPermit| {
        // The authority may be replaced at any time, so each connection reads the current TLS
        // configuration.
        let acceptor = TlsAcceptor::from(service.central.tls());
        let service = Arc::clone(&service);
        let router = router.clone();
        let at = stream.local_addr().ok()?;
        let lan = service.central.client(interface.as_deref(), from, at);
        Some(async move {
            let eviction = permit.eviction.clone();
            let accepted = Accepted { stream, from, lan: lan.clone(), permit };
            let served = serve(&acceptor, &service, router, accepted);
            tokio::select! {
                served = eviction.run_until_cancelled(served) => if served.is_none() {
                    tracing::debug!(%from, "a connection of the agent API was evicted for another one");
                },
                () = lan.ended() => {
                    tracing::debug!(%from, "a request ended: a segment came from another machine");
                }
            }
        })
    };
    accept.run(listener, connection).await;
    service.tasks.close();
    service.tasks.wait().await;
}

async fn serve<P: AgentBackend>(
    acceptor: &TlsAcceptor,
    service: &AgentApi<P>,
    router: axum::Router,
    accepted: Accepted,
) {
    let Accepted { stream, from, lan, permit } = accepted;
    let Some((stream, client, stale)) = handshake(acceptor, service, stream, from, &lan).await
    else {
        return;
    };
    let honoured =
        client.as_deref().filter(|client| service.central.accepts_certificate(&client.peer));
    let node = honoured.map(|client| client.peer.node);
    if let Some(node) = node {
        permit.trust(node.to_string());
    }
    let connection = AgentConnection { from, lan, client, stale, permit: Arc::new(permit) };
    let conversed = serve_connection(stream, connection, router, &service.shutdown);
    match node {
        None => conversed.await,
        Some(node) => tokio::select! {
            () = conversed => {}
            () = service.central.wait_until_revoked(node) => tracing::info!(%from, %node, "a request of a revoked node ended"),
        },
    }
}

type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// Performs the TLS handshake, and identifies the node if the client presents a certificate.
async fn handshake<P: AgentBackend>(
    acceptor: &TlsAcceptor,
    service: &AgentApi<P>,
    stream: TcpStream,
    from: SocketAddr,
    lan: &LanClient,
) -> Option<(TlsStream, Option<Arc<AgentClient>>, Option<NodeId>)> {
    // Messages are small in both directions; Nagle's algorithm would only add latency.
    let _ = stream.set_nodelay(true);
    let time = failpoint::time("HANDSHAKE", HANDSHAKE_TIMEOUT);
    let stream = match timeout(time, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "TLS handshake failed");
            if distrusts(&error) {
                service.central.record_distrust(lan).await;
            }
            return None;
        }
        Err(_) => {
            tracing::debug!(%from, "TLS handshake took too long");
            return None;
        }
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let Some(certificate) = certificate.map(|certificate| certificate.clone().into_owned()) else {
        return Some((stream, None, None));
    };
    match service.central.identify(&certificate) {
        Ok(peer) => Some((stream, Some(Arc::new(AgentClient { peer, certificate })), None)),
        Err(TrustError::StaleAuthority { node }) => {
            service.central.record_stale_certificate(node, from.ip()).await;
            Some((stream, None, Some(node)))
        }
        Err(error) => {
            tracing::warn!(%from, %error, "a certificate of this site names no node");
            None
        }
    }
}

/// Returns true if the client does not trust this server's certificate.
fn distrusts(error: &std::io::Error) -> bool {
    use rustls::AlertDescription as A;
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(
        inner,
        Some(rustls::Error::AlertReceived(A::UnknownCA | A::BadCertificate | A::DecryptError))
    )
}

/// Serves one request.
async fn serve_connection(
    stream: TlsStream,
    connection: AgentConnection,
    router: axum::Router,
    shutdown: &CancellationToken,
) {
    let from = connection.from;
    let (stream, input) = LingeringClose::new(stream, LingerLimits::default());
    let answer =
        hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let mut request = input.watch(request);
            connection.permit.meter.request_started();
            request.extensions_mut().insert(connection.clone());
            let answer = router.clone().oneshot(request);
            async {
                let mut answer = answer.await?;
                // A connection serves one request. hyper's option for this would forbid the upgrade
                // too.
                if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                    answer
                        .headers_mut()
                        .insert(header::CONNECTION, header::HeaderValue::from_static("close"));
                }
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
    let exchange = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    tokio::pin!(exchange);
    let ended = timeout(REQUEST_TIMEOUT, async {
        tokio::select! {
            ended = exchange.as_mut() => return ended,
            () = shutdown.cancelled() => exchange.as_mut().graceful_shutdown(),
        }
        exchange.await
    });
    match ended.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%from, %error, "a request on the agent API broke off"),
        Err(_) => tracing::debug!(%from, "a request on the agent API took too long"),
    }
}
