//! The VMs of this node: starts, stops, restarts and releases them, and takes over the VMs of an
//! earlier agent.

use crate::vm::{
    console::console_log::Console,
    disks::disk_release,
    failure::combine_refusals,
    host::{config::HostConfig, resources},
    net::{nic_addresses, tap_ports},
    process::{
        adoption,
        persisted_vm::PersistedVm,
        supervisor::{SupervisorCommand, VmSupervisor},
        swtpm,
        vm_event::VmEvent,
        vm_state_machine,
    },
    reservations::Reservations,
    vm_paths::{self, VmPaths},
};
use meshd_proto::vm::{ReleasedDisk, VmFailure, VmRefusal, VmReport, VmSpec};
use meshd_types::SystemUuid;
use rustix::process::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{self, JoinSet},
    time::{sleep, timeout},
};

/// Length of the command queue of a supervisor.
const COMMAND_QUEUE: usize = 16;
/// Delay before a failed supervisor is replaced, which may fail again.
const SUPERVISOR_DELAY: Duration = Duration::from_secs(1);

/// Why a VM is not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node lacks resources.
    #[error("{}", combine_refusals(.0).detail)]
    Refused(Vec<VmRefusal>),
    /// The node has another specification with the same UUID.
    #[error("{name} ({uuid}) is on this node with another specification; release it first")]
    Differs { name: String, uuid: SystemUuid },
    /// The supervisor has ended, or its queue is full.
    #[error("{0} is being released, or its command queue is full; try again")]
    Unavailable(SystemUuid),
}

/// Why a VM is not released completely.
#[derive(Debug, thiserror::Error)]
#[error("{uuid} is not released: {reason}")]
pub struct ReleaseError {
    pub uuid: SystemUuid,
    /// The remaining resources, and the causes.
    pub reason: String,
}

/// The VMs of this node. They continue to run when this is dropped.
#[derive(Debug)]
pub struct Vms {
    config: Arc<HostConfig>,
    reservations: Reservations,
    vms: BTreeMap<SystemUuid, ManagedVm>,
    changed: watch::Sender<u64>,
    supervisors: JoinSet<()>,
}

#[derive(Debug)]
struct ManagedVm {
    spec: VmSpec,
    /// Number of the last start order.
    start: u32,
    commands: mpsc::Sender<SupervisorCommand>,
    reports: watch::Receiver<VmReport>,
    console: Console,
    supervisor: task::Id,
}

impl Vms {
    /// Takes over every VM that has a folder below [`HostConfig::vms_dir`].
    pub fn open(config: HostConfig) -> Self {
        let mut vms = Vms {
            config: Arc::new(config),
            reservations: Reservations::default(),
            vms: BTreeMap::new(),
            changed: watch::Sender::new(0),
            supervisors: JoinSet::new(),
        };
        for uuid in vm_paths::all(&vms.config.vms_dir) {
            let files = vms.files(uuid);
            if files.ownership_markers().exists() && !files.record().exists() {
                // Its disk write was interrupted. The next start order repeats the write.
                continue;
            }
            match read_record(uuid, &files) {
                Ok(Some(stored)) => vms.supervise(stored, files, Duration::ZERO),
                Ok(None) => {
                    tracing::error!(%uuid, "cannot take over a VM: it has no record; release it")
                }
                Err(reason) => tracing::error!(%uuid, reason, "cannot take over a VM; release it"),
            }
        }
        vms
    }

    /// Starts the supervisor of a VM after a delay.
    fn supervise(&mut self, stored: PersistedVm, files: VmPaths, delay: Duration) {
        let spec = stored.spec.clone();
        let start = stored.start;
        let mut supervisor = VmSupervisor::new(
            stored,
            files,
            self.config.clone(),
            self.reservations.clone(),
            self.changed.clone(),
        );
        let action = supervisor.adopt();
        let (commands, command_queue) = mpsc::channel(COMMAND_QUEUE);
        let reports = supervisor.reports();
        let console = supervisor.console();
        let task = self.supervisors.spawn(async move {
            sleep(delay).await;
            supervisor.run(command_queue, action).await;
        });
        let vm = ManagedVm { spec, start, commands, reports, console, supervisor: task.id() };
        self.vms.insert(vm.spec.uuid, vm);
    }

