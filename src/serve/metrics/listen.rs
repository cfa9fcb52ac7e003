//! The listener of `[metrics]`: one route, for Prometheus, on an address of its own.

use super::{CONTENT_TYPE, Metrics};
use crate::config::MetricsListener;
use crate::serve::{
    bind::{self, BindError, Service},
    central::Shared,
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
use std::{net::SocketAddrV4, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Scrapers at one time; more of them wait in the kernel.
const MAX_CONNECTIONS: usize = 16;
/// Time for a request's head, and for a connection without a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// A connection lives no longer than this: whoever reads slowly holds a seat no longer.
const CONNECTION_TIME: Duration = Duration::from_secs(300);
/// Pause after a failed accept: the usual cause, no free file descriptor, does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bound listener.
pub struct Listener(TcpListener);

/// Opens the port of `[metrics]`. It is bound to its address, on whatever interface that is.
///
/// # Errors
/// When the port is taken, or the address is none of this machine.
pub fn bind(listener: MetricsListener) -> Result<Listener, BindError> {
    let at = SocketAddrV4::new(listener.address, listener.port);
    bind::tcp(Service::Metrics, None, at).map(Listener)
}

/// Serves until it is told to stop.
pub async fn serve(central: Shared, metrics: Metrics, listener: Listener, shutdown: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(page))
        .fallback(async || (StatusCode::NOT_FOUND, "There is nothing here but /metrics.\n"))
        .with_state((central, metrics));
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &seats) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, seat)) => {
                let router = router.clone();
                connections.spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION_TIME, converse(stream, router)).await;
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept on the metrics listener");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    connections.shutdown().await;
}

async fn accept(
    listener: &Listener,
    seats: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let seat = seats.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.0.accept().await?;
    Ok((stream, seat))
}

async fn converse(stream: TcpStream, router: Router) {
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
