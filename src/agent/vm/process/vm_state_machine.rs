//! The state machine of one VM. Pure: time is an argument, actions are the result.
//!
//! ```text
//!            ordered                answered             ordered: ACPI, then SIGTERM, then SIGKILL
//! stopped ───────────▶ starting ───────────▶ running ───────────────────────────────▶ stopping ──▶ stopped
//!    ▲                    ▲  │ ended            │ ended
//!    │ switched itself    │  ▼                  ▼
//!    │ off, no policy   waiting ◀────── policy allows ──────▶ failed, with the reason
//! running ◀──▶ paused: QEMU holds the guest (the store is full, a disk fails); an order goes on with it, or the policy, in measure.
//!    A guest that cannot go on ends as if it had crashed, where the policy starts it again.
//! ```

pub use super::vm_event::{ShutdownCause, VmAction, VmEvent, VmRecord};

use super::exit_status::{crash, cut};
use meshd_proto::vm::{ReportedVmState, RestartPolicy, RestartWhen, VmFailure, VmFailureKind};
use std::time::Duration;

/// Timeout until the guest runs, and the addition for each GiB of memory: with devices or huge pages all memory is mapped first.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const START_TIMEOUT_PER_GIB: Duration = Duration::from_secs(1);
/// Timeout of SIGTERM: QEMU writes its caches back.
pub const TERM_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of SIGKILL: the kernel needs seconds to release devices and memory.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
enum MachineState {
    Off,
    Starting { deadline: Duration },
    Running { since: Duration },
    Paused { resumable: bool, until: Option<Duration> },
    Stopping { step: VmStep, deadline: Duration, then: AfterStop },
    Waiting { until: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VmStep {
    Acpi,
    Term,
    Kill,
}

/// What happens after a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AfterStop {
    Stay,
    Start,
    Fail(VmFailure),
}

/// The state of one VM.
#[derive(Clone, Debug)]
pub struct VmStateMachine {
    state: MachineState,
    policy: RestartPolicy,
    start_timeout: Duration,
    kept: VmRecord,
    shutdown_cause: Option<ShutdownCause>,
}

impl VmStateMachine {
    /// Makes a VM that is off. `kept` is the stored state.
    pub fn new(policy: RestartPolicy, memory_bytes: u64, kept: VmRecord) -> Self {
        let gib = u32::try_from(memory_bytes >> 30).unwrap_or(u32::MAX);
        let start_timeout = START_TIMEOUT + START_TIMEOUT_PER_GIB * gib;
        VmStateMachine { state: MachineState::Off, policy, start_timeout, kept, shutdown_cause: None }
    }

    /// A VM of an earlier boot of the node waits for an order, whatever its restart policy: it may run on another node now.
    pub fn left_over(&mut self) {
        if std::mem::take(&mut self.kept.wanted) {
            let detail = "the node booted anew; it waits for an order".to_owned();
            self.kept.failure = Some(VmFailure { kind: VmFailureKind::EndedUnseen, detail, log: Vec::new() });
        }
    }

    /// Takes over a VM of an earlier agent. `is_alive`: its process runs.
    pub fn adopt(&mut self, now: Duration, is_alive: bool) -> Vec<VmAction> {
        match (self.kept.wanted, is_alive) {
            (true, true) if self.kept.answered => self.state = MachineState::Running { since: now },
            // An earlier agent ended during the start: the timeout begins again.
            (true, true) => self.state = MachineState::Starting { deadline: now + self.start_timeout },
            (true, false) => {
                let detail = "it ended while no agent watched".to_owned();
                self.failed(now, VmFailure { kind: VmFailureKind::EndedUnseen, detail, log: Vec::new() });
            }
            (false, true) => return self.stop(now, VmStep::Term, TERM_TIMEOUT, AfterStop::Stay),
            (false, false) => {}
        }
        Vec::new()
    }

