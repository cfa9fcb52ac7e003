//! Makes the VMs of this node match the desired state of the central node, in a task beside the
//! link, and reports their state.
//!
//! | module | content |
//! | --- | --- |
//! | `reconciler` | starts, stops and releases VMs until they match the desired state |
//! | `vms` | the VMs of this node and their supervisors |
//! | `waiting_vms` | VMs that wait for a volume, a disk write or their own release; stored |
//! | `disk_write_queue` | disk writes in progress |
//! | `start_after_write` | starts a VM when its disks are written |
//! | `reports` | state reports, combined from all of these |

mod disk_write_queue;
mod reconciler;
mod reports;
mod start_after_write;
pub mod vms;
mod waiting_vms;

use self::{reconciler::Reconciler, vms::Vms};
use crate::{
    link::call::Endpoint,
    vm::{
        disks::volume_fetch::Volumes,
        host::config::HostConfig,
        manager::{disk_write_queue::DiskWrites, waiting_vms::WaitingVms},
        net::nic_addresses::NicAddresses,
    },
};
use meshd_proto::vm::{ConsoleOrder, Nic, ReportedVmState, VmOrder, VmReport, VmUpdate};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Minimum time between two reports; changes in between are combined.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Length of the queue of updates for the link.
const UPDATE_QUEUE: usize = 64;

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
