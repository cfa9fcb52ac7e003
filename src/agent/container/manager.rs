//! Executes the actions of all replicas of this node, in a task beside the link.

use super::{
    ContainerHost, EntryNumber, PublishedReplicas, bundle,
    health_probe::ProbedReplica,
    log_session,
    replica_cgroup::ReplicaCgroups,
    replica_exec::ReplicaExec,
    replica_machine::{ImageState, ReplicaAction, ReplicaMachine, ReplicaRecord},
    replica_paths::{self, ReplicaPaths},
    runtime::{self, ContainerRuntime},
    supervisor::{self, Launch},
};
use crate::{
    link::call::Endpoint,
    system::{Tree, user_ids},
    vm::{LoginFault, Volumes},
};
use meshd_proto::{
    container::{
        ContainerDesiredState, ContainerEntry, ContainerFault, ContainerUpdate, ExecOrder,
        HealthCheck, LogsOrder, MAX_NODE_REPLICAS, ReplicaId, ReplicaSpec,
    },
    vm::{VmRefusal, VmRefusalReason},
};
use meshd_types::{Digest, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinSet, spawn_blocking},
    time::{Instant, MissedTickBehavior, interval, sleep},
};

/// How often replicas are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How often unused images and volumes are removed. A central node that was away has repeated its orders by
/// then.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// Time in which the processes of a removed replica end.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Delay before the removal of a replica is tried again.
const REMOVAL_RETRY: Duration = Duration::from_secs(5);
/// Maximum number of users that read logs at once.
const MAX_LOG_SESSIONS: usize = 32;
/// Maximum number of actions of one replica in one pass.
const MAX_ACTIONS: usize = 4;

#[derive(Debug)]
pub(super) enum ManagerOrder {
    Entry(EntryNumber, ContainerEntry),
    Logs(LogsOrder),
    Exec(ExecOrder, oneshot::Sender<Result<ReplicaExec, LoginFault>>),
}

struct ManagedReplica {
    machine: ReplicaMachine,
    /// The record that is stored.
    stored: Option<ReplicaRecord>,
    is_removing: bool,
}

pub(super) struct ContainerManager {
    host: ContainerHost,
    cgroups: Result<ReplicaCgroups, String>,
    volumes: Volumes,
    endpoint: watch::Receiver<Option<Endpoint>>,
    replicas: BTreeMap<ReplicaId, ManagedReplica>,
    probes: JoinSet<(ReplicaId, u32, bool)>,
    removals: JoinSet<(ReplicaId, Result<(), String>)>,
    log_sessions: JoinSet<()>,
    began: Instant,
    /// The last order that was applied.
    observed: EntryNumber,
    reports: watch::Sender<PublishedReplicas>,
    updates: mpsc::Sender<ContainerUpdate>,
}

impl ContainerManager {
    pub fn open(
        host: ContainerHost,
        volumes: Volumes,
        endpoint: watch::Receiver<Option<Endpoint>>,
        updates: mpsc::Sender<ContainerUpdate>,
    ) -> Self {
        let cgroups = ReplicaCgroups::open(&host.folder, &host.cgroup_mount);
        let records = replica_paths::records(&host.folder).into_iter();
        let replicas = records.map(|(replica, record)| {
            tracing::info!(%replica, "taking over a container");
            let machine = ReplicaMachine::restore(record);
            (replica, ManagedReplica { machine, stored: None, is_removing: false })
        });
        let mut manager = ContainerManager {
            cgroups,
            volumes,
            endpoint,
            replicas: replicas.collect(),
            probes: JoinSet::new(),
            removals: JoinSet::new(),
            log_sessions: JoinSet::new(),
            began: Instant::now(),
            observed: EntryNumber::default(),
            reports: watch::Sender::default(),
            updates,
            host,
        };
        manager.publish();
        manager
    }

    pub fn reports(&self) -> watch::Receiver<PublishedReplicas> {
        self.reports.subscribe()
    }

