//! Binds all sockets of all segments before any service starts. Errors are one sentence with a hint.

use super::{open_file_limit::Connections, supervisor::DaemonTasks};
use crate::serve::{
    admin, agent,
    bind::{self, Service},
    dhcp, http, metrics, tftp,
};
use meshd_central::{Central, Shared};
use meshd_model::boot::Endpoint;
use std::{net::SocketAddrV4, path::PathBuf, sync::Arc};
use tokio_util::sync::CancellationToken;

/// Reason why the central node does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot read overlays, or their secrets; `meshd check` shows the same faults")]
    Overlays(#[source] meshd_config::Faults),
    #[error("{} lacks {missing}; install Debian's package ipxe, or set [boot].loaders_dir", dir.display())]
    Loaders { dir: PathBuf, missing: String },
    #[error(transparent)]
    Agent(#[from] meshd_image::catalog::AgentError),
    #[error(transparent)]
    Store(#[from] meshd_store::StoreError),
    #[error(transparent)]
    Trust(#[from] meshd_trust::TrustError),
    #[error(transparent)]
    Bind(#[from] bind::BindError),
    #[error(transparent)]
    Admin(#[from] admin::SocketError),
    #[error(transparent)]
    AdminHttps(#[from] admin::HttpsError),
    #[error("cannot listen for signals")]
    Signal(#[source] std::io::Error),
    #[error(transparent)]
    TftpService(#[from] tftp::TftpError),
    #[error("the task `{task}` panicked; report this bug with the log above")]
    Panicked { task: &'static str },
    #[error("the task `{task}` ended unexpectedly; report this bug with the log above")]
    EndedEarly { task: &'static str },
}

/// All listening sockets.
pub(super) struct BoundSockets {
    pub(super) dhcp: dhcp::Bound,
    pub(super) segments: Vec<BoundSegment>,
    pub(super) admin: admin::Listening,
    pub(super) metrics: Option<metrics::Listener>,
}

/// Sockets on one interface, in the order of the boot chain.
pub(super) struct BoundSegment {
    pub(super) endpoint: Endpoint,
    tftp: meshd_tftp::Sockets,
    http: tokio::net::TcpListener,
    agent: tokio::net::TcpListener,
    connections: Connections,
}

/// Opens every socket. Needs a tokio runtime.
pub(super) fn bind(central: &Central) -> Result<BoundSockets, DaemonError> {
    let site = central.site();
    let dhcp = dhcp::bind(&site)?;
    let connections = Connections::now(dhcp.interfaces().count());
    // No connection may be older than its observation.
    central.open_lan(&[site.http.port, site.agent.port]);
    let segments = dhcp.interfaces().map(|(name, address)| {
        let interface = Some(name);
        Ok(BoundSegment {
            endpoint: Endpoint { address, http_port: site.http.port },
            tftp: tftp::bind(name, address)?,
            http: bind::tcp(Service::Http, interface, SocketAddrV4::new(address, site.http.port))?,
            agent: bind::tcp(Service::Agent, interface, SocketAddrV4::new(address, site.agent.port))?,
            connections,
        })
    });
    let segments = segments.collect::<Result<Vec<_>, DaemonError>>()?;
    let metrics = site.metrics.map(metrics::bind).transpose()?;
    let https = admin::bind_https(&site, central.now())?;
    let admin = admin::Listening { socket: admin::bind(&site.admin.socket)?, https, connections: connections.admin };
    Ok(BoundSockets { dhcp, segments, admin, metrics })
}

impl BoundSegment {
    /// Starts the servers of the sockets.
    pub(super) fn spawn(self, central: &Shared, tasks: &mut DaemonTasks, stop: &CancellationToken) {
        let BoundSegment { endpoint, tftp, http, agent, connections } = self;
        tracing::info!(address = %endpoint.address, http = endpoint.http_port, "segment is served");
        let (shared, token) = (central.clone(), stop.clone());
        tasks.spawn("TFTP", async move { Ok(tftp::run(shared, tftp, token).await?) });
        let limits = http::Limits { connections: connections.http, ..http::Limits::default() };
        tasks.spawn_infallible("HTTP boot plane", http::run(limits, central.clone(), http, stop.clone()));
        let limits = agent::AgentLimits { connections: connections.agent, ..Default::default() };
        tasks.spawn_infallible("agent plane", agent::run(limits, Arc::new(central.clone()), agent, stop.clone()));
    }
}
