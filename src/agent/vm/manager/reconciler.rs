//! Makes the VMs of this node match the desired state of the central node.

use super::{ManagerRequest, OrderNumber, PublishedReports, is_workload, vms::Vms};
use crate::{
    link::call::Endpoint,
    vm::{
        console::console_session,
        disks::{ownership_marker, volume_fetch::Volumes},
        failure::{combine_refusals, failure, refusal},
        manager::{
            disk_write_queue::DiskWrites,
            guest_readiness::GuestReadiness,
            pending_starts::{PendingStart, PendingStarts},
        },
        net::{
            guest_login::{self, GuestAccess, LoginFault},
            nic_addresses::{self, NicAddresses},
        },
    },
};
use meshd_proto::vm::{
    ConsoleOrder, MAX_VMS, Nic, VmEntry, VmFailure, VmFailureKind, VmRefusal, VmRefusalReason,
    VmSpec, VmTarget, VmUpdate,
};
use meshd_types::{Digest, SystemUuid};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

/// How often the progress of fetches is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How often the size limit of a store in memory is adjusted.
const STORE_LIMIT_INTERVAL: Duration = Duration::from_secs(10);
/// How often unused volumes are removed. A central node that was away has repeated its orders by
/// then.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of open console sessions.
const MAX_CONSOLES: usize = 32;

pub(super) struct Reconciler {
    pub(super) vms: Vms,
    pub(super) volumes: Volumes,
    pub(super) disk_writes: DiskWrites,
    pub(super) endpoint: watch::Receiver<Option<Endpoint>>,
    pub(super) pending_starts: PendingStarts,
    /// Failed start orders of VMs whose state did not change.
    pub(super) start_failures: BTreeMap<SystemUuid, VmFailure>,
    pub(super) releasing_vms: BTreeSet<SystemUuid>,
    pub(super) releases: JoinSet<(SystemUuid, Result<(), String>)>,
    pub(super) console_sessions: JoinSet<()>,
    pub(super) readiness: GuestReadiness,
    /// The last order that was applied.
    pub(super) observed: OrderNumber,
    pub(super) reports: watch::Sender<PublishedReports>,
    pub(super) nics: watch::Sender<Vec<Nic>>,
    pub(super) nic_addresses: watch::Receiver<NicAddresses>,
    pub(super) updates: mpsc::Sender<VmUpdate>,
}

