//! The way in for everybody who does not sit at the socket: TLS 1.3 on an address of its own, never on a boot network unless the site
//! says so. Each request shows a token.

use super::{auth::From, connection::converse};
use crate::config::{AdminHttps, Site};
use crate::serve::bind::{self, BindError, Service};
use crate::trust::{TrustError, WebIdentity};
use axum::{Router, http::Extensions};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, SocketAddrV4},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{Id, JoinSet},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Connections at one time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 128;
/// Connections of one address at one time; more are closed.
const MAX_OF_ADDRESS: usize = 32;
/// How long a TLS handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Pause after the kernel had no file descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Folder in the state folder of the certificate that meshd made itself.
const FOLDER: &str = "admin";

/// Why the listener is not opened.
#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    /// The port.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Certificate or key.
    #[error(transparent)]
    Identity(#[from] TrustError),
    /// Machines that boot could reach it.
    #[error(
        "[admin.https] listens on {address}, which is on {interface}, where machines boot; give it an address on another \
         network, or write boot_network = true beside it if that is meant"
    )]
    OnBootNetwork {
        /// As configured.
        address: std::net::Ipv4Addr,
        /// Where it is.
        interface: String,
    },
    /// No interface has it.
    #[error("[admin.https]: {0} is no address of this machine; `ip address` lists them; correct it in site.toml")]
    NotHere(std::net::Ipv4Addr),
    /// The addresses of this machine are not known.
    #[error("[admin.https]: cannot list the addresses of this machine")]
    Interfaces(#[source] std::io::Error),
}

/// The bound listener with its certificate.
pub struct Https {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

/// Opens the listener of a site that has one. Needs a tokio runtime.
///
/// # Errors
/// When it would be on a boot network by mistake, the port is taken, or certificate and key are not usable.
pub fn bind(site: &Site, now: crate::id::Timestamp) -> Result<Option<Https>, HttpsError> {
    let Some(wanted) = &site.admin.https else { return Ok(None) };
    let AdminHttps { address, port, boot_network, .. } = *wanted;
    let interface = if boot_network { None } else { Some(interface_off_boot(site, address)?) };
    // Linux takes packets for any of its addresses on any interface; bound to one, the listener does not hear the boot network.
    let listener = bind::tcp(Service::Admin, interface.as_deref(), SocketAddrV4::new(address, port))?;
    let identity = match &wanted.files {
        Some((certificate, key)) => WebIdentity::read(certificate, key)?,
        None => WebIdentity::load_or_create(&own_folder(site), address, now)?,
    };
    tracing::info!(%address, port, fingerprint = identity.fingerprint(), "the admin plane is served by HTTPS");
    Ok(Some(Https { listener, acceptor: TlsAcceptor::from(identity.config()) }))
}

fn own_folder(site: &Site) -> PathBuf {
    site.state_dir.join(FOLDER)
}

/// The interface that an address is on; refused if machines boot there.
fn interface_off_boot(site: &Site, address: std::net::Ipv4Addr) -> Result<String, HttpsError> {
    let all = nix::ifaddrs::getifaddrs().map_err(|error| HttpsError::Interfaces(error.into()))?;
    let ipv4 = |it: &nix::ifaddrs::InterfaceAddress| it.address.as_ref().and_then(|at| Some(at.as_sockaddr_in()?.ip()));
    // 127.0.0.0/8 is all of it this machine's.
    let has = |it: &nix::ifaddrs::InterfaceAddress| {
        ipv4(it).is_some_and(|ip| ip == address || (ip.is_loopback() && address.is_loopback()))
    };
    let interfaces: Vec<_> = all.collect();
    let boots = |interface: &str| site.segments.iter().any(|segment| segment.interface() == Some(interface));
    let refused = |interface: &str| HttpsError::OnBootNetwork { address, interface: interface.to_owned() };
    if address.is_unspecified() {
        return Err(refused("every interface"));
    }
    match interfaces.iter().find(|it| has(it)).map(|it| it.interface_name.clone()) {
        Some(interface) if boots(&interface) => Err(refused(&interface)),
        Some(interface) => Ok(interface),
        None => Err(HttpsError::NotHere(address)),
    }
}

/// Serves until told to stop.
pub(super) async fn run(https: Https, router: Router, shutdown: CancellationToken, drain: Duration) {
    let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut from: BTreeMap<Id, IpAddr> = BTreeMap::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next_with_id() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => {
                        tracing::error!(%error, "a connection of the admin plane panicked");
                        error.id()
                    }
                };
                from.remove(&id);
                continue;
            }
            accepted = accept(&https.listener, &seats) => accepted,
        };
        let Some((stream, peer, seat)) = accepted else { continue };
        if from.values().filter(|ip| **ip == peer.ip()).count() >= MAX_OF_ADDRESS {
            tracing::debug!(%peer, "too many admin connections from this address");
            continue;
        }
        let (acceptor, router, shutdown) = (https.acceptor.clone(), router.clone(), shutdown.clone());
        let connection = connections.spawn(async move {
            if let Some(stream) = handshake(&acceptor, stream, peer).await {
                let mut origin = Extensions::new();
                origin.insert(From(peer.ip()));
                converse(stream, router, origin, shutdown).await;
            }
            drop(seat);
        });
        from.insert(connection.id(), peer.ip());
    }
    drop(https.listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(drain, drained).await.is_err() {
        connections.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    seats: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let seat = seats.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, seat)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection of the admin plane");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake of the admin plane failed");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake of the admin plane took too long");
            None
        }
    }
}
