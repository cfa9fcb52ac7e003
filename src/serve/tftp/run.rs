//! Binds the port of TFTP and drives async-tftp on it.

use super::{
    handler::{Done, Files, MAX_TRANSFERS},
    table::Table,
};
use crate::config::Segment;
use async_tftp::server::TftpServerBuilder;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
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

/// Why the service cannot hear its network.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another TFTP server.
    #[error(
        "UDP port {} of {} is taken by another program, such as tftpd-hpa or dnsmasq; find it with \
         `ss -ulpn sport = :{}` and stop it", .0.port(), .0.ip(), .0.port()
    )]
    Taken(SocketAddrV4),
    /// Not root.
    #[error(
        "no permission for UDP port {} of {}; run meshd as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW",
        .0.port(), .0.ip()
    )]
    Denied(SocketAddrV4),
    /// The address is not of this machine, or the interface is not there.
    #[error(
        "this machine has no interface `{interface}` with the address {}; correct [net].interface or [net].address",
        address.ip()
    )]
    NotHere {
        /// As configured.
        interface: String,
        /// As configured, or found.
        address: SocketAddrV4,
    },
    /// Anything else.
    #[error("cannot open UDP port {} of {}", address.port(), address.ip())]
    Io {
        /// Which.
        address: SocketAddrV4,
        /// What the kernel said.
        source: io::Error,
    },
}

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
pub fn bind(segment: &Segment, address: Ipv4Addr) -> Result<Bound, BindError> {
    open(&segment.interface, SocketAddrV4::new(address, TFTP_PORT))
}

pub(super) fn open(interface: &str, address: SocketAddrV4) -> Result<Bound, BindError> {
    let opened = || -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::from(address))?;
        Ok(socket.into())
    };
    /// SO_BINDTODEVICE's answer to a name that no interface has.
    const ENODEV: i32 = 19;
    opened().map(Bound).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::Taken(address),
        io::ErrorKind::PermissionDenied => BindError::Denied(address),
        io::ErrorKind::AddrNotAvailable => BindError::NotHere { interface: interface.to_owned(), address },
        _ if source.raw_os_error() == Some(ENODEV) => BindError::NotHere { interface: interface.to_owned(), address },
        _ => BindError::Io { address, source },
    })
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
