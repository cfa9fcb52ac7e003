//! Supervises one VM: passes events to [`VmStateMachine`], executes its actions, reports the state.
//! QEMU outlives the supervisor.

use super::{
    adoption,
    launch::{self, Launched},
    persisted_vm::{PersistedVm, report},
    qemu_process::WatchedProcess,
    qmp_client::{QmpSession, QmpSessionConfig},
    release_wait,
    vm_event::{ShutdownCause, VmAction, VmEvent},
    vm_state_machine::{SURVIVES_KILL, VmStateMachine},
};
use crate::{
    system::{self, Tree},
    vm::{
        console::console_log::Console,
        failure::failure,
        host::{config::HostConfig, memory},
        lock_helpers::send_if_changed,
        reservations::Reservations,
        vm_paths::VmPaths,
    },
};
use meshd_proto::vm::{ReportedVmState, VmFailureKind, VmReport, VmSpec};
use rustix::process::Signal;
use std::{collections::VecDeque, future::pending, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// Timeout for the last messages of the sockets of a QEMU that ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the log of QEMU is trimmed.
const LOG_TRIM_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before a broken control socket is connected again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub enum SupervisorCommand {
    /// Process an event. `start` is the number of the start order, if the event belongs to one.
    Event { event: VmEvent, start: Option<u32> },
    /// Kill the VM and remove its files.
    Release(oneshot::Sender<Result<(), String>>),
}

pub struct VmSupervisor {
    spec: VmSpec,
    /// Number of the last start order.
    start: u32,
    /// Boot ID in the stored record.
    stored_boot: String,
    /// Boot ID of the running kernel.
    boot: String,
    /// QEMU ran in this boot.
    ran: bool,
    files: VmPaths,
    config: Arc<HostConfig>,
    reservations: Reservations,
    state_machine: VmStateMachine,
    started: Instant,
    /// Uptime of the machine at `started`.
    started_at: Duration,
    /// As in the stored record.
    power_down_until_ms: Option<u64>,
    process: Option<WatchedProcess>,
    session: Option<QmpSession>,
    reconnect_at: Option<Instant>,
    trim_log_at: Instant,
    /// Count of out-of-memory kills when this QEMU started.
    oom_kills_before: u64,
    console: Console,
    console_input: Arc<tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>>,
    /// Locks of IOMMU groups against readiness checks, held until QEMU has opened its units.
    group_locks: Vec<std::fs::File>,
    stored: Option<PersistedVm>,
    report: watch::Sender<VmReport>,
    changed: watch::Sender<u64>,
    release: Option<oneshot::Sender<Result<(), String>>>,
    /// The VM was taken over, but its QEMU no longer runs.
    needs_cleanup: bool,
}

impl VmSupervisor {
    /// The folder of the VM may not exist. [`VmSupervisor::adopt`] takes over its process.
    pub fn new(
        stored: PersistedVm,
        files: VmPaths,
        config: Arc<HostConfig>,
        reservations: Reservations,
        changed: watch::Sender<u64>,
    ) -> Self {
        let PersistedVm { spec, start, restart_state, boot, ran, power_down_until_ms } = stored;
        let tree = Tree::new(&config.root);
        let (console, console_input) = Console::new(&files);
        let state_machine = VmStateMachine::new(spec.restart, spec.memory.bytes(), restart_state);
        let first_report = report(&spec, start, &state_machine);
        VmSupervisor {
            start,
            stored_boot: boot,
            boot: system::kernel_boot_id(&tree),
            ran,
            files,
            config,
            reservations,
            state_machine,
            started: Instant::now(),
            started_at: system::uptime(&tree),
            power_down_until_ms,
            process: None,
            session: None,
            reconnect_at: None,
            trim_log_at: Instant::now(),
            oom_kills_before: memory::oom_kills(&tree),
            console,
            console_input: Arc::new(tokio::sync::Mutex::new(console_input)),
            group_locks: Vec::new(),
            stored: None,
            report: watch::Sender::new(first_report),
            changed,
            release: None,
            needs_cleanup: false,
            spec,
        }
    }

    /// Takes over the QEMU of an earlier agent. A new VM has no process: then this does nothing.
    pub fn adopt(&mut self) -> Option<VmAction> {
        self.process = adoption::find(&self.files.pid(), self.files.user());
        let is_alive = self.process.is_some();
        // A reboot ended QEMU.
        let is_rebooted = !is_alive && self.stored_boot != self.boot;
        let action = if is_rebooted {
            self.state_machine.adopt_after_reboot();
            None
        } else {
            let until = self.power_down_until_ms.map(Duration::from_millis);
            let grace = until.map(|until| until.saturating_sub(self.started_at));
            self.state_machine.adopt(Duration::ZERO, is_alive, grace)
        };
        self.needs_cleanup = !is_alive;
        self.ran = is_alive || self.ran && !is_rebooted;
        if is_alive || self.state_machine.restart_state().should_run {
            self.reservations.insert(&self.spec);
        }
        if let Some(process) = &self.process {
            tracing::info!(vm = %self.spec.name, pid = process.id(), "took over a running VM");
            self.open_session();
        }
        self.publish_report();
        action
    }

    pub fn reports(&self) -> watch::Receiver<VmReport> {
        self.report.subscribe()
    }

    pub fn console(&self) -> Console {
        self.console.clone()
    }

    /// Supervises the VM until it is released or the queue is closed. `action` is the result of
    /// [`VmSupervisor::adopt`].
    pub async fn run(
        mut self,
        mut commands: mpsc::Receiver<SupervisorCommand>,
        action: Option<VmAction>,
    ) {
        if self.needs_cleanup {
            // QEMU may have ended while no agent ran.
            launch::clean_up(&self.spec, &self.files, &self.config).await;
        }
        let mut events = VecDeque::new();
        self.perform(action, &mut events).await;
        loop {
            let event = match events.pop_front() {
                Some(event) => event,
                None => match self.next(&mut commands).await {
                    NextEvent::Event(event) => event,
                    NextEvent::None => continue,
                    NextEvent::QueueClosed => return,
                },
            };
            let before = self.state_machine.state();
            let action = self.state_machine.handle(self.started.elapsed(), event);
            self.store();
            self.perform(action, &mut events).await;
            let after = self.state_machine.state();
            if before != after {
                tracing::info!(vm = %self.spec.name, from = before.as_str(), to = after.as_str(), "VM state changed");
            }
            if !after.is_live() && after != ReportedVmState::Waiting && self.process.is_none() {
                self.reservations.remove(self.spec.uuid);
            }
            self.publish_report();
            if self.complete_release().await {
                return;
            }
        }
    }

    async fn next(&mut self, commands: &mut mpsc::Receiver<SupervisorCommand>) -> NextEvent {
        let deadline = self.state_machine.deadline().map(|deadline| self.started + deadline);
        tokio::select! {
            biased;
            exit = or_pending(self.process.as_ref().map(WatchedProcess::wait)) => {
                if let Some(cause) = self.drain_session().await {
                    // The reported cause comes before the end.
                    self.state_machine.handle(self.started.elapsed(), VmEvent::ShuttingDown(cause));
                }
                launch::clean_up(&self.spec, &self.files, &self.config).await;
                let exit = exit + self.out_of_memory_note();
                NextEvent::Event(VmEvent::Ended { exit, log: self.files.last_log_lines() })
            }
            event = or_pending(self.session.as_mut().map(QmpSession::next)) => match event {
                Some(event) => {
                    if event == VmEvent::GuestRunning {
                        self.group_locks.clear();
                    }
                    NextEvent::Event(event)
                }
                None => {
                    self.session = None;
                    self.reconnect_at = Some(Instant::now() + RECONNECT_DELAY);
                    NextEvent::None
                }
            },
            command = commands.recv() => match command {
                None => NextEvent::QueueClosed,
                Some(command) => NextEvent::Event(self.command_event(command)),
            },
            () = or_pending(self.reconnect_at.map(sleep_until)) => {
                self.reconnect_at = None;
                self.open_session();
                NextEvent::None
            }
            () = or_pending(self.process.as_ref().map(|_| sleep_until(self.trim_log_at))) => {
                self.trim_log_at = Instant::now() + LOG_TRIM_INTERVAL;
                self.files.trim_log();
                NextEvent::None
            }
            () = or_pending(deadline.map(sleep_until)) => NextEvent::Event(VmEvent::Tick),
        }
    }

    fn out_of_memory_note(&self) -> &'static str {
        if memory::oom_kills(&Tree::new(&self.config.root)) > self.oom_kills_before {
            "; meanwhile the kernel killed processes because memory ran out"
        } else {
            ""
        }
    }

    fn command_event(&mut self, command: SupervisorCommand) -> VmEvent {
        match command {
            SupervisorCommand::Event { event, start } => {
                self.start = start.unwrap_or(self.start);
                event
            }
            SupervisorCommand::Release(result) => {
                self.release = Some(result);
                VmEvent::Discard
            }
        }
    }

    /// Reads the remaining messages of a process that ended. Returns the last shutdown cause.
    async fn drain_session(&mut self) -> Option<ShutdownCause> {
        (self.process, self.reconnect_at) = (None, None);
        self.group_locks.clear();
        let mut session = self.session.take()?;
        session.process_ended();
        let mut last_cause = None;
        let drain = async {
            while let Some(event) = session.next().await {
                if let VmEvent::ShuttingDown(cause) = event {
                    last_cause = Some(cause);
                }
            }
        };
        // The sockets close with the process, unless another process has them open.
        let _ = timeout(DRAIN_TIMEOUT, drain).await;
        last_cause
    }

    async fn perform(&mut self, action: Option<VmAction>, events: &mut VecDeque<VmEvent>) {
        match (action, &self.process) {
            (None, _) => {}
            (Some(VmAction::Launch), Some(process)) => {
                let detail = format!("its previous QEMU, process {}, has not ended", process.id());
                events.push_back(VmEvent::LaunchFailed(failure(VmFailureKind::Prepare, detail)));
            }
            (Some(VmAction::Launch), None) => {
                self.publish_report();
                self.oom_kills_before = memory::oom_kills(&Tree::new(&self.config.root));
                match launch::launch(&self.spec, &self.files, &self.config, &self.reservations)
                    .await
                {
                    Ok(Launched { process, group_locks }) => {
                        self.process = Some(process);
                        self.ran = true;
                        self.group_locks = group_locks;
                        self.store();
                        self.open_session();
                    }
                    Err(failure) => events.push_back(VmEvent::LaunchFailed(failure)),
                }
            }
            (Some(action @ (VmAction::PowerDown | VmAction::Resume)), _) => {
                if let Some(session) = &self.session {
                    session.send(if action == VmAction::Resume {
                        "cont"
                    } else {
                        "system_powerdown"
                    });
                }
            }
            (Some(VmAction::Terminate), Some(process)) => process.signal(Signal::TERM),
            (Some(VmAction::Kill), Some(process)) => process.signal(Signal::KILL),
            (Some(VmAction::Terminate | VmAction::Kill), None) => {
                events.push_back(VmEvent::Ended {
                    exit: "had already ended".to_owned(),
                    log: Vec::new(),
                });
            }
        }
    }

    fn open_session(&mut self) {
        self.session = Some(QmpSession::open(QmpSessionConfig {
            spec: self.spec.clone(),
            files: self.files.clone(),
            console: self.console.clone(),
            console_input: self.console_input.clone(),
        }));
    }

    /// Writes the record before any action depends on it.
    fn store(&mut self) {
        let millis = |until: Duration| u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        let power_down_until = self.state_machine.power_down_until();
        let stored = PersistedVm {
            restart_state: self.state_machine.restart_state().clone(),
            boot: self.boot.clone(),
            ran: self.ran,
            power_down_until_ms: power_down_until.map(|until| millis(self.started_at + until)),
            ..PersistedVm::new(self.spec.clone(), self.start)
        };
        // A VM that is being released gets no new folder: a restarted agent would take it over.
        let is_removed = self.release.is_some() && !self.files.record().exists();
        if self.stored.as_ref() == Some(&stored) || is_removed {
            return;
        }
        match stored.write(&self.files) {
            Ok(()) => self.stored = Some(stored),
            Err(error) => {
                tracing::error!(vm = %self.spec.name, %error, "cannot store the record of a VM")
            }
        }
    }

    fn publish_report(&self) {
        if send_if_changed(&self.report, report(&self.spec, self.start, &self.state_machine)) {
            self.changed.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Completes a pending release. Returns true if nothing of the VM remains.
    async fn complete_release(&mut self) -> bool {
        if self.release.is_none() || self.state_machine.state().is_live() {
            return false;
        }
        let removed = if self.process.is_some() {
            Err(SURVIVES_KILL.to_owned())
        } else {
            launch::clean_up(&self.spec, &self.files, &self.config).await;
            // A VM that never ran had no units and disks.
            let free = if self.ran {
                release_wait::wait_until_free(&self.config, &self.spec).await
            } else {
                Ok(())
            };
            if free.is_ok() { self.files.remove().await } else { free }
        };
        let is_removed = removed.is_ok();
        if is_removed {
            self.reservations.remove(self.spec.uuid);
        }
        if let Some(result) = self.release.take() {
            // The receiver may be dropped.
            let _ = result.send(removed);
        }
        is_removed
    }
}

enum NextEvent {
    Event(VmEvent),
    None,
    QueueClosed,
}

async fn or_pending<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
