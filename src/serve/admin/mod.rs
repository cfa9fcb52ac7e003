//! The admin plane: what an operator asks for, over a Unix socket whose file permissions are the access control.
//!
//! | route under `/v1` | answer |
//! | --- | --- |
//! | `GET status` | the central node at a glance |
//! | `GET nodes?removed`, `GET nodes/{node}` | nodes; a node is named by ID or name |
//! | `POST nodes/{node}/approve`, `assign-profile`, `reboot`, `release` | the node afterwards |
//! | `POST nodes/{node}/reject`, `quarantine`, `drain`, `maintenance`, `resume`, `remove` | the node afterwards |
//! | `POST nodes/{node}/replace` | the hardware that takes its place, and what of the site file is left to edit |
//! | `GET nodes/{node}/history`, `diff` | generations that it was given; what it runs against what it would boot |
//! | `POST reload` | site, overlays and images are read anew; all faults if they are refused |
//! | `POST nodes/{node}/vars`, `boot-once`, `pin` | everything of the node afterwards |
//! | `GET nodes/{node}/timeline?session` | one boot of it stage by stage, the newest unless another is named |
//! | `GET tokens`, `POST tokens`, `POST tokens/{token}/revoke` | tokens for machines that are not netbooted |
//! | `GET ca`, `POST ca/rotate`, `POST nodes/{node}/revoke` | the certificate authority; what a node holds of it |
//! | `GET overlay/{node}` | the public part of what it would boot now, an apkovl |
//! | `GET profiles` | profiles with all that they inherit |
//! | `GET profiles/{name}/history`, `POST profiles/{name}/rollback` | what a profile was; its nodes boot that again |
//! | `POST backup` | a sealed backup, as a stream |
//! | `GET events?follow&after&node&limit` | one JSON object a line |
//!
//! `GET /metrics`, beside `/v1`, is for Prometheus. `GET /v1/doctor` is what this process knows of its own health.
//! Every answer that is no success is an [`view::ErrorView`].

mod backup;
mod bodies;
pub mod doctor;
mod error;
mod events;
mod generations;
mod life;
mod order;
mod orders;
mod routes;
mod socket;
mod timeline;
mod trust;
pub mod view;

pub use backup::MakeBackup;
pub use order::REASON_HEADER;
pub use socket::{Socket, SocketError, bind};

use crate::fleet::Who;
use crate::serve::{central::Shared, metrics::Metrics};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{net::UnixStream, sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Operators at one time; more of them wait.
const MAX_CONNECTIONS: usize = 128;
/// How long a client may take to write the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long answers that have begun may take to end once the program stops.
const DRAIN_TIME: Duration = Duration::from_secs(3);

/// What every route is given.
#[derive(Clone)]
struct Plane {
    central: Shared,
    /// The address that nodes of the first segment are told.
    told: Ipv4Addr,
    metrics: Metrics,
    shutdown: CancellationToken,
}

/// Serves until told to stop, then lets answers that have begun end. `told` is the address that nodes of the first segment
/// are told: overlays that an operator asks for are rendered with it.
pub async fn run(central: Shared, socket: Socket, told: Ipv4Addr, metrics: Metrics, shutdown: CancellationToken) {
    let router = routes::router(Plane { central, told, metrics, shutdown: shutdown.clone() });
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&socket, &seats) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, seat)) => {
                let (router, shutdown) = (router.clone(), shutdown.clone());
                connections.spawn(async move {
                    serve(stream, router, shutdown).await;
                    drop(seat);
                });
            }
            // Out of file descriptors, most likely; others give theirs back meanwhile.
            Err(error) => {
                tracing::error!(%error, "cannot accept on the admin socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(socket);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIME, drained).await.is_err() {
        connections.shutdown().await;
    }
}

async fn accept(
    socket: &Socket,
    seats: &Arc<Semaphore>,
) -> std::io::Result<(UnixStream, tokio::sync::OwnedSemaphorePermit)> {
    let seat = seats.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = socket.listener.accept().await?;
    Ok((stream, seat))
}

async fn serve(stream: UnixStream, router: axum::Router, shutdown: CancellationToken) {
    let who = match stream.peer_cred() {
        Ok(peer) => Who::Operator(peer.uid()),
        Err(error) => return tracing::warn!(%error, "nobody can say who is at the admin socket: not served"),
    };
    let router = router.map_request(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(who.clone());
        request
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection ended early");
    }
}

#[cfg(test)]
mod tests;
