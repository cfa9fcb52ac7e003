//! What happens to one virtual machine, and when. Pure: time is an argument, and what is to be done is given back.
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

pub use super::event::{Action, Event, Leaving, VmRecord};

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
enum State {
    Off,
    Starting { deadline: Duration },
    Running { since: Duration },
    Paused { resumable: bool, until: Option<Duration> },
    Stopping { step: VmStep, deadline: Duration, then: Then },
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
enum Then {
    Rest,
    Start,
    Fail(VmFailure),
}

/// One virtual machine.
#[derive(Clone, Debug)]
pub struct Machine {
    state: State,
    policy: RestartPolicy,
    patience: Duration,
    kept: VmRecord,
    leaving: Option<Leaving>,
}

impl Machine {
    /// One that is off; `kept` is what an earlier agent remembered.
    pub fn new(policy: RestartPolicy, memory_bytes: u64, kept: VmRecord) -> Self {
        let gib = u32::try_from(memory_bytes >> 30).unwrap_or(u32::MAX);
        let patience = START_PATIENCE + START_PATIENCE_PER_GIB * gib;
        Machine { state: State::Off, policy, patience, kept, leaving: None }
    }

    /// One that an earlier boot of the node left: it may run on another node by now, so it waits for an order, whatever its policy says.
    pub fn left_over(&mut self) {
        if std::mem::take(&mut self.kept.wanted) {
            let detail = "the node booted anew; it waits for an order".to_owned();
            self.kept.failure = Some(VmFailure { kind: VmFailureKind::EndedUnseen, detail, log: Vec::new() });
        }
    }

    /// Takes over what an earlier agent left: a process of it lives, or not.
    pub fn adopt(&mut self, now: Duration, is_alive: bool) -> Vec<Action> {
        match (self.kept.wanted, is_alive) {
            (true, true) if self.kept.answered => self.state = State::Running { since: now },
            // An earlier agent ended in the midst of its start: what is left of that has as much time as all of it.
            (true, true) => self.state = State::Starting { deadline: now + self.patience },
            (true, false) => {
                let detail = "it ended while no agent watched".to_owned();
                self.failed(now, VmFailure { kind: VmFailureKind::EndedUnseen, detail, log: Vec::new() });
            }
            (false, true) => return self.stop(now, VmStep::Term, TERM_PATIENCE, Then::Rest),
            (false, false) => {}
        }
        Vec::new()
    }

    /// The closed word for where it stands.
    pub fn state(&self) -> VmState {
        match &self.state {
            State::Off if self.kept.failure.is_some() => VmState::Failed,
            State::Off => VmState::Stopped,
            State::Starting { .. } => VmState::Starting,
            State::Running { .. } => VmState::Running,
            State::Paused { .. } => VmState::Paused,
            State::Stopping { .. } => VmState::Stopping,
            State::Waiting { .. } => VmState::Waiting,
        }
    }

    /// What outlives the agent.
    pub fn kept(&self) -> &VmRecord {
        &self.kept
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        match &self.state {
            State::Starting { deadline } | State::Stopping { deadline, .. } => Some(*deadline),
            State::Waiting { until } => Some(*until),
            State::Paused { until, .. } => *until,
            State::Off | State::Running { .. } => None,
        }
    }

