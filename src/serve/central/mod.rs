//! What all servers share: site, catalog, store, keys; and one file for each thing that can happen in the boot chain.
//!
//! The servers translate between their protocol and the methods here; every decision that outlives one packet is made here
//! or in the pure modules, and every change of state is one [`Store::commit`]. In chain order:
//!
//! | file | what happens |
//! | --- | --- |
//! | `dhcp` | a machine asked for an address: its boot session opens or goes on |
//! | `fetch` | it fetched a loader, kernel, initramfs, packages or modloop |
//! | `script` | it asked what to boot: identity, admission, rendering, capability, plan |
//! | `layer2` | whether its address is its own on the wire, and whether a node is there |
//! | `admit` | who it is, and whether it may: collisions, rules of the site, what was learnt |
//! | `again` | it asked the same once more |
//! | `loading` | whether it may load now, or has to wait for its turn |
//! | `overlay` | it fetched its overlay: token, per-boot part, single use |
//! | `enrol`, `pending` | its agent asked for a certificate, by token or by an operator's approval |
//! | `link`, `arrive` | its agent is there: facts, checks, heartbeats, tasks |
//! | `checks` | what its readiness checks say, told by itself or asked for by an operator |
//! | `tokens` | an operator lets in a machine that is not netbooted |
//! | `authority` | one certificate authority takes the place of another |
//! | `revoke` | a node loses its certificates, tokens and link at once |
//! | `live`, `context` | what boots are decided from, and what of a node and its groups |
//! | `render`, `keep`, `reconsider` | what a node boots, what it booted, and what it would boot now |
//! | `reload`, `revisions` | site, overlays and images were edited; a profile goes back to what it was |
//! | `api_tokens` | tokens of the admin plane |
//! | `operate`, `life`, `orders` | an operator spoke: of a node's life and its end, of what it boots |
//! | `vms`, `hosts`, `may_run`, `vm_news` | virtual machines: what is ordered, which nodes take them, what these tell of them |
//! | `cards` | which MAC addresses and addresses their cards have |
//! | `slots` | what of nodes may be given to virtual machines |
//! | `fence` | what becomes of virtual machines when something becomes of their node |
//! | `jobs`, `job_news` | an operator runs a program on nodes; nodes tell of their part of it |
//! | `backup` | somebody takes a backup |
//! | `segments` | how DHCP is doing on each segment |
//! | `disk_records` | a disk of a node is written or wiped |
//! | `volumes`, `consoles` | a node wants a file of its machines; an operator sits at one of them |
//! | `watch`, `stalls` | time passed: silence, missing overlays, boots that stand still or go round in circles |
//! | `stages` | what all of them write down of a boot |

mod node_admission;
mod script_cache;
mod alarm;
mod api_tokens;
mod link_hello;
mod backup;
mod boot_args;
mod vm_nics;
mod authority;
mod consoles;
mod checks;
mod context;
mod dhcp;
mod disk_records;
mod enrol;
mod stale_checks;
mod fence;
mod fetch;
mod placement_view;
mod job_reports;
mod jobs;
mod generation_archive;
mod layer2;
mod node_lifecycle;
mod link;
mod site_snapshot;
mod boot_queue;
mod vm_readiness;
mod node_rename;
mod node_operations;
mod node_boot_settings;
mod overlay;
mod pending_enrolment;
mod drift_scan;
mod reload;
mod render;
mod revisions;
mod revoke;
mod script;
mod environment;
mod segments;
mod slots;
mod stages;
mod boot_stalls;
mod tokens;
mod volumes;
mod vm_reports;
mod vms;
mod watch;