    /// Waits until a supervisor fails, and replaces it by one that takes over its VM, unless the VM
    /// is being released. Pending while there is none. Cancel-safe.
    pub async fn replace_failed_supervisor(&mut self, releasing: &BTreeSet<SystemUuid>) {
        loop {
            let error = match self.supervisors.join_next_with_id().await {
                Some(Err(error)) => error,
                // Its VM is released.
                Some(Ok(_)) => continue,
                None => std::future::pending().await,
            };
            let failed = self.vms.values().find(|vm| vm.supervisor == error.id());
            let failed = failed.filter(|vm| !releasing.contains(&vm.spec.uuid));
            let Some(spec) = failed.map(|vm| vm.spec.clone()) else { continue };
            tracing::error!(vm = %spec.name, %error, "the supervisor of a VM failed; starting another one");
            let files = self.files(spec.uuid);
            match read_record(spec.uuid, &files) {
                Ok(Some(stored)) => self.supervise(stored, files, SUPERVISOR_DELAY),
                // The VM was not started. The next order starts it.
                Ok(None) => {
                    self.vms.remove(&spec.uuid);
                    self.reservations.remove(spec.uuid);
                }
                Err(reason) => {
                    tracing::error!(vm = %spec.name, reason, "cannot take over a VM; release it");
                }
            }
            self.changed.send_modify(|count| *count = count.wrapping_add(1));
            return;
        }
    }

    /// Starts a VM with the start number of its order. Does nothing if the VM runs or starts. Its
    /// supervisor surveys the node and reserves resources; a report shows a refusal.
    pub fn start(&mut self, spec: &VmSpec, start: u32) -> Result<(), StartError> {
        self.check_spec(spec)?;
        self.send_start(spec, start, VmEvent::Start)
    }

    /// Marks a VM as failed until the next order. Does nothing if the VM runs.
    pub fn refuse(
        &mut self,
        spec: &VmSpec,
        start: u32,
        failure: VmFailure,
    ) -> Result<(), StartError> {
        self.check_spec(spec)?;
        self.send_start(spec, start, VmEvent::Refused(failure))
    }

    /// Reserves the resources of a VM whose disks are written before its start.
    pub async fn reserve_for_disk_write(&self, spec: &VmSpec) -> Result<(), StartError> {
        self.check_spec(spec)?;
        let host = resources::survey(&self.config, spec).await;
        self.reservations.reserve(spec, &host).map(drop).map_err(StartError::Refused)
    }

    /// Cancels the reservation of a VM that does not run.
    pub fn cancel_reservation(&self, uuid: SystemUuid) {
        if !self.is_live(uuid) {
            self.reservations.remove(uuid);
        }
    }

    /// Returns the paths of a VM. The files may not exist.
    pub fn files(&self, uuid: SystemUuid) -> VmPaths {
        VmPaths::new(&self.config.vms_dir, uuid)
    }

    pub fn config(&self) -> Arc<HostConfig> {
        self.config.clone()
    }

    fn check_spec(&self, spec: &VmSpec) -> Result<(), StartError> {
        match self.vms.get(&spec.uuid) {
            Some(vm) if vm.spec != *spec => {
                Err(StartError::Differs { name: vm.spec.name.to_string(), uuid: spec.uuid })
            }
            _ => Ok(()),
        }
    }

    fn is_live(&self, uuid: SystemUuid) -> bool {
        self.vms.get(&uuid).is_some_and(|vm| vm.reports.borrow().state.is_live())
    }

    /// Sends the event of a start order to the supervisor of a VM, which is started if necessary.
    fn send_start(&mut self, spec: &VmSpec, start: u32, event: VmEvent) -> Result<(), StartError> {
        if !self.vms.contains_key(&spec.uuid) {
            // A report of a stopped VM with the number of this order would look like the result of
            // this order.
            let stored = PersistedVm::new(spec.clone(), start.wrapping_sub(1));
            self.supervise(stored, self.files(spec.uuid), Duration::ZERO);
        }
        self.order_start(spec.uuid, start, event)
    }

