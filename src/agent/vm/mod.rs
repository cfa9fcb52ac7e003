//! Virtual machines: what the node does with a specification.
//!
//! ```text
//! host     what of this node matters
//! plan     specification and node ─▶ everything that stands against it, or what it is made of        pure
//! argv     ─▶ QEMU's command line                                                                    pure
//! seed     ─▶ cloud-init's disk            qcow2  may this image be used?                            pure
//! machine  starting, running, stopping, waiting, stopped, failed: what follows what, and when        pure
//! folder   run folder of one machine: all that it has on this node
//! process  QEMU as a process that outlives the agent     session  its control and console sockets (qmp: pure)
//! console  what the guest wrote, the newest of it
//! launch   node ─▶ plan ─▶ files ─▶ process       keeper  one machine, kept; takes over what runs
//! ```
//! QEMU is run directly, by argument vector and control socket; no daemon stands in between. Agents come and go, machines stay.

mod argv;
mod console;
mod folder;
mod host;
mod keeper;
mod launch;
mod machine;
mod plan;
mod process;
mod qcow2;
mod qmp;
mod seed;
mod session;

pub use console::{Console, Listening};
pub use host::Places;

use self::{
    folder::Files,
    keeper::{Keeper, Order, Promised, Stored},
};
use super::files;
use crate::{
    id::SystemUuid,
    wire::vm::{VmRefusal, VmReport, VmSpec},
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
        let spec = stored.spec.clone();
        let mut keeper = Keeper::new(stored, files, self.places.clone(), self.promised.clone(), self.changed.clone());
        let actions = keeper.adopt();
        let (orders, ordered) = mpsc::channel(ORDERS);
        let kept = Kept { orders, reports: keeper.reports(), console: keeper.console(), spec };
        self.machines.insert(kept.spec.uuid, kept);
        self.keepers.spawn(keeper.run(ordered, actions));
    }

    /// Runs a machine. One that runs, or is about to, is left alone; one that is off is started again.
    ///
    /// # Errors
    /// Everything that stands against it; nothing was begun then.
    pub async fn start(&mut self, spec: &VmSpec) -> Result<(), StartError> {
        if let Some(kept) = self.machines.get(&spec.uuid) {
            if kept.spec != *spec {
                return Err(StartError::Differs { name: kept.spec.name.to_string(), uuid: spec.uuid });
            }
            if kept.reports.borrow().state.is_live() {
                return self.order(spec.uuid, Order::Start).await.then_some(()).ok_or(StartError::Gone(spec.uuid));
            }
        }
        let host = launch::survey(&self.places, spec).await;
        self.promised
            .take(spec, &host)
            .map_err(|refusals| StartError::Refused { name: spec.name.to_string(), refusals })?;
        if !self.machines.contains_key(&spec.uuid) {
            let stored = Stored { spec: spec.clone(), kept: machine::Kept::default() };
            self.keep(stored, Files::new(&self.folder, spec.uuid));
        }
        self.order(spec.uuid, Order::Start).await.then_some(()).ok_or(StartError::Gone(spec.uuid))
    }

    /// Asks the guest to end, and ends it when `grace` is over; false where there is no such machine.
    pub async fn stop(&self, uuid: SystemUuid, grace: Duration) -> bool {
        self.order(uuid, Order::Stop(grace)).await
    }

    /// Stops a machine and runs it again; false where there is none.
    pub async fn restart(&self, uuid: SystemUuid, grace: Duration) -> bool {
        self.order(uuid, Order::Restart(grace)).await
    }

    /// Ends a machine at once and removes everything that it has on this node. One that is not there is released.
    ///
    /// # Errors
    /// When something of it stays.
    pub async fn release(&mut self, uuid: SystemUuid) -> Result<(), ReleaseError> {
        let (done, is_done) = oneshot::channel();
        let removed = if self.order(uuid, Order::Release(done)).await {
            is_done.await.unwrap_or(Ok(()))
        } else {
            self.remove(uuid).await
        };
        removed.map_err(|reason| ReleaseError { uuid, reason })?;
        self.machines.remove(&uuid);
        // Those that have ended need not be kept in mind.
        while self.keepers.try_join_next().is_some() {}
        Ok(())
    }

    /// Removes what nobody keeps: the rest of a damaged folder.
    async fn remove(&self, uuid: SystemUuid) -> Result<(), String> {
        let files = Files::new(&self.folder, uuid);
        if let Some(process) = process::find(&files.pid()) {
            process.signal(Signal::KILL);
            let ended = timeout(machine::KILL_PATIENCE, process.ended()).await;
            ended.map_err(|_| format!("process {} was killed and does not end", process.id()))?;
        }
        files.remove().map_err(|error| format!("{} cannot be removed: {error}", files.folder().display()))
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