    pub async fn run(mut self, mut orders: mpsc::UnboundedReceiver<ManagerOrder>) {
        let [mut looks, mut prune] = [LOOK_INTERVAL, PRUNE_INTERVAL].map(|period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        prune.reset();
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return,
                    Some(ManagerOrder::Entry(number, entry)) => {
                        self.apply(entry).await;
                        self.observed = number;
                    }
                    Some(ManagerOrder::Logs(order)) => self.open_log(order),
                    Some(ManagerOrder::Exec(order, answer)) => {
                        // The one who asked may be gone.
                        let _ = answer.send(self.prepare_exec(&order));
                    }
                },
                (digest, result) = self.volumes.next() => self.fetch_ended(digest, result),
                Some(probe) = self.probes.join_next() => {
                    if let Ok((replica, run, is_healthy)) = probe {
                        self.probe_ended(&replica, run, is_healthy);
                    }
                }
                Some(removal) = self.removals.join_next() => match removal {
                    Ok((replica, result)) => self.removal_ended(replica, result).await,
                    Err(error) => tracing::error!(%error, "the removal of a container failed"),
                },
                Some(_) = self.log_sessions.join_next() => continue,
                _ = looks.tick(), if !self.replicas.is_empty() => {}
                _ = prune.tick() => self.prune(),
            }
            self.step_all();
            self.publish();
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn apply(&mut self, ContainerEntry { replica, desired_state }: ContainerEntry) {
        if let Some(managed) = self.replicas.get_mut(&replica) {
            return managed.machine.set_desired(desired_state);
        }
        match desired_state {
            ContainerDesiredState::Run(_) if self.replicas.len() >= MAX_NODE_REPLICAS => {
                // A report has at most this many replicas. The central node places no other one.
                tracing::error!(%replica, "a node has at most {MAX_NODE_REPLICAS} replicas");
            }
            desired @ ContainerDesiredState::Run(_) => {
                let machine = ReplicaMachine::new(desired);
                let managed = ManagedReplica { machine, stored: None, is_removing: false };
                self.replicas.insert(replica, managed);
            }
            // There is nothing to stop.
            ContainerDesiredState::Stopped => {}
            ContainerDesiredState::Gone => {
                // A new link repeats the order.
                let _ = self.updates.try_send(ContainerUpdate::Released { replica });
            }
        }
    }

    fn step_all(&mut self) {
        let replicas: Vec<ReplicaId> = self.replicas.keys().cloned().collect();
        for replica in replicas {
            for _ in 0..MAX_ACTIONS {
                let Some(action) = self.next_action(&replica) else { break };
                self.execute(&replica, action);
            }
            self.store_record(&replica);
        }
    }

    fn next_action(&mut self, replica: &ReplicaId) -> Option<ReplicaAction> {
        let now = self.now();
        let supervisor = self.paths(replica).supervisor_state();
        let spec = self.replicas.get(replica)?.machine.ordered_spec();
        let image = spec.map_or(ImageState::Missing, |spec| self.image_state(spec));
        let managed = self.replicas.get_mut(replica)?;
        if managed.is_removing {
            return None;
        }
        managed.machine.step(now, &supervisor, image)
    }

    fn image_state(&self, spec: &ReplicaSpec) -> ImageState {
        let (present, missing): (Vec<_>, Vec<_>) =
            spec.files().partition(|(file, _)| self.volumes.has(file));
        if missing.is_empty() {
            return ImageState::Present;
        }
        if missing.iter().any(|(file, _)| !self.volumes.is_fetching(file)) {
            return ImageState::Missing;
        }
        let size = |files: &[(Digest, u64)]| {
            files.iter().fold(0_u64, |sum, (_, size)| sum.saturating_add(*size))
        };
        let fetched = self.volumes.progress(missing.iter().map(|(file, _)| *file)).bytes;
        let bytes = size(&present).saturating_add(fetched);
        let total = size(&present).saturating_add(size(&missing));
        let percent = bytes.saturating_mul(100) / total.max(1);
        ImageState::Fetching { percent: u8::try_from(percent.min(100)).unwrap_or(100) }
    }

    fn execute(&mut self, replica: &ReplicaId, action: ReplicaAction) {
        tracing::debug!(%replica, ?action, "container");
        match action {
            ReplicaAction::Fetch => {
                let spec =
                    self.replicas.get(replica).and_then(|found| found.machine.ordered_spec());
                for (file, _) in spec.into_iter().flat_map(ReplicaSpec::files) {
                    if !self.volumes.has(&file) {
                        self.volumes.fetch(file);
                    }
                }
            }
            ReplicaAction::Start(spec) => {
                // Before the start: a restarted agent must know the supervisor.
                self.store_record(replica);
                if let Err((kind, detail)) = self.start(replica, *spec)
                    && let Some(managed) = self.replicas.get_mut(replica)
                {
                    tracing::warn!(%replica, ?kind, detail, "cannot start a container");
                    managed.machine.start_failed(kind, &detail);
                }
            }
            ReplicaAction::Terminate => {
                if let Ok(cgroups) = &self.cgroups {
                    cgroups.group(replica).terminate(&self.paths(replica).pid());
                }
            }
            ReplicaAction::Kill => {
                if let Ok(cgroups) = &self.cgroups {
                    cgroups.group(replica).kill_program();
                }
            }
            ReplicaAction::Probe(check) => self.probe(replica, check),
            ReplicaAction::Remove => self.remove(replica),
        }
    }

