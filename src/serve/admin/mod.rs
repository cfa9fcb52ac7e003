//! The admin plane: what an operator asks for, over a Unix socket whose file permissions are the access control, or by HTTPS with a
//! token.
//!
//! | route under `/v1` | answer |
//! | --- | --- |
//! | `GET status` | the central node at a glance |
//! | `GET nodes?removed`, `GET nodes/{node}` | nodes; a node is named by ID or name |
//! | `POST nodes/{node}/approve`, `assign-profile`, `reboot`, `release` | the node afterwards |
//! | `POST nodes/{node}/reject`, `quarantine`, `drain`, `maintenance`, `resume`, `fence`, `remove` | the node afterwards |
//! | `POST nodes/{node}/doctor` | its readiness checks, run just now |
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
//! | `GET vms`, `POST vms`, `GET vms/{vm}` | virtual machines; one is named by UUID or name |
//! | `POST vms/{vm}/start`, `stop`, `restart`, `delete` | the virtual machine afterwards |
//! | `GET slots`, `GET slots/{node}/{unit}`, `POST .../approve`, `disable`, `enable`, `release` | what of nodes can be given away |
//! | `GET tasks`, `GET tasks/{task}`, `POST tasks`, `POST tasks/{task}/cancel` | programs on the metal of nodes |
//! | `GET tasks/{task}/output?follow&from` | what a task wrote, one JSON object a line |
//! | `POST backup` | a sealed backup, as a stream |
//! | `GET audit?node&actor&after&limit` | who ordered what, and what came of it |
//! | `GET api-tokens`, `POST api-tokens/create`, `api-tokens/{name}/revoke` | tokens of this plane |
//! | `GET volumes`, `POST volumes/{volume}/remove` | files of virtual machines |
//! | `GET vms/{vm}/console` | a WebSocket; `GET vms/{vm}/logs?follow` only shows |
//! | `GET events?follow&after&node&limit` | one JSON object a line |
//!
//! Routes are made by [`table`], which makes `GET /v1/openapi.json` too. `GET /metrics`, beside `/v1`, is for Prometheus.
//! `GET /v1/doctor` is what this process knows of its own health. Every answer that is no success is an [`view::ErrorView`].

mod asked;
mod audit;
mod auth;
mod backup;
mod bodies;
mod connection;
mod consoles;
pub mod doctor;
mod error;
mod events;
mod generations;
mod https;
mod openapi;
mod life;
mod order;
mod orders;
mod profile_view;
mod routes;
mod slots;
mod socket;
mod table;
mod task_view;
mod tasks;
mod timeline;
mod tokens;
mod trust;
mod volumes;
pub mod view;
mod vms;

pub use asked::{KEY_HEADER, REPLAYED_HEADER};
pub use backup::MakeBackup;
pub use https::{Https, HttpsError, bind as bind_https};
pub use order::{CORRELATION_HEADER, FORCE_HEADER, REASON_HEADER};
pub use socket::{Socket, SocketError, bind};

use crate::serve::{central::Shared, metrics::Metrics};
use axum::{Router, http::Extensions};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{net::UnixStream, sync::Semaphore, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Operators at one time; more of them wait.
const MAX_CONNECTIONS: usize = 128;
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
    failures: auth::Failures,
    under_way: asked::UnderWay,
    /// Orders that are being followed.
    tasks: TaskTracker,
}

/// What this plane is reached by.
pub struct Listening {
    /// For whoever may write to its file.
    pub socket: Socket,
    /// For whoever has a token.
    pub https: Option<Https>,
}

/// Serves until told to stop, then lets answers and orders that have begun end. `told` is the address that nodes of the first segment
/// are told: overlays that an operator asks for are rendered with it.
pub async fn run(central: Shared, listening: Listening, told: Ipv4Addr, metrics: Metrics, shutdown: CancellationToken) {
    let tasks = TaskTracker::new();
    let plane = Plane {
        central,
        told,
        metrics,
        shutdown: shutdown.clone(),
        failures: auth::Failures::default(),
        under_way: asked::UnderWay::default(),
        tasks: tasks.clone(),
    };
    let router = routes::router(plane);
    let Listening { socket, https } = listening;
    let by_https = async {
        if let Some(https) = https {
            https::run(https, router.clone(), shutdown.clone(), DRAIN_TIME).await;
        }
    };
    tokio::join!(at_socket(socket, router.clone(), shutdown.clone()), by_https);
    tasks.close();
    if tokio::time::timeout(DRAIN_TIME, tasks.wait()).await.is_err() {
        tracing::warn!(
            orders = tasks.len(),
            "meshd ends while orders are being followed; the audit log does not have them"
        );
    }
}

async fn at_socket(socket: Socket, router: Router, shutdown: CancellationToken) {
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

async fn serve(stream: UnixStream, router: Router, shutdown: CancellationToken) {
    let mut origin = Extensions::new();
    match stream.peer_cred() {
        Ok(peer) => origin.insert(auth::Caller::at_socket(peer.uid())),
        Err(error) => return tracing::warn!(%error, "nobody can say who is at the admin socket: not served"),
    };
    connection::converse(stream, router, origin, shutdown).await;
}

#[cfg(test)]
mod tests;
