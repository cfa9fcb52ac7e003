//! The VMs of this node: starts, stops, restarts and releases them by their supervisors, and takes over those of an earlier agent.

use crate::{
    files,
    system::Tree,
    vm::{
        console::console_log::Console,
        disks::disk_release,
        host::{capacity, config::HostConfig, memory, resources},
        net::{nic_addresses, tap_ports},
        process::{
            launch, qemu_process,
            supervisor::VmSupervisor,
            vm_event,
            vm_record::{PersistedVm, SupervisorCommand},
            vm_state_machine,
        },
        reservations::Reservations,
        vm_paths::{self, VmPaths},
    },
};
use meshd_proto::vm::{LeftDisk, SlotDisk, VmFailure, VmRefusal, VmReport, VmSpec};
use meshd_types::SystemUuid;
use rustix::process::Signal;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

/// Length of the command queue of a supervisor.
const COMMAND_QUEUE: usize = 16;

/// Why a VM is not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node lacks resources.
    #[error("the node cannot run {name}: {}", launch::refused(.refusals).detail)]
    Refused {
        /// Name of the VM.
        name: String,
        /// Every reason.
        refusals: Vec<VmRefusal>,
    },
    /// The node has another specification with the same UUID.
    #[error("{name} ({uuid}) is on this node with another specification; release it first")]
    Differs {
        /// Name of the existing VM.
        name: String,
        /// UUID of the VM.
        uuid: SystemUuid,
    },
    /// The supervisor has ended, or its queue is full.
    #[error("{0} is being released, or follows earlier orders; try again")]
    Gone(SystemUuid),
}

/// Why a VM is not released completely.
#[derive(Debug, thiserror::Error)]
#[error("{uuid} is not released: {reason}")]
pub struct ReleaseError {
    /// UUID of the VM.
    pub uuid: SystemUuid,
    /// What remains, and why.
    pub reason: String,
}

/// The VMs of this node. They continue to run when this is dropped.
#[derive(Debug)]
pub struct Vms {
    folder: PathBuf,
    config: Arc<HostConfig>,
    reservations: Reservations,
    machines: BTreeMap<SystemUuid, ManagedVm>,
    changed: watch::Sender<u64>,
    supervisors: JoinSet<()>,
}

#[derive(Debug)]
struct ManagedVm {
    spec: VmSpec,
    start: u32,
    orders: mpsc::Sender<SupervisorCommand>,
    reports: watch::Receiver<VmReport>,
    console: Console,
}

impl Vms {
    /// Takes over every VM that has a folder below [`HostConfig::machines`]. That folder need not exist.
    pub fn open(config: HostConfig) -> Self {
        let folder = config.machines.clone();
        let mut vms = Vms {
            folder: folder.clone(),
            config: Arc::new(config),
            reservations: Reservations::default(),
            machines: BTreeMap::new(),
            changed: watch::Sender::new(0),
            supervisors: JoinSet::new(),
        };
        for uuid in vm_paths::all(&folder) {
            let files = VmPaths::new(&folder, uuid);
            if files.ownership_markers().exists() && !files.kept().exists() {
                // The write of its disks was interrupted. The write starts again with the next order.
                continue;
            }
            let stored = files::read(&files.kept()).map_err(|error| error.to_string()).and_then(|text| {
                // The error text of serde_json would repeat parts of the file, which may contain secrets.
                serde_json::from_str::<PersistedVm>(&text)
                    .map_err(|error| format!("it is damaged at line {}", error.line()))
            });
            match stored {
                Ok(stored) if stored.spec.uuid == uuid => vms.supervise(stored, files),
                Ok(_) => tracing::error!(%uuid, "the folder of a virtual machine holds another one; release it"),
                Err(reason) => tracing::error!(%uuid, reason, "a virtual machine cannot be taken over; release it"),
            }
        }
        vms
    }

    fn supervise(&mut self, stored: PersistedVm, files: VmPaths) {
        let (spec, start) = (stored.spec.clone(), stored.start);
        let mut supervisor =
            VmSupervisor::new(stored, files, self.config.clone(), self.reservations.clone(), self.changed.clone());
        let actions = supervisor.adopt();
        let (orders, ordered) = mpsc::channel(COMMAND_QUEUE);
        let kept = ManagedVm { orders, reports: supervisor.reports(), console: supervisor.console(), start, spec };
        self.machines.insert(kept.spec.uuid, kept);
        self.supervisors.spawn(supervisor.run(ordered, actions));
    }

