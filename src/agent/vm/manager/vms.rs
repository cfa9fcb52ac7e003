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

/// Orders of one machine that wait.
const ORDERS: usize = 16;

/// Why a machine is not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node cannot run it.
    #[error("the node cannot run {name}: {}", launch::refused(.refusals).detail)]
    Refused {
        /// Name of the VM.
        name: String,
        /// Everything that stands against it.
        refusals: Vec<VmRefusal>,
    },
    /// The node has another specification of that UUID.
    #[error("{name} ({uuid}) is on this node with another specification; release it first")]
    Differs {
        /// The name of the one that is there.
        name: String,
        /// UUID of the VM.
        uuid: SystemUuid,
    },
    /// Its keeper has just gone, or has much to do.
    #[error("{0} is being released, or follows earlier orders; try again")]
    Gone(SystemUuid),
}

/// Why something of a machine stays.
#[derive(Debug, thiserror::Error)]
#[error("{uuid} is not released: {reason}")]
pub struct ReleaseError {
    /// UUID of the VM.
    pub uuid: SystemUuid,
    /// What stays, and why.
    pub reason: String,
}

/// The virtual machines of this node. Dropped, it lets go of them, and they run on.
#[derive(Debug)]
pub struct Vms {
    folder: PathBuf,
    places: Arc<HostConfig>,
    reservations: Reservations,
    machines: BTreeMap<SystemUuid, ManagedVm>,
    changed: watch::Sender<u64>,
    keepers: JoinSet<()>,
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
    /// Takes over every machine that has a folder below [`HostConfig::machines`], which need not exist.
    pub fn open(places: HostConfig) -> Self {
        let folder = places.machines.clone();
        let mut vms = Vms {
            folder: folder.clone(),
            places: Arc::new(places),
            reservations: Reservations::default(),
            machines: BTreeMap::new(),
            changed: watch::Sender::new(0),
            keepers: JoinSet::new(),
        };
        for uuid in vm_paths::all(&folder) {
            let files = VmPaths::new(&folder, uuid);
            if files.ownership_markers().exists() && !files.kept().exists() {
                // Its disks were being written: nothing of it runs, and it is begun anew when it is ordered again.
                continue;
            }
            let stored = files::read(&files.kept()).map_err(|error| error.to_string()).and_then(|text| {
                // Its own text would repeat parts of the file, which may hold secrets.
                serde_json::from_str::<PersistedVm>(&text)
                    .map_err(|error| format!("it is damaged at line {}", error.line()))
            });
            match stored {
                Ok(stored) if stored.spec.uuid == uuid => vms.keep(stored, files),
                Ok(_) => tracing::error!(%uuid, "the folder of a virtual machine holds another one; release it"),
                Err(reason) => tracing::error!(%uuid, reason, "a virtual machine cannot be taken over; release it"),
            }
        }
        vms
    }

    fn keep(&mut self, stored: PersistedVm, files: VmPaths) {
        let (spec, start) = (stored.spec.clone(), stored.start);
        let mut keeper =
            VmSupervisor::new(stored, files, self.places.clone(), self.reservations.clone(), self.changed.clone());
        let actions = keeper.adopt();
        let (orders, ordered) = mpsc::channel(ORDERS);
        let kept = ManagedVm { orders, reports: keeper.reports(), console: keeper.console(), start, spec };
        self.machines.insert(kept.spec.uuid, kept);
        self.keepers.spawn(keeper.run(ordered, actions));
    }

    /// Runs a machine, by the number of the order that says so. One that runs, or is about to, is left alone; one that is off is
    /// started again.
    ///
    /// # Errors
    /// Everything that stands against it; nothing was begun then.
    pub async fn start(&mut self, spec: &VmSpec, start: u32) -> Result<(), StartError> {
        self.same(spec)?;
        if !self.is_live(spec.uuid) {
            let host = resources::survey(&self.places, spec).await;
            self.reservations
                .take(spec, &host)
                .map_err(|refusals| StartError::Refused { name: spec.name.to_string(), refusals })?;
            self.bound_store().await;
        }
        self.give(spec, start, SupervisorCommand::Start(start)).await
    }

    /// Writes down that a machine could not be started, and why: it has failed, until the next order. One that runs is left alone.
    ///
    /// # Errors
    /// When another one has its UUID.
    pub async fn refuse(&mut self, spec: &VmSpec, start: u32, failure: VmFailure) -> Result<(), StartError> {
        self.same(spec)?;
        self.give(spec, start, SupervisorCommand::Refuse(start, failure)).await
    }

    /// Holds for a machine what it needs of the node, before there is one.
    ///
    /// # Errors
    /// Everything that stands against it; nothing is held then.
    pub async fn reserve(&self, spec: &VmSpec) -> Result<(), StartError> {
        self.same(spec)?;
        let host = resources::survey(&self.places, spec).await;
        let taken = self.reservations.take(spec, &host);
        taken.map(drop).map_err(|refusals| StartError::Refused { name: spec.name.to_string(), refusals })
    }

    /// What was held for one that does not come, unless there is one already.
    pub fn give_up(&self, uuid: SystemUuid) {
        if !self.is_live(uuid) {
            self.reservations.remove(uuid);
        }
    }

    /// Files of one, whether there is one or not.
    pub fn files(&self, uuid: SystemUuid) -> VmPaths {
        VmPaths::new(&self.folder, uuid)
    }

    /// This node.
    pub fn places(&self) -> Arc<HostConfig> {
        self.places.clone()
    }

    /// Disks of this node that belong to slots, from now on.
    pub fn set_slots(&self, slots: Vec<SlotDisk>) {
        self.reservations.set_slots(slots);
    }

