//! Containers: makes each replica on this node match the desired state that the central node sends,
//! and reports them. crun starts the programs.
//!
//! | module | content |
//! | --- | --- |
//! | `manager` | desired state ─▶ actions of replicas ─▶ reports |
//! | `replica_machine` | one replica: state machine with restarts, health and stops; pure |
//! | `bundle` | specification ─▶ bundle of the container runtime; pure |
//! | [`supervisor`] | the process that owns one replica: root, output, ports, exit code |
//! | [`runtime`] | crun: path, version, arguments |
//! | `health_probe` | probes of health checks |
//! | `log_session` | a user reads the output of a replica |
//! | `replica_cgroup` | control groups: limits, and the end of all processes |
//! | `replica_exec` | a program that a user runs in a replica |
//! | `replica_paths` | files of one replica |
//! | `fixtures` | specifications for unit tests |
//!
//! Supervisors outlive the agent: a restarted agent finds their locks and takes the replicas over.

mod bundle;
#[cfg(test)]
mod fixtures;
mod health_probe;
mod log_session;
mod manager;
mod replica_cgroup;
mod replica_exec;
mod replica_machine;
mod replica_paths;
pub mod runtime;
pub mod supervisor;

use crate::{
    link::call::Endpoint,
    vm::{LoginFault, Volumes},
};
use manager::{ContainerManager, ManagerOrder};
use meshd_proto::container::{
    ContainerEntry, ContainerUpdate, ExecOrder, LogsOrder, ReplicaReport,
};
pub use replica_exec::ReplicaExec;
use std::path::PathBuf;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

/// Length of the queue of updates for the link.
const UPDATE_QUEUE: usize = 64;

/// Folders and programs of containers.
#[derive(Clone, Debug)]
pub struct ContainerHost {
    /// Folder of replicas, in memory.
    pub folder: PathBuf,
    /// Folder of images.
    pub images: PathBuf,
    /// Where the control groups are mounted if the system has none.
    pub cgroup_mount: PathBuf,
    /// Root of the file system in which crun is.
    pub root: PathBuf,
}

/// The containers of one node. They continue to run when it is dropped.
#[derive(Debug)]
pub struct Containers {
    orders: mpsc::UnboundedSender<ManagerOrder>,
    reports: watch::Receiver<PublishedReplicas>,
    updates: mpsc::Receiver<ContainerUpdate>,
    /// Number of the present link; generations belong to it.
    link: u64,
    report_due: bool,
    _manager: JoinSet<()>,
}

/// Identifies an order: the number of its link, and its generation there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EntryNumber {
    link: u64,
    generation: u64,
}

/// The reports of all replicas, and the last order that they reflect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PublishedReplicas {
    observed: EntryNumber,
    replicas: Vec<ReplicaReport>,
    workloads: u32,
}

impl Containers {
    /// Takes over every replica that has a record. Must be called within a runtime.
    pub fn open(
        host: ContainerHost,
        volumes: Volumes,
        endpoint: watch::Receiver<Option<Endpoint>>,
    ) -> Self {
        let (orders, order_queue) = mpsc::unbounded_channel();
        let (update_sender, updates) = mpsc::channel(UPDATE_QUEUE);
        let manager = ContainerManager::open(host, volumes, endpoint, update_sender);
        let reports = manager.reports();
        let mut task = JoinSet::new();
        task.spawn(manager.run(order_queue));
        Containers { orders, reports, updates, link: 0, report_due: false, _manager: task }
    }

    /// Queues the desired state of a replica. `generation` is its number on the present link.
    pub fn apply(&self, generation: u64, entry: ContainerEntry) {
        let number = EntryNumber { link: self.link, generation };
        // The manager ends only together with the agent.
        let _ = self.orders.send(ManagerOrder::Entry(number, entry));
    }

    /// Connects a user to the output of a replica.
    pub fn open_log(&self, order: LogsOrder) {
        let _ = self.orders.send(ManagerOrder::Logs(order));
    }

    /// Prepares a program that a user runs in a replica.
    pub fn prepare_exec(
        &self,
        order: ExecOrder,
    ) -> oneshot::Receiver<Result<ReplicaExec, LoginFault>> {
        let (answer, prepared) = oneshot::channel();
        let _ = self.orders.send(ManagerOrder::Exec(order, answer));
        prepared
    }

    /// Begins a new link: reports all replicas, and counts generations anew.
    pub fn begin_link(&mut self) {
        self.link += 1;
        self.report_due = true;
    }

    /// Returns the number of replicas that run or will.
    pub fn workloads(&self) -> u32 {
        self.reports.borrow().workloads
    }

    /// Waits for the next update, with the generation that it reflects. Cancel-safe.
    pub async fn next_update(&mut self) -> (u64, ContainerUpdate) {
        if !self.report_due {
            tokio::select! {
                Some(update) = self.updates.recv() => {
                    let observed = self.reports.borrow().observed;
                    return (self.generation(observed), update);
                }
                Ok(()) = self.reports.changed() => {}
                else => std::future::pending().await,
            }
        }
        self.report_due = false;
        let PublishedReplicas { observed, replicas, .. } = self.reports.borrow_and_update().clone();
        (self.generation(observed), ContainerUpdate::All { replicas })
    }

    /// Returns the generation of an order on the present link; 0 for one of an earlier link.
    fn generation(&self, EntryNumber { link, generation }: EntryNumber) -> u64 {
        if link == self.link { generation } else { 0 }
    }
}
