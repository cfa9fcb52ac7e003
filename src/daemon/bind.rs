//! Binds all sockets of all segments before any service starts, and again with their interface.
//! Errors are one sentence with a hint.

use super::{error::DaemonError, open_file_limit::Connections, supervisor::DaemonTasks};
use meshd_central::{Central, Shared};
use meshd_config::DhcpMode;
use meshd_serve::{
    admin, agent,
    bind::rebind::{BoundTo, InterfaceWatch, Rebinding},
    bind::{self, BindError, Service},
    dhcp, http,
    ipv6::{dhcpv6, ndp},
    metrics, netconsole,
    self_test::{self, ServedInterface},
    tftp,
};
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// All listening sockets.
pub(super) struct BoundSockets {
    pub(super) dhcp: dhcp::Bound,
    pub(super) segments: Vec<Segment>,
    pub(super) admin: admin::Listening,
    pub(super) metrics: Option<metrics::Listener>,
}

/// The services of one interface beside DHCP.
#[derive(Clone)]
pub(super) struct SegmentPlan {
    interface: String,
    http_port: u16,
    agent_port: u16,
    /// Machines boot here.
    boots: bool,
    netconsole_port: Option<u16>,
    connections: Connections,
    /// This server's address for nodes of the segment. It changes with the interface.
    address: watch::Sender<Ipv4Addr>,
}

/// One interface with its first sockets.
pub(super) struct Segment {
    plan: SegmentPlan,
    watch: InterfaceWatch,
    bound: BoundTo,
    sockets: SegmentSockets,
}

/// Sockets on one interface, in the order of the boot chain.
struct SegmentSockets {
    address: Ipv4Addr,
    tftp: meshd_tftp::Sockets,
    http: tokio::net::TcpListener,
    agent: tokio::net::TcpListener,
}

/// Opens every socket. Needs a tokio runtime.
pub(super) fn bind(central: &Central) -> Result<BoundSockets, DaemonError> {
    let site = central.site();
    let dhcp = dhcp::bind(&site)?;
    let connections = Connections::now(dhcp.interfaces().count());
    // No connection may be older than its observation.
    central.open_lan(&[site.http.port, site.agent.port]);
    let segments = dhcp.interfaces().map(|(watch, bound)| {
        let interface = watch.name().to_owned();
        let is_booted =
            |segment: &&meshd_config::Segment| segment.interface() == Some(watch.name());
        let boots = site
            .segments
            .iter()
            .find(is_booted)
            .is_some_and(|segment| segment.mode != DhcpMode::Off);
        let http_port = site.http.port;
        let agent_port = site.agent.port;
        let address = watch::Sender::new(bound.address);
        let netconsole_port = site.boot.netconsole_port.filter(|_| boots);
        let plan = SegmentPlan {
            interface,
            http_port,
            agent_port,
            boots,
            netconsole_port,
            connections,
            address,
        };
        let sockets = plan.open(bound.address)?;
        Ok(Segment { plan, watch: watch.clone(), bound, sockets })
    });
    let segments = segments.collect::<Result<Vec<_>, DaemonError>>()?;
    let metrics = site.metrics.map(metrics::bind).transpose()?;
    let https = admin::bind_https(&site, central.now())?;
    let admin = admin::Listening {
        socket: admin::bind(&site.admin.socket)?,
        https,
        connections: connections.admin,
    };
    Ok(BoundSockets { dhcp, segments, admin, metrics })
}

impl SegmentPlan {
    /// Opens all sockets of the interface.
    fn open(&self, address: Ipv4Addr) -> Result<SegmentSockets, BindError> {
        let listen = |service, port| {
            bind::tcp(service, Some(&self.interface), SocketAddrV4::new(address, port))
        };
        Ok(SegmentSockets {
            address,
            tftp: tftp::bind(&self.interface, address)?,
            http: listen(Service::Http, self.http_port)?,
            agent: listen(Service::Agent, self.agent_port)?,
        })
    }

    /// Runs the servers of the sockets until `stop`.
    async fn serve(
        self,
        sockets: SegmentSockets,
        central: Shared,
        stop: CancellationToken,
    ) -> Result<(), DaemonError> {
        let SegmentSockets { address, tftp, http, agent } = sockets;
        self.address.send_replace(address);
        let SegmentPlan { interface, http_port, agent_port, boots, connections, .. } = self;
        let netconsole_port = self.netconsole_port;
        tracing::info!(interface, %address, http = http_port, "segment is served");
        let mut tasks = DaemonTasks::default();
        let shared = central.clone();
        let name = interface.clone();
        let token = stop.clone();
        tasks.spawn("TFTP", async move { Ok(tftp::run(shared, &name, tftp, token).await?) });
        let limits = http::Limits { connections: connections.http, ..http::Limits::default() };
        tasks.spawn_infallible(
            "HTTP boot API",
            http::run(limits, central.clone(), http, stop.clone()),
        );
        let limits = agent::AgentLimits { connections: connections.agent, ..Default::default() };
        tasks.spawn_infallible(
            "agent API",
            agent::run(limits, Arc::new(central.clone()), agent, stop.clone()),
        );
        if boots {
            tasks.spawn_infallible(
                "IPv6 router solicitations",
                ndp::run(interface.clone(), stop.clone()),
            );
            tasks.spawn_infallible(
                "DHCPv6 requests",
                dhcpv6::run(interface.clone(), central.clone(), stop.clone()),
            );
        }
        if let Some(port) = netconsole_port {
            tasks.spawn_infallible(
                "kernel messages",
                netconsole::run(interface.clone(), port, central.clone(), stop.clone()),
            );
        }
        let served = ServedInterface { name: interface, address, http_port, agent_port };
        tasks.spawn_infallible("self-test", self_test::run(central, served, stop.clone()));
        tasks.until_stopped(stop.cancelled(), &stop).await
    }
}

impl Segment {
    /// Follows this server's address for the nodes of the segment.
    pub(super) fn address(&self) -> watch::Receiver<Ipv4Addr> {
        self.plan.address.subscribe()
    }

    /// Serves until `stop`, with new sockets after a change of the interface.
    pub(super) async fn serve(
        self,
        central: Shared,
        stop: CancellationToken,
    ) -> Result<(), DaemonError> {
        let Segment { plan, watch, bound, sockets } = self;
        let open = |address| plan.open(address);
        let serve = |sockets, stop| plan.clone().serve(sockets, central.clone(), stop);
        Rebinding { watch, bound, handles: sockets, open }.serve(serve, stop).await
    }
}
