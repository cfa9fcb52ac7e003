//! The state machine of one VM. Pure: time is an argument, an action is the result.
//!
//! ```text
//!           start               guest runs           stop: ACPI, then SIGTERM, then SIGKILL
//! stopped ─────────▶ starting ─────────────▶ running ─────────────────────────────────▶ stopping ──▶ stopped
//!    ▲                 ▲  │ QEMU ended         │ QEMU ended
//!    │ guest powered   │  ▼                    ▼
//!    │ off, no policy  waiting ◀──── restart policy allows ────▶ failed
//!
//! running ◀──▶ paused: QEMU paused the guest (the store is full, a disk fails). A start order or the restart policy resumes the guest.
//!    A guest that cannot resume counts as crashed: the restart policy starts it again.
//! ```

use super::{
    exit_status::crash,
    vm_event::{RestartState, ShutdownCause, VmAction, VmEvent},
};
use crate::vm::failure::failure;
use meshd_proto::vm::{
    MAX_FAILURE_TEXT, ReportedVmState, RestartPolicy, RestartWhen, VmFailure, VmFailureKind,
};
use meshd_types::truncate;
use std::time::Duration;

/// Timeout of a start, plus an addition for each GiB of memory: with devices or huge pages QEMU
/// maps all memory first.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const START_TIMEOUT_PER_GIB: Duration = Duration::from_secs(1);
/// Timeout of SIGTERM: QEMU writes its caches back.
pub const TERM_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of SIGKILL: the kernel needs seconds to release devices and memory.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(60);
/// Text of a failure for a process that outlives [`KILL_TIMEOUT`].
pub const SURVIVES_KILL: &str = "QEMU did not end after SIGKILL; see the kernel log of the node";

