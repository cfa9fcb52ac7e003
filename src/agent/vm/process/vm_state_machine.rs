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
use meshd_proto::vm::{RestartPolicy, RestartWhen, VmFailure, VmFailureKind, VmState};
use std::time::Duration;

/// How long QEMU may take until the guest runs, and how much longer for each GiB of memory: devices and huge pages need it all
/// mapped first.
const START_PATIENCE: Duration = Duration::from_secs(120);
const START_PATIENCE_PER_GIB: Duration = Duration::from_secs(1);
/// How long QEMU may take to write back and end after SIGTERM.
pub const TERM_PATIENCE: Duration = Duration::from_secs(10);
/// How long the kernel may take to end it after SIGKILL; giving back devices and memory takes seconds.
pub const KILL_PATIENCE: Duration = Duration::from_secs(60);

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

/// What follows a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AfterStop {
    Rest,
    Start,
    Fail(VmFailure),
}

/// One virtual machine.
#[derive(Clone, Debug)]
pub struct VmStateMachine {
    state: MachineState,
    policy: RestartPolicy,
    patience: Duration,
    kept: VmRecord,
    leaving: Option<ShutdownCause>,
}

impl VmStateMachine {
    /// One that is off; `kept` is what an earlier agent remembered.
    pub fn new(policy: RestartPolicy, memory_bytes: u64, kept: VmRecord) -> Self {
        let gib = u32::try_from(memory_bytes >> 30).unwrap_or(u32::MAX);
        let patience = START_PATIENCE + START_PATIENCE_PER_GIB * gib;
        VmStateMachine { state: MachineState::Off, policy, patience, kept, leaving: None }
    }

    /// One that an earlier boot of the node left: it may run on another node by now, so it waits for an order, whatever its policy says.
    pub fn left_over(&mut self) {
        if std::mem::take(&mut self.kept.wanted) {
            let detail = "the node booted anew; it waits for an order".to_owned();
            self.kept.failure = Some(VmFailure { kind: VmFailureKind::EndedUnseen, detail, log: Vec::new() });
        }
    }

    /// Takes over what an earlier agent left: a process of it lives, or not.
    pub fn adopt(&mut self, now: Duration, is_alive: bool) -> Vec<VmAction> {
        match (self.kept.wanted, is_alive) {
            (true, true) if self.kept.answered => self.state = MachineState::Running { since: now },
            // An earlier agent ended in the midst of its start: what is left of that has as much time as all of it.
            (true, true) => self.state = MachineState::Starting { deadline: now + self.patience },
            (true, false) => {
                let detail = "it ended while no agent watched".to_owned();
                self.failed(now, VmFailure { kind: VmFailureKind::EndedUnseen, detail, log: Vec::new() });
            }
            (false, true) => return self.stop(now, VmStep::Term, TERM_PATIENCE, AfterStop::Rest),
            (false, false) => {}
        }
        Vec::new()
    }

    /// The closed word for where it stands.
    pub fn state(&self) -> VmState {
        match &self.state {
            MachineState::Off if self.kept.failure.is_some() => VmState::Failed,
            MachineState::Off => VmState::Stopped,
            MachineState::Starting { .. } => VmState::Starting,
            MachineState::Running { .. } => VmState::Running,
            MachineState::Paused { .. } => VmState::Paused,
            MachineState::Stopping { .. } => VmState::Stopping,
            MachineState::Waiting { .. } => VmState::Waiting,
        }
    }

    /// What outlives the agent.
    pub fn kept(&self) -> &VmRecord {
        &self.kept
    }

