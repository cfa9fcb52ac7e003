//! Virtual machines: what the node does with a specification.
//!
//! ```text
//! host     what of this node matters          promised  what of it is given away     hosting  what of it the central node is told
//! plan     specification and node ─▶ everything that stands against it, or what it is made of        pure
//! argv     ─▶ QEMU's command line                                                                    pure
//! seed     ─▶ cloud-init's disk                                                                     pure
//! machine  starting, running, stopping, waiting, stopped, failed: what follows what, and when        pure
//! event    its words             ending   why one ended or is held                                   pure
//! folder   run folder of one machine: all that it has on this node
//! confine  who runs what a machine needs: an unprivileged user, a control group, no new rights
//! process  QEMU as a process that outlives the agent     session  what is said to it (qmp: pure)
//! console  what the guest wrote, the newest of it, kept by QEMU itself
//! launch   node ─▶ plan ─▶ files ─▶ process       keeper  one machine, kept; takes over what runs
//! write    image ─▶ disk of the node, before the first start      marks   what became of its disks     block   a disk, held alone
//! leave    the disks that one had are idle, and wiped
//! volumes  files by their digests, fetched from the central node     room  how much fits     memory  how much of it is left
//! desk     what the central node wishes ─▶ orders, in time; reports, in measure     waiting  those that wait     sitting  a console
//! ```
//! QEMU is run directly, by argument vector and control socket; no daemon stands in between. Agents come and go, machines stay.

mod argv;
mod block;
mod clean;
pub mod confine;
mod console;
mod manager;
mod exit_status;
mod event;
mod folder;
mod nic_addresses;
mod host;
mod hosting;
mod supervisor;
mod records;
mod keyboard;
mod launch;
mod release;
mod machine;
mod ownership_marker;
mod memory;
mod models;
mod plan;
mod ports;
mod process;
mod reservations;
mod qmp;
mod room;
mod seed;
mod session;
mod console_session;
mod volumes;
mod waiting_vms;
mod disk_write;

pub use console::{Console, ConsoleReader, Heard, KEPT as CONSOLE_KEPT, Listening, Typist};
pub use host::{Doctor, Places};
pub use hosting::hosting;
pub use manager::{Desk, Endpoint};
pub(super) use memory::{resident, taken};
pub use models::Models;
pub(super) use room::{Space, space, store};

use self::{
    folder::Files,
    records::{Order, Stored},
    reservations::Reservations,
    supervisor::Keeper,
};
use super::{files, system::Tree};
use meshd_proto::vm::{LeftDisk, SlotDisk, VmFailure, VmRefusal, VmReport, VmSpec};
use meshd_types::SystemUuid;
use rustix::process::Signal;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

/// Where virtual machines and their volumes lie on a node.
pub const FOLDER: &str = "/var/lib/machines";
/// The folder of files by digest, below that of all machines.
pub fn volumes(machines: &Path) -> PathBuf {
    machines.join("volumes")
}

/// Orders of one machine that wait.
const ORDERS: usize = 16;

/// Why a machine is not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node cannot run it.
    #[error("the node cannot run {name}: {}", launch::refused(.refusals).detail)]
    Refused {
        /// Its name.
        name: String,
        /// Everything that stands against it.
        refusals: Vec<VmRefusal>,
    },
    /// The node has another specification of that UUID.
    #[error("{name} ({uuid}) is on this node with another specification; release it first")]
    Differs {
        /// The name of the one that is there.
        name: String,
        /// Which.
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
    /// Which.
    pub uuid: SystemUuid,
    /// What stays, and why.
    pub reason: String,
}

/// The virtual machines of this node. Dropped, it lets go of them, and they run on.
#[derive(Debug)]
pub struct Vms {
    folder: PathBuf,
    places: Arc<Places>,
    promised: Reservations,
    machines: BTreeMap<SystemUuid, KeptVm>,
    changed: watch::Sender<u64>,
    keepers: JoinSet<()>,
}

#[derive(Debug)]
struct KeptVm {
    spec: VmSpec,
    start: u32,
    orders: mpsc::Sender<Order>,
    reports: watch::Receiver<VmReport>,
    console: Console,
}

impl Vms {
    /// Takes over every machine that has a folder below [`Places::machines`], which need not exist.
    pub fn open(places: Places) -> Self {
        let folder = places.machines.clone();
        let mut vms = Vms {
            folder: folder.clone(),
            places: Arc::new(places),
            promised: Reservations::default(),
            machines: BTreeMap::new(),
            changed: watch::Sender::new(0),
            keepers: JoinSet::new(),
        };
        for uuid in folder::all(&folder) {
            let files = Files::new(&folder, uuid);
            if files.marks().exists() && !files.kept().exists() {
                // Its disks were being written: nothing of it runs, and it is begun anew when it is ordered again.
                continue;
            }
            let stored = files::read(&files.kept()).map_err(|error| error.to_string()).and_then(|text| {
                // Its own text would repeat parts of the file, which may hold secrets.
                serde_json::from_str::<Stored>(&text).map_err(|error| format!("it is damaged at line {}", error.line()))
            });
            match stored {
                Ok(stored) if stored.spec.uuid == uuid => vms.keep(stored, files),
                Ok(_) => tracing::error!(%uuid, "the folder of a virtual machine holds another one; release it"),
                Err(reason) => tracing::error!(%uuid, reason, "a virtual machine cannot be taken over; release it"),
            }
        }
        vms
    }

