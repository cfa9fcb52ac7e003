//! The admin API, over a Unix socket with file permissions as access control, or over HTTPS with a
//! token.
//!
//! `meshd_api::routes` lists the routes with their roles and types; this module binds a handler to
//! each. The body of every error response is an [`meshd_api::ErrorView`].
//!
//! | module | content |
//! | --- | --- |
//! | `bind_handlers` | binds a handler to a route, with its role and verb |
//! | `doctor` | the health of this process |
//! | `error` | converts errors of the services to HTTP statuses |
//! | `event_tail` | recorded and new events for one reader, as lines or as server-sent events |
//! | `extract` | extractors of bodies, queries, and the node in a path |
//! | `query` | queries of lists, and the search |
//! | `router` | binds each route to its handler, in middleware |
//! | `routes` | the handlers, by resource |
//! | `transport` | listeners, callers, correlation IDs, idempotency keys |

mod bind_handlers;
pub mod doctor;
mod error;
mod event_tail;
mod extract;
mod query;
mod router;
mod routes;
mod transport;

pub use transport::https::{Https, HttpsError, bind as bind_https};
pub use transport::socket::{Socket, SocketError, bind};

use crate::{
    connections::{
        accept::AcceptLoop,
        limiter::{ConnectionLimiter, ConnectionPermit},
    },
    metrics::Metrics,
};
use axum::{Router, extract::FromRef, http::Extensions};
use meshd_central::{Entropy as _, Shared, SystemEntropy};
use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};
use tokio::{net::UnixStream, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Maximum request body, in bytes: a VM with its cloud-init data.
const MAX_BODY: usize = 1024 * 1024;
/// Maximum request body of an import, in bytes: a list of machines is checked as a whole.
const MAX_IMPORT: usize = 8 * 1024 * 1024;
/// Maximum number of connections of each of the two listeners.
pub const MAX_CONNECTIONS: usize = 128;
/// Timeout for running responses at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(3);

/// State of all routes.
#[derive(Clone)]
struct ApiState {
    central: Shared,
    /// This server's address for nodes of the first segment. It changes with the interface.
    boot_address: watch::Receiver<Ipv4Addr>,
    /// SHA-256 of the certificate of the HTTPS listener.
    https_fingerprint: Option<String>,
    metrics: Metrics,
    shutdown: CancellationToken,
    failures: transport::auth::Failures,
    /// Running orders.
    tasks: TaskTracker,
}

impl ApiState {
    /// Returns this server's present address for nodes of the first segment.
    fn boot_address(&self) -> Ipv4Addr {
        *self.boot_address.borrow()
    }
}

impl FromRef<ApiState> for Shared {
    fn from_ref(state: &ApiState) -> Self {
        state.central.clone()
    }
}

/// Listeners of the API.
pub struct Listening {
    /// Socket listener. Write access to the socket grants the admin role.
    pub socket: Socket,
    /// HTTPS listener. Requires an API token.
    pub https: Option<Https>,
    /// Maximum number of connections of each listener. An additional connection replaces the
    /// connection with the least progress.
    pub connections: usize,
}

/// Serves until `shutdown`, then waits for running responses and orders. Overlays for an operator
/// are rendered with `boot_address`, this server's address for nodes of the first segment.
pub async fn run(
    central: Shared,
    listening: Listening,
    boot_address: watch::Receiver<Ipv4Addr>,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let state = ApiState {
        central,
        boot_address,
        https_fingerprint: listening.https.as_ref().map(|https| https.fingerprint.clone()),
        metrics,
        shutdown: shutdown.clone(),
        failures: transport::auth::Failures::default(),
        tasks: tasks.clone(),
    };
    let serving =
        Serving { central: state.central.clone(), router: router::router(state), shutdown };
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
            "orders still run at the end of meshd; the audit log does not contain them"
        );
    }
}

/// Returns the web UI together with the API.
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

/// State of all connections.
#[derive(Clone)]
struct Serving {
    central: Shared,
    router: Router,
    shutdown: CancellationToken,
}

async fn at_socket(socket: Socket, connections: usize, serving: Serving) {
    let limiter = ConnectionLimiter::new("admin-socket", connections);
    let shutdown = serving.shutdown.clone();
    let accept = AcceptLoop {
        api: "admin-socket",
        limiter: &limiter,
        shutdown: &shutdown,
        drain: Some(DRAIN_TIME),
    };
    accept
        .run(socket, |(stream, uid), permit| Some(serve(stream, uid, permit, serving.clone())))
        .await;
}

async fn serve(stream: UnixStream, uid: u32, permit: ConnectionPermit, serving: Serving) {
    let Serving { central, router, shutdown } = serving;
    let mut origin = Extensions::new();
    origin.insert(transport::caller::Caller::at_socket(uid));
    let connection = transport::connection::AdminConnection::new(permit);
    transport::connection::serve_connection(stream, router, origin, connection, central, shutdown)
        .await;
}

#[cfg(test)]
mod tests;