    /// Sends the event of a start order to a supervisor. The number of an order that the supervisor
    /// has not received is not recorded, so that its repetition counts.
    fn order_start(
        &mut self,
        uuid: SystemUuid,
        start: u32,
        event: VmEvent,
    ) -> Result<(), StartError> {
        let is_sent = self.send(uuid, event, Some(start));
        let vm = self.vms.get_mut(&uuid).filter(|_| is_sent);
        vm.ok_or(StartError::Unavailable(uuid))?.start = start;
        Ok(())
    }

    /// Shuts the guest down, and kills it after `grace`. Returns false if there is no such VM.
    pub fn stop(&self, uuid: SystemUuid, grace: Duration) -> bool {
        self.send(uuid, VmEvent::Stop { grace }, None)
    }

    /// Stops a VM and starts it again with this start number.
    pub fn restart(
        &mut self,
        uuid: SystemUuid,
        grace: Duration,
        start: u32,
    ) -> Result<(), StartError> {
        self.order_start(uuid, start, VmEvent::Restart { grace })
    }

    /// Returns the number of the last start order of a VM.
    pub fn last_start(&self, uuid: SystemUuid) -> Option<u32> {
        self.vms.get(&uuid).map(|vm| vm.start)
    }

    pub fn specs(&self) -> impl Iterator<Item = &VmSpec> {
        self.vms.values().map(|vm| &vm.spec)
    }

    /// Kills a VM and removes everything that it has on this node. Succeeds if there is no such VM.
    pub async fn release(&mut self, uuid: SystemUuid) -> Result<(), ReleaseError> {
        self.start_release(uuid, None, Vec::new()).await?;
        self.forget(uuid);
        Ok(())
    }

    /// Like [`Vms::release`], as a future that does not borrow: call [`Vms::forget`] afterwards.
    /// `pending` is the specification of a VM whose start waits, `reported` are the disks in the
    /// order of the central node.
    pub fn start_release(
        &self,
        uuid: SystemUuid,
        pending: Option<&VmSpec>,
        reported: Vec<ReleasedDisk>,
    ) -> impl Future<Output = Result<(), ReleaseError>> + Send + 'static {
        let vm = self.vms.get(&uuid);
        let files = self.files(uuid);
        let disks = disk_release::disks_of(&files, vm.map(|vm| &vm.spec).or(pending), reported);
        let commands = vm.map(|vm| vm.commands.clone());
        let config = self.config.clone();
        let reservations = self.reservations.clone();
        async move {
            let (sender, result) = oneshot::channel();
            let removed = match commands {
                Some(commands)
                    if commands.send(SupervisorCommand::Release(sender)).await.is_ok() =>
                {
                    result.await.ok()
                }
                _ => None,
            };
            let removed = match removed {
                Some(removed) => removed,
                // Without a supervisor, or it failed.
                None => remove(files).await,
            };
            let released = match removed {
                Ok(()) => disk_release::release(config, reservations, uuid, disks).await,
                Err(reason) => Err(reason),
            };
            released.map_err(|reason| ReleaseError { uuid, reason })
        }
    }

    pub fn forget(&mut self, uuid: SystemUuid) {
        self.vms.remove(&uuid);
    }

    /// Does not wait: a slow supervisor must not block the others. The central node repeats the
    /// order.
    fn send(&self, uuid: SystemUuid, event: VmEvent, start: Option<u32>) -> bool {
        let command = SupervisorCommand::Event { event, start };
        self.vms.get(&uuid).is_some_and(|vm| vm.commands.try_send(command).is_ok())
    }

    pub fn reports(&self) -> Vec<VmReport> {
        self.vms.values().map(|vm| vm.reports.borrow().clone()).collect()
    }

    pub fn watch(&self, uuid: SystemUuid) -> Option<watch::Receiver<VmReport>> {
        self.vms.get(&uuid).map(|vm| vm.reports.clone())
    }

    pub fn reservations(&self) -> Reservations {
        self.reservations.clone()
    }

    /// Watches a counter that changes with every report of any VM.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub fn console(&self, uuid: SystemUuid) -> Option<Console> {
        self.vms.get(&uuid).map(|vm| vm.console.clone())
    }

    /// Sets the addresses that the private network assigned to NICs; the firewall lets guests use
    /// them.
    pub async fn set_addresses(&self, addresses: nic_addresses::NicAddresses) {
        self.reservations.set_addresses(addresses);
        self.update_port_filters().await;
    }

    /// Installs the packet filters of all TAP devices.
    pub async fn update_port_filters(&self) {
        if let Err(error) = tap_ports::update_filters(&self.config, &self.reservations).await {
            tracing::error!(error, "guests may not be isolated from each other; retrying");
        }
    }
}

