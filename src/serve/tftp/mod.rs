//! TFTP: serves iPXE to firmware, and kernels on networks that pass only TFTP. The crate `meshd-tftp` implements the protocol.
//!
//! | module | content |
//! | --- | --- |
//! | this file | binds the port of each segment and starts the server |
//! | `served_names` | the names that can be downloaded; records downloads in the boot session |
//! | `telemetry` | metrics and log |

mod served_names;
mod telemetry;

use super::bind::{self, BindError, Service};
use meshd_central::Shared;
use meshd_tftp::Sockets;
pub use meshd_tftp::TftpError;
use served_names::BootFiles;
use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::Arc,
};
use telemetry::TftpTelemetry;
use tokio_util::sync::CancellationToken;

/// The well-known port (RFC 1350).
const TFTP_PORT: u16 = 69;

/// Binds the sockets of a segment to its interface, at the boot server address of the nodes.
///
/// # Errors
/// The port is taken, or meshd has no permission to open it.
pub fn bind(interface: &str, address: Ipv4Addr) -> Result<Sockets, BindError> {
    Sockets::bind_with(SocketAddrV4::new(address, TFTP_PORT), |address| {
        bind::udp(Service::Tftp, Some(interface), address).map(UdpSocket::from)
    })
}

/// Serves a segment until `shutdown`.
///
/// # Errors
/// A socket failed, and the server stopped.
pub async fn run(central: Shared, sockets: Sockets, shutdown: CancellationToken) -> Result<(), TftpError> {
    meshd_tftp::serve(Arc::new(BootFiles(central)), Arc::new(TftpTelemetry::default()), sockets, shutdown).await
}
