//! Makes the VMs of this node match the desired state of the central node, in a task beside the link, and reports their state.
//!
//! | module | content |
//! | --- | --- |
//! | `vms` | the VMs of this node and their supervisors |
//! | `waiting_vms` | VMs that wait for a volume, a disk write or their own release; stored |
//! | `disk_writes` | disk writes in progress |
//! | `reports` | state reports, combined from all of these |

mod disk_writes;
mod reports;
pub mod vms;
mod waiting_vms;

use self::vms::{StartError, Vms};
use crate::{
    link::call::Endpoint,
    vm::{
        console::console_session,
        disks::{ownership_marker, volumes::Volumes},
        host::config::HostConfig,
        manager::{
            disk_writes::DiskWrites,
            waiting_vms::{PendingStart, WaitingVms},
        },
        net::nic_addresses::{self, NicAddresses},
        process::launch,
    },
};
use meshd_proto::vm::{
    ConsoleOrder, MAX_VMS, Nic, ReportedVmState, VmFailure, VmFailureKind, VmOrder, VmRefusal, VmReport, VmSpec,
    VmUpdate, VmWant,
};
use meshd_types::{Digest, SystemUuid};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

/// Minimum time between two reports; changes in between are combined.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// How often the progress of fetches is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How often the size limit of a store in memory is adjusted.
const STORE_LIMIT_INTERVAL: Duration = Duration::from_secs(10);
/// How often unused volumes are removed. A central node that was away has repeated its orders by then.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// Length of the queue of messages to the link.
const NEWS_QUEUE: usize = 64;
/// Maximum number of open console sessions.
const MAX_CONSOLES: usize = 32;

/// The VM manager of one node. VMs continue to run when it is dropped.
#[derive(Debug)]
pub struct VmManager {
    asked: mpsc::UnboundedSender<ManagerRequest>,
    endpoint: watch::Sender<Option<Endpoint>>,
    reports: watch::Receiver<Vec<VmReport>>,
    news: mpsc::Receiver<VmUpdate>,
    cards: watch::Receiver<Vec<Nic>>,
    given: watch::Sender<NicAddresses>,
    /// The reports changed since the last message.
    is_due: bool,
    told_at: Option<Instant>,
    _reconciler: JoinSet<()>,
}

#[derive(Debug)]
enum ManagerRequest {
    Vm(VmOrder),
    Console(ConsoleOrder),
}

impl VmManager {
    /// Takes over every VM that has a folder below [`HostConfig::machines`].
    pub fn open(config: HostConfig) -> Self {
        let (asked, orders) = mpsc::unbounded_channel();
        let (tell, news) = mpsc::channel(NEWS_QUEUE);
        let endpoint = watch::Sender::new(None);
        let given = watch::Sender::new(NicAddresses::new());
        let vms = Vms::open(config.clone());
        let volumes = Volumes::new(config.clone(), vms.reservations(), endpoint.subscribe());
        let reconciler = Reconciler {
            vms,
            volumes,
            writes: DiskWrites::default(),
            endpoint: endpoint.subscribe(),
            waiting: WaitingVms::open(&config),
            faults: BTreeMap::new(),
            releasing_vms: BTreeSet::new(),
            releases: JoinSet::new(),
            console_sessions: JoinSet::new(),
            told: watch::Sender::new(Vec::new()),
            cards: watch::Sender::new(Vec::new()),
            given: given.subscribe(),
            tell,
        };
        reconciler.publish();
        let (reports, cards) = (reconciler.told.subscribe(), reconciler.cards.subscribe());
        let mut task = JoinSet::new();
        task.spawn(reconciler.run(orders));
        VmManager { asked, endpoint, reports, news, cards, given, is_due: false, told_at: None, _reconciler: task }
    }

    /// Sets the address and credentials for calls to the central node.
    pub fn set_endpoint(&self, endpoint: Endpoint) {
        self.endpoint.send_replace(Some(endpoint));
    }

    /// Queues the desired state of a VM.
    pub fn order(&self, order: VmOrder) {
        // The task ends only together with the agent.
        let _ = self.asked.send(ManagerRequest::Vm(order));
    }

    /// Connects a console to the central node.
    pub fn console(&self, order: ConsoleOrder) {
        let _ = self.asked.send(ManagerRequest::Console(order));
    }

    /// NICs of all VMs on this node.
    pub fn cards(&self) -> watch::Receiver<Vec<Nic>> {
        self.cards.clone()
    }

    /// Receives the addresses that the private network assigns to NICs.
    pub fn given(&self) -> watch::Sender<NicAddresses> {
        self.given.clone()
    }

    /// Returns the reports of all VMs.
    pub fn all(&mut self) -> VmUpdate {
        (self.is_due, self.told_at) = (false, Some(Instant::now()));
        VmUpdate::All { vms: self.reports.borrow_and_update().clone() }
    }