/// Reads the record of a VM. `None`: there is none.
fn read_record(uuid: SystemUuid, files: &VmPaths) -> Result<Option<PersistedVm>, String> {
    match PersistedVm::read(files)? {
        Some(stored) if stored.spec.uuid != uuid => Err("its record has another UUID".to_owned()),
        stored => Ok(stored),
    }
}

/// Removes a VM without supervisor: its record is damaged.
async fn remove(files: VmPaths) -> Result<(), String> {
    if let Some(process) = adoption::find(&files.pid(), files.user()) {
        process.signal(Signal::KILL);
        let ended = timeout(vm_state_machine::KILL_TIMEOUT, process.wait()).await;
        ended.map_err(|_| format!("process {} did not end after SIGKILL", process.id()))?;
    }
    swtpm::stop(&files).await;
    files.remove().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{failure::failure, fixtures};
    use meshd_proto::vm::{ReportedVmState, VmFailureKind};
    use serde_json::json;

    #[tokio::test]
    async fn start_order_that_a_full_queue_drops_is_not_recorded_as_received() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut vms = Vms::open(HostConfig::of_root(dir.path()));
        let spec = fixtures::spec(json!({}));
        vms.start(&spec, 1).expect("the queue is empty");
        // Its supervisor reads the queue at the next await.
        while vms.stop(spec.uuid, Duration::ZERO) {}
        let refused = failure(VmFailureKind::Refused, "no KVM");
        let dropped = [
            vms.start(&spec, 2),
            vms.restart(spec.uuid, Duration::ZERO, 2),
            vms.refuse(&spec, 2, refused),
        ];
        let is_unavailable =
            |sent: &Result<(), StartError>| matches!(sent, Err(StartError::Unavailable(_)));
        assert!(dropped.iter().all(is_unavailable), "{dropped:?}");
        assert_eq!(vms.last_start(spec.uuid), Some(1), "the repeated order counts");
    }

    #[tokio::test]
    async fn failed_supervisor_is_replaced_from_the_record_and_takes_orders() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut vms = Vms::open(HostConfig::of_root(dir.path()));
        let spec = fixtures::spec(json!({}));
        let none = BTreeSet::new();
        vms.start(&spec, 1).expect("sent");
        vms.supervisors.abort_all();
        vms.replace_failed_supervisor(&none).await;
        assert_eq!(vms.last_start(spec.uuid), None, "it has no record: the repeated order counts");

        let stored = PersistedVm::new(spec.clone(), 4);
        stored.write(&vms.files(spec.uuid)).expect("written");
        vms.supervise(stored, vms.files(spec.uuid), Duration::ZERO);
        vms.start(&spec, 5).expect("sent");
        vms.supervisors.abort_all();
        vms.replace_failed_supervisor(&none).await;
        assert_eq!(vms.last_start(spec.uuid), Some(4), "as on record");
        let refused = failure(VmFailureKind::Refused, "no KVM");
        vms.refuse(&spec, 5, refused).expect("the queue is open");
        let mut reports = vms.watch(spec.uuid).expect("supervised");
        let is_failed = |report: &VmReport| report.state == ReportedVmState::Failed;
        let failed = timeout(Duration::from_secs(60), reports.wait_for(is_failed)).await;
        assert_eq!(failed.expect("in time").expect("supervised").start, Some(5));

        vms.supervisors.abort_all();
        let releasing = BTreeSet::from([spec.uuid]);
        let replaced =
            timeout(Duration::from_millis(300), vms.replace_failed_supervisor(&releasing));
        assert!(replaced.await.is_err(), "the release removes the VM");
        vms.release(spec.uuid).await.expect("without a supervisor");
        assert!(!vms.files(spec.uuid).record().exists());
    }
}
