//! The admin API, over a Unix socket with file permissions as access control, or over HTTPS with a token.
//!
//! | route under `/v1` | answer |
//! | --- | --- |
//! | `GET whoami` | who asks, and with which role |
//! | `GET status` | the central node at a glance |
//! | `POST bulk/nodes/{verb}` | several nodes as the caller saw them: what came of it for each |
//! | `GET nodes?removed&label&phase&profile&q&sort&fields&limit&after`, `GET nodes/{node}` | nodes; a node is named by ID or name |
//! | `GET operations` | requests that are not finished, of nodes, virtual machines, slots and tasks |
//! | `GET search?q` | nodes, virtual machines and tasks whose ID, name, address, serial number or program has a text in it |
//! | `POST nodes/{node}/approve`, `assign-profile`, `reboot`, `release`, `label`, `rename` | the node afterwards |
//! | `POST nodes/{node}/reject`, `quarantine`, `drain`, `maintenance`, `resume`, `fence`, `remove` | the node afterwards |
//! | `POST nodes/{node}/doctor` | its readiness checks, run just now |
//! | `POST nodes/{node}/replace` | the hardware that takes its place, and what of the site file is left to edit |
//! | `GET nodes/{node}/history`, `diff` | generations that it was given; what it runs against what it would boot |
//! | `POST reload` | site, overlays and images are read anew; all faults if they are refused |
//! | `POST nodes/{node}/vars`, `boot-once`, `pin` | everything of the node afterwards |
//! | `GET nodes/{node}/timeline?session` | one boot of it stage by stage, the newest unless another is named |
//! | `GET tokens`, `POST tokens`, `POST tokens/{token}/revoke` | tokens for machines that are not netbooted |
//! | `GET ca`, `POST ca/rotate`, `POST nodes/{node}/revoke` | the certificate authority; what a node holds of it |
//! | `GET overlay/{node}`, `GET overlay/{node}/files?profile&path` | the public part of what it would boot now: an apkovl, its files |
//! | `GET profiles`, `GET images`, `GET overlays` | profiles with all that they inherit; images and overlays of the site |
//! | `GET overlays/{name}`, `GET overlays/{name}/files?path` | an overlay with its variables; its files before they are rendered |
//! | `GET profiles/{name}/settings` | values of a profile with the profile that set each |
//! | `GET profiles/{name}/diff` | how two revisions of a profile differ |
//! | `GET profiles/{name}/history`, `POST profiles/{name}/rollback` | what a profile was; its nodes boot that again |
//! | `GET vms`, `POST vms`, `GET vms/{vm}` | virtual machines; one is named by UUID or name |
//! | `POST vms/{vm}/start`, `stop`, `restart`, `delete` | the virtual machine afterwards |
//! | `GET slots`, `GET slots/{node}/{unit}`, `POST .../approve`, `disable`, `enable`, `release` | what of nodes can be given away |
//! | `GET tasks`, `GET tasks/{task}`, `POST tasks`, `POST tasks/{task}/cancel` | programs on the metal of nodes |
//! | `GET tasks/{task}/output?follow&from` | what a task wrote, one JSON object a line |
//! | `POST backup` | a sealed backup, as a stream |
//! | `GET audit?node&actor&after&q&sort&fields&limit` | who ordered what, and what came of it |
//! | `GET api-tokens`, `POST api-tokens/create`, `api-tokens/{name}/revoke` | tokens of this plane |
//! | `GET segments`, `GET leases?state&node&q&sort&fields&limit&after` | networks with their pools and other servers; leased addresses |
//! | `GET volumes`, `POST volumes/{volume}/remove` | files of virtual machines |
//! | `GET vms/{vm}/console` | a WebSocket; `GET vms/{vm}/logs?follow&tail` only shows |
//! | `GET events?follow&after&node&kind&q&sort&fields&limit` | one JSON object a line |
//!
//! | module | content |
//! | --- | --- |
//! | `bulk` | routes that give one order to several nodes |
//! | `dhcp` | the routes of segments and leases |
//! | `doctor` | the health of this process |
//! | `error` | converts errors of the services to HTTP statuses |
//! | `event_tail` | recorded and new events for one reader, as lines or as server-sent events |
//! | `lists` | the routes of the node list, of the search and of operations |
//! | `openapi`, `table` | the list of routes, and the OpenAPI document that is made from it |
//! | `query` | queries of lists, and the search |
//! | `router` | path, role and handler of each route |
//! | `routes` | the handlers |
//! | `transport` | listeners, callers, correlation IDs, idempotency keys |
//!
//! Routes are made by [`table`], which makes `GET /v1/openapi.json` too. `GET /metrics`, beside `/v1`, is for Prometheus.
//! `GET /v1/doctor` is what this process knows of its own health. Every answer that is no success is an [`meshd_api::ErrorView`].

