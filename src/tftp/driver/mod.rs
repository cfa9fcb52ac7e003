//! Sockets and threads of the server. Requests arrive at one port; each worker thread answers from
//! a separate port (RFC 1350).
//!
//! | module | content |
//! | --- | --- |
//! | here | binds sockets, distributes requests to workers, reports completed files |
//! | `worker` | one thread with one socket and one [`Engine`](crate::Engine) |
//! | `sender` | sends datagrams, or frames where the send queue would keep datagrams |
//! | `path_mtu` | the MTU of the path to a client, by the kernel |
//! | `batch_socket` | many datagrams in one system call, UDP segmentation offload |
//! | `adaptive_polling` | whether an idle worker polls or sleeps; pure |

mod adaptive_polling;
pub(crate) mod batch_socket;
mod path_mtu;
mod sender;
mod worker;

use crate::{
    client::Client,
    files::{EthernetLink, Files, Observer, Problem},
    packet::MAX_REQUEST,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use path_mtu::path_mtu;
use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::{SocketAddr, SocketAddrV4, UdpSocket},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use worker::{Completed, WorkerHandle, WorkerLink, WorkerSockets, worker};

/// Most workers: one for two cores leaves time for other servers. One serves some 300 MB/s in lock
/// step and a few GB/s in windows; more than needed make smaller batches and cost more.
const MAX_WORKERS: usize = 8;
/// Completed transfers that wait for [`Files::completed`].
const COMPLETED_BACKLOG: usize = 8192;
/// Simultaneous calls of [`Files::completed`].
const COMPLETED_AT_ONCE: usize = 256;
/// Pause after a receive error, which would repeat at once.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Bound sockets of one server.
pub struct Sockets {
    requests: UdpSocket,
    /// One for each worker.
    transfers: Vec<UdpSocket>,
    /// One for each worker, to ask the kernel for the MTU of a path.
    mtu: Vec<UdpSocket>,
    /// One for each worker, or none.
    links: Vec<Box<dyn EthernetLink>>,
}

/// The server stopped without a request to stop.
#[derive(Debug, thiserror::Error)]
#[error("TFTP server stopped")]
pub struct TftpError(#[from] io::Error);

impl Sockets {
    /// Binds the request port, and a free port of the same address for each worker.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn bind(address: SocketAddrV4) -> io::Result<Self> {
        Sockets::bind_with(address, |address| {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })
    }

    /// Like [`Sockets::bind`], with a function that returns one bound, non-blocking socket, for
    /// example of one interface.
    ///
    /// # Errors
    /// The first error of `bind`.
    pub fn bind_with<E>(
        address: SocketAddrV4,
        bind: impl Fn(SocketAddrV4) -> Result<UdpSocket, E>,
    ) -> Result<Self, E> {
        let open = |address| {
            let socket = bind(address)?;
            batch_socket::enlarge(&socket);
            Ok(socket)
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = (cores / 2).clamp(1, MAX_WORKERS);
        let any_port = SocketAddrV4::new(*address.ip(), 0);
        let transfers = (0..workers).map(|_| open(any_port));
        Ok(Sockets {
            requests: open(address)?,
            transfers: transfers.collect::<Result<_, E>>()?,
            mtu: (0..workers).map(|_| bind(any_port)).collect::<Result<_, E>>()?,
            links: Vec::new(),
        })
    }

    /// Uses an Ethernet link for each worker, in place of the sockets, which then receive only what
    /// this host sends itself. `open` gets the port of the worker's transfers: the link receives
    /// from there and from the request port. `restrict` is called with each socket, which then
    /// drops what the links receive.
    ///
    /// # Errors
    /// The first error of `open` or `restrict`.
    pub fn use_links(
        &mut self,
        open: impl Fn(u16) -> io::Result<Box<dyn EthernetLink>>,
        restrict: impl Fn(&UdpSocket) -> io::Result<()>,
    ) -> io::Result<()> {
        let ports = self.transfers.iter().map(|socket| Ok(socket.local_addr()?.port()));
        let links = ports.map(|port: io::Result<u16>| open(port?)).collect::<io::Result<_>>()?;
        [&self.requests].into_iter().chain(&self.transfers).try_for_each(restrict)?;
        // In the end, so that no packet is received twice.
        self.links = links;
        Ok(())
    }

    /// Returns the address of the request port.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.requests.local_addr()
    }
}

/// Serves until `shutdown`. Then transfers may continue for a few seconds; the remaining ones end
/// with an ERROR.
///
/// # Errors
/// A worker stopped: its socket failed.
pub async fn serve<F: Files, O: Observer>(
    files: Arc<F>,
    observer: Arc<O>,
    sockets: Sockets,
    shutdown: CancellationToken,
) -> Result<(), TftpError> {
    let requests = tokio::net::UdpSocket::from_std(sockets.requests)?;
    let (sender, completed) = mpsc::channel(COMPLETED_BACKLOG);
    let mut workers = Vec::new();
    let mut threads = JoinSet::new();
    let hasher = RandomState::new();
    let count = sockets.transfers.len();
    let mut links = sockets.links.into_iter();
    for (number, (socket, mtu)) in sockets.transfers.into_iter().zip(sockets.mtu).enumerate() {
        let hasher = hasher.clone();
        let is_own = move |client: &SocketAddrV4| worker_of(&hasher, client, count) == number;
        let ethernet = links.next().map(|link| WorkerLink { link, is_own: Box::new(is_own) });
        let sockets = WorkerSockets { socket, path_mtu: path_mtu(mtu), ethernet };
        let (handle, run) =
            worker(sockets, Arc::clone(&files), Arc::clone(&observer), sender.clone())?;
        workers.push(handle);
        threads.spawn_blocking(run);
    }
    drop(sender);
    let serving = async {
        let ended = tokio::select! {
            () = listen(&requests, &hasher, &workers, observer.as_ref()) => None,
            ended = threads.join_next() => ended,
            () = shutdown.cancelled() => None,
        };
        drop(workers);
        let mut outcome = ended.map_or(Ok(()), flatten_join);
        while let Some(ended) = threads.join_next().await {
            outcome = outcome.and(flatten_join(ended));
        }
        outcome
    };
    let (outcome, ()) = tokio::join!(serving, report(files.as_ref(), completed));
    Ok(outcome?)
}

/// Returns the result of a worker; resumes its panic.
fn flatten_join(ended: Result<io::Result<()>, tokio::task::JoinError>) -> io::Result<()> {
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(cancelled) => Err(io::Error::other(cancelled)),
    })
}