    /// Returns the state for reports.
    pub fn state(&self) -> ReportedVmState {
        match &self.state {
            MachineState::Off if self.kept.failure.is_some() => ReportedVmState::Failed,
            MachineState::Off => ReportedVmState::Stopped,
            MachineState::Starting { .. } => ReportedVmState::Starting,
            MachineState::Running { .. } => ReportedVmState::Running,
            MachineState::Paused { .. } => ReportedVmState::Paused,
            MachineState::Stopping { .. } => ReportedVmState::Stopping,
            MachineState::Waiting { .. } => ReportedVmState::Waiting,
        }
    }

    /// Returns the state that outlives the agent.
    pub fn kept(&self) -> &VmRecord {
        &self.kept
    }

    /// Returns when [`VmEvent::Tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        match &self.state {
            MachineState::Starting { deadline } | MachineState::Stopping { deadline, .. } => Some(*deadline),
            MachineState::Waiting { until } => Some(*until),
            MachineState::Paused { until, .. } => *until,
            MachineState::Off | MachineState::Running { .. } => None,
        }
    }

    /// Processes an event and returns the actions.
    pub fn on(&mut self, now: Duration, event: VmEvent) -> Vec<VmAction> {
        match event {
            VmEvent::Start => self.start(now),
            VmEvent::Stop { grace } => self.ordered_stop(now, grace, AfterStop::Stay),
            VmEvent::Restart { .. } if matches!(self.state, MachineState::Off | MachineState::Paused { .. }) => {
                self.start(now)
            }
            VmEvent::Restart { grace } => self.ordered_stop(now, grace, AfterStop::Start),
            VmEvent::Discard => self.discard(now),
            VmEvent::Refused(failure) => {
                if self.state == MachineState::Off {
                    self.kept = VmRecord { failure: Some(failure), ..VmRecord::default() };
                }
                Vec::new()
            }
            VmEvent::LaunchFailed(failure) => {
                if matches!(self.state, MachineState::Starting { .. }) {
                    self.failed(now, failure);
                }
                Vec::new()
            }
            VmEvent::CannotGo(failure) => match self.state {
                MachineState::Starting { .. } => self.stop(now, VmStep::Kill, KILL_TIMEOUT, AfterStop::Fail(failure)),
                _ => Vec::new(),
            },
            VmEvent::Answered => {
                if matches!(self.state, MachineState::Starting { .. }) {
                    self.state = MachineState::Running { since: now };
                    self.kept.answered = true;
                }
                Vec::new()
            }
            VmEvent::Paused { why, resumable } => self.paused(now, why, resumable),
            VmEvent::Resumed => {
                if matches!(self.state, MachineState::Paused { .. }) {
                    self.state = MachineState::Running { since: now };
                }
                Vec::new()
            }
            VmEvent::ShuttingDown(shutdown_cause) => {
                // A panic causes the later shutdown event.
                if self.shutdown_cause != Some(ShutdownCause::Panic) {
                    self.shutdown_cause = Some(shutdown_cause);
                }
                Vec::new()
            }
            VmEvent::Ended { how, log } => self.ended(now, &how, log),
            VmEvent::Tick => self.tick(now),
        }
    }

    /// An ordered start resets the restart counter.
    fn start(&mut self, now: Duration) -> Vec<VmAction> {
        match &mut self.state {
            MachineState::Off | MachineState::Waiting { .. } => {
                self.kept = VmRecord { wanted: true, ..VmRecord::default() };
                self.launch(now)
            }
            MachineState::Stopping { then, .. } => {
                self.kept = VmRecord { wanted: true, ..VmRecord::default() };
                *then = AfterStop::Start;
                Vec::new()
            }
            MachineState::Paused { resumable: true, until } => {
                *until = None;
                self.kept = VmRecord { wanted: true, ..VmRecord::default() };
                vec![VmAction::Resume]
            }
            MachineState::Paused { .. } => {
                self.kept = VmRecord { wanted: true, ..VmRecord::default() };
                self.stop(now, VmStep::Term, TERM_TIMEOUT, AfterStop::Start)
            }
            MachineState::Starting { .. } | MachineState::Running { .. } => Vec::new(),
        }
    }

    /// QEMU paused the guest. The restart policy resumes it after a delay. A guest that cannot resume is terminated.
    fn paused(&mut self, now: Duration, why: String, resumable: bool) -> Vec<VmAction> {
        let since = match self.state {
            MachineState::Running { since } => Some(since),
            MachineState::Paused { until: None, .. } => None,
            _ => return Vec::new(),
        };
        if since.is_some_and(|since| self.is_stable(now, since)) {
            self.kept.restarts = 0;
        }
        let failure = VmFailure { kind: VmFailureKind::Paused, detail: cut(why), log: Vec::new() };
        let again = self.may_restart();
        if again && !resumable {
            return self.stop(now, VmStep::Term, TERM_TIMEOUT, AfterStop::Fail(failure));
        }
        let until = again.then(|| now + restart_delay(&self.policy, self.kept.restarts));
        self.kept.restarts += u32::from(again);
        self.kept.failure = Some(failure);
        self.state = MachineState::Paused { resumable, until };
        Vec::new()
    }

    /// Returns true if the guest ran long enough to reset the restart counter.
    fn is_stable(&self, now: Duration, since: Duration) -> bool {
        now.saturating_sub(since) >= Duration::from_secs(self.policy.stable_after_s.into())
    }

    fn may_restart(&self) -> bool {
        self.policy.when != RestartWhen::Never && self.kept.wanted && self.kept.restarts < self.policy.attempts
    }

    fn launch(&mut self, now: Duration) -> Vec<VmAction> {
        self.shutdown_cause = None;
        self.kept.answered = false;
        self.state = MachineState::Starting { deadline: now + self.start_timeout };
        vec![VmAction::Launch]
    }

    fn ordered_stop(&mut self, now: Duration, grace: Duration, after: AfterStop) -> Vec<VmAction> {
        self.kept.wanted = after == AfterStop::Start;
        match &mut self.state {
            MachineState::Off => Vec::new(),
            MachineState::Waiting { .. } if after == AfterStop::Start => self.launch(now),
            MachineState::Waiting { .. } => {
                self.state = MachineState::Off;
                self.kept.failure = None;
                Vec::new()
            }
            // The guest does not run, so it cannot shut down by ACPI.
            MachineState::Starting { .. } | MachineState::Paused { .. } => {
                self.stop(now, VmStep::Term, TERM_TIMEOUT, after)
            }
            MachineState::Running { .. } => self.stop(now, VmStep::Acpi, grace, after),
            MachineState::Stopping { then, deadline, step } => {
                *then = after;
                // A second order may shorten the grace period, never extend it.
                if *step == VmStep::Acpi {
                    *deadline = (*deadline).min(now + grace);
                }
                Vec::new()
            }
        }
    }

    fn discard(&mut self, now: Duration) -> Vec<VmAction> {
        self.kept.wanted = false;
        match self.state {
            MachineState::Off => Vec::new(),
            MachineState::Waiting { .. } => {
                self.state = MachineState::Off;
                Vec::new()
            }
            _ => self.stop(now, VmStep::Kill, KILL_TIMEOUT, AfterStop::Stay),
        }
    }

    fn stop(&mut self, now: Duration, step: VmStep, step_timeout: Duration, then: AfterStop) -> Vec<VmAction> {
        self.state = MachineState::Stopping { step, deadline: now + step_timeout, then };
        vec![match step {
            VmStep::Acpi => VmAction::PowerDown,
            VmStep::Term => VmAction::Terminate,
            VmStep::Kill => VmAction::Kill,
        }]
    }

    fn tick(&mut self, now: Duration) -> Vec<VmAction> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match &self.state {
            MachineState::Starting { .. } => {
                let detail = format!("the guest did not run within {} s", self.start_timeout.as_secs());
                let failure = VmFailure { kind: VmFailureKind::StartTimeout, detail, log: Vec::new() };
                self.stop(now, VmStep::Kill, KILL_TIMEOUT, AfterStop::Fail(failure))
            }
            MachineState::Waiting { .. } => self.launch(now),
            MachineState::Paused { resumable, .. } => {
                self.state = MachineState::Paused { resumable: *resumable, until: None };
                vec![VmAction::Resume]
            }
            MachineState::Stopping { step: VmStep::Acpi, then, .. } => {
                let then = then.clone();
                self.stop(now, VmStep::Term, TERM_TIMEOUT, then)
            }
            MachineState::Stopping { step: VmStep::Term, then, .. } => {
                let then = then.clone();
                self.stop(now, VmStep::Kill, KILL_TIMEOUT, then)
            }
            MachineState::Stopping { step: VmStep::Kill, .. } => {
                let detail = "QEMU was killed and does not end; look at the node's kernel log".to_owned();
                let failure = VmFailure { kind: VmFailureKind::Immortal, detail, log: Vec::new() };
                self.kept = VmRecord { wanted: false, failure: Some(failure), ..self.kept.clone() };
                self.state = MachineState::Off;
                Vec::new()
            }
            MachineState::Off | MachineState::Running { .. } => Vec::new(),
        }
    }

    fn ended(&mut self, now: Duration, how: &str, log: Vec<String>) -> Vec<VmAction> {
        let shutdown_cause = self.shutdown_cause.take();
        match self.state.clone() {
            MachineState::Starting { .. } => {
                let detail = format!("QEMU {how} before the guest ran");
                self.failed(now, VmFailure { kind: VmFailureKind::NotStarted, detail: cut(detail), log });
            }
            MachineState::Running { since } => {
                if self.is_stable(now, since) {
                    self.kept.restarts = 0;
                }
                match (shutdown_cause, self.policy.when) {
                    (Some(ShutdownCause::Guest), RestartWhen::Always) => {
                        let detail = "the guest switched itself off".to_owned();
                        self.failed(now, VmFailure { kind: VmFailureKind::Crashed, detail, log });
                    }
                    (Some(ShutdownCause::Guest), _) => self.rest(),
                    (shutdown_cause, _) => self.failed(now, crash(shutdown_cause, how, log)),
                }
            }
            MachineState::Stopping { then, .. } => match then {
                AfterStop::Stay => self.rest(),
                AfterStop::Start => return self.launch(now),
                AfterStop::Fail(failure) => self.failed(now, VmFailure { log, ..failure }),
            },
            MachineState::Paused { .. } => self.failed(now, crash(shutdown_cause, how, log)),
            MachineState::Off | MachineState::Waiting { .. } => {}
        }
        Vec::new()
    }

    fn rest(&mut self) {
        self.state = MachineState::Off;
        self.kept = VmRecord::default();
    }

    /// An unwanted end: restarts after a delay, or stays failed.
    fn failed(&mut self, now: Duration, mut failure: VmFailure) {
        let again = self.policy.when != RestartWhen::Never && self.kept.wanted;
        if self.may_restart() {
            let restart_delay = restart_delay(&self.policy, self.kept.restarts);
            self.kept.restarts += 1;
            self.state = MachineState::Waiting { until: now + restart_delay };
        } else {
            if again {
                failure.detail = cut(format!("{}; given up after {} new starts", failure.detail, self.kept.restarts));
            }
            self.kept.wanted = false;
            self.state = MachineState::Off;
        }
        self.kept.failure = Some(failure);
    }
}

/// The delay before a restart doubles with each restart in a row.
fn restart_delay(policy: &RestartPolicy, restarts: u32) -> Duration {
    let factor = 1u64.checked_shl(restarts).unwrap_or(u64::MAX);
    Duration::from_secs(u64::from(policy.delay_s).saturating_mul(factor).min(policy.max_delay_s.into()))
}

#[cfg(test)]
#[path = "tests/machine.rs"]
mod tests;
