//! Virtual machines: what the node does with a specification.
//!
//! ```text
//! host     what of this node matters          promised  what of it is given away
//! plan     specification and node ─▶ everything that stands against it, or what it is made of        pure
//! argv     ─▶ QEMU's command line                                                                    pure
//! seed     ─▶ cloud-init's disk                                                                     pure
//! machine  starting, running, stopping, waiting, stopped, failed: what follows what, and when        pure
//! ending   why one ended, in words                                                                  pure
//! folder   run folder of one machine: all that it has on this node
//! process  QEMU as a process that outlives the agent     session  its control and console sockets (qmp: pure)
//! console  what the guest wrote, the newest of it
//! launch   node ─▶ plan ─▶ files ─▶ process       keeper  one machine, kept; takes over what runs
//! volumes  files by their digests, fetched from the central node     room  how much fits
//! desk     what the central node wishes ─▶ orders, in time; reports, in measure     sitting  a console, brought to it
//! ```
//! QEMU is run directly, by argument vector and control socket; no daemon stands in between. Agents come and go, machines stay.

mod argv;
mod console;
mod desk;
mod ending;
mod folder;
mod host;
mod keeper;
mod launch;
mod machine;
mod plan;
mod process;
mod promised;
mod qmp;
mod room;
mod seed;
mod session;
mod sitting;
mod volumes;

pub use console::{Console, Listening, Typist};
pub use desk::{Desk, Way};
pub use host::Places;

use self::{
    folder::Files,
    keeper::{Keeper, Order, Stored},
    promised::Promised,
};
use super::files;
use crate::{
    id::SystemUuid,
    wire::vm::{VmFailure, VmRefusal, VmReport, VmSpec},
};
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
    /// Its keeper has just gone.
    #[error("{0} is being released; try again")]
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
    promised: Promised,
    machines: BTreeMap<SystemUuid, Kept>,
    changed: watch::Sender<u64>,
    keepers: JoinSet<()>,
}

#[derive(Debug)]
struct Kept {
    spec: VmSpec,
    start: u32,
    orders: mpsc::Sender<Order>,
    reports: watch::Receiver<VmReport>,
    console: Console,
}

impl Vms {
    /// Takes over every machine that has a folder below `folder`, which need not exist.
    pub fn open(folder: &Path, places: Places) -> Self {
        let mut vms = Vms {
            folder: folder.to_owned(),
            places: Arc::new(places),
            promised: Promised::default(),
            machines: BTreeMap::new(),
            changed: watch::Sender::new(0),
            keepers: JoinSet::new(),
        };
        for uuid in folder::all(folder) {
            let files = Files::new(folder, uuid);
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
        let kept = Kept { orders, reports: keeper.reports(), console: keeper.console(), start, spec };
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
            let stored = Stored { spec: spec.clone(), start, kept: machine::Kept::default() };
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
        self.releasing(uuid).await?;
        self.forget(uuid);
        Ok(())
    }

    /// The same, for who does not wait here: when it is done, [`Vms::forget`] it.
    pub fn releasing(&self, uuid: SystemUuid) -> impl Future<Output = Result<(), ReleaseError>> + Send + 'static {
        let orders = self.machines.get(&uuid).map(|kept| kept.orders.clone());
        let files = Files::new(&self.folder, uuid);
        async move {
            let (done, is_done) = oneshot::channel();
            let removed = match orders {
                Some(orders) if orders.send(Order::Release(done)).await.is_ok() => is_done.await.unwrap_or(Ok(())),
                _ => remove(files).await,
            };
            removed.map_err(|reason| ReleaseError { uuid, reason })
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
            Some(kept) => kept.orders.send(order).await.is_ok(),
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
    if let Some(process) = process::find(&files.pid()) {
        process.signal(Signal::KILL);
        let ended = timeout(machine::KILL_PATIENCE, process.ended()).await;
        ended.map_err(|_| format!("process {} was killed and does not end", process.id()))?;
    }
    files.remove().map_err(|error| format!("{} cannot be removed: {error}", files.folder().display()))
}