    fn same(&self, spec: &VmSpec) -> Result<(), StartError> {
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

    /// Orders it of a machine, which is kept from now on.
    async fn give(&mut self, spec: &VmSpec, start: u32, order: SupervisorCommand) -> Result<(), StartError> {
        if !self.machines.contains_key(&spec.uuid) {
            let (kept, boot, ran) = (vm_event::VmRecord::default(), String::new(), false);
            let stored = PersistedVm { spec: spec.clone(), start, kept, boot, ran };
            self.keep(stored, VmPaths::new(&self.folder, spec.uuid));
        }
        if let Some(kept) = self.machines.get_mut(&spec.uuid) {
            kept.start = start;
        }
        self.order(spec.uuid, order).await.then_some(()).ok_or(StartError::Gone(spec.uuid))
    }

    /// Asks the guest to end, and ends it when `grace` is over; false where there is no such machine.
    pub async fn stop(&self, uuid: SystemUuid, grace: Duration) -> bool {
        self.order(uuid, SupervisorCommand::Stop(grace)).await
    }

    /// Stops a machine and runs it again, by this number; false where there is none.
    pub async fn restart(&mut self, uuid: SystemUuid, grace: Duration, start: u32) -> bool {
        let Some(kept) = self.machines.get_mut(&uuid) else { return false };
        kept.start = start;
        self.order(uuid, SupervisorCommand::Restart(grace, start)).await
    }

    /// The number of the order by which a machine was started last.
    pub fn started_by(&self, uuid: SystemUuid) -> Option<u32> {
        self.machines.get(&uuid).map(|kept| kept.start)
    }

    /// Everything that is kept.
    pub fn specs(&self) -> impl Iterator<Item = &VmSpec> {
        self.machines.values().map(|kept| &kept.spec)
    }

    /// Ends a machine at once and removes everything that it has on this node. One that is not there is released.
    ///
    /// # Errors
    /// When something of it stays.
    pub async fn release(&mut self, uuid: SystemUuid) -> Result<(), ReleaseError> {
        self.releasing(uuid, None, Vec::new()).await?;
        self.forget(uuid);
        Ok(())
    }

    /// The same, for who does not wait here: when it is done, [`Vms::forget`] it. `waits` is what it would have been, `said` are disks of
    /// it that are known elsewhere.
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
        let (places, reservations) = (self.places.clone(), self.reservations.clone());
        async move {
            let (done, is_done) = oneshot::channel();
            let removed = match orders {
                Some(orders) if orders.send(SupervisorCommand::Release(done)).await.is_ok() => {
                    is_done.await.unwrap_or(Ok(()))
                }
                _ => remove(files).await,
            };
            let gone = match removed {
                Ok(()) => disk_release::leave(places, reservations, uuid, left).await,
                Err(reason) => Err(reason),
            };
            gone.map_err(|reason| ReleaseError { uuid, reason })
        }
    }

    /// A machine that is released is nobody's any more.
    pub fn forget(&mut self, uuid: SystemUuid) {
        self.machines.remove(&uuid);
        // Those that have ended need not be kept in mind.
        while self.keepers.try_join_next().is_some() {}
    }

    async fn order(&self, uuid: SystemUuid, order: SupervisorCommand) -> bool {
        match self.machines.get(&uuid) {
            // One that is slow holds up nobody else; what it does not take is said again.
            Some(kept) => kept.orders.try_send(order).is_ok(),
            None => false,
        }
    }

    /// Where all stand, by UUID.
    pub fn reports(&self) -> Vec<VmReport> {
        self.machines.values().map(|kept| kept.reports.borrow().clone()).collect()
    }

    /// Where one stands, now and from now on.
    pub fn watch(&self, uuid: SystemUuid) -> Option<watch::Receiver<VmReport>> {
        self.machines.get(&uuid).map(|kept| kept.reports.clone())
    }

    /// Bounds the store by what is left of the node's memory now, where it lies in memory.
    pub async fn bound_store(&self) {
        let (places, reservations) = (self.places.clone(), self.reservations.clone());
        let bounding = tokio::task::spawn_blocking(move || {
            let (tree, machines) = (Tree::new(&places.root), &places.machines);
            let used = capacity::space(machines)?.used;
            capacity::bound(machines, &tree, reservations.store(memory::read(&tree, machines), used))
        });
        if let Err(error) = bounding.await.map_err(std::io::Error::other).and_then(|bounded| bounded) {
            tracing::debug!(%error, "the store is not bounded");
        }
    }

    /// What of this node is given away.
    pub fn reservations(&self) -> Reservations {
        self.reservations.clone()
    }

    /// Changes with every report of any machine.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The console of one.
    pub fn console(&self, uuid: SystemUuid) -> Option<Console> {
        self.machines.get(&uuid).map(|kept| kept.console.clone())
    }

    /// Addresses that the private network gave to cards, from now on: their guests may show them.
    pub async fn set_addresses(&self, given: nic_addresses::NicAddresses) {
        self.reservations.set_addresses(given);
        self.isolate().await;
    }

    /// Sees to it that the ports of guests have their filters.
    pub async fn isolate(&self) {
        if let Err(error) = tap_ports::isolate(&self.places, &self.reservations).await {
            tracing::error!(error, "guests may not be kept apart; tried again soon");
        }
    }
}

/// Removes what nobody keeps: the rest of a damaged folder.
async fn remove(files: VmPaths) -> Result<(), String> {
    if let Some(process) = qemu_process::find(&files.pid(), files.user()) {
        process.signal(Signal::KILL);
        let ended = timeout(vm_state_machine::KILL_PATIENCE, process.ended()).await;
        ended.map_err(|_| format!("process {} was killed and does not end", process.id()))?;
    }
    launch::end_any_tpm(&files).await;
    files.release().await
}