/// Returns the number of the worker that has all transfers of a client.
fn worker_of(hasher: &RandomState, client: &SocketAddrV4, count: usize) -> usize {
    hasher.hash_one(client) as usize % count
}

/// Receives requests and passes all requests of one client to the same worker.
async fn listen<O: Observer>(
    requests: &tokio::net::UdpSocket,
    hasher: &RandomState,
    workers: &[WorkerHandle],
    observer: &O,
) {
    // One byte more than allowed, so that the engine detects a longer request.
    let mut buffer = [0; MAX_REQUEST + 1];
    loop {
        match requests.recv_from(&mut buffer).await {
            Ok((length, SocketAddr::V4(client))) => {
                let worker = &workers[worker_of(hasher, &client, workers.len())];
                let request = Bytes::copy_from_slice(&buffer[..length]);
                if !worker.send((Client::unobserved(client), request)) {
                    observer.problem(Problem::RequestQueueFull);
                }
            }
            Ok(_) => {}
            Err(error) => {
                observer.problem(Problem::Receive(&error));
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// Reports completed files beside the transfers, which never wait for it.
async fn report<F: Files>(files: &F, completed: mpsc::Receiver<Completed<F::Id>>) {
    let completed =
        stream::unfold(completed, async |mut completed| Some((completed.recv().await?, completed)));
    completed
        .for_each_concurrent(COMPLETED_AT_ONCE, async |(client, file)| {
            files.completed(client, file).await
        })
        .await;
}