impl Reconciler {
    pub(super) async fn run(mut self, mut requests: mpsc::UnboundedReceiver<ManagerRequest>) {
        let mut changes = self.vms.changes();
        // Fetches of an earlier agent resume at once; their VMs start when the order is repeated.
        let missing: BTreeSet<Digest> = self
            .pending_starts
            .all()
            .flat_map(|pending| self.missing_volumes(&pending.spec))
            .collect();
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
                    Some(ManagerRequest::Vm(number, entry)) => {
                        self.apply_entry(entry).await;
                        self.observed = number;
                    }
                    Some(ManagerRequest::Console(order)) => self.open_console(order),
                    Some(ManagerRequest::GuestAccess(uuid, answer)) => {
                        // The one who asked may be gone.
                        let _ = answer.send(self.guest_access(uuid));
                        continue;
                    }
                },
                (digest, result) = self.volumes.next() => self.fetch_ended(digest, result).await,
                (uuid, outcome) = self.disk_writes.next() => self.disk_write_ended(uuid, outcome).await,
                Some(release) = self.releases.join_next() => match release {
                    Ok((uuid, result)) => self.release_ended(uuid, result).await,
                    Err(error) => tracing::error!(%error, "a release failed"),
                },
                () = self.vms.replace_failed_supervisor(&self.releasing_vms) => {}
                Some(_) = self.console_sessions.join_next() => continue,
                Ok(()) = changes.changed() => {}
                () = self.readiness.next() => {}
                Ok(()) = self.nic_addresses.changed() => {
                    let addresses = self.nic_addresses.borrow_and_update().clone();
                    self.vms.set_addresses(addresses).await;
                }
                _ = progress.tick(), if self.pending_starts.any() => {}
                _ = prune.tick() => self.prune(),
                _ = store_limit.tick() => {
                    self.vms.reservations().limit_store(&self.vms.config()).await;
                    self.vms.update_port_filters().await;
                    continue;
                }
            }
            self.ask_guests();
            self.publish();
        }
    }

    fn guest_access(&self, uuid: SystemUuid) -> Result<GuestAccess, LoginFault> {
        let spec = self.vms.specs().find(|spec| spec.uuid == uuid);
        let (spec, report) = spec.zip(self.vms.watch(uuid)).ok_or_else(|| {
            LoginFault::new(format!("the VM {uuid} is not on this node"), "see `meshd vm list`")
        })?;
        let state = report.borrow().state;
        let addresses = self.nic_addresses.borrow();
        guest_login::access(spec, state, &addresses, &self.vms.files(uuid), &self.vms.config())
    }

    async fn apply_entry(&mut self, VmEntry { uuid, desired_state }: VmEntry) {
        match desired_state {
            VmTarget::Run { spec, start, grace_s, slots, disks } if spec.uuid == uuid => {
                self.vms.reservations().set_slots(slots);
                if let Err(error) =
                    ownership_marker::add_missing(&self.vms.files(uuid), &spec, &disks)
                {
                    // Without this record an image could be written a second time over data of the
                    // guest.
                    let detail = format!("cannot store the state of its disks: {error}");
                    return self.refuse(
                        &spec,
                        start,
                        &[refusal(VmRefusalReason::StoreFull, detail)],
                    );
                }
                let grace = Duration::from_secs(grace_s.into());
                self.start(PendingStart { spec, start, grace, ordered: true }).await;
            }
            VmTarget::Run { spec, .. } => {
                tracing::error!(%uuid, spec_uuid = %spec.uuid, "invalid order: two UUIDs")
            }
            VmTarget::Stop { grace_s } => {
                self.start_failures.remove(&uuid);
                self.pending_starts.remove(uuid);
                drop(self.disk_writes.cancel(uuid));
                self.prune();
                let is_active =
                    self.vms.watch(uuid).is_some_and(|report| is_workload(report.borrow().state));
                if is_active && !self.releasing_vms.contains(&uuid) {
                    self.vms.stop(uuid, Duration::from_secs(grace_s.into()));
                }
            }
            VmTarget::Release { disks } => {
                self.start_failures.remove(&uuid);
                let pending = self.pending_starts.remove(uuid);
                if self.releasing_vms.insert(uuid) {
                    let spec = pending.as_ref().map(|pending| &*pending.spec);
                    let write_ended = self.disk_writes.cancel(uuid);
                    let release = self.vms.start_release(uuid, spec, disks);
                    self.releases.spawn(async move {
                        write_ended.await;
                        (uuid, release.await.map_err(|error| error.reason))
                    });
                }
            }
        }
    }

    pub(super) async fn start(&mut self, pending: PendingStart) {
        let uuid = pending.spec.uuid;
        if self.vms.last_start(uuid) == Some(pending.start) && !self.releasing_vms.contains(&uuid) {
            self.pending_starts.remove(uuid);
            return;
        }
        let is_known = self.vms.watch(uuid).is_some() || self.pending_starts.get(uuid).is_some();
        let new = self
            .pending_starts
            .all()
            .filter(|pending| self.vms.watch(pending.spec.uuid).is_none())
            .count();
        if !is_known && self.vms.specs().count() + new >= MAX_VMS {
            // A report has at most this many VMs: another VM would be left out. The central node
            // places no VM on such a node.
            return tracing::error!(vm = %pending.spec.name, "a node has at most {MAX_VMS} VMs");
        }
        let missing = self.missing_volumes(&pending.spec);
        if self.releasing_vms.contains(&uuid) || !missing.is_empty() {
            missing.into_iter().for_each(|digest| self.volumes.fetch(digest));
            self.pending_starts.insert(pending);
            return;
        }
        let Some(pending) = self.write_disks(pending).await else { return };
        self.pending_starts.remove(uuid);
        self.start_now(pending);
    }

    fn start_now(&mut self, PendingStart { spec, start, grace, .. }: PendingStart) {
        let uuid = spec.uuid;
        self.start_failures.remove(&uuid);
        let conflicts = nic_addresses::conflicts(&spec, &self.nic_addresses.borrow());
        if !conflicts.is_empty() {
            return self.refuse(&spec, start, &conflicts);
        }
        let state = self.vms.watch(uuid).map(|report| report.borrow().state);
        let started = match state {
            Some(state) if is_workload(state) && self.vms.specs().any(|known| *known == *spec) => {
                self.vms.restart(uuid, grace, start)
            }
            _ => self.vms.start(&spec, start),
        };
        if let Err(error) = started {
            // The central node repeats the order, and the start is tried again.
            tracing::warn!(vm = %spec.name, %error, "not started");
            self.start_failures.insert(uuid, failure(VmFailureKind::Prepare, error.to_string()));
        }
    }

    pub(super) fn refuse(&mut self, spec: &VmSpec, start: u32, refusals: &[VmRefusal]) {
        let failure = combine_refusals(refusals);
        tracing::warn!(vm = %spec.name, reason = failure.detail, "the node cannot run a VM");
        if let Err(error) = self.vms.refuse(spec, start, failure) {
            tracing::error!(vm = %spec.name, %error, "cannot store a refusal");
        }
    }

    async fn fetch_ended(&mut self, digest: Digest, result: Result<(), VmRefusal>) {
        let needs = |pending: &&PendingStart| {
            pending.ordered && pending.spec.files().any(|(_, file)| file == digest)
        };
        let starts: Vec<PendingStart> = self.pending_starts.all().filter(needs).cloned().collect();
        for pending in starts {
            match &result {
                Ok(()) => self.start(pending).await,
                Err(refusal) => {
                    let spec = &pending.spec;
                    self.pending_starts.remove(spec.uuid);
                    let name = spec
                        .files()
                        .find(|(_, file)| *file == digest)
                        .map_or("", |(name, _)| name.as_str());
                    let detail = format!("volume {name}: {}", refusal.detail);
                    self.refuse(
                        spec,
                        pending.start,
                        &[VmRefusal { reason: refusal.reason, detail }],
                    );
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
        if let Some(pending) = self.pending_starts.get(uuid).cloned() {
            self.start(pending).await;
        }
    }

    pub(super) fn prune(&mut self) {
        let specs = self.vms.specs().chain(self.pending_starts.all().map(|pending| &*pending.spec));
        let needed =
            |spec: &VmSpec| ownership_marker::needed_volumes(&self.vms.files(spec.uuid), spec);
        let needed: BTreeSet<Digest> = specs.flat_map(needed).collect();
        self.volumes.keep_only(&needed);
    }

    fn open_console(&mut self, order: ConsoleOrder) {
        let endpoint = self.endpoint.borrow().clone();
        match endpoint {
            None => tracing::warn!(uuid = %order.uuid, "cannot open a console: there is no link"),
            Some(_) if self.console_sessions.len() >= MAX_CONSOLES => {
                tracing::warn!(uuid = %order.uuid, "cannot open a console: at most {MAX_CONSOLES} are open at once")
            }
            Some(endpoint) => {
                let console = self.vms.console(order.uuid);
                self.console_sessions
                    .spawn(console_session::open_console(endpoint, order, console));
            }
        }
    }
}
