//! The operations of the central node, as services. The servers translate between their protocols
//! and the methods of these services.
//!
//! Each change of state is one [`Store::commit`]. Each service owns its state and its locks. A
//! service uses only services that are listed above it:
//!
//! | module | content |
//! | --- | --- |
//! | `environment` | store, clock, randomness, boot LAN, site snapshot, event log |
//! | `reported_work` | what nodes report of their work, in memory: VMs and tasks without a record, details of VMs |
//! | `links` | the live link of each node: commands, heartbeats, checks, deadlines, consoles |
//! | `enrolment` | credentials of nodes: capabilities, tokens, certificates, authority |
//! | `tasks` | programs on the metal of nodes, and shells |
//! | `vms` | VMs, slots, volumes |
//! | `containers` | containers: records, placement of replicas, reports |
//! | `generations` | what nodes boot: rendering, archive, drift, reload, rollback |
//! | `boot` | the boot of a machine: DHCP, files, script, admission, overlay |
//! | `nodes` | orders of operators about nodes |
//! | `series` | time series of the site and its nodes |
//! | `admin` | API tokens and backups; activities of all services that are not finished |
//! | `agents` | the protocol of an agent's link |
//!
//! # Lock order
//!
//! A thread takes locks in this order only; [`locks::Ordered`] checks levels 4 and 6 in debug
//! builds. A lock of a level is never taken under another one of the same level.
//!
//! | level | lock | protects |
//! | --- | --- | --- |
//! | 1 | `Generations::reloading` (async) | a reload, a rollback, a pin |
//! | 2 | `Authority::changing` (async) | a rotation, a backup |
//! | 3 | `Vms::volume_use` (async) | creation of a VM; removal of a volume; a shorter list of volumes in use |
//! | 4 | `Links::deadlines` | deadlines change |
//! | 5 | the store's own lock | the closure of `Store::read` or `Store::commit` runs |
//! | 6 | all other mutexes of services | one access |
//! | 7 | the site snapshot, the current authority | an `Arc` is cloned or replaced |

pub mod admin;
pub mod agents;
pub mod boot;
pub mod containers;
pub mod enrolment;
pub mod environment;
pub mod generations;
pub mod links;
pub mod nodes;
mod reported_work;
pub mod series;
pub mod tasks;
pub mod vms;

pub use admin::{ApiTokenError, KeyUse, MAX_ACTIVITIES, RunningOrder, Snapshot};
pub use boot::{
    BmcClaim, DhcpChange, DhcpExchange, DhcpRecordUpdate, Fetched, FoundBmc, LeaseChange,
    MachineNic, NicRecord, OtherServer, OverlayDenied, OverlayTransfer, PoolUse, SegmentHealth,
    ServiceHealth,
};
pub use containers::{
    ContainerError, MAX_SITE_CONTAINERS, ReplicaExecRequest, ReplicaSessionError,
};
pub use enrolment::{
    AgentApiError, AuthorityState, MAX_GRACE, MAX_TOKEN_LIFE, PendingConnection, RotateError,
    TOKEN_LIFE, TokenError,
};
pub use environment::{
    bmcs::{BmcError, password_faults},
    lan_client::{ConnectionFate, ForeignSegment, LanClient, ObservedConnection, SegmentSources},
    site_snapshot::SiteSnapshot,
    sources::{Clock, Entropy, Lan, Neighbour, NoLan, SystemClock, SystemEntropy},
};
pub use generations::{CompareError, Reload, RenderError, Rendered, RollbackError, load_catalog};
pub use links::{
    ConnectError, ConsoleFrame, ConsoleInput, ConsoleSession, LinkCommand, LinkError, LinkId,
    NodeConsole, ShellLimits, ShellTerminal, SpecPart, WATCH_INTERVAL, doctor_report,
};
pub use nodes::{
    AcceptedOrder, BATCH, BisectionRequest, BulkError, CancelError, ComparedBoot, Fleet,
    ImportOptions, ImportReport, MAX_ANSWERED, MAX_BULK, NamingError, NodeGroup, NodeOps,
    NodeRecords, NodeResults, OperateError, OrderError, PlannedRollout, RolloutError,
    RolloutRequest, Rollouts,
};
pub use tasks::{InputError, ShellError, TaskError, TaskRequest, TaskTarget};
pub use vms::{
    ConsoleError, GuestShellError, GuestShellRequest, MAX_SITE_VMS, RunningWorkError, SlotError,
    SlotParts, VmError, VmVerb, VolumeUseError, VolumeUsers, vm_entries,
};

