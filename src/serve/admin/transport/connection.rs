//! One connection of the admin API. The connection ends when the token of its request is revoked,
//! even if the client neither reads nor writes.

use crate::admin::transport::caller::Caller;
use crate::connections::limiter::{ConnectionPermit, Meter};
use crate::connections::lingering_close::{LingerLimits, LingeringClose};
use axum::{Router, http::Extensions};
use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use meshd_central::Shared;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Timeout for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time to finish a response in memory after its token is revoked, because a token that revokes
/// itself receives a response. Streams end at once.
const RESPONSE_TIME: Duration = Duration::from_millis(300);
/// Maximum size of a request head, in bytes. The longest value of each query parameter of the node
/// list fits together.
const MAX_HEAD: usize = 24 * 1024;

/// Data that the routes report about a connection.
#[derive(Clone)]
pub(crate) struct AdminConnection {
    permit: Arc<ConnectionPermit>,
    caller: Arc<watch::Sender<Option<Caller>>>,
}

impl AdminConnection {
    /// Creates the state of a connection whose caller is not known yet.
    pub(crate) fn new(permit: ConnectionPermit) -> Self {
        AdminConnection { permit: Arc::new(permit), caller: Arc::new(watch::Sender::new(None)) }
    }

    /// Records the caller of a request. The connection counts for the caller from now on, and ends
    /// with the caller's token.
    pub(crate) fn set_caller(&self, caller: &Caller) {
        self.permit.meter.request_started();
        self.permit.trust(caller.identity());
        self.caller.send_replace(Some(caller.clone()));
    }

    /// Resolves once the caller of a request is known.
    #[cfg(test)]
    pub(crate) async fn has_caller(&self) {
        // The sender lives as long as `self`.
        let _ = self.caller.subscribe().wait_for(Option::is_some).await;
    }

    /// Resolves once the token of the last request's caller is revoked or has expired.
    async fn revoked(&self, central: &Shared) {
        let mut callers = self.caller.subscribe();
        loop {
            let caller = callers.borrow_and_update().clone();
            let over = async {
                match caller {
                    Some(caller) => caller.revoked(central).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = over => return,
                // The sender lives as long as `self`.
                _ = callers.changed() => {}
            }
        }
    }
}

/// Serves the requests of a connection. `origin` contains the caller, or the client address.
pub(crate) async fn serve_connection<S>(
    stream: S,
    router: Router,
    mut origin: Extensions,
    state: AdminConnection,
    central: Shared,
    shutdown: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    origin.insert(state.clone());
    let stream = Metered { stream, meter: Arc::clone(&state.permit.meter) };
    let (stream, input) = LingeringClose::new(stream, LingerLimits::default());
    let router = router.map_request(move |request: Request<Incoming>| {
        let mut request = input.watch(request);
        request.extensions_mut().extend(origin.clone());
        request
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = state.permit.eviction.cancelled() => {
            return tracing::debug!("evicted an admin connection for another one");
        }
        () = state.revoked(&central) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(RESPONSE_TIME, connection).await {
                Ok(ended) => ended,
                Err(_) => return tracing::info!("closed an admin connection: its token is revoked or expired"),
            }
        }
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection ended early");
    }
}

/// Reports written bytes to the meter of a connection.
struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.meter.wrote(bytes);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
