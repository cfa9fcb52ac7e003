//! Binds the port of TFTP and drives async-tftp on it.

use super::{
    handler::{Done, Files, MAX_TRANSFERS},
    table::Table,
};
use crate::serve::bind::{self, BindError, Service};
use async_tftp::server::TftpServerBuilder;
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// The largest block, in bytes: with its headers it fills an Ethernet frame, so that nothing is ever fragmented.
pub const MAX_BLOCK: u16 = 1468;
/// The largest window, in blocks (RFC 7440). Firmware asks for 4.
pub const MAX_WINDOW: u16 = 16;
/// Silence after which a window is sent again, unless the client asks for another time (RFC 2349).
const TIMEOUT: Duration = Duration::from_secs(1);
/// How often a window is sent again before a transfer is given up.
pub const MAX_RETRIES: u32 = 5;
/// Finished transfers whose stage is not recorded yet.
const DONE_BACKLOG: usize = 1024;
/// The well-known port (RFC 1350).
const TFTP_PORT: u16 = 69;

/// A TFTP service that can hear its network.
#[derive(Debug)]
pub struct Bound(UdpSocket);

/// The service ended though nobody asked it to.
#[derive(Debug, thiserror::Error)]
#[error("the TFTP service ended")]
pub struct TftpError(#[from] async_tftp::Error);

impl Bound {
    /// The address that it listens on.
    pub fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.0.local_addr()
    }
}

/// Opens the port on the segment's interface and on `address`, which nodes are told.
pub fn bind(interface: &str, address: Ipv4Addr) -> Result<Bound, BindError> {
    open(interface, SocketAddrV4::new(address, TFTP_PORT))
}

pub(super) fn open(interface: &str, address: SocketAddrV4) -> Result<Bound, BindError> {
    bind::udp(Service::Tftp, Some(interface), address).map(|socket| Bound(socket.into()))
}

/// Serves until `shutdown`. Transfers under way are cut off then: firmware starts again by itself, and nothing is kept of them.
///
/// async-tftp brings its own executor and timers, and needs no runtime but somebody who polls it: this task does.
pub async fn run<T: Table>(table: Arc<T>, bound: Bound, shutdown: CancellationToken) -> Result<(), TftpError> {
    let (done, finished) = mpsc::channel(DONE_BACKLOG);
    let slots = Arc::new(Semaphore::new(MAX_TRANSFERS));
    let files = Files { table: Arc::clone(&table), slots, done };
    let server = TftpServerBuilder::with_handler(files)
        .std_socket(bound.0)?
        .block_size_limit(MAX_BLOCK)
        .window_size_limit(MAX_WINDOW)
        .timeout(TIMEOUT)
        .max_send_retries(MAX_RETRIES)
        .build()
        .await?;
    tokio::select! {
        ended = server.serve() => Ok(ended?),
        () = record(table.as_ref(), finished) => Ok(()),
        () = shutdown.cancelled() => Ok(()),
    }
}

/// Stages are recorded beside the transfers, which never wait for the disk.
async fn record<T: Table>(table: &T, mut finished: mpsc::Receiver<Done>) {
    while let Some((from, what)) = finished.recv().await {
        table.fetched(from, what).await;
    }
}