use admin::Admin;
use agents::AgentSessions;
use boot::{BootService, SCAN_INTERVAL};
use bytes::Bytes;
use containers::Containers;
use enrolment::Enrolment;
pub(crate) use environment::locks;
use environment::{Environment, bmcs::Bmcs, interval::Interval};
use generations::Generations;
use links::Links;
use meshd_config::Site;
use meshd_image::{catalog::Catalog, overlay::NodePrograms};
use meshd_store::{Store, StoreError};
use meshd_trust::CertificateAuthority;
use meshd_types::{MacAddr, Timestamp};
use reported_work::ReportedWork;
use series::Series;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};
use tasks::Tasks;
use vms::Vms;

pub type Shared = Arc<Central>;

/// Inputs of [`Central::new`].
pub struct Parts {
    /// The commit that the program was built from.
    pub commit: &'static str,
    pub site: Arc<Site>,
    /// Images and overlays.
    pub catalog: Catalog,
    /// Loaders by file name.
    pub loaders: BTreeMap<String, Bytes>,
    /// The agent binary that overlays carry.
    pub agent_binary: Bytes,
    pub store: Store,
    pub authority: CertificateAuthority,
    pub clock: Box<dyn Clock>,
    pub entropy: Box<dyn Entropy>,
    /// Layer 2 of the boot LAN.
    pub lan: Box<dyn Lan>,
}

/// All services of the central node; the table of modules describes them.
pub struct Central {
    /// The commit that the program was built from.
    pub commit: &'static str,
    pub env: Arc<Environment>,
    pub links: Arc<Links>,
    pub enrolment: Arc<Enrolment>,
    pub tasks: Arc<Tasks>,
    pub vms: Arc<Vms>,
    pub containers: Arc<Containers>,
    pub generations: Arc<Generations>,
    pub boot: Arc<BootService>,
    pub nodes: Arc<NodeOps>,
    pub rollouts: Arc<Rollouts>,
    pub series: Arc<Series>,
    pub admin: Arc<Admin>,
    pub agents: AgentSessions,
    /// Limits the scans of all boots, tasks and pending work.
    scans: Interval,
}

impl Central {
    /// Composes the services. Nothing runs yet.
    pub fn new(parts: Parts) -> Shared {
        let Parts { commit, site, catalog, loaders, agent_binary, .. } = parts;
        let Parts { store, authority, clock, entropy, lan, .. } = parts;
        let programs = Arc::new(NodePrograms::new(agent_binary, catalog.stage1()));
        let snapshot = SiteSnapshot::new(site, catalog, programs, BTreeMap::new());
        let env = Arc::new(Environment::new(store, clock, entropy, lan, snapshot));
        let reported = env
            .store
            .read(|model| ReportedWork::new(model.nodes().filter(|node| node.phase.has_link())));
        let reported = Arc::new(reported);
        let links = Arc::new(Links::new(env.clone(), reported.clone()));
        let enrolment = Arc::new(Enrolment::new(env.clone(), links.clone(), authority));
        let tasks = Arc::new(Tasks::new(env.clone(), links.clone(), reported.clone()));
        let vms = Arc::new(Vms::new(env.clone(), links.clone(), reported.clone()));
        let containers = Containers::new(env.clone(), links.clone(), reported.clone(), vms.clone());
        let containers = Arc::new(containers);
        let generations = Arc::new(Generations::new(env.clone(), enrolment.clone()));
        let boot = BootService::new(
            env.clone(),
            links.clone(),
            enrolment.clone(),
            generations.clone(),
            loaders,
        );
        let boot = Arc::new(boot);
        let nodes = Arc::new(NodeOps {
            env: env.clone(),
            links: links.clone(),
            enrolment: enrolment.clone(),
            tasks: tasks.clone(),
            vms: vms.clone(),
            containers: containers.clone(),
            generations: generations.clone(),
            boot: boot.clone(),
            bmcs: Arc::new(Bmcs::new(env.clone())),
            active: env.store.read(nodes::operations::ActiveOperations::new),
        });
        nodes.restore_reboots();
        let rollouts = Arc::new(Rollouts::new(env.clone(), links.clone(), nodes.clone()));
        let series = Arc::new(Series::new(env.clone(), links.clone(), boot.clone()));
        let agents = AgentSessions { boot: boot.clone(), nodes: nodes.clone() };
        let admin = Arc::new(Admin::new(env.clone(), enrolment.clone()));
        Arc::new(Central {
            commit,
            env,
            links,
            enrolment,
            tasks,
            vms,
            containers,
            generations,
            boot,
            nodes,
            rollouts,
            series,
            admin,
            agents,
            scans: Interval::default(),
        })
    }