#[derive(Clone, Debug, PartialEq, Eq)]
enum RunState {
    Off,
    /// `by_order`: an order starts the VM, not its restart policy.
    Starting {
        deadline: Duration,
        by_order: bool,
    },
    Running {
        since: Duration,
    },
    /// `is_resuming`: QEMU has not confirmed the last [`VmAction::Resume`].
    Paused {
        resumable: bool,
        until: Option<Duration>,
        is_resuming: bool,
    },
    Stopping {
        step: StopStep,
        deadline: Duration,
        then: AfterStop,
    },
    Waiting {
        until: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopStep {
    Acpi,
    Term,
    Kill,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AfterStop {
    Stopped,
    Start,
    Fail(VmFailure),
}

#[derive(Clone, Debug)]
pub struct VmStateMachine {
    state: RunState,
    policy: RestartPolicy,
    start_timeout: Duration,
    restart_state: RestartState,
    shutdown_cause: Option<ShutdownCause>,
}

impl VmStateMachine {
    pub fn new(policy: RestartPolicy, memory_bytes: u64, restart_state: RestartState) -> Self {
        let gib = u32::try_from(memory_bytes >> 30).unwrap_or(u32::MAX);
        let start_timeout = START_TIMEOUT + START_TIMEOUT_PER_GIB * gib;
        VmStateMachine {
            state: RunState::Off,
            policy,
            start_timeout,
            restart_state,
            shutdown_cause: None,
        }
    }

    /// Takes over a VM of an earlier boot. It waits for an order whatever its restart policy,
    /// because it may run on another node now.
    pub fn adopt_after_reboot(&mut self) {
        if std::mem::take(&mut self.restart_state.should_run) {
            let detail = "the node rebooted; the VM waits for a start order";
            self.restart_state.failure = Some(failure(VmFailureKind::EndedUnseen, detail));
        }
    }

    /// Takes over a VM of an earlier agent. `is_alive`: its QEMU runs. `grace`: the rest of the
    /// grace period, if its guest shuts down by ACPI.
    pub fn adopt(
        &mut self,
        now: Duration,
        is_alive: bool,
        grace: Option<Duration>,
    ) -> Option<VmAction> {
        let should_run = self.restart_state.should_run;
        if let Some(grace) = grace.filter(|_| is_alive) {
            let then = if should_run { AfterStop::Start } else { AfterStop::Stopped };
            return self.stop(now, StopStep::Acpi, grace, then);
        }
        match (should_run, is_alive) {
            (true, true) if self.restart_state.guest_ran => {
                self.state = RunState::Running { since: now }
            }
            // An earlier agent ended during the start: the timeout begins again.
            (true, true) => {
                self.state =
                    RunState::Starting { deadline: now + self.start_timeout, by_order: false };
            }
            (true, false) => {
                self.handle_failure(
                    now,
                    failure(VmFailureKind::EndedUnseen, "QEMU ended while no agent ran"),
                );
            }
            (false, true) => {
                return self.stop(now, StopStep::Term, TERM_TIMEOUT, AfterStop::Stopped);
            }
            (false, false) => {}
        }
        None
    }

    /// Returns the state for reports.
    pub fn state(&self) -> ReportedVmState {
        match &self.state {
            RunState::Off if self.restart_state.failure.is_some() => ReportedVmState::Failed,
            RunState::Off => ReportedVmState::Stopped,
            RunState::Starting { .. } => ReportedVmState::Starting,
            RunState::Running { .. } => ReportedVmState::Running,
            RunState::Paused { .. } => ReportedVmState::Paused,
            RunState::Stopping { .. } => ReportedVmState::Stopping,
            RunState::Waiting { .. } => ReportedVmState::Waiting,
        }
    }

    pub fn restart_state(&self) -> &RestartState {
        &self.restart_state
    }

    /// Returns the time at which [`VmEvent::Tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        match &self.state {
            RunState::Starting { deadline, .. } | RunState::Stopping { deadline, .. } => {
                Some(*deadline)
            }
            RunState::Waiting { until } => Some(*until),
            RunState::Paused { until, .. } => *until,
            RunState::Off | RunState::Running { .. } => None,
        }
    }

    /// Returns the end of the grace period of a guest that shuts down by ACPI.
    pub fn power_down_until(&self) -> Option<Duration> {
        match &self.state {
            RunState::Stopping { step: StopStep::Acpi, deadline, .. } => Some(*deadline),
            _ => None,
        }
    }

    pub fn handle(&mut self, now: Duration, event: VmEvent) -> Option<VmAction> {
        match (event, &self.state) {
            (VmEvent::Start, _)
            | (VmEvent::Restart { .. }, RunState::Off | RunState::Paused { .. }) => {
                return self.start(now);
            }
            (VmEvent::Stop { grace }, _) => {
                return self.ordered_stop(now, grace, AfterStop::Stopped);
            }
            (VmEvent::Restart { grace }, _) => {
                return self.ordered_stop(now, grace, AfterStop::Start);
            }
            (VmEvent::Discard, _) => return self.discard(now),
            (VmEvent::Paused { reason, resumable }, _) => {
                return self.handle_pause(now, reason, resumable);
            }
            (VmEvent::Ended { exit, log }, _) => return self.handle_end(now, &exit, log),
            (VmEvent::Tick, _) => return self.tick(now),
            (VmEvent::GuestStartFailed(failure), RunState::Starting { .. }) => {
                return self.stop(now, StopStep::Kill, KILL_TIMEOUT, AfterStop::Fail(failure));
            }
            (VmEvent::Refused(failure), RunState::Off) => self.handle_refusal(failure),
            // The central node may try another node.
            (VmEvent::LaunchFailed(failure), RunState::Starting { by_order: true, .. })
                if failure.kind == VmFailureKind::Refused =>
            {
                self.handle_refusal(failure);
            }
            (VmEvent::LaunchFailed(failure), RunState::Starting { .. }) => {
                self.handle_failure(now, failure)
            }
            (VmEvent::GuestRunning, RunState::Starting { .. }) => {
                self.state = RunState::Running { since: now };
                self.restart_state.guest_ran = true;
            }
            // A new QMP session: a command of the former one may be lost.
            (VmEvent::GuestRunning, RunState::Stopping { step: StopStep::Acpi, .. }) => {
                return Some(VmAction::PowerDown);
            }
            (VmEvent::GuestRunning, RunState::Paused { is_resuming: true, .. }) => {
                return Some(VmAction::Resume);
            }
            (VmEvent::Resumed, RunState::Paused { .. }) => {
                self.state = RunState::Running { since: now }
            }
            // A panic causes the later shutdown event.
            (VmEvent::ShuttingDown(_), _) if self.shutdown_cause == Some(ShutdownCause::Panic) => {}
            (VmEvent::ShuttingDown(cause), _) => self.shutdown_cause = Some(cause),
            // The event is too late: the state changed meanwhile.
            (
                VmEvent::Refused(_)
                | VmEvent::LaunchFailed(_)
                | VmEvent::GuestStartFailed(_)
                | VmEvent::GuestRunning
                | VmEvent::Resumed,
                _,
            ) => {}
        }
        None
    }

    /// An ordered start or restart resets the restart counter.
    fn start(&mut self, now: Duration) -> Option<VmAction> {
        if !matches!(self.state, RunState::Starting { .. } | RunState::Running { .. }) {
            self.restart_state = RestartState { should_run: true, ..RestartState::default() };
        }
        match &mut self.state {
            RunState::Off | RunState::Waiting { .. } => self.launch(now, true),
            RunState::Stopping { then, .. } => {
                *then = AfterStop::Start;
                None
            }
            RunState::Paused { resumable: true, until, is_resuming } => {
                (*until, *is_resuming) = (None, true);
                Some(VmAction::Resume)
            }
            RunState::Paused { .. } => {
                self.stop(now, StopStep::Term, TERM_TIMEOUT, AfterStop::Start)
            }
            RunState::Starting { .. } | RunState::Running { .. } => None,
        }
    }

    /// QEMU paused the guest. The restart policy resumes it after a delay. A guest that cannot
    /// resume is terminated.
    fn handle_pause(&mut self, now: Duration, reason: String, resumable: bool) -> Option<VmAction> {
        let since = match self.state {
            RunState::Running { since } => Some(since),
            RunState::Paused { until: None, .. } => None,
            _ => return None,
        };
        if since.is_some_and(|since| self.is_stable(now, since)) {
            self.restart_state.restarts = 0;
        }
        let failure = failure(VmFailureKind::Paused, reason);
        let restarts = self.may_restart();
        if restarts && !resumable {
            return self.stop(now, StopStep::Term, TERM_TIMEOUT, AfterStop::Fail(failure));
        }
        let until =
            restarts.then(|| now + restart_delay(&self.policy, self.restart_state.restarts));
        self.restart_state.restarts += u32::from(restarts);
        self.restart_state.failure = Some(failure);
        self.state = RunState::Paused { resumable, until, is_resuming: false };
        None
    }

    /// Returns true if the guest ran long enough to reset the restart counter.
    fn is_stable(&self, now: Duration, since: Duration) -> bool {
        now.saturating_sub(since) >= Duration::from_secs(self.policy.stable_after_s.into())
    }

    fn may_restart(&self) -> bool {
        self.policy.when != RestartWhen::Never
            && self.restart_state.should_run
            && self.restart_state.restarts < self.policy.attempts
    }

    /// The node does not run the VM until the next order.
    fn handle_refusal(&mut self, failure: VmFailure) {
        self.state = RunState::Off;
        self.restart_state = RestartState { failure: Some(failure), ..RestartState::default() };
    }

    fn launch(&mut self, now: Duration, by_order: bool) -> Option<VmAction> {
        self.shutdown_cause = None;
        self.restart_state.guest_ran = false;
        self.state = RunState::Starting { deadline: now + self.start_timeout, by_order };
        Some(VmAction::Launch)
    }

    fn ordered_stop(
        &mut self,
        now: Duration,
        grace: Duration,
        after: AfterStop,
    ) -> Option<VmAction> {
        self.restart_state.should_run = after == AfterStop::Start;
        if after == AfterStop::Start {
            self.restart_state.restarts = 0;
        }
        match &mut self.state {
            RunState::Off => None,
            RunState::Waiting { .. } if after == AfterStop::Start => self.start(now),
            RunState::Waiting { .. } => {
                self.state = RunState::Off;
                self.restart_state.failure = None;
                None
            }
            // The guest does not run, so it cannot shut down by ACPI.
            RunState::Starting { .. } | RunState::Paused { .. } => {
                self.stop(now, StopStep::Term, TERM_TIMEOUT, after)
            }
            RunState::Running { .. } => self.stop(now, StopStep::Acpi, grace, after),
            RunState::Stopping { then, deadline, step } => {
                *then = after;
                // A second order may shorten the grace period, never extend it.
                if *step == StopStep::Acpi {
                    *deadline = (*deadline).min(now + grace);
                }
                None
            }
        }
    }

    fn discard(&mut self, now: Duration) -> Option<VmAction> {
        self.restart_state.should_run = false;
        match self.state {
            RunState::Off => None,
            RunState::Waiting { .. } => {
                self.state = RunState::Off;
                None
            }
            _ => self.stop(now, StopStep::Kill, KILL_TIMEOUT, AfterStop::Stopped),
        }
    }

    fn stop(
        &mut self,
        now: Duration,
        step: StopStep,
        step_timeout: Duration,
        then: AfterStop,
    ) -> Option<VmAction> {
        self.state = RunState::Stopping { step, deadline: now + step_timeout, then };
        Some(match step {
            StopStep::Acpi => VmAction::PowerDown,
            StopStep::Term => VmAction::Terminate,
            StopStep::Kill => VmAction::Kill,
        })
    }

    fn tick(&mut self, now: Duration) -> Option<VmAction> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        match &self.state {
            RunState::Starting { .. } => {
                let detail =
                    format!("the guest did not run within {} s", self.start_timeout.as_secs());
                let failure = failure(VmFailureKind::StartTimeout, detail);
                self.stop(now, StopStep::Kill, KILL_TIMEOUT, AfterStop::Fail(failure))
            }
            RunState::Waiting { .. } => self.launch(now, false),
            RunState::Paused { resumable, .. } => {
                self.state =
                    RunState::Paused { resumable: *resumable, until: None, is_resuming: true };
                Some(VmAction::Resume)
            }
            RunState::Stopping { step: StopStep::Acpi, then, .. } => {
                self.stop(now, StopStep::Term, TERM_TIMEOUT, then.clone())
            }
            RunState::Stopping { step: StopStep::Term, then, .. } => {
                self.stop(now, StopStep::Kill, KILL_TIMEOUT, then.clone())
            }
            RunState::Stopping { step: StopStep::Kill, .. } => {
                self.restart_state.should_run = false;
                self.restart_state.failure = Some(failure(VmFailureKind::Immortal, SURVIVES_KILL));
                self.state = RunState::Off;
                None
            }
            RunState::Off | RunState::Running { .. } => None,
        }
    }

