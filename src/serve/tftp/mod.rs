//! TFTP: serves iPXE to firmware, and kernels on networks that pass only TFTP. The crate
//! `meshd-tftp` implements the protocol.
//!
//! | module | content |
//! | --- | --- |
//! | this file | binds the port of each segment and starts the server |
//! | `served_names` | the names that can be downloaded; records downloads in the boot session |
//! | `telemetry` | metrics and log |

mod served_names;
mod telemetry;

use super::{
    bind::{self, BindError, Service},
    lan::{ClientDatagrams, receive_only_from_this_host},
};
use meshd_central::Shared;
pub use meshd_tftp::TftpError;
use meshd_tftp::{EthernetLink, Sockets};
use served_names::BootFiles;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
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
pub async fn run(
    central: Shared,
    interface: &str,
    mut sockets: Sockets,
    shutdown: CancellationToken,
) -> Result<(), TftpError> {
    match check_sources(&central, interface, &mut sockets) {
        Err(error) if error.kind() != io::ErrorKind::Unsupported => {
            tracing::error!(interface, %error, "cannot check the Ethernet sources of TFTP packets");
        }
        _ => {}
    }
    meshd_tftp::serve(
        Arc::new(BootFiles(central)),
        Arc::new(TftpTelemetry::default()),
        sockets,
        shutdown,
    )
    .await
}

/// Drops packets that another machine sends in the name of a client, and raises an alarm that names
/// the machine.
fn check_sources(central: &Shared, interface: &str, sockets: &mut Sockets) -> io::Result<()> {
    let SocketAddr::V4(requests) = sockets.local_addr()? else { return Ok(()) };
    let open = |transfers| -> io::Result<Box<dyn EthernetLink>> {
        Ok(Box::new(ClientDatagrams::open(central.clone(), interface, requests, transfers)?))
    };
    sockets.use_links(open, receive_only_from_this_host)
}