pub use api_tokens::ApiTokenError;
pub use authority::{AuthorityState, MAX_GRACE, RotateError};
pub use backup::Snapshot;
pub use boot_queue::LineState;
pub use checks::doctor_report;
pub use consoles::{ConsoleError, ConsoleFrame, ConsoleSession, NodeEnd};
pub use dhcp::{DhcpSeen, DhcpStep, LeaseChange};
pub use enrol::PlaneError;
pub use environment::{Clock, Entropy, Lan, Neighbour, NoLan, SystemClock, SystemEntropy};
pub use fence::{Workloads, work_on};
pub use fetch::Fetched;
pub use jobs::{JobError, RunJob};
pub use link::{LinkCommand, LinkId};
pub use node_boot_settings::OrderError;
pub use node_operations::OperateError;
pub use overlay::{OverlayDenied, OverlayTransfer};
pub use pending_enrolment::PendingTicket;
pub use reload::{Reload, load_catalog};
pub use render::{RenderError, Rendered};
pub use revisions::RollbackError;
pub use segments::{OtherServer, PoolUse, SegmentHealth};
pub use site_snapshot::SiteSnapshot;
pub use slots::{SlotError, SlotParts};
pub use tokens::{MAX_TOKEN_LIFE, TOKEN_LIFE, TokenError};
pub use vms::{MAX_SITE_VMS, VmError, VmVerb};
pub use volumes::VolumeUseError;
pub use watch::WATCH_INTERVAL;

use bytes::Bytes;
use meshd_config::Site;
use meshd_image::{catalog::Catalog, overlay::AgentBinary};
use meshd_model::{
    boot::BootQueue,
    fleet::{AuditContext, Lease, Principal, Verb},
};
use meshd_store::{GenerationArchive, KeptRevisions, Outputs, Store};
use meshd_trust::{CertificateAuthority, capability::Book};
use meshd_types::{BootSessionId, CorrelationId, Timestamp};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

/// Central, as the servers hold it.
pub type Shared = Arc<Central>;

/// What a central node is made of.
pub struct Parts {
    /// The valid site.
    pub site: Arc<Site>,
    /// Images and overlays.
    pub catalog: Catalog,
    /// Loaders by file name.
    pub loaders: BTreeMap<String, Bytes>,
    /// The agent binary that overlays carry.
    pub agent_binary: Bytes,
    /// Durable state.
    pub store: Store,
    /// The site's certificate authority.
    pub authority: CertificateAuthority,
    /// Time.
    pub clock: Box<dyn Clock>,
    /// Randomness.
    pub entropy: Box<dyn Entropy>,
    /// Layer 2 of the boot LAN.
    pub lan: Box<dyn Lan>,
}

/// The state that all servers share.
pub struct Central {
    /// What boots are decided from; everything that may change at a reload.
    live: RwLock<Arc<SiteSnapshot>>,
    loaders: BTreeMap<String, Bytes>,
    store: Store,
    authority: authority::Authority,
    clock: Box<dyn Clock>,
    entropy: Box<dyn Entropy>,
    lan: Box<dyn Lan>,
    capabilities: Mutex<Book>,
    /// What the script promised to each session: the overlay must be of the same generation.
    promises: Mutex<BTreeMap<BootSessionId, overlay::PendingOverlay>>,
    renders: render::Cache,
    stale: drift_scan::Stale,
    kept: GenerationArchive,
    revisions: KeptRevisions,
    to_keep: generation_archive::PendingArchive,
    /// Monotonic time of the last sweep of what is kept.
    swept: Mutex<Option<std::time::Duration>>,
    /// One reload at a time, and what came of the last one.
    reloading: tokio::sync::Mutex<()>,
    reloaded: Mutex<Reload>,
    line: Mutex<BootQueue>,
    repeats: boot_queue::Repeats,
    pending: pending_enrolment::PendingEnrolments,
    links: link::Links,
    /// Counts what was revoked.
    revocations: tokio::sync::watch::Sender<u64>,
    consoles: consoles::Consoles,
    fetching: vm_reports::Fetching,
    addresses: vm_reports::Addresses,
    strangers: vm_reports::OrphanVms,
    /// Read while a machine that names files is recorded, written while a file goes.
    volume_use: tokio::sync::RwLock<()>,
    outputs: Arc<Outputs>,
    strange_jobs: job_reports::OrphanJobs,
    /// Held by who says to a node what is wanted of a job.
    job_turn: Mutex<()>,
    vigil: Mutex<watch::Watched>,
    freed: Mutex<Vec<Lease>>,
    alarms: alarm::Limiter,
    segments: Mutex<Vec<segments::SegmentHealth>>,
    started: std::time::Duration,
    /// Monotonic time of the last look at all boots.
    looked: Mutex<Option<std::time::Duration>>,
}