    fn handle_end(&mut self, now: Duration, exit: &str, log: Vec<String>) -> Option<VmAction> {
        let shutdown_cause = self.shutdown_cause.take();
        match self.state.clone() {
            RunState::Starting { .. } => {
                let detail = format!("QEMU {exit} before the guest ran");
                self.handle_failure(
                    now,
                    VmFailure { log, ..failure(VmFailureKind::NotStarted, detail) },
                );
            }
            RunState::Running { since } => {
                if self.is_stable(now, since) {
                    self.restart_state.restarts = 0;
                }
                match (shutdown_cause, self.policy.when) {
                    (Some(ShutdownCause::Guest), RestartWhen::Always) => {
                        let failure = failure(VmFailureKind::Crashed, "the guest powered off");
                        self.handle_failure(now, VmFailure { log, ..failure });
                    }
                    (Some(ShutdownCause::Guest), _) => self.mark_stopped(),
                    (shutdown_cause, _) => {
                        self.handle_failure(now, crash(shutdown_cause, exit, log))
                    }
                }
            }
            RunState::Stopping { then, .. } => match then {
                AfterStop::Stopped => self.mark_stopped(),
                AfterStop::Start => return self.launch(now, true),
                AfterStop::Fail(failure) => self.handle_failure(now, VmFailure { log, ..failure }),
            },
            RunState::Paused { .. } => self.handle_failure(now, crash(shutdown_cause, exit, log)),
            RunState::Off | RunState::Waiting { .. } => {}
        }
        None
    }