    fn start(
        &self,
        replica: &ReplicaId,
        spec: ReplicaSpec,
    ) -> Result<(), (ContainerFault, String)> {
        let faults: Vec<String> = spec
            .faults()
            .into_iter()
            .map(|fault| format!("{}: {}", fault.key, fault.message))
            .collect();
        if !faults.is_empty() {
            return Err((ContainerFault::Prepare, faults.join("; ")));
        }
        if user_ids::is_assigned(spec.uid) && failpoint::defends("container-user") {
            let detail = format!("invalid user {}: the node assigns it to VMs and tasks", spec.uid);
            return Err((ContainerFault::Prepare, detail));
        }
        let program = runtime::find(&Tree::new(&self.host.root)).ok_or_else(|| {
            (ContainerFault::RuntimeMissing, "crun is not installed on this node".to_owned())
        })?;
        let no_groups = |error: String| (ContainerFault::CgroupMissing, error);
        let cgroups = self.cgroups.as_ref().map_err(|error| no_groups(error.clone()))?;
        let cgroup = cgroups.group(replica);
        cgroup.make(&spec).map_err(no_groups)?;
        let image = self.volumes.path(&spec.image);
        let volumes = spec.mounts.iter().map(|mount| self.volumes.path(&mount.volume)).collect();
        let launch = Launch {
            replica: replica.clone(),
            mount_points: bundle::mount_points(&spec),
            spec,
            image,
            volumes,
            cgroup,
            hierarchy: cgroups.hierarchy().to_owned(),
            program,
            runtime_state: replica_paths::runtime_state(&self.host.folder),
        };
        tracing::info!(%replica, run = launch.spec.run, "starting a container");
        supervisor::start(&self.paths(replica), &launch)
            .map_err(|error| (ContainerFault::Prepare, format!("cannot start a process: {error}")))
    }

    fn probe(&mut self, replica: &ReplicaId, check: HealthCheck) {
        let Some(probed) = self.probe_target(replica) else { return };
        let run = probed.spec.run;
        self.probes.spawn(async move {
            let is_healthy = probed.probe(&check).await;
            (probed.replica, run, is_healthy)
        });
    }

    fn probe_target(&self, replica: &ReplicaId) -> Option<ProbedReplica> {
        let spec = self.replicas.get(replica)?.machine.spec()?.clone();
        let cgroups = self.cgroups.as_ref().ok()?;
        Some(ProbedReplica {
            replica: replica.clone(),
            spec,
            paths: self.paths(replica),
            cgroup: cgroups.group(replica),
            hierarchy: cgroups.hierarchy().to_owned(),
            runtime: self.runtime()?,
        })
    }

    fn runtime(&self) -> Option<ContainerRuntime> {
        let program = runtime::find(&Tree::new(&self.host.root))?;
        Some(ContainerRuntime { program, state: replica_paths::runtime_state(&self.host.folder) })
    }

    fn prepare_exec(&self, order: &ExecOrder) -> Result<ReplicaExec, LoginFault> {
        let replica = self.probe_target(&order.replica).ok_or_else(|| {
            LoginFault::new(
                format!("{} does not run on this node", order.replica),
                "see `meshd container show`",
            )
        })?;
        ReplicaExec::prepare(&replica, order)
    }

    fn probe_ended(&mut self, replica: &ReplicaId, run: u32, is_healthy: bool) {
        let now = self.now();
        if let Some(managed) = self.replicas.get_mut(replica)
            && managed.machine.spec().is_some_and(|spec| spec.run == run)
        {
            managed.machine.probe_ended(now, is_healthy);
        }
    }