    /// Takes an event, and says what is to be done.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Start => self.start(now),
            Event::Stop { grace } => self.ordered_stop(now, grace, Then::Rest),
            Event::Restart { .. } if matches!(self.state, State::Off | State::Paused { .. }) => self.start(now),
            Event::Restart { grace } => self.ordered_stop(now, grace, Then::Start),
            Event::Discard => self.discard(now),
            Event::Refused(failure) => {
                if self.state == State::Off {
                    self.kept = VmRecord { failure: Some(failure), ..VmRecord::default() };
                }
                Vec::new()
            }
            Event::LaunchFailed(failure) => {
                if matches!(self.state, State::Starting { .. }) {
                    self.failed(now, failure);
                }
                Vec::new()
            }
            Event::CannotGo(failure) => match self.state {
                State::Starting { .. } => self.stop(now, VmStep::Kill, KILL_PATIENCE, Then::Fail(failure)),
                _ => Vec::new(),
            },
            Event::Answered => {
                if matches!(self.state, State::Starting { .. }) {
                    self.state = State::Running { since: now };
                    self.kept.answered = true;
                }
                Vec::new()
            }
            Event::Paused { why, resumable } => self.paused(now, why, resumable),
            Event::Resumed => {
                if matches!(self.state, State::Paused { .. }) {
                    self.state = State::Running { since: now };
                }
                Vec::new()
            }
            Event::Leaving(leaving) => {
                // A panic comes before the end that it causes.
                if self.leaving != Some(Leaving::Panic) {
                    self.leaving = Some(leaving);
                }
                Vec::new()
            }
            Event::Ended { how, log } => self.ended(now, &how, log),
            Event::Tick => self.tick(now),
        }
    }

    /// An order to run begins a new row of new starts.
    fn start(&mut self, now: Duration) -> Vec<Action> {
        match &mut self.state {
            State::Off | State::Waiting { .. } => {
                self.kept = VmRecord { wanted: true, ..VmRecord::default() };
                self.launch(now)
            }
            State::Stopping { then, .. } => {
                self.kept = VmRecord { wanted: true, ..VmRecord::default() };
                *then = Then::Start;
                Vec::new()
            }
            State::Paused { resumable: true, until } => {
                *until = None;
                self.kept = VmRecord { wanted: true, ..VmRecord::default() };
                vec![Action::Resume]
            }
            State::Paused { .. } => {
                self.kept = VmRecord { wanted: true, ..VmRecord::default() };
                self.stop(now, VmStep::Term, TERM_PATIENCE, Then::Start)
            }
            State::Starting { .. } | State::Running { .. } => Vec::new(),
        }
    }

    /// QEMU holds the guest. The policy lets it go on after a while, as it starts one again that ended; one that cannot go on is ended.
    fn paused(&mut self, now: Duration, why: String, resumable: bool) -> Vec<Action> {
        let since = match self.state {
            State::Running { since } => Some(since),
            State::Paused { until: None, .. } => None,
            _ => return Vec::new(),
        };
        if since.is_some_and(|since| self.is_stable(now, since)) {
            self.kept.restarts = 0;
        }
        let failure = VmFailure { kind: VmFailureKind::Paused, detail: cut(why), log: Vec::new() };
        let again = self.may_again();
        if again && !resumable {
            return self.stop(now, VmStep::Term, TERM_PATIENCE, Then::Fail(failure));
        }
        let until = again.then(|| now + delay(&self.policy, self.kept.restarts));
        self.kept.restarts += u32::from(again);
        self.kept.failure = Some(failure);
        self.state = State::Paused { resumable, until };
        Vec::new()
    }

    /// The row of new starts ends with a long run.
    fn is_stable(&self, now: Duration, since: Duration) -> bool {
        now.saturating_sub(since) >= Duration::from_secs(self.policy.stable_after_s.into())
    }

    fn may_again(&self) -> bool {
        self.policy.when != RestartWhen::Never && self.kept.wanted && self.kept.restarts < self.policy.attempts
    }

    fn launch(&mut self, now: Duration) -> Vec<Action> {
        self.leaving = None;
        self.kept.answered = false;
        self.state = State::Starting { deadline: now + self.patience };
        vec![Action::Launch]
    }

    fn ordered_stop(&mut self, now: Duration, grace: Duration, after: Then) -> Vec<Action> {
        self.kept.wanted = after == Then::Start;
        match &mut self.state {
            State::Off => Vec::new(),
            State::Waiting { .. } if after == Then::Start => self.launch(now),
            State::Waiting { .. } => {
                self.state = State::Off;
                self.kept.failure = None;
                Vec::new()
            }
            // The guest does not run: there is nobody to ask.
            State::Starting { .. } | State::Paused { .. } => self.stop(now, VmStep::Term, TERM_PATIENCE, after),
            State::Running { .. } => self.stop(now, VmStep::Acpi, grace, after),
            State::Stopping { then, deadline, step } => {
                *then = after;
                // A second order may shorten the patience, never lengthen it.
                if *step == VmStep::Acpi {
                    *deadline = (*deadline).min(now + grace);
                }
                Vec::new()
            }
        }
    }

    fn discard(&mut self, now: Duration) -> Vec<Action> {
        self.kept.wanted = false;
        match self.state {
            State::Off => Vec::new(),
            State::Waiting { .. } => {
                self.state = State::Off;
                Vec::new()
            }
            _ => self.stop(now, VmStep::Kill, KILL_PATIENCE, Then::Rest),
        }
    }

    fn stop(&mut self, now: Duration, step: VmStep, patience: Duration, then: Then) -> Vec<Action> {
        self.state = State::Stopping { step, deadline: now + patience, then };
        vec![match step {
            VmStep::Acpi => Action::PowerDown,
            VmStep::Term => Action::Terminate,
            VmStep::Kill => Action::Kill,
        }]
    }

    fn tick(&mut self, now: Duration) -> Vec<Action> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match &self.state {
            State::Starting { .. } => {
                let detail = format!("the guest did not run within {} s", self.patience.as_secs());
                let failure = VmFailure { kind: VmFailureKind::StartTimeout, detail, log: Vec::new() };
                self.stop(now, VmStep::Kill, KILL_PATIENCE, Then::Fail(failure))
            }
            State::Waiting { .. } => self.launch(now),
            State::Paused { resumable, .. } => {
                self.state = State::Paused { resumable: *resumable, until: None };
                vec![Action::Resume]
            }
            State::Stopping { step: VmStep::Acpi, then, .. } => {
                let then = then.clone();
                self.stop(now, VmStep::Term, TERM_PATIENCE, then)
            }
            State::Stopping { step: VmStep::Term, then, .. } => {
                let then = then.clone();
                self.stop(now, VmStep::Kill, KILL_PATIENCE, then)
            }
            State::Stopping { step: VmStep::Kill, .. } => {
                let detail = "QEMU was killed and does not end; look at the node's kernel log".to_owned();
                let failure = VmFailure { kind: VmFailureKind::Immortal, detail, log: Vec::new() };
                self.kept = VmRecord { wanted: false, failure: Some(failure), ..self.kept.clone() };
                self.state = State::Off;
                Vec::new()
            }
            State::Off | State::Running { .. } => Vec::new(),
        }
    }

    fn ended(&mut self, now: Duration, how: &str, log: Vec<String>) -> Vec<Action> {
        let leaving = self.leaving.take();
        match self.state.clone() {
            State::Starting { .. } => {
                let detail = format!("QEMU {how} before the guest ran");
                self.failed(now, VmFailure { kind: VmFailureKind::NotStarted, detail: cut(detail), log });
            }
            State::Running { since } => {
                if self.is_stable(now, since) {
                    self.kept.restarts = 0;
                }
                match (leaving, self.policy.when) {
                    (Some(Leaving::Guest), RestartWhen::Always) => {
                        let detail = "the guest switched itself off".to_owned();
                        self.failed(now, VmFailure { kind: VmFailureKind::Crashed, detail, log });
                    }
                    (Some(Leaving::Guest), _) => self.rest(),
                    (leaving, _) => self.failed(now, crash(leaving, how, log)),
                }
            }
            State::Stopping { then, .. } => match then {
                Then::Rest => self.rest(),
                Then::Start => return self.launch(now),
                Then::Fail(failure) => self.failed(now, VmFailure { log, ..failure }),
            },
            State::Paused { .. } => self.failed(now, crash(leaving, how, log)),
            State::Off | State::Waiting { .. } => {}
        }
        Vec::new()
    }

    fn rest(&mut self) {
        self.state = State::Off;
        self.kept = VmRecord::default();
    }

    /// It ended and should not have: again after a while, or never.
    fn failed(&mut self, now: Duration, mut failure: VmFailure) {
        let again = self.policy.when != RestartWhen::Never && self.kept.wanted;
        if self.may_again() {
            let delay = delay(&self.policy, self.kept.restarts);
            self.kept.restarts += 1;
            self.state = State::Waiting { until: now + delay };
        } else {
            if again {
                failure.detail = cut(format!("{}; given up after {} new starts", failure.detail, self.kept.restarts));
            }
            self.kept.wanted = false;
            self.state = State::Off;
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
