//! Supervises one VM: passes events to [`VmStateMachine`], executes its actions, reports the state. QEMU outlives the supervisor.

use super::{
    exit_status,
    launch::{self, Launched},
    qemu_process::{self, WatchedProcess},
    qmp_client::{QemuEvent, QmpSession, QmpSessionConfig},
    release_check,
    vm_record::{PersistedVm, SupervisorCommand, report},
    vm_state_machine::{VmAction, VmEvent, VmStateMachine},
};
use crate::{
    system::{self, Tree},
    vm::{
        console::console_log::Console,
        host::{config::HostConfig, installed::Programs, memory},
        net::tap_ports,
        reservations::Reservations,
        vm_paths::VmPaths,
    },
};
use meshd_proto::vm::{ReportedVmState, VmFailure, VmFailureKind, VmReport, VmSpec};
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

/// Supervises one VM.
pub struct VmSupervisor {
    spec: VmSpec,
    start: u32,
    /// Boot ID of the kernel that started it, and of the running kernel.
    boot: (String, String),
    ran: bool,
    files: VmPaths,
    config: Arc<HostConfig>,
    reservations: Reservations,
    machine: VmStateMachine,
    started: Instant,
    process: Option<WatchedProcess>,
    session: Option<QmpSession>,
    /// When a broken control socket is connected again.
    reconnect_at: Option<Instant>,
    /// When the log of QEMU is trimmed next.
    trim_log_at: Instant,
    /// Count of out-of-memory kills when this QEMU started.
    oom_kills_before: u64,
    console: Console,
    console_input: Arc<tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>>,
    ip: Option<std::path::PathBuf>,
    /// Locks of IOMMU groups, held until QEMU has its units, so that no check probes them.
    groups: Vec<std::fs::File>,
    stored: Option<PersistedVm>,
    report: watch::Sender<VmReport>,
    changed: watch::Sender<u64>,
    release: Option<oneshot::Sender<Result<(), String>>>,
    /// It was taken over, but its QEMU no longer runs.
    has_remains: bool,
}

impl VmSupervisor {
    /// Makes the supervisor of a VM whose folder may not exist. [`VmSupervisor::adopt`] takes over its process.
    pub fn new(
        stored: PersistedVm,
        files: VmPaths,
        config: Arc<HostConfig>,
        reservations: Reservations,
        changed: watch::Sender<u64>,
    ) -> Self {
        let PersistedVm { spec, start, kept, boot, ran } = stored;
        let tree = Tree::new(&config.root);
        let (console, console_input) = Console::new(&files);
        let machine = VmStateMachine::new(spec.restart, spec.memory.bytes(), kept);
        let first = report(&spec, start, &machine);
        VmSupervisor {
            start,
            boot: (boot, system::kernel_boot_id(&tree)),
            ran,
            files,
            config,
            reservations,
            machine,
            started: Instant::now(),
            process: None,
            session: None,
            reconnect_at: None,
            trim_log_at: Instant::now(),
            oom_kills_before: memory::oom_kills(&tree),
            console,
            console_input: Arc::new(tokio::sync::Mutex::new(console_input)),
            ip: None,
            groups: Vec::new(),
            stored: None,
            report: watch::Sender::new(first),
            changed,
            release: None,
            has_remains: false,
            spec,
        }
    }

    /// Takes over the process that an earlier agent started.
    pub fn adopt(&mut self) -> Vec<VmAction> {
        self.process = qemu_process::find(&self.files.pid(), self.files.user());
        self.has_remains = self.process.is_none();
        let actions = if self.process.is_none() && self.boot.0 != self.boot.1 {
            self.machine.left_over();
            self.ran = false;
            Vec::new()
        } else {
            self.machine.adopt(Duration::ZERO, self.process.is_some())
        };
        if self.process.is_some() || self.machine.kept().wanted {
            self.reservations.insert(&self.spec);
        }
        if let Some(process) = &self.process {
            self.ran = true;
            tracing::info!(vm = %self.spec.name, pid = process.id(), "a running virtual machine is taken over");
            self.ip = Programs::find(&Tree::new(&self.config.root)).ip;
            self.open_session();
        }
        self.publish_report();
        actions
    }

    /// Watches the report.
    pub fn reports(&self) -> watch::Receiver<VmReport> {
        self.report.subscribe()
    }

    pub fn console(&self) -> Console {
        self.console.clone()
    }