    fn keep(&mut self, stored: Stored, files: Files) {
        let (spec, start) = (stored.spec.clone(), stored.start);
        let mut keeper = Keeper::new(stored, files, self.places.clone(), self.promised.clone(), self.changed.clone());
        let actions = keeper.adopt();
        let (orders, ordered) = mpsc::channel(ORDERS);
        let kept = KeptVm { orders, reports: keeper.reports(), console: keeper.console(), start, spec };
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
            let host = launch::survey(&self.places, spec).await;
            self.promised
                .take(spec, &host)
                .map_err(|refusals| StartError::Refused { name: spec.name.to_string(), refusals })?;
            self.bound_store().await;
        }
        self.give(spec, start, Order::Start(start)).await
    }

    /// Writes down that a machine could not be started, and why: it has failed, until the next order. One that runs is left alone.
    ///
    /// # Errors
    /// When another one has its UUID.
    pub async fn refuse(&mut self, spec: &VmSpec, start: u32, failure: VmFailure) -> Result<(), StartError> {
        self.same(spec)?;
        self.give(spec, start, Order::Refuse(start, failure)).await
    }

    /// Holds for a machine what it needs of the node, before there is one.
    ///
    /// # Errors
    /// Everything that stands against it; nothing is held then.
    pub async fn reserve(&self, spec: &VmSpec) -> Result<(), StartError> {
        self.same(spec)?;
        let host = launch::survey(&self.places, spec).await;
        let taken = self.promised.take(spec, &host);
        taken.map(drop).map_err(|refusals| StartError::Refused { name: spec.name.to_string(), refusals })
    }

    /// What was held for one that does not come, unless there is one already.
    pub fn give_up(&self, uuid: SystemUuid) {
        if !self.is_live(uuid) {
            self.promised.remove(uuid);
        }
    }

    /// Files of one, whether there is one or not.
    pub fn files(&self, uuid: SystemUuid) -> Files {
        Files::new(&self.folder, uuid)
    }

    /// This node.
    pub fn places(&self) -> Arc<Places> {
        self.places.clone()
    }

    /// Disks of this node that belong to slots, from now on.
    pub fn set_slots(&self, slots: Vec<SlotDisk>) {
        self.promised.set_slots(slots);
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
    async fn give(&mut self, spec: &VmSpec, start: u32, order: Order) -> Result<(), StartError> {
        if !self.machines.contains_key(&spec.uuid) {
            let (kept, boot, ran) = (machine::VmRecord::default(), String::new(), false);
            // Not yet by this order: a report of a stopped VM that bears its number would be taken for its result.
            let stored = Stored { spec: spec.clone(), start: start.wrapping_sub(1), kept, boot, ran };
            self.keep(stored, Files::new(&self.folder, spec.uuid));
        }
        if let Some(kept) = self.machines.get_mut(&spec.uuid) {
            kept.start = start;
        }
        self.order(spec.uuid, order).await.then_some(()).ok_or(StartError::Gone(spec.uuid))
    }

    /// Asks the guest to end, and ends it when `grace` is over; false where there is no such machine.
    pub async fn stop(&self, uuid: SystemUuid, grace: Duration) -> bool {
        self.order(uuid, Order::Stop(grace)).await
    }

    /// Stops a machine and runs it again, by this number; false where there is none.
    pub async fn restart(&mut self, uuid: SystemUuid, grace: Duration, start: u32) -> bool {
        let Some(kept) = self.machines.get_mut(&uuid) else { return false };
        kept.start = start;
        self.order(uuid, Order::Restart(grace, start)).await
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
        let files = Files::new(&self.folder, uuid);
        let left = release::disks_of(&files, kept.map(|kept| &kept.spec).or(waits), said);
        let orders = kept.map(|kept| kept.orders.clone());
        let (places, promised) = (self.places.clone(), self.promised.clone());
        async move {
            let (done, is_done) = oneshot::channel();
            let removed = match orders {
                Some(orders) if orders.send(Order::Release(done)).await.is_ok() => is_done.await.unwrap_or(Ok(())),
                _ => remove(files).await,
            };
            let gone = match removed {
                Ok(()) => release::leave(places, promised, uuid, left).await,
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

    async fn order(&self, uuid: SystemUuid, order: Order) -> bool {
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
    async fn bound_store(&self) {
        let (places, promised) = (self.places.clone(), self.promised.clone());
        let bounding = tokio::task::spawn_blocking(move || {
            let (tree, machines) = (Tree::new(&places.root), &places.machines);
            let used = room::space(machines)?.used;
            room::bound(machines, &tree, promised.store(memory::read(&tree, machines), used))
        });
        if let Err(error) = bounding.await.map_err(std::io::Error::other).and_then(|bounded| bounded) {
            tracing::debug!(%error, "the store is not bounded");
        }
    }

    /// What of this node is given away.
    fn promised(&self) -> Reservations {
        self.promised.clone()
    }

    /// Changes with every report of any machine.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The console of one.
    pub fn console(&self, uuid: SystemUuid) -> Option<Console> {
        self.machines.get(&uuid).map(|kept| kept.console.clone())
    }
}

/// Removes what nobody keeps: the rest of a damaged folder.
async fn remove(files: Files) -> Result<(), String> {
    if let Some(process) = process::find(&files.pid(), files.user()) {
        process.signal(Signal::KILL);
        let ended = timeout(machine::KILL_PATIENCE, process.ended()).await;
        ended.map_err(|_| format!("process {} was killed and does not end", process.id()))?;
    }
    launch::end_any_tpm(&files).await;
    files.release().await
}
