//! Makes the VMs of this node match the desired state of the central node, in a task beside the
//! link, and reports their state.
//!
//! | module | content |
//! | --- | --- |
//! | `reconciler` | starts, stops and releases VMs until they match the desired state |
//! | `vms` | the VMs of this node and their supervisors |
//! | `pending_starts` | start orders that wait for a volume, a disk write or a release; stored |
//! | `disk_write_queue` | disk writes in progress |
//! | `guest_readiness` | whether guests are ready |
//! | `start_after_write` | starts a VM when its disks are written |
//! | `reports` | state reports, combined from all of these |

mod disk_write_queue;
mod guest_readiness;
mod reconciler;
mod reports;
mod start_after_write;
pub mod vms;
mod pending_starts;

use self::{guest_readiness::GuestReadiness, reconciler::Reconciler, vms::Vms};
use crate::{
    link::call::Endpoint,
    vm::{
        disks::volume_fetch::Volumes,
        host::config::HostConfig,
        manager::{disk_write_queue::DiskWrites, pending_starts::PendingStarts},
        net::{
            guest_login::{GuestAccess, LoginFault},
            nic_addresses::NicAddresses,
        },
        reservations::Reservations,
    },
};
use meshd_proto::vm::{ConsoleOrder, Nic, ReportedVmState, VmEntry, VmReport, VmUpdate};
use meshd_types::SystemUuid;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
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
    config: HostConfig,
    reservations: Reservations,
    reports: watch::Receiver<PublishedReports>,
    updates: mpsc::Receiver<VmUpdate>,
    nics: watch::Receiver<Vec<Nic>>,
    nic_addresses: watch::Sender<NicAddresses>,
    /// Number of the present link; generations belong to it.
    link: u64,
    /// The reports changed since the last message.
    report_due: bool,
    reported_at: Option<Instant>,
    _reconciler: JoinSet<()>,
}

#[derive(Debug)]
enum ManagerRequest {
    Vm(OrderNumber, VmEntry),
    Console(ConsoleOrder),
    GuestAccess(SystemUuid, oneshot::Sender<Result<GuestAccess, LoginFault>>),
}

/// Identifies an order: the number of its link, and its generation there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OrderNumber {
    link: u64,
    generation: u64,
}

/// The reports of all VMs, and the last order that they reflect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PublishedReports {
    observed: OrderNumber,
    vms: Vec<VmReport>,
}

impl VmManager {
    /// Takes over every VM that has a folder below [`HostConfig::vms_dir`].
    pub fn open(config: HostConfig) -> Self {
        let (requests, request_queue) = mpsc::unbounded_channel();
        let (update_sender, updates) = mpsc::channel(UPDATE_QUEUE);
        let endpoint = watch::Sender::new(None);
        let nic_addresses = watch::Sender::new(NicAddresses::new());
        let vms = Vms::open(config.clone());
        let reservations = vms.reservations();
        let volumes = Volumes::new(config.clone(), reservations.clone(), endpoint.subscribe());
        let reconciler = Reconciler {
            vms,
            volumes,
            disk_writes: DiskWrites::default(),
            endpoint: endpoint.subscribe(),
            pending_starts: PendingStarts::open(&config),
            start_failures: BTreeMap::new(),
            releasing_vms: BTreeSet::new(),
            releases: JoinSet::new(),
            console_sessions: JoinSet::new(),
            readiness: GuestReadiness::default(),
            observed: OrderNumber::default(),
            reports: watch::Sender::default(),
            nics: watch::Sender::new(Vec::new()),
            nic_addresses: nic_addresses.subscribe(),
            updates: update_sender,
        };
        reconciler.publish();
        let reports = reconciler.reports.subscribe();
        let nics = reconciler.nics.subscribe();
        let mut task = JoinSet::new();
        task.spawn(reconciler.run(request_queue));
        VmManager {
            requests,
            endpoint,
            config,
            reservations,
            reports,
            updates,
            nics,
            nic_addresses,
            link: 0,
            report_due: false,
            reported_at: None,
            _reconciler: task,
        }
    }

    pub fn set_endpoint(&self, endpoint: Endpoint) {
        self.endpoint.send_replace(Some(endpoint));
    }

    /// Returns the keys for connections to the central node, once there are some.
    pub fn endpoint(&self) -> watch::Receiver<Option<Endpoint>> {
        self.endpoint.subscribe()
    }

    /// Returns a store of volumes in another folder. Memory that is reserved for VMs is not free in
    /// it.
    pub fn volumes_in(&self, folder: PathBuf) -> Volumes {
        let config = HostConfig { volumes_dir: folder, ..self.config.clone() };
        Volumes::new(config, self.reservations.clone(), self.endpoint.subscribe())
    }

    /// Queues the desired state of a VM. `generation` is its number on the present link.
    pub fn apply(&self, generation: u64, entry: VmEntry) {
        let number = OrderNumber { link: self.link, generation };
        // The task ends only together with the agent.
        let _ = self.requests.send(ManagerRequest::Vm(number, entry));
    }

    /// Connects a console to the central node.
    pub fn console(&self, order: ConsoleOrder) {
        let _ = self.requests.send(ManagerRequest::Console(order));
    }

    /// Asks what a login at a guest needs.
    pub fn guest_access(
        &self,
        uuid: SystemUuid,
    ) -> oneshot::Receiver<Result<GuestAccess, LoginFault>> {
        let (answer, access) = oneshot::channel();
        let _ = self.requests.send(ManagerRequest::GuestAccess(uuid, answer));
        access
    }

    pub fn nics(&self) -> watch::Receiver<Vec<Nic>> {
        self.nics.clone()
    }

    /// Returns the sender for the addresses that the private network assigns to NICs.
    pub fn nic_addresses(&self) -> watch::Sender<NicAddresses> {
        self.nic_addresses.clone()
    }

    /// Begins a new link: reports all VMs at once, and counts generations anew.
    pub fn begin_link(&mut self) {
        self.link += 1;
        (self.report_due, self.reported_at) = (true, None);
    }

    /// Returns the state of all VMs, with the generation that it reflects.
    pub fn full_report(&mut self) -> (u64, VmUpdate) {
        (self.report_due, self.reported_at) = (false, Some(Instant::now()));
        let PublishedReports { observed, vms } = self.reports.borrow_and_update().clone();
        (self.generation(observed), VmUpdate::All { vms })
    }

    /// Returns the generation of an order on the present link; 0 for one of an earlier link.
    fn generation(&self, OrderNumber { link, generation }: OrderNumber) -> u64 {
        if link == self.link { generation } else { 0 }
    }

    /// Returns the number of VMs that run or start.
    pub fn workloads(&self) -> u32 {
        let count =
            self.reports.borrow().vms.iter().filter(|report| is_workload(report.state)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Waits for the next update, with the generation that it reflects. Cancel-safe.
    pub async fn next_update(&mut self) -> (u64, VmUpdate) {
        loop {
            let due_at = self.reported_at.map_or_else(Instant::now, |at| at + REPORT_INTERVAL);
            tokio::select! {
                Some(update) = self.updates.recv() => {
                    let observed = self.reports.borrow().observed;
                    return (self.generation(observed), update);
                }
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