    /// Starts a VM by the start number of its order. A VM that runs or starts is left alone.
    ///
    /// # Errors
    /// Every reason; nothing was started.
    pub async fn start(&mut self, spec: &VmSpec, start: u32) -> Result<(), StartError> {
        self.check_spec(spec)?;
        if !self.is_live(spec.uuid) {
            let host = resources::survey(&self.config, spec).await;
            self.reservations
                .take(spec, &host)
                .map_err(|refusals| StartError::Refused { name: spec.name.to_string(), refusals })?;
            self.bound_store().await;
        }
        self.send_command(spec, start, SupervisorCommand::Start(start)).await
    }

    /// Records that a VM could not be started: it is failed until the next order. A VM that runs is left alone.
    ///
    /// # Errors
    /// Another VM has its UUID.
    pub async fn refuse(&mut self, spec: &VmSpec, start: u32, failure: VmFailure) -> Result<(), StartError> {
        self.check_spec(spec)?;
        self.send_command(spec, start, SupervisorCommand::Refuse(start, failure)).await
    }

    /// Reserves the resources of a VM that does not exist yet.
    ///
    /// # Errors
    /// Every reason; nothing was reserved.
    pub async fn reserve(&self, spec: &VmSpec) -> Result<(), StartError> {
        self.check_spec(spec)?;
        let host = resources::survey(&self.config, spec).await;
        let taken = self.reservations.take(spec, &host);
        taken.map(drop).map_err(|refusals| StartError::Refused { name: spec.name.to_string(), refusals })
    }

    /// Cancels the reservation of a VM that does not run.
    pub fn cancel_reservation(&self, uuid: SystemUuid) {
        if !self.is_live(uuid) {
            self.reservations.remove(uuid);
        }
    }

    /// Returns the paths of a VM, which need not exist.
    pub fn files(&self, uuid: SystemUuid) -> VmPaths {
        VmPaths::new(&self.folder, uuid)
    }

    /// Returns the configuration of the node.
    pub fn config(&self) -> Arc<HostConfig> {
        self.config.clone()
    }

    /// Sets the disks of this node that belong to slots.
    pub fn set_slots(&self, slots: Vec<SlotDisk>) {
        self.reservations.set_slots(slots);
    }

    fn check_spec(&self, spec: &VmSpec) -> Result<(), StartError> {
        match self.machines.get(&spec.uuid) {
            Some(kept) if kept.spec != *spec => {
                Err(StartError::Differs { name: kept.spec.name.to_string(), uuid: spec.uuid })
            }
            _ => Ok(()),
        }
    }

    fn is_live(&self, uuid: SystemUuid) -> bool {
        self.machines.get(&uuid).is_some_and(|kept| kept.reports.borrow().state.is_live())
    }

    /// Sends a command to the supervisor of a VM, which is started if necessary.
    async fn send_command(&mut self, spec: &VmSpec, start: u32, order: SupervisorCommand) -> Result<(), StartError> {
        if !self.machines.contains_key(&spec.uuid) {
            let (kept, boot, ran) = (vm_event::VmRecord::default(), String::new(), false);
            // Not yet by this order: a report of a stopped VM that bears its number would be taken for its result.
            let stored = PersistedVm { spec: spec.clone(), start: start.wrapping_sub(1), kept, boot, ran };
            self.supervise(stored, VmPaths::new(&self.folder, spec.uuid));
        }
        if let Some(kept) = self.machines.get_mut(&spec.uuid) {
            kept.start = start;
        }
        self.order(spec.uuid, order).await.then_some(()).ok_or(StartError::Gone(spec.uuid))
    }

    /// Shuts the guest down, and kills it after `grace`. Returns false if there is no such VM.
    pub async fn stop(&self, uuid: SystemUuid, grace: Duration) -> bool {
        self.order(uuid, SupervisorCommand::Stop(grace)).await
    }

    /// Stops a VM and starts it again by this start number. Returns false if there is no such VM.
    pub async fn restart(&mut self, uuid: SystemUuid, grace: Duration, start: u32) -> bool {
        let Some(kept) = self.machines.get_mut(&uuid) else { return false };
        kept.start = start;
        self.order(uuid, SupervisorCommand::Restart(grace, start)).await
    }

    /// Returns the number of the last start order of a VM.
    pub fn started_by(&self, uuid: SystemUuid) -> Option<u32> {
        self.machines.get(&uuid).map(|kept| kept.start)
    }

    /// Returns the specifications of all VMs.
    pub fn specs(&self) -> impl Iterator<Item = &VmSpec> {
        self.machines.values().map(|kept| &kept.spec)
    }

