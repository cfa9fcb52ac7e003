//! The HTTPS listener of the admin API: TLS 1.3, not on boot networks unless configured. Each
//! request contains a token.

use crate::{
    admin::{
        Serving,
        transport::{
            auth::From,
            connection::{AdminConnection, serve_connection},
        },
    },
    bind::rebind::WatchedListener,
    bind::{self, BindError, Service},
    connections::{
        accept::AcceptLoop,
        limiter::{ConnectionLimiter, ConnectionPermit},
    },
};
use axum::http::Extensions;
use meshd_config::{AdminHttps, Site};
use meshd_trust::{TrustError, WebIdentity};
use meshd_types::failpoint;
use std::{
    net::{SocketAddr, SocketAddrV4},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Timeout for a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Sub-folder of the state folder for the self-signed certificate.
const FOLDER: &str = "admin";

/// Reason why the listener is not opened.
#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Certificate or key is invalid.
    #[error(transparent)]
    Identity(#[from] TrustError),
    /// Machines that boot could reach the listener.
    #[error("[admin.https] listens on {address}, which is on {interface}, where machines boot")]
    OnBootNetwork {
        /// Configured address.
        address: std::net::Ipv4Addr,
        interface: String,
    },
    /// No interface has the address.
    #[error("[admin.https]: {0} is no address of this machine")]
    NotHere(std::net::Ipv4Addr),
}

meshd_types::hints!(HttpsError {
    HttpsError::OnBootNetwork { .. } => "give it an address on another network, or write boot_network = true beside it if that is meant";
    HttpsError::NotHere(_) => "`ip address` lists them; correct it in site.toml";
    @source HttpsError::Bind(source) => source;
    @source HttpsError::Identity(source) => source;
});

/// The bound listener with its certificate.
pub struct Https {
    listener: WatchedListener,
    acceptor: TlsAcceptor,
    /// SHA-256 of the certificate.
    pub(crate) fingerprint: String,
}

/// Opens the listener if the site configures one. Needs a tokio runtime.
///
/// # Errors
/// The address is on a boot network without permission, the port is taken, or certificate or key is
/// unusable.
pub fn bind(site: &Site, now: meshd_types::Timestamp) -> Result<Option<Https>, HttpsError> {
    let Some(configured) = &site.admin.https else { return Ok(None) };
    let AdminHttps { address, port, boot_network, .. } = *configured;
    let interface = if boot_network { None } else { Some(interface_off_boot(site, address)?) };
    // Linux accepts packets for any local address on any interface. A listener bound to one
    // interface is not reachable from the boot network.
    let listener =
        WatchedListener::bind(Service::Admin, interface, SocketAddrV4::new(address, port))?;
    let identity = match &configured.files {
        Some((certificate, key)) => WebIdentity::read(certificate, key)?,
        None => WebIdentity::load_or_create(&own_folder(site), address, now)?,
    };
    let fingerprint = identity.fingerprint().to_owned();
    tracing::info!(%address, port, fingerprint, "the admin API is served by HTTPS");
    Ok(Some(Https { listener, acceptor: TlsAcceptor::from(identity.config()), fingerprint }))
}

fn own_folder(site: &Site) -> PathBuf {
    site.state_dir.join(FOLDER)
}

/// Returns the interface of an address. Refuses an interface on which machines boot.
fn interface_off_boot(site: &Site, address: std::net::Ipv4Addr) -> Result<String, HttpsError> {
    let boots = |interface: &str| {
        site.segments.iter().any(|segment| segment.interface() == Some(interface))
    };
    let refused =
        |interface: &str| HttpsError::OnBootNetwork { address, interface: interface.to_owned() };
    if address.is_unspecified() {
        return Err(refused("every interface"));
    }
    match bind::interface_of(Service::Admin, address)? {
        Some(interface) if boots(&interface) => Err(refused(&interface)),
        Some(interface) => Ok(interface),
        None => Err(HttpsError::NotHere(address)),
    }
}

/// Serves until `shutdown`. A full listener first closes connections without a valid token.
pub(crate) async fn run(https: Https, connections: usize, serving: Serving, drain: Duration) {
    let Https { listener, acceptor, .. } = https;
    let limiter = ConnectionLimiter::new("admin-https", connections);
    let shutdown = serving.shutdown.clone();
    let serve = |listener, stop| {
        let serving = Serving { shutdown: stop, ..serving.clone() };
        accept(listener, acceptor.clone(), limiter.clone(), serving, drain)
    };
    listener.serve(serve, shutdown).await;
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    limiter: Arc<ConnectionLimiter>,
    serving: Serving,
    drain: Duration,
) {
    let shutdown = serving.shutdown.clone();
    let accept = AcceptLoop {
        api: "admin-https",
        limiter: &limiter,
        shutdown: &shutdown,
        drain: Some(drain),
    };
    accept
        .run(listener, |(stream, peer), permit| {
            Some(serve(acceptor.clone(), stream, peer, permit, serving.clone()))
        })
        .await;
}

async fn serve(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
    permit: ConnectionPermit,
    serving: Serving,
) {
    let eviction = permit.eviction.clone();
    let Some(Some(stream)) = eviction.run_until_cancelled(handshake(&acceptor, stream, peer)).await
    else {
        return;
    };
    let Serving { central, router, shutdown } = serving;
    let mut origin = Extensions::new();
    origin.insert(From(peer.ip()));
    origin.insert(meshd_ui::SessionOrigin::of_address(peer.ip()));
    serve_connection(stream, router, origin, AdminConnection::new(permit), central, shutdown).await;
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    let _ = stream.set_nodelay(true);
    let time = failpoint::time("HANDSHAKE", HANDSHAKE_TIME);
    match tokio::time::timeout(time, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "TLS handshake of the admin API failed");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake of the admin API took too long");
            None
        }
    }
}