impl Central {
    /// Puts the parts together. Nothing runs yet.
    pub fn new(parts: Parts) -> Shared {
        let started = parts.clock.monotonic();
        let line = BootQueue::new(parts.site.boot.max_loading);
        let kept = GenerationArchive::new(&parts.site.state_dir);
        let revisions = KeptRevisions::new(&parts.site.state_dir);
        let outputs = Arc::new(Outputs::new(&parts.site.state_dir));
        let agent = Arc::new(AgentBinary::new(&parts.agent_binary));
        let central = Arc::new(Central {
            live: RwLock::new(Arc::new(SiteSnapshot::new(parts.site, parts.catalog, agent, BTreeMap::new()))),
            loaders: parts.loaders,
            store: parts.store,
            authority: authority::Authority::new(parts.authority, parts.clock.now()),
            clock: parts.clock,
            entropy: parts.entropy,
            lan: parts.lan,
            capabilities: Mutex::default(),
            promises: Mutex::default(),
            renders: render::Cache::default(),
            stale: drift_scan::Stale::default(),
            kept,
            revisions,
            to_keep: generation_archive::PendingArchive::default(),
            swept: Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
            reloaded: Mutex::default(),
            line: Mutex::new(line),
            repeats: boot_queue::Repeats::default(),
            pending: pending_enrolment::PendingEnrolments::default(),
            links: link::Links::default(),
            revocations: tokio::sync::watch::Sender::new(0),
            consoles: consoles::Consoles::default(),
            fetching: vm_reports::Fetching::default(),
            addresses: vm_reports::Addresses::default(),
            strangers: vm_reports::OrphanVms::default(),
            volume_use: tokio::sync::RwLock::default(),
            outputs,
            strange_jobs: job_reports::OrphanJobs::default(),
            job_turn: Mutex::default(),
            vigil: Mutex::default(),
            freed: Mutex::default(),
            alarms: alarm::Limiter::default(),
            segments: Mutex::default(),
            started,
            looked: Mutex::default(),
        });
        let live = central.live().with_held(central.all_held());
        central.replace_live(central.with_all_kept(live));
        central.reconsider_all();
        central
    }

    /// Durable state.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Wall-clock time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// All DHCP leases, for the DHCP engine to start with.
    pub fn leases(&self) -> Vec<Lease> {
        self.store.read(|model| model.leases().cloned().collect())
    }

    /// How many capabilities are remembered: of overlays to come, and of those given.
    pub fn capability_count(&self) -> usize {
        lock(&self.capabilities).len()
    }

    /// A loader by its file name.
    pub fn loader(&self, name: &str) -> Option<Bytes> {
        self.loaders.get(name).cloned()
    }

    /// A new name for one request, or for one thing that this program does by itself.
    pub fn new_correlation(&self) -> CorrelationId {
        CorrelationId(self.random())
    }

    /// An order that this program gives itself.
    pub fn own_order(&self, verb: Verb) -> AuditContext {
        AuditContext::new(Principal::Meshd, verb, self.new_correlation())
    }

    /// What a node does of which the audit log tells.
    pub(super) fn node_order(&self, verb: Verb) -> AuditContext {
        AuditContext::new(Principal::Node, verb, self.new_correlation())
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.entropy.fill(&mut bytes);
        bytes
    }
}

/// Locks; a panic elsewhere does not take the boot services down, and is seen where the task is joined.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
