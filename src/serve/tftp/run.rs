//! Binds the port of TFTP, hands requests to the workers, and records what was fetched.

use super::{
    packet::MAX_REQUEST,
    socket,
    table::Table,
    telemetry::Notes,
    worker::{Done, Hand, worker},
};
use crate::serve::bind::{self, BindError, Service};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Workers of a segment, at most: one for two cores, so that the other servers go on. One serves some 300 MB/s in lock step
/// and a few GB/s in windows; more of them than needed make smaller batches and cost more.
const MAX_WORKERS: usize = 8;
/// Finished transfers whose stage is not recorded yet.
const DONE_BACKLOG: usize = 8192;
/// Stages recorded at one time: they share flushes of the disk.
const RECORDED_AT_ONCE: usize = 256;
/// A socket that fails at every read is not asked in a tight loop.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// The well-known port (RFC 1350).
const TFTP_PORT: u16 = 69;

/// A TFTP service that can hear its network.
#[derive(Debug)]
pub struct Bound {
    requests: UdpSocket,
    /// One for each worker; answers leave from here (RFC 1350: a port of their own).
    transfers: Vec<UdpSocket>,
}
/// The service ended though nobody asked it to.
#[derive(Debug, thiserror::Error)]
#[error("the TFTP service ended")]
pub struct TftpError(#[from] io::Error);

impl Bound {
    /// The address that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.requests.local_addr()
    }
}

/// Opens the port on the segment's interface and on `address`, which nodes are told.
pub fn bind(interface: &str, address: Ipv4Addr) -> Result<Bound, BindError> {
    open(interface, SocketAddrV4::new(address, TFTP_PORT))
}

pub(super) fn open(interface: &str, address: SocketAddrV4) -> Result<Bound, BindError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = (cores / 2).clamp(1, MAX_WORKERS);
    let ports = (0..workers).map(|_| open_socket(interface, SocketAddrV4::new(*address.ip(), 0)));
    Ok(Bound { requests: open_socket(interface, address)?, transfers: ports.collect::<Result<_, _>>()? })
}

fn open_socket(interface: &str, address: SocketAddrV4) -> Result<UdpSocket, BindError> {
    let socket = UdpSocket::from(bind::udp(Service::Tftp, Some(interface), address)?);
    socket::enlarge(&socket);
    Ok(socket)
}

/// Serves until `shutdown`; then transfers may finish for a while, and what is left is told to ask again.
pub async fn run<T: Table>(table: Arc<T>, bound: Bound, shutdown: CancellationToken) -> Result<(), TftpError> {
    let notes = Arc::new(Notes::default());
    let requests = tokio::net::UdpSocket::from_std(bound.requests)?;
    let (done, finished) = mpsc::channel(DONE_BACKLOG);
    let (mut hands, mut threads) = (Vec::new(), JoinSet::new());
    for socket in bound.transfers {
        let (hand, work) = worker(socket, Arc::clone(&table), done.clone(), Arc::clone(&notes))?;
        hands.push(hand);
        threads.spawn_blocking(work);
    }
    drop(done);
    let serving = async {
        let ended = tokio::select! {
            () = listen(&requests, &hands, &notes) => None,
            ended = threads.join_next() => ended,
            () = shutdown.cancelled() => None,
        };
        drop(hands);
        let mut outcome = ended.map_or(Ok(()), joined);
        while let Some(ended) = threads.join_next().await {
            outcome = outcome.and(joined(ended));
        }
        outcome
    };
    let (outcome, ()) = tokio::join!(serving, record(table.as_ref(), finished));
    Ok(outcome?)
}

/// A worker's panic is this task's: whoever joins it sees it.
fn joined(ended: Result<io::Result<()>, tokio::task::JoinError>) -> io::Result<()> {
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(cancelled) => Err(io::Error::other(cancelled)),
    })
}

/// Reads requests, and gives all of one client to the same worker.
async fn listen(requests: &tokio::net::UdpSocket, hands: &[Hand], notes: &Notes) {
    let hasher = RandomState::new();
    // One byte more: a longer request is seen to be too long.
    let mut buffer = [0; MAX_REQUEST + 1];
    loop {
        match requests.recv_from(&mut buffer).await {
            Ok((length, SocketAddr::V4(client))) => {
                let hand = &hands[hasher.hash_one(client) as usize % hands.len()];
                if !hand.give((client, Bytes::copy_from_slice(&buffer[..length]))) {
                    notes.busy();
                }
            }
            Ok(_) => {}
            Err(error) => {
                notes.failed("receive", &error);
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

/// Stages are recorded beside the transfers, which never wait for the disk.
async fn record<T: Table>(table: &T, finished: mpsc::Receiver<Done>) {
    let finished = stream::unfold(finished, async |mut finished| Some((finished.recv().await?, finished)));
    finished.for_each_concurrent(RECORDED_AT_ONCE, async |(from, what)| table.fetched(from, what).await).await;
}
