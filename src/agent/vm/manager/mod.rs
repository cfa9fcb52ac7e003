//! Makes the VMs of this node match the desired state of the central node, in a task beside the link, and reports their state.
//!
//! | module | content |
//! | --- | --- |
//! | `vms` | the VMs of this node and their supervisors |
//! | `waiting_vms` | VMs that wait for a volume, a disk write or their own release; stored |
//! | `disk_write_queue` | disk writes in progress |
//! | `reports` | state reports, combined from all of these |

mod disk_write_queue;
mod reports;
pub mod vms;
mod waiting_vms;

use self::vms::{StartError, Vms};
use crate::{
    link::call::Endpoint,
    vm::{
        console::console_session,
        disks::{ownership_marker, volumes::Volumes},
        failure::failure,
        host::config::HostConfig,
        manager::{
            disk_write_queue::DiskWrites,
            waiting_vms::{PendingStart, WaitingVms},
        },
        net::nic_addresses::{self, NicAddresses},
        process::launch,
    },
};
use meshd_proto::vm::{
    ConsoleOrder, MAX_VMS, Nic, ReportedVmState, VmFailure, VmFailureKind, VmOrder, VmRefusal, VmReport, VmSpec,
    VmTargetState, VmUpdate,
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
/// Length of the queue of updates for the link.
const UPDATE_QUEUE: usize = 64;
/// Maximum number of open console sessions.
const MAX_CONSOLES: usize = 32;

/// The VM manager of one node. VMs continue to run when it is dropped.
#[derive(Debug)]
pub struct VmManager {
    requests: mpsc::UnboundedSender<ManagerRequest>,
    endpoint: watch::Sender<Option<Endpoint>>,
    reports: watch::Receiver<Vec<VmReport>>,
    updates: mpsc::Receiver<VmUpdate>,
    nics: watch::Receiver<Vec<Nic>>,
    nic_addresses: watch::Sender<NicAddresses>,
    /// The reports changed since the last message.
    report_due: bool,
    reported_at: Option<Instant>,
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
        let (requests, request_queue) = mpsc::unbounded_channel();
        let (update_sender, updates) = mpsc::channel(UPDATE_QUEUE);
        let endpoint = watch::Sender::new(None);
        let nic_addresses = watch::Sender::new(NicAddresses::new());
        let vms = Vms::open(config.clone());
        let volumes = Volumes::new(config.clone(), vms.reservations(), endpoint.subscribe());
        let reconciler = Reconciler {
            vms,
            volumes,
            disk_writes: DiskWrites::default(),
            endpoint: endpoint.subscribe(),
            waiting: WaitingVms::open(&config),
            start_failures: BTreeMap::new(),
            releasing_vms: BTreeSet::new(),
            releases: JoinSet::new(),
            console_sessions: JoinSet::new(),
            reports: watch::Sender::new(Vec::new()),
            nics: watch::Sender::new(Vec::new()),
            nic_addresses: nic_addresses.subscribe(),
            updates: update_sender,
        };
        reconciler.publish();
        let (reports, nics) = (reconciler.reports.subscribe(), reconciler.nics.subscribe());
        let mut task = JoinSet::new();
        task.spawn(reconciler.run(request_queue));
        VmManager {
            requests,
            endpoint,
            reports,
            updates,
            nics,
            nic_addresses,
            report_due: false,
            reported_at: None,
            _reconciler: task,
        }
    }

    pub fn set_endpoint(&self, endpoint: Endpoint) {
        self.endpoint.send_replace(Some(endpoint));
    }

    /// Queues the desired state of a VM.
    pub fn order(&self, order: VmOrder) {
        // The task ends only together with the agent.
        let _ = self.requests.send(ManagerRequest::Vm(order));
    }

    /// Connects a console to the central node.
    pub fn console(&self, order: ConsoleOrder) {
        let _ = self.requests.send(ManagerRequest::Console(order));
    }

    pub fn nics(&self) -> watch::Receiver<Vec<Nic>> {
        self.nics.clone()
    }

    /// Returns the sender for the addresses that the private network assigns to NICs.
    pub fn nic_addresses(&self) -> watch::Sender<NicAddresses> {
        self.nic_addresses.clone()
    }

    pub fn full_report(&mut self) -> VmUpdate {
        (self.report_due, self.reported_at) = (false, Some(Instant::now()));
        VmUpdate::All { vms: self.reports.borrow_and_update().clone() }
    }

    /// Returns the number of VMs that run or start.
    pub fn workloads(&self) -> u32 {
        let count = self.reports.borrow().iter().filter(|report| is_workload(report.state)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Waits for the next message to the central node. Cancel-safe.
    pub async fn next_update(&mut self) -> VmUpdate {
        loop {
            let due_at = self.reported_at.map_or_else(Instant::now, |at| at + REPORT_INTERVAL);
            tokio::select! {
                Some(update) = self.updates.recv() => return update,
                () = sleep_until(due_at), if self.report_due => return self.full_report(),
                changed = self.reports.changed(), if !self.report_due => match changed {
                    Ok(()) => self.report_due = true,
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }
}

fn is_workload(state: ReportedVmState) -> bool {
    state.is_live() || state == ReportedVmState::Waiting
}

struct Reconciler {
    vms: Vms,
    volumes: Volumes,
    disk_writes: DiskWrites,
    endpoint: watch::Receiver<Option<Endpoint>>,
    waiting: WaitingVms,
    /// Failed start orders of VMs whose state did not change.
    start_failures: BTreeMap<SystemUuid, VmFailure>,
    releasing_vms: BTreeSet<SystemUuid>,
    releases: JoinSet<(SystemUuid, Result<(), String>)>,
    console_sessions: JoinSet<()>,
    reports: watch::Sender<Vec<VmReport>>,
    nics: watch::Sender<Vec<Nic>>,
    nic_addresses: watch::Receiver<NicAddresses>,
    updates: mpsc::Sender<VmUpdate>,
}

impl Reconciler {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<ManagerRequest>) {
        let mut changes = self.vms.changes();
        // Fetches of an earlier agent resume at once; their VMs start when the order is repeated.
        let missing: BTreeSet<Digest> =
            self.waiting.all().flat_map(|pending| self.missing_volumes(&pending.spec)).collect();
        missing.into_iter().for_each(|digest| self.volumes.fetch(digest));
        let [mut progress, mut prune, mut store_limit] =
            [PROGRESS_INTERVAL, PRUNE_INTERVAL, STORE_LIMIT_INTERVAL].map(|period| {
                let mut ticks = interval(period);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                ticks
            });
        prune.reset();
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    None => return,
                    Some(ManagerRequest::Vm(order)) => self.apply_order(order).await,
                    Some(ManagerRequest::Console(order)) => self.open_console(order),
                },
                (digest, result) = self.volumes.next() => self.fetch_ended(digest, result).await,
                (uuid, outcome) = self.disk_writes.next() => self.disk_write_ended(uuid, outcome).await,
                Some(release) = self.releases.join_next() => match release {
                    Ok((uuid, result)) => self.release_ended(uuid, result).await,
                    Err(error) => tracing::error!(%error, "a release failed"),
                },
                Some(_) = self.console_sessions.join_next() => continue,
                Ok(()) = changes.changed() => {}
                Ok(()) = self.nic_addresses.changed() => {
                    let addresses = self.nic_addresses.borrow_and_update().clone();
                    self.vms.set_addresses(addresses).await;
                }
                _ = progress.tick(), if self.waiting.any() => {}
                _ = prune.tick() => self.prune(),
                _ = store_limit.tick() => {
                    self.vms.limit_store().await;
                    self.vms.update_port_filters().await;
                    continue;
                }
            }
            self.publish();
        }
    }

    async fn apply_order(&mut self, VmOrder { uuid, want }: VmOrder) {
        match want {
            VmTargetState::Run { spec, start, grace_s, slots, disks } if spec.uuid == uuid => {
                self.vms.set_slots(slots);
                if let Err(error) = ownership_marker::add_missing(&self.vms.files(uuid), &spec, &disks) {
                    // Without this record an image could be written a second time over data of the guest.
                    return tracing::error!(vm = %spec.name, %error, "not started: cannot store the state of its disks");
                }
                let grace = Duration::from_secs(grace_s.into());
                self.start(PendingStart { spec, start, grace, ordered: true }).await;
            }
            VmTargetState::Run { spec, .. } => {
                tracing::error!(%uuid, spec_uuid = %spec.uuid, "invalid order: two UUIDs")
            }
            VmTargetState::Stop { grace_s } => {
                self.start_failures.remove(&uuid);
                self.waiting.remove(uuid);
                drop(self.disk_writes.cancel(uuid));
                self.prune();
                let is_active = self.vms.watch(uuid).is_some_and(|report| is_workload(report.borrow().state));
                if is_active && !self.releasing_vms.contains(&uuid) {
                    self.vms.stop(uuid, Duration::from_secs(grace_s.into()));
                }
            }
            VmTargetState::Release { disks } => {
                self.start_failures.remove(&uuid);
                let pending = self.waiting.remove(uuid);
                if self.releasing_vms.insert(uuid) {
                    let spec = pending.as_ref().map(|pending| &*pending.spec);
                    let (write_ended, release) = (self.disk_writes.cancel(uuid), self.vms.releasing(uuid, spec, disks));
                    self.releases.spawn(async move {
                        write_ended.await;
                        (uuid, release.await.map_err(|error| error.reason))
                    });
                }
            }
        }
    }

    async fn start(&mut self, pending: PendingStart) {
        let uuid = pending.spec.uuid;
        if self.vms.last_start(uuid) == Some(pending.start) && !self.releasing_vms.contains(&uuid) {
            self.waiting.remove(uuid);
            return;
        }
        let is_known = self.vms.watch(uuid).is_some() || self.waiting.get(uuid).is_some();
        let new = self.waiting.all().filter(|waiting| self.vms.watch(waiting.spec.uuid).is_none()).count();
        if !is_known && self.vms.specs().count() + new >= MAX_VMS {
            // A report has at most this many VMs: another VM would be left out.
            return tracing::error!(vm = %pending.spec.name, "a node has at most {MAX_VMS} virtual machines");
        }
        let missing = self.missing_volumes(&pending.spec);
        if self.releasing_vms.contains(&uuid) || !missing.is_empty() {
            missing.into_iter().for_each(|digest| self.volumes.fetch(digest));
            self.waiting.insert(pending);
            return;
        }
        let Some(pending) = self.write_disks(pending).await else { return };
        self.waiting.remove(uuid);
        self.start_now(pending).await;
    }

    async fn start_now(&mut self, PendingStart { spec, start, grace, .. }: PendingStart) {
        let uuid = spec.uuid;
        self.start_failures.remove(&uuid);
        let conflicts = nic_addresses::conflicts(&spec, &self.nic_addresses.borrow());
        if !conflicts.is_empty() {
            return self.refuse(&spec, start, &conflicts);
        }
        let state = self.vms.watch(uuid).map(|report| report.borrow().state);
        let started = match state {
            Some(state) if is_workload(state) && self.vms.specs().any(|known| *known == *spec) => {
                self.vms.restart(uuid, grace, start);
                Ok(())
            }
            _ => self.vms.start(&spec, start).await,
        };
        match started {
            Ok(()) => {}
            Err(StartError::Refused { refusals, .. }) => self.refuse(&spec, start, &refusals),
            // The central node repeats the order, and the start is tried again.
            Err(error) => {
                tracing::warn!(vm = %spec.name, %error, "not started");
                self.start_failures.insert(uuid, failure(VmFailureKind::Prepare, error.to_string()));
            }
        }
    }

    fn refuse(&mut self, spec: &VmSpec, start: u32, refusals: &[VmRefusal]) {
        let failure = launch::refused(refusals);
        tracing::warn!(vm = %spec.name, reason = failure.detail, "the node cannot run a virtual machine");
        if let Err(error) = self.vms.refuse(spec, start, failure) {
            tracing::error!(vm = %spec.name, %error, "cannot store a refusal");
        }
    }

    async fn fetch_ended(&mut self, digest: Digest, result: Result<(), VmRefusal>) {
        let needs = |pending: &&PendingStart| pending.ordered && pending.spec.files().any(|(_, file)| file == digest);
        let waiting: Vec<PendingStart> = self.waiting.all().filter(needs).cloned().collect();
        for pending in waiting {
            match &result {
                Ok(()) => self.start(pending).await,
                Err(refusal) => {
                    let spec = &pending.spec;
                    self.waiting.remove(spec.uuid);
                    let name = spec.files().find(|(_, file)| *file == digest).map_or("", |(name, _)| name.as_str());
                    let detail = format!("volume {name}: {}", refusal.detail);
                    self.refuse(spec, pending.start, &[VmRefusal { reason: refusal.reason, detail }]);
                }
            }
        }
    }

    async fn release_ended(&mut self, uuid: SystemUuid, result: Result<(), String>) {
        self.releasing_vms.remove(&uuid);
        let update = match result {
            Ok(()) => {
                self.vms.forget(uuid);
                self.vms.cancel_reservation(uuid);
                VmUpdate::Released { uuid }
            }
            Err(reason) => VmUpdate::ReleaseBlocked { uuid, reason },
        };
        self.prune();
        // A new link repeats all release orders.
        let _ = self.updates.try_send(update);
        if let Some(pending) = self.waiting.get(uuid).cloned() {
            self.start(pending).await;
        }
    }

    fn prune(&mut self) {
        let specs = self.vms.specs().chain(self.waiting.all().map(|pending| &*pending.spec));
        let needed = |spec: &VmSpec| ownership_marker::needed_volumes(&self.vms.files(spec.uuid), spec);
        let needed: BTreeSet<Digest> = specs.flat_map(needed).collect();
        self.volumes.keep_only(&needed);
    }

    fn open_console(&mut self, order: ConsoleOrder) {
        let endpoint = self.endpoint.borrow().clone();
        match endpoint {
            Some(endpoint) if self.console_sessions.len() < MAX_CONSOLES => {
                let console = self.vms.console(order.uuid);
                self.console_sessions.spawn(console_session::open_console(endpoint, order, console));
            }
            _ => tracing::warn!(uuid = %order.uuid, "cannot open a console: at most {MAX_CONSOLES} are open at once"),
        }
    }
}
