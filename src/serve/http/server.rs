//! Accepts connections and serves each within its limits. Every task that is started here is joined here.

use super::outlet::{Handed, Outlet};
use super::plane::BootPlane;
use super::routes::{Client, router};
use crate::boot::Endpoint;
use axum::Router;
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

/// What one server allows its clients. All of it is per connection but the first.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; more wait in the system's backlog.
    pub connections: usize,
    /// Time for a request's head, and for a connection without a request.
    pub head: Duration,
    /// Time that one write may wait for the client to read.
    pub write: Duration,
    /// Time for running responses when the server shuts down.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 2048,
            head: Duration::from_secs(10),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(5),
        }
    }
}

/// Largest request head, in bytes. iPXE's longest is below 2 KiB.
const MAX_HEAD: usize = 16 * 1024;
/// Most headers of one request. iPXE sends three.
const MAX_HEADERS: usize = 64;
/// Pause after a failed accept: the usual cause, no free file descriptor, does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then lets running responses end. `endpoint` is what scripts name: the address of this listener's segment.
///
/// # Errors
/// None at present: an accept that fails is logged and tried again.
pub async fn run<P: BootPlane>(
    plane: P,
    listener: TcpListener,
    endpoint: Endpoint,
    shutdown: CancellationToken,
) -> io::Result<()> {
    run_within(Limits::default(), plane, listener, endpoint, shutdown).await
}

/// [`run`] with other limits, for tests.
pub async fn run_within<P: BootPlane>(
    limits: Limits,
    plane: P,
    listener: TcpListener,
    endpoint: Endpoint,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let router = router(plane, endpoint);
    let slots = Arc::new(Semaphore::new(limits.connections));
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        match accepted {
            Ok((stream, from, slot)) => {
                let connection =
                    Connection { limits, router: router.clone(), tasks: tasks.clone(), shutdown: shutdown.clone() };
                tasks.spawn(async move {
                    connection.serve(stream, from).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection; is the limit of open files too low?");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
    Ok(())
}

type Accepted = (TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit);

async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> io::Result<Accepted> {
    let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, from) = listener.accept().await?;
    Ok((stream, from, slot))
}

struct Connection {
    limits: Limits,
    router: Router,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Connection {
    async fn serve(self, stream: TcpStream, from: SocketAddr) {
        let IpAddr::V4(from) = from.ip() else { return };
        // Small answers (scripts) are not to wait for the client's delayed acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot turn off Nagle's algorithm");
        }
        let handed = Handed::default();
        let client = Client { from, handed: handed.clone() };
        let router = self.router;
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(client.clone());
            router.clone().oneshot(request)
        });
        let outlet = Outlet::new(stream, handed, self.tasks, self.limits.write);
        let mut connection = std::pin::pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.head)
                .max_buf_size(MAX_HEAD)
                .max_headers(MAX_HEADERS)
                .serve_connection(TokioIo::new(outlet), service)
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(self.limits.drain, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = ended {
            // Clients that vanish are usual here: firmware aborts after probing a size, iPXE after a reset.
            tracing::debug!(%from, %error, "an HTTP connection ended early");
        }
    }
}