    /// Kills a VM and removes everything that it has on this node. Succeeds if there is no such VM.
    ///
    /// # Errors
    /// Something of the VM remains.
    pub async fn release(&mut self, uuid: SystemUuid) -> Result<(), ReleaseError> {
        self.releasing(uuid, None, Vec::new()).await?;
        self.forget(uuid);
        Ok(())
    }

    /// Like [`Vms::release`], as a future that does not borrow: call [`Vms::forget`] afterwards. `waits` is the specification of a VM that
    /// waits, `said` are disks that only the central node knows.
    pub fn releasing(
        &self,
        uuid: SystemUuid,
        waits: Option<&VmSpec>,
        said: Vec<LeftDisk>,
    ) -> impl Future<Output = Result<(), ReleaseError>> + Send + 'static {
        let kept = self.machines.get(&uuid);
        let files = VmPaths::new(&self.folder, uuid);
        let left = disk_release::disks_of(&files, kept.map(|kept| &kept.spec).or(waits), said);
        let orders = kept.map(|kept| kept.orders.clone());
        let (config, reservations) = (self.config.clone(), self.reservations.clone());
        async move {
            let (done, is_done) = oneshot::channel();
            let removed = match orders {
                Some(orders) if orders.send(SupervisorCommand::Release(done)).await.is_ok() => {
                    is_done.await.unwrap_or(Ok(()))
                }
                _ => remove(files).await,
            };
            let gone = match removed {
                Ok(()) => disk_release::leave(config, reservations, uuid, left).await,
                Err(reason) => Err(reason),
            };
            gone.map_err(|reason| ReleaseError { uuid, reason })
        }
    }

    /// Removes a released VM.
    pub fn forget(&mut self, uuid: SystemUuid) {
        self.machines.remove(&uuid);
        // Collect tasks that ended.
        while self.supervisors.try_join_next().is_some() {}
    }

    async fn order(&self, uuid: SystemUuid, order: SupervisorCommand) -> bool {
        match self.machines.get(&uuid) {
            // A slow supervisor must not block the others. The central node repeats the order.
            Some(kept) => kept.orders.try_send(order).is_ok(),
            None => false,
        }
    }

    /// Returns the reports of all VMs, by UUID.
    pub fn reports(&self) -> Vec<VmReport> {
        self.machines.values().map(|kept| kept.reports.borrow().clone()).collect()
    }

    /// Watches the report of a VM.
    pub fn watch(&self, uuid: SystemUuid) -> Option<watch::Receiver<VmReport>> {
        self.machines.get(&uuid).map(|kept| kept.reports.clone())
    }

    /// Limits a store in memory by the memory that is left now.
    pub async fn bound_store(&self) {
        let (config, reservations) = (self.config.clone(), self.reservations.clone());
        let bounding = tokio::task::spawn_blocking(move || {
            let (tree, machines) = (Tree::new(&config.root), &config.machines);
            let used = capacity::space(machines)?.used;
            capacity::bound(machines, &tree, reservations.store(memory::read(&tree, machines), used))
        });
        if let Err(error) = bounding.await.map_err(std::io::Error::other).and_then(|bounded| bounded) {
            tracing::debug!(%error, "the store is not bounded");
        }
    }

    /// Returns the reservations of this node.
    pub fn reservations(&self) -> Reservations {
        self.reservations.clone()
    }

    /// Changes with every report of any VM.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns the console of a VM.
    pub fn console(&self, uuid: SystemUuid) -> Option<Console> {
        self.machines.get(&uuid).map(|kept| kept.console.clone())
    }

    /// Sets the addresses that the private network assigned to NICs; the firewall lets guests use them.
    pub async fn set_addresses(&self, given: nic_addresses::NicAddresses) {
        self.reservations.set_addresses(given);
        self.isolate().await;
    }

    /// Installs the filters of all guest ports.
    pub async fn isolate(&self) {
        if let Err(error) = tap_ports::isolate(&self.config, &self.reservations).await {
            tracing::error!(error, "guests may not be kept apart; tried again soon");
        }
    }
}

/// Removes a VM without supervisor: its folder is damaged.
async fn remove(files: VmPaths) -> Result<(), String> {
    if let Some(process) = qemu_process::find(&files.pid(), files.user()) {
        process.signal(Signal::KILL);
        let ended = timeout(vm_state_machine::KILL_TIMEOUT, process.ended()).await;
        ended.map_err(|_| format!("process {} was killed and does not end", process.id()))?;
    }
    launch::end_any_tpm(&files).await;
    files.release().await
}