    /// Supervises the VM until it is released or the queue is closed. `actions` are those of [`VmSupervisor::adopt`].
    pub async fn run(mut self, mut orders: mpsc::Receiver<SupervisorCommand>, actions: Vec<VmAction>) {
        if self.has_remains {
            // Its QEMU may have ended while no agent ran: clean up after it.
            launch::end_all(&self.spec, &self.files, &self.config).await;
        }
        let mut events = VecDeque::new();
        self.perform(actions, &mut events).await;
        loop {
            let event = match events.pop_front() {
                Some(event) => event,
                None => match self.next(&mut orders).await {
                    NextStep::Event(event) => event,
                    NextStep::Nothing => continue,
                    NextStep::Gone => return,
                },
            };
            let before = self.machine.state();
            let actions = self.machine.on(self.started.elapsed(), event);
            self.store();
            self.perform(actions, &mut events).await;
            let after = self.machine.state();
            if before != after {
                tracing::info!(vm = %self.spec.name, from = before.as_str(), to = after.as_str(), "virtual machine");
            }
            if !after.is_live() && after != ReportedVmState::Waiting && self.process.is_none() {
                self.reservations.remove(self.spec.uuid);
            }
            self.publish_report();
            if self.released().await {
                return;
            }
        }
    }

    async fn next(&mut self, orders: &mut mpsc::Receiver<SupervisorCommand>) -> NextStep {
        let deadline = self.machine.deadline().map(|deadline| self.started + deadline);
        tokio::select! {
            biased;
            how = or_pending(self.process.as_ref().map(WatchedProcess::ended)) => {
                let leaving = self.drain_session().await;
                if let Some(leaving) = leaving {
                    // The reported cause comes before the end.
                    self.machine.on(self.started.elapsed(), leaving);
                }
                launch::end_all(&self.spec, &self.files, &self.config).await;
                NextStep::Event(VmEvent::Ended { how: how + self.memory_word(), log: self.files.last_words() })
            }
            event = or_pending(self.session.as_mut().map(QmpSession::next)) => match event {
                Some(QemuEvent::Answered) => {
                    self.groups.clear();
                    NextStep::Event(VmEvent::Answered)
                }
                Some(QemuEvent::CannotGo(detail)) => {
                    NextStep::Event(VmEvent::CannotGo(VmFailure { kind: VmFailureKind::NotStarted, detail, log: Vec::new() }))
                }
                Some(QemuEvent::ShuttingDown(leaving)) => NextStep::Event(VmEvent::ShuttingDown(leaving)),
                Some(QemuEvent::Paused { pause, error }) => {
                    NextStep::Event(exit_status::paused(&self.spec, &pause, error.as_ref()))
                }
                Some(QemuEvent::Resumed) => NextStep::Event(VmEvent::Resumed),
                None => {
                    self.session = None;
                    self.reconnect_at = Some(Instant::now() + RECONNECT_DELAY);
                    NextStep::Nothing
                }
            },
            order = orders.recv() => match order {
                None => NextStep::Gone,
                Some(order) => NextStep::Event(self.accept(order)),
            },
            () = or_pending(self.reconnect_at.map(sleep_until)) => {
                self.reconnect_at = None;
                self.open_session();
                NextStep::Nothing
            }
            () = or_pending(self.process.as_ref().map(|_| sleep_until(self.trim_log_at))) => {
                self.trim_log_at = Instant::now() + LOG_TRIM_INTERVAL;
                self.files.trim_log();
                NextStep::Nothing
            }
            () = or_pending(deadline.map(sleep_until)) => NextStep::Event(VmEvent::Tick),
        }
    }