mod bulk;
mod dhcp;
pub mod doctor;
mod error;
mod event_tail;
mod lists;
mod openapi;
mod query;
mod router;
mod routes;
mod table;
mod transport;

pub use routes::backup::MakeBackup;
pub use transport::https::{Https, HttpsError, bind as bind_https};
pub use transport::socket::{Socket, SocketError, bind};

use crate::serve::{
    limiter::{ConnectionLimiter, ConnectionPermit, Source},
    metrics::Metrics,
};
use axum::{Router, http::Extensions};
use meshd_central::{Entropy as _, Shared, SystemEntropy};
use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tokio::{net::UnixStream, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Largest request body, in bytes: a virtual machine with all that cloud-init may get.
const MAX_BODY: usize = 512 * 1024;
/// Connections of each of the two listeners at one time.
pub const MAX_CONNECTIONS: usize = 128;
/// How long answers that have begun may take to end once the program stops.
const DRAIN_TIME: Duration = Duration::from_secs(3);

/// What every route is given.
#[derive(Clone)]
struct Plane {
    central: Shared,
    /// The address that nodes of the first segment are told.
    told: Ipv4Addr,
    /// SHA-256 of the certificate of the HTTPS listener.
    https_fingerprint: Option<String>,
    metrics: Metrics,
    shutdown: CancellationToken,
    failures: transport::auth::Failures,
    under_way: transport::idempotency::UnderWay,
    /// Orders that are being followed.
    tasks: TaskTracker,
}

/// What this plane is reached by.
pub struct Listening {
    /// For whoever may write to its file.
    pub socket: Socket,
    /// For whoever has a token.
    pub https: Option<Https>,
    /// Connections of each of the two at one time; when one more comes, the one that makes least progress goes.
    pub connections: usize,
}

/// Serves until told to stop, then lets answers and orders that have begun end. `told` is the address that nodes of the first segment
/// are told: overlays that an operator asks for are rendered with it.
pub async fn run(central: Shared, listening: Listening, told: Ipv4Addr, metrics: Metrics, shutdown: CancellationToken) {
    let tasks = TaskTracker::new();
    let plane = Plane {
        central,
        told,
        https_fingerprint: listening.https.as_ref().map(|https| https.fingerprint.clone()),
        metrics,
        shutdown: shutdown.clone(),
        failures: transport::auth::Failures::default(),
        under_way: transport::idempotency::UnderWay::default(),
        tasks: tasks.clone(),
    };
    let serving = Serving { central: plane.central.clone(), router: router::router(plane), shutdown };
    let with_pages = Serving { router: pages(serving.router.clone(), &tasks), ..serving.clone() };
    let Listening { socket, https, connections } = listening;
    let by_https = async {
        if let Some(https) = https {
            transport::https::run(https, connections, with_pages, DRAIN_TIME).await;
        }
    };
    tokio::join!(at_socket(socket, connections, serving.clone()), by_https);
    tasks.close();
    if tokio::time::timeout(DRAIN_TIME, tasks.wait()).await.is_err() {
        tracing::warn!(
            orders = tasks.len(),
            "meshd ends while orders are being followed; the audit log does not have them"
        );
    }
}

/// The web UI beside the API.
fn pages(api: Router, tasks: &TaskTracker) -> Router {
    let random = || {
        let mut bytes = [0; 32];
        SystemEntropy.fill(&mut bytes);
        bytes
    };
    let open_socket = transport::in_process::opener(api.clone(), tasks.clone());
    let sign_in = meshd_ui::SignIn::Token;
    meshd_ui::router(meshd_ui::Environment { api, open_socket, sign_in, random, now: Instant::now })
}

/// What every connection is given.
#[derive(Clone)]
struct Serving {
    central: Shared,
    router: Router,
    shutdown: CancellationToken,
}

async fn at_socket(socket: Socket, connections: usize, serving: Serving) {
    let limiter = ConnectionLimiter::new("admin-socket", connections);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = serving.shutdown.cancelled() => break,
            accepted = socket.listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let uid = match stream.peer_cred() {
                    Ok(peer) => peer.uid(),
                    Err(error) => {
                        tracing::warn!(%error, "refused a connection to the admin socket: unknown peer");
                        continue;
                    }
                };
                let entered = limiter.enter(Source::Credential(format!("uid:{uid}")));
                let Some(permit) = serving.shutdown.run_until_cancelled(entered).await else { break };
                connections.spawn(serve(stream, uid, permit, serving.clone()));
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

async fn serve(stream: UnixStream, uid: u32, permit: ConnectionPermit, serving: Serving) {
    let Serving { central, router, shutdown } = serving;
    let mut origin = Extensions::new();
    origin.insert(transport::auth::Caller::at_socket(uid));
    let conversation = transport::connection::Conversation::new(permit);
    transport::connection::converse(stream, router, origin, conversation, central, shutdown).await;
}

#[cfg(test)]
mod tests;