    fn mark_stopped(&mut self) {
        self.state = RunState::Off;
        self.restart_state = RestartState::default();
    }

    /// Restarts the VM after a delay, or leaves it failed.
    fn handle_failure(&mut self, now: Duration, mut failure: VmFailure) {
        if self.may_restart() {
            self.state = RunState::Waiting {
                until: now + restart_delay(&self.policy, self.restart_state.restarts),
            };
            self.restart_state.restarts += 1;
        } else {
            if self.policy.when != RestartWhen::Never && self.restart_state.should_run {
                let detail = format!(
                    "{}; gave up after {} restarts",
                    failure.detail, self.restart_state.restarts
                );
                failure.detail = truncate(detail, MAX_FAILURE_TEXT);
            }
            self.restart_state.should_run = false;
            self.state = RunState::Off;
        }
        self.restart_state.failure = Some(failure);
    }
}

/// Returns the delay before a restart. It doubles with each restart in a row.
fn restart_delay(policy: &RestartPolicy, restarts: u32) -> Duration {
    let factor = 1u64.checked_shl(restarts).unwrap_or(u64::MAX);
    Duration::from_secs(
        u64::from(policy.delay_s).saturating_mul(factor).min(policy.max_delay_s.into()),
    )
}

#[cfg(test)]
#[path = "tests/machine.rs"]
mod tests;
