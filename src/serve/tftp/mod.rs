//! TFTP: firmware downloads iPXE, and kernels where only TFTP passes the network. The crate `meshd-tftp` holds the protocol.
//!
//! | module | content |
//! | --- | --- |
//! | here | binds the port of each segment and starts the server |
//! | `files` | the names that can be downloaded; records downloads in the boot session |
//! | `telemetry` | metrics and log |

mod files;
mod telemetry;

use super::bind::{self, BindError, Service};
use files::BootFiles;
use meshd_central::Shared;
use meshd_tftp::Sockets;
pub use meshd_tftp::TftpError;
use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::Arc,
};
use telemetry::TftpTelemetry;
use tokio_util::sync::CancellationToken;

/// The well-known port (RFC 1350).
const TFTP_PORT: u16 = 69;

/// Binds the sockets of a segment to its interface, at the address that nodes get as boot server.
///
/// # Errors
/// A port is taken, or may not be opened.
pub fn bind(interface: &str, address: Ipv4Addr) -> Result<Sockets, BindError> {
    Sockets::bind_with(SocketAddrV4::new(address, TFTP_PORT), |address| {
        bind::udp(Service::Tftp, Some(interface), address).map(UdpSocket::from)
    })
}

/// Serves a segment until `shutdown`.
///
/// # Errors
/// The server stopped: a socket failed.
pub async fn run(central: Shared, sockets: Sockets, shutdown: CancellationToken) -> Result<(), TftpError> {
    meshd_tftp::serve(Arc::new(BootFiles(central)), Arc::new(TftpTelemetry::default()), sockets, shutdown).await
}