    /// Returns the number of VMs that run or start.
    pub fn workloads(&self) -> u32 {
        let count = self.reports.borrow().iter().filter(|report| is_work(report.state)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Waits for the next message to the central node. Cancel-safe.
    pub async fn news(&mut self) -> VmUpdate {
        loop {
            let due_at = self.told_at.map_or_else(Instant::now, |at| at + REPORT_INTERVAL);
            tokio::select! {
                Some(news) = self.news.recv() => return news,
                () = sleep_until(due_at), if self.is_due => return self.all(),
                changed = self.reports.changed(), if !self.is_due => match changed {
                    Ok(()) => self.is_due = true,
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }
}

fn is_work(state: ReportedVmState) -> bool {
    state.is_live() || state == ReportedVmState::Waiting
}

struct Reconciler {
    vms: Vms,
    volumes: Volumes,
    writes: DiskWrites,
    endpoint: watch::Receiver<Option<Endpoint>>,
    /// VMs that wait for volumes or for their own release.
    waiting: WaitingVms,
    /// Why an order failed, of VMs that stay as they are.
    faults: BTreeMap<SystemUuid, VmFailure>,
    /// VMs that are being released.
    releasing_vms: BTreeSet<SystemUuid>,
    releases: JoinSet<(SystemUuid, Result<(), String>)>,
    console_sessions: JoinSet<()>,
    told: watch::Sender<Vec<VmReport>>,
    cards: watch::Sender<Vec<Nic>>,
    given: watch::Receiver<NicAddresses>,
    tell: mpsc::Sender<VmUpdate>,
}

impl Reconciler {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<ManagerRequest>) {
        let mut changes = self.vms.changes();
        // Fetches of an earlier agent resume at once; their VMs start when the order is repeated.
        let wanted: BTreeSet<Digest> = self.waiting.all().flat_map(|run| self.missing(&run.spec)).collect();
        wanted.into_iter().for_each(|digest| self.volumes.fetch(digest));
        let (mut look, mut prune, mut bound) =
            (interval(PROGRESS_INTERVAL), interval(PRUNE_INTERVAL), interval(STORE_LIMIT_INTERVAL));
        bound.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        prune.set_missed_tick_behavior(MissedTickBehavior::Delay);
        prune.reset();
        loop {
            tokio::select! {
                asked = orders.recv() => match asked {
                    None => return,
                    Some(ManagerRequest::Vm(order)) => self.follow(order).await,
                    Some(ManagerRequest::Console(order)) => self.open_console(order),
                },
                (digest, fetched) = self.volumes.next() => self.fetched(digest, fetched).await,
                (uuid, ended) = self.writes.next() => self.written(uuid, ended).await,
                Some(released) = self.releases.join_next() => match released {
                    Ok((uuid, released)) => self.released(uuid, released).await,
                    Err(error) => tracing::error!(%error, "a release failed"),
                },
                Some(_) = self.console_sessions.join_next() => continue,
                Ok(()) = changes.changed() => {}
                Ok(()) = self.given.changed() => {
                    let given = self.given.borrow_and_update().clone();
                    self.vms.set_addresses(given).await;
                }
                _ = look.tick(), if self.waiting.any() => {}
                _ = prune.tick() => self.prune(),
                _ = bound.tick() => {
                    self.vms.bound_store().await;
                    self.vms.isolate().await;
                    continue;
                }
            }
            self.publish();
        }
    }

    async fn follow(&mut self, VmOrder { uuid, want }: VmOrder) {
        match want {
            VmWant::Run { spec, start, grace_s, slots, disks } if spec.uuid == uuid => {
                self.vms.set_slots(slots);
                if let Err(error) = ownership_marker::learn(&self.vms.files(uuid), &spec, &disks) {
                    // Without this record an image could be written a second time over data of the guest.
                    return tracing::error!(vm = %spec.name, %error, "not begun: what became of its disks is not kept");
                }
                let grace = Duration::from_secs(grace_s.into());
                self.start(PendingStart { spec, start, grace, ordered: true }).await;
            }
            VmWant::Run { spec, .. } => {
                tracing::error!(%uuid, named = %spec.uuid, "an order names two machines")
            }
            VmWant::Stop { grace_s } => {
                self.faults.remove(&uuid);
                self.waiting.remove(uuid);
                drop(self.writes.cancel(uuid));
                self.prune();
                let works = self.vms.watch(uuid).is_some_and(|report| is_work(report.borrow().state));
                if works && !self.releasing_vms.contains(&uuid) {
                    self.vms.stop(uuid, Duration::from_secs(grace_s.into())).await;
                }
            }
            VmWant::Release { disks } => {
                self.faults.remove(&uuid);
                let run = self.waiting.get(uuid).cloned();
                self.waiting.remove(uuid);
                if self.releasing_vms.insert(uuid) {
                    let spec = run.as_ref().map(|run| &*run.spec);
                    let (written, release) = (self.writes.cancel(uuid), self.vms.releasing(uuid, spec, disks));
                    self.releases.spawn(async move {
                        written.await;
                        (uuid, release.await.map_err(|error| error.reason))
                    });
                }
            }
        }
    }

    async fn start(&mut self, run: PendingStart) {
        let uuid = run.spec.uuid;
        if self.vms.started_by(uuid) == Some(run.start) && !self.releasing_vms.contains(&uuid) {
            self.waiting.remove(uuid);
            return;
        }
        let known = |uuid| self.vms.watch(uuid).is_some() || self.waiting.get(uuid).is_some();
        let others = self.waiting.all().filter(|run| self.vms.watch(run.spec.uuid).is_none()).count();
        if !known(uuid) && self.vms.specs().count() + others >= MAX_VMS {
            // A report has at most this many VMs: another VM would be left out.
            return tracing::error!(vm = %run.spec.name, "a node has at most {MAX_VMS} virtual machines");
        }
        let missing: Vec<Digest> = self.missing(&run.spec);
        if self.releasing_vms.contains(&uuid) || !missing.is_empty() {
            missing.into_iter().for_each(|digest| self.volumes.fetch(digest));
            self.waiting.insert(run);
            return;
        }
        let Some(run) = self.write(run).await else { return };
        self.waiting.remove(uuid);
        self.begin(run).await;
    }

    async fn begin(&mut self, PendingStart { spec, start, grace, .. }: PendingStart) {
        let uuid = spec.uuid;
        self.faults.remove(&uuid);
        let taken = nic_addresses::taken(&spec, &self.given.borrow());
        if !taken.is_empty() {
            return self.refuse(&spec, start, &taken).await;
        }
        let known = self.vms.watch(uuid).map(|report| report.borrow().state);
        let begun = match known {
            Some(state) if is_work(state) && self.vms.specs().any(|known| *known == *spec) => {
                self.vms.restart(uuid, grace, start).await;
                Ok(())
            }
            _ => self.vms.start(&spec, start).await,
        };
        match begun {
            Ok(()) => {}
            Err(StartError::Refused { refusals, .. }) => self.refuse(&spec, start, &refusals).await,
            // The central node repeats the order, and the start is tried again.
            Err(error) => {
                tracing::warn!(vm = %spec.name, %error, "not started");
                let failure = VmFailure { kind: VmFailureKind::Prepare, detail: error.to_string(), log: Vec::new() };
                self.faults.insert(uuid, failure);
            }
        }
    }

    async fn refuse(&mut self, spec: &VmSpec, start: u32, refusals: &[VmRefusal]) {
        let failure = launch::refused(refusals);
        tracing::warn!(vm = %spec.name, reason = failure.detail, "the node cannot run a virtual machine");
        if let Err(error) = self.vms.refuse(spec, start, failure).await {
            tracing::error!(vm = %spec.name, %error, "a refusal is not kept");
        }
    }

    async fn fetched(&mut self, digest: Digest, fetched: Result<(), VmRefusal>) {
        let wants = |run: &&PendingStart| run.ordered && run.spec.files().any(|(_, file)| file == digest);
        let runs: Vec<PendingStart> = self.waiting.all().filter(wants).cloned().collect();
        for run in runs {
            match &fetched {
                Ok(()) => self.start(run).await,
                Err(refusal) => {
                    self.waiting.remove(run.spec.uuid);
                    let name = run.spec.files().find(|(_, file)| *file == digest).map_or("", |(name, _)| name.as_str());
                    let detail = format!("volume {name}: {}", refusal.detail);
                    self.refuse(&run.spec, run.start, &[VmRefusal { reason: refusal.reason, detail }]).await;
                }
            }
        }
    }

    async fn released(&mut self, uuid: SystemUuid, released: Result<(), String>) {
        self.releasing_vms.remove(&uuid);
        let news = match released {
            Ok(()) => {
                self.vms.forget(uuid);
                self.vms.cancel_reservation(uuid);
                VmUpdate::Released { uuid }
            }
            Err(reason) => VmUpdate::ReleaseBlocked { uuid, reason },
        };
        self.prune();
        // A new link asks for all releases again.
        let _ = self.tell.try_send(news);
        if let Some(run) = self.waiting.get(uuid).cloned() {
            self.start(run).await;
        }
    }

    fn prune(&mut self) {
        let specs = self.vms.specs().chain(self.waiting.all().map(|run| &*run.spec));
        let needed = |spec: &VmSpec| ownership_marker::needed(&self.vms.files(spec.uuid), spec);
        let named: BTreeSet<Digest> = specs.flat_map(needed).collect();
        self.volumes.keep_only(&named);
    }

    fn open_console(&mut self, order: ConsoleOrder) {
        let endpoint = self.endpoint.borrow().clone();
        match endpoint {
            Some(endpoint) if self.console_sessions.len() < MAX_CONSOLES => {
                let console = self.vms.console(order.uuid);
                self.console_sessions.spawn(console_session::open_console(endpoint, order, console));
            }
            _ => tracing::warn!(uuid = %order.uuid, "no more than {MAX_CONSOLES} consoles are brought at once"),
        }
    }
}