    fn fetch_ended(&mut self, digest: Digest, result: Result<(), VmRefusal>) {
        let Err(VmRefusal { reason, detail }) = result else { return };
        let kind = match reason {
            VmRefusalReason::VolumeMissing => ContainerFault::ImageMissing,
            VmRefusalReason::VolumeDiffers => ContainerFault::ImageDiffers,
            _ => ContainerFault::Prepare,
        };
        let detail = format!("volume {}: {detail}", digest.short());
        for managed in self.replicas.values_mut() {
            let is_needed = managed
                .machine
                .ordered_spec()
                .is_some_and(|spec| spec.files().any(|(file, _)| file == digest));
            if is_needed {
                managed.machine.fetch_failed(kind, &detail);
            }
        }
    }

    /// Removes a replica in the background: its processes may hang in the kernel.
    fn remove(&mut self, replica: &ReplicaId) {
        let Some(managed) = self.replicas.get_mut(replica) else { return };
        managed.is_removing = true;
        let paths = ReplicaPaths::new(&self.host.folder, replica);
        let cgroup = self.cgroups.as_ref().ok().map(|cgroups| cgroups.group(replica));
        let state = replica_paths::runtime_state(&self.host.folder).join(replica.to_string());
        let replica = replica.clone();
        self.removals.spawn(async move {
            let removed = spawn_blocking(move || {
                if cgroup.is_some_and(|cgroup| !cgroup.end(END_LIMIT)) {
                    return Err("a process does not end".to_owned());
                }
                let removed = paths.remove().and_then(|()| replica_paths::remove_folder(&state));
                removed.map_err(|error| error.to_string())
            });
            let removed = removed.await.map_err(|error| error.to_string()).and_then(|done| done);
            if removed.is_err() {
                sleep(REMOVAL_RETRY).await;
            }
            (replica, removed)
        });
    }

    async fn removal_ended(&mut self, replica: ReplicaId, result: Result<(), String>) {
        match result {
            Ok(()) => {
                self.replicas.remove(&replica);
                self.prune();
                // The manager of the link takes it; the next link repeats the order otherwise.
                let _ = self.updates.try_send(ContainerUpdate::Released { replica });
            }
            Err(reason) => {
                tracing::error!(%replica, reason, "cannot remove a container; retrying");
                self.remove(&replica);
            }
        }
    }

    fn open_log(&mut self, order: LogsOrder) {
        let endpoint = self.endpoint.borrow().clone();
        match endpoint {
            None => tracing::warn!(replica = %order.replica, "cannot open a log: there is no link"),
            Some(_) if self.log_sessions.len() >= MAX_LOG_SESSIONS => {
                tracing::warn!("cannot open a log: {MAX_LOG_SESSIONS} are open");
            }
            Some(endpoint) => {
                let is_known = self.replicas.contains_key(&order.replica);
                let log = is_known.then(|| self.paths(&order.replica).log());
                self.log_sessions.spawn(log_session::run(endpoint, order, log));
            }
        }
    }

    fn prune(&mut self) {
        let machines = self.replicas.values().map(|managed| &managed.machine);
        let specs = machines.flat_map(|machine| [machine.spec(), machine.ordered_spec()]);
        let files = specs.flatten().flat_map(ReplicaSpec::files);
        let needed: BTreeSet<Digest> = files.map(|(file, _)| file).collect();
        self.volumes.keep_only(&needed);
    }

    fn paths(&self, replica: &ReplicaId) -> ReplicaPaths {
        ReplicaPaths::new(&self.host.folder, replica)
    }

    fn store_record(&mut self, replica: &ReplicaId) {
        let paths = self.paths(replica);
        let Some(managed) = self.replicas.get_mut(replica) else { return };
        let record = managed.machine.record();
        if managed.is_removing || managed.stored.as_ref() == Some(record) {
            return;
        }
        match paths.make().and_then(|()| paths.store_record(record)) {
            Ok(()) => managed.stored = Some(record.clone()),
            Err(error) => tracing::error!(%replica, %error, "cannot store a container"),
        }
    }

    fn publish(&mut self) {
        let workloads = self.replicas.values().filter(|managed| managed.machine.is_workload());
        let published = PublishedReplicas {
            observed: self.observed,
            workloads: u32::try_from(workloads.count()).unwrap_or(u32::MAX),
            replicas: self
                .replicas
                .iter()
                .map(|(replica, managed)| managed.machine.report(replica))
                .collect(),
        };
        self.reports.send_if_modified(|last| {
            let is_new = *last != published;
            *last = published;
            is_new
        });
    }
}