    /// A note for a failure that an out-of-memory kill may have caused.
    fn memory_word(&self) -> &'static str {
        if memory::oom_kills(&Tree::new(&self.config.root)) > self.oom_kills_before {
            "; the kernel ended processes for want of memory meanwhile"
        } else {
            ""
        }
    }

    fn accept(&mut self, order: SupervisorCommand) -> VmEvent {
        match order {
            SupervisorCommand::Start(start) => {
                self.start = start;
                VmEvent::Start
            }
            SupervisorCommand::Refuse(start, failure) => {
                self.start = start;
                VmEvent::Refused(failure)
            }
            SupervisorCommand::Stop(grace) => VmEvent::Stop { grace },
            SupervisorCommand::Restart(grace, start) => {
                self.start = start;
                VmEvent::Restart { grace }
            }
            SupervisorCommand::Release(done) => {
                self.release = Some(done);
                VmEvent::Discard
            }
        }
    }

    /// Reads the remaining messages of a process that ended.
    async fn drain_session(&mut self) -> Option<VmEvent> {
        (self.process, self.reconnect_at) = (None, None);
        self.groups.clear();
        let mut session = self.session.take()?;
        session.is_gone();
        let mut last = None;
        let drain = async {
            while let Some(told) = session.next().await {
                if let QemuEvent::ShuttingDown(leaving) = told {
                    last = Some(VmEvent::ShuttingDown(leaving));
                }
            }
        };
        // The sockets end with the process, unless another process holds them.
        let _ = timeout(DRAIN_TIMEOUT, drain).await;
        last
    }

    async fn perform(&mut self, actions: Vec<VmAction>, events: &mut VecDeque<VmEvent>) {
        for action in actions {
            match (action, &self.process) {
                (VmAction::Launch, Some(process)) => {
                    let detail = format!("an earlier QEMU of it, process {}, has not ended", process.id());
                    let failure = VmFailure { kind: VmFailureKind::Prepare, detail, log: Vec::new() };
                    events.push_back(VmEvent::LaunchFailed(failure));
                }
                (VmAction::Launch, None) => {
                    self.publish_report();
                    self.oom_kills_before = memory::oom_kills(&Tree::new(&self.config.root));
                    match launch::launch(&self.spec, &self.files, &self.config, &self.reservations).await {
                        Ok(Launched { process, ip, groups }) => {
                            (self.process, self.ip, self.ran, self.groups) = (Some(process), ip, true, groups);
                            self.store();
                            self.open_session();
                        }
                        Err(failure) => events.push_back(VmEvent::LaunchFailed(failure)),
                    }
                }
                (VmAction::PowerDown | VmAction::Resume, _) => {
                    if let Some(session) = &self.session {
                        if action == VmAction::Resume { session.resume() } else { session.power_down() }
                    }
                }
                (VmAction::Terminate, Some(process)) => process.signal(Signal::TERM),
                (VmAction::Kill, Some(process)) => process.signal(Signal::KILL),
                (VmAction::Terminate | VmAction::Kill, None) => {
                    events.push_back(VmEvent::Ended { how: "had gone".to_owned(), log: Vec::new() });
                }
            }
        }
    }

    fn open_session(&mut self) {
        let ports = self.spec.nics.iter().enumerate().filter_map(|(index, nic)| {
            nic.bridge.as_ref().map(|bridge| (tap_ports::tap_name(&self.spec, index), bridge.to_string(), nic.peers))
        });
        self.session = Some(QmpSession::open(QmpSessionConfig {
            qmp: self.files.qmp(),
            serial: self.files.serial_in(),
            console: self.console.clone(),
            console_input: self.console_input.clone(),
            ports: ports.collect(),
            ip: self.ip.clone(),
        }));
    }

    /// Writes the record before any action depends on it.
    fn store(&mut self) {
        let (spec, kept, boot) = (self.spec.clone(), self.machine.kept().clone(), self.boot.1.clone());
        let stored = PersistedVm { spec, start: self.start, kept, boot, ran: self.ran };
        // A VM that is being released gets no new folder: a restarted agent would bring it back.
        let is_going = self.release.is_some() && !self.files.kept().exists();
        if self.stored.as_ref() == Some(&stored) || is_going {
            return;
        }
        match stored.write(&self.files) {
            Ok(()) => self.stored = Some(stored),
            Err(error) => tracing::error!(vm = %self.spec.name, %error, "a virtual machine would not be taken over"),
        }
    }

    fn publish_report(&self) {
        let now = report(&self.spec, self.start, &self.machine);
        let is_new = self.report.send_if_modified(|last| {
            let is_new = *last != now;
            *last = now;
            is_new
        });
        if is_new {
            self.changed.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Completes a pending release. Returns true if nothing of the VM remains.
    async fn released(&mut self) -> bool {
        if self.release.is_none() || self.machine.state().is_live() {
            return false;
        }
        let removed = if self.process.is_some() {
            Err("QEMU was killed and does not end; look at the node's kernel log".to_owned())
        } else {
            launch::end_all(&self.spec, &self.files, &self.config).await;
            // A VM that never ran had no units and disks.
            match if self.ran { release_check::wait_until_free(&self.config, &self.spec).await } else { Ok(()) } {
                Ok(()) => self.files.release().await,
                unclean => unclean,
            }
        };
        let is_gone = removed.is_ok();
        if is_gone {
            self.reservations.remove(self.spec.uuid);
        }
        if let Some(done) = self.release.take() {
            // The receiver may be gone.
            let _ = done.send(removed);
        }
        is_gone
    }
}

enum NextStep {
    Event(VmEvent),
    Nothing,
    Gone,
}

async fn or_pending<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
