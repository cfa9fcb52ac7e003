//! The listener of `[metrics]`: one route for Prometheus.

use super::{CONTENT_TYPE, Metrics};
use crate::{
    bind::rebind::WatchedListener,
    bind::{self, BindError, Service},
    connections::{
        accept::AcceptLoop,
        limiter::{ConnectionLimiter, ConnectionPermit},
        lingering_close::{LingerLimits, LingeringClose},
    },
};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use meshd_central::Shared;
use meshd_config::MetricsListener;
use meshd_types::failpoint;
use std::{net::SocketAddrV4, time::Duration};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Maximum number of concurrent scrapers. A new one replaces the connection with the least
/// progress.
const MAX_CONNECTIONS: usize = 16;
/// Timeout for a request's head, and for a connection without a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Maximum duration of a connection, so that a slow reader does not hold a connection longer.
const CONNECTION_TIME: Duration = Duration::from_secs(300);

/// Bound listener of `[metrics]`.
pub struct Listener(WatchedListener);

/// Opens the port of `[metrics]` on the interface of its address, so that no other network reaches
/// it. `0.0.0.0` means every interface.
///
/// # Errors
/// The port is taken, or the address does not belong to this host.
pub fn bind(listener: MetricsListener) -> Result<Listener, BindError> {
    let MetricsListener { address, port } = listener;
    let bound = !address.is_unspecified() && failpoint::defends("metrics-interface");
    let interface = if bound {
        let not_here = BindError::NotHere { service: Service::Metrics, address };
        Some(bind::interface_of(Service::Metrics, address)?.ok_or(not_here)?)
    } else {
        None
    };
    WatchedListener::bind(Service::Metrics, interface, SocketAddrV4::new(address, port))
        .map(Listener)
}

/// Serves until `shutdown`.
pub async fn serve(
    central: Shared,
    metrics: Metrics,
    listener: Listener,
    shutdown: CancellationToken,
) {
    let router = Router::new()
        .route("/metrics", get(page))
        .fallback(async || {
            (StatusCode::NOT_FOUND, "No such path; this server has /metrics only.\n")
        })
        .with_state((central, metrics));
    listener.0.serve(|listener, stop| accept(router.clone(), listener, stop), shutdown).await;
}

async fn accept(router: Router, listener: TcpListener, shutdown: CancellationToken) {
    let limiter = ConnectionLimiter::new("metrics", MAX_CONNECTIONS);
    let accept = AcceptLoop {
        api: "metrics",
        limiter: &limiter,
        shutdown: &shutdown,
        drain: Some(Duration::ZERO),
    };
    let connection = |(stream, _), permit: ConnectionPermit| {
        let router = router.clone();
        Some(async move {
            let conversed = tokio::time::timeout(CONNECTION_TIME, serve_connection(stream, router));
            permit.eviction.run_until_cancelled(conversed).await;
        })
    };
    accept.run(listener, connection).await;
}

async fn serve_connection(stream: TcpStream, router: Router) {
    let (stream, input) = LingeringClose::new(stream, LingerLimits::default());
    let router = router.map_request(move |request| input.watch(request));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a metrics connection ended early");
    }
}

async fn page(State((central, metrics)): State<(Shared, Metrics)>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.page(&central))
}