    /// Returns the store. Servers use the methods of the services; only tests read and write
    /// records themselves.
    pub fn store(&self) -> &Store {
        &self.env.store
    }

    /// Flushes all changes; called once, at the end.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.env.store.close().await
    }

    /// Wall-clock time.
    pub fn now(&self) -> Timestamp {
        self.env.now()
    }

    pub fn site(&self) -> Arc<Site> {
        self.env.site()
    }

    /// Images and overlays. Keep them for one request only.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.env.catalog()
    }

    /// Begins to observe the TCP connections to these ports. Call it before the ports are open.
    pub fn open_lan(&self, ports: &[u16]) {
        if let Err(error) = self.env.lan.open(ports) {
            tracing::error!(%error, "cannot observe connections on the boot LAN: the neighbour table identifies machines");
        }
    }

    /// Observes the boot LAN and raises the alarms of foreign segments, for ever.
    pub async fn watch_lan(&self) {
        tokio::join!(self.env.lan.run(), self.boot.watch_foreign_segments());
    }

    /// Returns true if a datagram of an address may come from this Ethernet source; raises an alarm
    /// about others. `earlier` sent the datagrams before it.
    pub fn admits_datagram(
        &self,
        address: Ipv4Addr,
        source: MacAddr,
        earlier: Option<MacAddr>,
    ) -> bool {
        self.env.lan.admits_datagram(address, source, earlier)
    }

    /// Removes what the observation changed in the kernel.
    pub fn close_lan(&self) {
        self.env.lan.retain_pins(&|_, _| false);
    }

    /// Returns the reasons why clients on the boot LAN are not fully checked.
    pub fn lan_faults(&self) -> Vec<String> {
        self.env.lan.faults()
    }

    /// Returns the client of an accepted connection. `interface` is that of the listener, if it is
    /// bound to one.
    pub fn lan_client(
        &self,
        interface: Option<&str>,
        client: SocketAddr,
        server: SocketAddr,
    ) -> LanClient {
        let observed = match (interface, client, server) {
            (Some(interface), SocketAddr::V4(client), SocketAddr::V4(server)) => {
                self.env.lan.observe(interface, client, server)
            }
            _ => None,
        };
        LanClient::new(client.ip(), observed)
    }

    /// Runs the periodic work of each service. Call it every [`WATCH_INTERVAL`].
    pub async fn watch(&self) {
        self.links.mark_silent_nodes().await;
        self.boot.watch_overlays().await;
        self.boot.record_repeats().await;
        self.env.record_counted_alarms().await;
        self.tasks.check_open_tasks().await;
        if self.scans.is_due(self.env.monotonic(), SCAN_INTERVAL) {
            self.tasks.repeat_orders();
            self.boot.end_abandoned_warm_boots().await;
            self.boot.scan_boots().await;
            self.nodes.retry_stalled_boots().await;
            self.boot.review_pins();
            self.boot.sweep_logs().await;
            self.links.degrade_stale_nodes().await;
            self.vms.place_unplaced_vms().await;
            self.containers.leave_drained_nodes().await;
            self.containers.place_waiting_replicas().await;
            self.vms.declare_changed_volumes().await;
            self.boot.remove_expired_overlays(self.now());
            self.enrolment.remove_expired_roots().await;
        }
    }
}