    /// When [`VmEvent::Tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        match &self.state {
            MachineState::Starting { deadline } | MachineState::Stopping { deadline, .. } => Some(*deadline),
            MachineState::Waiting { until } => Some(*until),
            MachineState::Paused { until, .. } => *until,
            MachineState::Off | MachineState::Running { .. } => None,
        }
    }

    /// Takes an event, and says what is to be done.
    pub fn on(&mut self, now: Duration, event: VmEvent) -> Vec<VmAction> {
        match event {
            VmEvent::Start => self.start(now),
            VmEvent::Stop { grace } => self.ordered_stop(now, grace, AfterStop::Rest),
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
                MachineState::Starting { .. } => self.stop(now, VmStep::Kill, KILL_PATIENCE, AfterStop::Fail(failure)),
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
            VmEvent::ShutdownCause(leaving) => {
                // A panic comes before the end that it causes.
                if self.leaving != Some(ShutdownCause::Panic) {
                    self.leaving = Some(leaving);
                }
                Vec::new()
            }
            VmEvent::Ended { how, log } => self.ended(now, &how, log),
            VmEvent::Tick => self.tick(now),
        }
    }

    /// An order to run begins a new row of new starts.
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
                self.stop(now, VmStep::Term, TERM_PATIENCE, AfterStop::Start)
            }
            MachineState::Starting { .. } | MachineState::Running { .. } => Vec::new(),
        }
    }

    /// QEMU holds the guest. The policy lets it go on after a while, as it starts one again that ended; one that cannot go on is ended.
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
        let again = self.may_again();
        if again && !resumable {
            return self.stop(now, VmStep::Term, TERM_PATIENCE, AfterStop::Fail(failure));
        }
        let until = again.then(|| now + delay(&self.policy, self.kept.restarts));
        self.kept.restarts += u32::from(again);
        self.kept.failure = Some(failure);
        self.state = MachineState::Paused { resumable, until };
        Vec::new()
    }

    /// The row of new starts ends with a long run.
    fn is_stable(&self, now: Duration, since: Duration) -> bool {
        now.saturating_sub(since) >= Duration::from_secs(self.policy.stable_after_s.into())
    }

    fn may_again(&self) -> bool {
        self.policy.when != RestartWhen::Never && self.kept.wanted && self.kept.restarts < self.policy.attempts
    }

    fn launch(&mut self, now: Duration) -> Vec<VmAction> {
        self.leaving = None;
        self.kept.answered = false;
        self.state = MachineState::Starting { deadline: now + self.patience };
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
            // The guest does not run: there is nobody to ask.
            MachineState::Starting { .. } | MachineState::Paused { .. } => {
                self.stop(now, VmStep::Term, TERM_PATIENCE, after)
            }
            MachineState::Running { .. } => self.stop(now, VmStep::Acpi, grace, after),
            MachineState::Stopping { then, deadline, step } => {
                *then = after;
                // A second order may shorten the patience, never lengthen it.
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
            _ => self.stop(now, VmStep::Kill, KILL_PATIENCE, AfterStop::Rest),
        }
    }

    fn stop(&mut self, now: Duration, step: VmStep, patience: Duration, then: AfterStop) -> Vec<VmAction> {
        self.state = MachineState::Stopping { step, deadline: now + patience, then };
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
                let detail = format!("the guest did not run within {} s", self.patience.as_secs());
                let failure = VmFailure { kind: VmFailureKind::StartTimeout, detail, log: Vec::new() };
                self.stop(now, VmStep::Kill, KILL_PATIENCE, AfterStop::Fail(failure))
            }
            MachineState::Waiting { .. } => self.launch(now),
            MachineState::Paused { resumable, .. } => {
                self.state = MachineState::Paused { resumable: *resumable, until: None };
                vec![VmAction::Resume]
            }
            MachineState::Stopping { step: VmStep::Acpi, then, .. } => {
                let then = then.clone();
                self.stop(now, VmStep::Term, TERM_PATIENCE, then)
            }
            MachineState::Stopping { step: VmStep::Term, then, .. } => {
                let then = then.clone();
                self.stop(now, VmStep::Kill, KILL_PATIENCE, then)
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
        let leaving = self.leaving.take();
        match self.state.clone() {
            MachineState::Starting { .. } => {
                let detail = format!("QEMU {how} before the guest ran");
                self.failed(now, VmFailure { kind: VmFailureKind::NotStarted, detail: cut(detail), log });
            }
            MachineState::Running { since } => {
                if self.is_stable(now, since) {
                    self.kept.restarts = 0;
                }
                match (leaving, self.policy.when) {
                    (Some(ShutdownCause::Guest), RestartWhen::Always) => {
                        let detail = "the guest switched itself off".to_owned();
                        self.failed(now, VmFailure { kind: VmFailureKind::Crashed, detail, log });
                    }
                    (Some(ShutdownCause::Guest), _) => self.rest(),
                    (leaving, _) => self.failed(now, crash(leaving, how, log)),
                }
            }
            MachineState::Stopping { then, .. } => match then {
                AfterStop::Rest => self.rest(),
                AfterStop::Start => return self.launch(now),
                AfterStop::Fail(failure) => self.failed(now, VmFailure { log, ..failure }),
            },
            MachineState::Paused { .. } => self.failed(now, crash(leaving, how, log)),
            MachineState::Off | MachineState::Waiting { .. } => {}
        }
        Vec::new()
    }

    fn rest(&mut self) {
        self.state = MachineState::Off;
        self.kept = VmRecord::default();
    }

    /// It ended and should not have: again after a while, or never.
    fn failed(&mut self, now: Duration, mut failure: VmFailure) {
        let again = self.policy.when != RestartWhen::Never && self.kept.wanted;
        if self.may_again() {
            let delay = delay(&self.policy, self.kept.restarts);
            self.kept.restarts += 1;
            self.state = MachineState::Waiting { until: now + delay };
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

/// Doubled with each new start in a row.
fn delay(policy: &RestartPolicy, restarts: u32) -> Duration {
    let factor = 1u64.checked_shl(restarts).unwrap_or(u64::MAX);
    Duration::from_secs(u64::from(policy.delay_s).saturating_mul(factor).min(policy.max_delay_s.into()))
}

#[cfg(test)]
#[path = "tests/machine.rs"]
mod tests;
