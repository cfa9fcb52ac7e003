//! Drives the engine: packets in, effects out. A thin shell around sockets, disk and log.

use super::{
    bootfile::{NoLoader, Sources, loader_names},
    engine::{Effect, Engine, Note, Origin},
    leases::LeaseChange,
    socket::Bound,
};
use crate::serve::{central::Shared, log::Log};
use std::{
    io,
    net::{SocketAddr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};
use tokio::{net::UdpSocket, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Packets whose effects are under way; what comes beyond is dropped, and clients ask again.
const MAX_IN_FLIGHT: usize = 1024;
/// The largest packet that is read.
const MAX_PACKET: usize = 2048;
/// A socket that fails at every read is not asked in a tight loop.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// Serves one segment until `shutdown`; then finishes what it has begun. An error ends it only if its socket is of no use.
pub async fn run(shared: Shared, bound: Bound, shutdown: CancellationToken) -> io::Result<()> {
    let Bound { interface, segment, address, server, proxy } = bound;
    let Some(server) = server else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let loaders = loader_names().filter(|name| shared.loader(name).is_some()).map(str::to_owned).collect();
    let sources = Sources { address, http_port: shared.site().http.port, loaders };
    let mut engine = Engine::new(segment.mode, segment.pool, sources, shared.leases());
    let service = Arc::new(Service {
        shared,
        interface,
        server: Port::of(server)?,
        proxy: proxy.map(Port::of).transpose()?,
        log: Log::default(),
    });
    tracing::info!(interface = service.interface, %address, "DHCP serves");

    let (slots, tasks) = (Arc::new(Semaphore::new(MAX_IN_FLIGHT)), TaskTracker::new());
    let (mut first, mut second) = ([0; MAX_PACKET], [0; MAX_PACKET]);
    loop {
        let (packet, origin) = tokio::select! {
            () = shutdown.cancelled() => break,
            received = service.server.receive(&mut first) => match received {
                Ok((length, origin)) => (&first[..length], origin),
                Err(error) => { service.pause(&error).await; continue }
            },
            received = receive_if(service.proxy.as_ref(), &mut second) => match received {
                Ok((length, origin)) => (&second[..length], origin),
                Err(error) => { service.pause(&error).await; continue }
            },
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            service.log.warn("busy", || "more DHCP packets than can be handled; some are dropped".to_owned());
            continue;
        };
        let effects = engine.handle(service.shared.now(), packet, origin);
        if !effects.is_empty() {
            let service = Arc::clone(&service);
            tasks.spawn(async move {
                service.perform(effects, origin.local_port).await;
                drop(slot);
            });
        }
    }
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// A socket and its port.
struct Port {
    socket: UdpSocket,
    number: u16,
}

impl Port {
    fn of(socket: UdpSocket) -> io::Result<Self> {
        Ok(Port { number: socket.local_addr()?.port(), socket })
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Origin)> {
        loop {
            if let (length, SocketAddr::V4(source)) = self.socket.recv_from(buffer).await? {
                return Ok((length, Origin { source, local_port: self.number }));
            }
        }
    }
}

async fn receive_if(port: Option<&Port>, buffer: &mut [u8]) -> io::Result<(usize, Origin)> {
    match port {
        Some(port) => port.receive(buffer).await,
        None => std::future::pending().await,
    }
}

struct Service {
    shared: Shared,
    interface: String,
    server: Port,
    proxy: Option<Port>,
    log: Log,
}

impl Service {
    /// Performs effects in their order; one that fails takes those behind it with it.
    async fn perform(&self, effects: Vec<Effect>, local_port: u16) {
        for effect in effects {
            match effect {
                Effect::Reply { packet, to } => self.send(&packet, to, local_port).await,
                Effect::Seen(seen) => {
                    let mac = seen.mac;
                    if let Err(error) = self.shared.dhcp_seen(seen).await {
                        tracing::error!(%mac, error = &error as &dyn std::error::Error, "no DHCP answer: cannot store it");
                        return;
                    }
                }
                Effect::Persist(change) => self.persist(change).await,
                Effect::PoolExhausted => self.shared.pool_exhausted(&self.interface).await,
                Effect::Note(note) => self.log.warn(note.cause(), || note.to_string()),
            }
        }
    }

    async fn send(&self, packet: &[u8], to: SocketAddrV4, local_port: u16) {
        let proxy = self.proxy.as_ref().filter(|port| port.number == local_port);
        let port = proxy.unwrap_or(&self.server);
        if let Err(error) = port.socket.send_to(packet, to).await {
            self.log.warn("send", || format!("cannot send a DHCP answer to {to}: {error}"));
        }
    }

    async fn persist(&self, change: LeaseChange) {
        let LeaseChange { before, after } = change;
        let stored = self.shared.store().commit(|tx| {
            if tx.before().leases().any(|lease| *lease == before) {
                match after {
                    Some(lease) => tx.put_lease(lease),
                    None => tx.remove_lease(before.mac),
                }
            }
            Ok::<_, crate::store::StoreError>(())
        });
        if let Err(error) = stored.await {
            self.log.warn("persist", || format!("cannot store the end of a lease: {error}"));
        }
    }

    async fn pause(&self, error: &io::Error) {
        self.log.warn("receive", || format!("cannot read DHCP packets on {}: {error}", self.interface));
        tokio::time::sleep(AFTER_ERROR).await;
    }
}

impl Note {
    fn cause(&self) -> &'static str {
        match self {
            Note::NoLoader(NoLoader::UnknownArch(_)) => "unknown architecture",
            Note::NoLoader(NoLoader::Absent { loader, .. }) => loader,
            Note::ForeignRelay(_) => "foreign relay",
            Note::OtherServer(_) => "other server",
            Note::Declined(_) => "declined",
        }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Note::NoLoader(NoLoader::UnknownArch(arch)) => {
                write!(
                    f,
                    "a machine with client architecture {} (DHCP option 93) asks to boot; there is no loader for it",
                    arch.0
                )
            }
            Note::NoLoader(NoLoader::Absent { firmware, loader }) => {
                write!(
                    f,
                    "a {firmware} machine asks to boot, but {loader} is not in [boot].loaders_dir; add it and restart meshd"
                )
            }
            Note::ForeignRelay(relay) => {
                write!(
                    f,
                    "relay {relay} is outside of the network that [dhcp].range is in; its requests are not answered"
                )
            }
            Note::OtherServer(server) => {
                write!(
                    f,
                    "another DHCP server, {server}, answers on this network; stop it, or set [dhcp].mode = \"proxy\""
                )
            }
            Note::Declined(address) => {
                write!(f, "{address} is used by a machine that did not get it from meshd; take it out of [dhcp].range")
            }
        }
    }
}
