//! The state machine of one replica: desired state, what the node shows and time -> next action.
//! Pure: no process, no file, no clock.
//!
//! ```text
//! New ─▶ Fetching ─▶ Starting ─▶ Running ─▶ Waiting ─▶ New (restart)
//!                        │          │  ╲
//!                        ▼          ▼   ╲▶ Stopping ─▶ New (replaced, unhealthy), Ended (stopped), removed
//!                      Ended      Ended
//! ```

use meshd_proto::container::{
    ContainerDesiredState, ContainerFault, ContainerRestart, HealthCheck, MAX_FAULT_DETAIL,
    ReplicaId, ReplicaReport, ReplicaSpec, ReplicaState,
};
use meshd_types::truncate;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// First and maximum delay before a restart.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A program that ran this long did not fail at its start: the delay begins anew.
const STABLE: Duration = Duration::from_secs(60);
/// Time after which a killed program is killed again.
const KILL_REPEAT: Duration = Duration::from_secs(5);
/// Exit code of a program that SIGKILL ended.
const KILLED: u8 = 137;
/// Grace of a replica without a specification.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// How the program of a replica ended, as its supervisor records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum ProgramEnd {
    Exited {
        code: u8,
        out_of_memory: bool,
    },
    /// The program did not start.
    NotStarted {
        kind: ContainerFault,
        detail: String,
    },
}

/// What the node shows of the supervisor of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorState {
    /// No supervisor runs, and none recorded an end.
    Absent,
    Starting,
    Running,
    Ended(ProgramEnd),
}

/// Image and volumes of a replica on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageState {
    Missing,
    Fetching { percent: u8 },
    Present,
}

/// What the node has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaAction {
    /// Fetch the image and the volumes.
    Fetch,
    /// Start a supervisor.
    Start(Box<ReplicaSpec>),
    /// Send SIGTERM to the program.
    Terminate,
    /// Kill all processes of the program.
    Kill,
    /// Run the health check once.
    Probe(HealthCheck),
    /// Remove everything.
    Remove,
}

/// The part of a replica that a restarted agent continues with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    pub desired: ContainerDesiredState,
    /// The start that was last executed.
    pub spec: Option<Box<ReplicaSpec>>,
    pub restarts: u32,
    /// Restarts without a stable time in between.
    pub in_a_row: u32,
    /// A supervisor was started for the present attempt.
    pub started: bool,
    pub ended: Option<ReplicaState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ReplicaPhase {
    /// Nothing runs; a start is due.
    New,
    Fetching {
        percent: u8,
    },
    Starting,
    Running {
        since: Duration,
        health: HealthState,
    },
    Stopping {
        kill_at: Duration,
        after: StopFollowUp,
    },
    Waiting {
        code: u8,
        out_of_memory: bool,
        until: Duration,
    },
    Ended(ReplicaState),
    Removing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HealthState {
    /// Time of the next probe; `None` while one runs.
    next: Option<Duration>,
    failures: u8,
    healthy: Option<bool>,
}

/// What follows a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopFollowUp {
    /// The desired state decides.
    Reconsider,
    /// The program was unhealthy: the restart policy decides.
    Restart { since: Duration },
}

/// One replica of this node.
#[derive(Clone, Debug)]
pub struct ReplicaMachine {
    record: ReplicaRecord,
    phase: ReplicaPhase,
}

impl ReplicaMachine {
    pub fn new(desired: ContainerDesiredState) -> Self {
        let record = ReplicaRecord {
            desired,
            spec: None,
            restarts: 0,
            in_a_row: 0,
            started: false,
            ended: None,
        };
        ReplicaMachine { record, phase: ReplicaPhase::New }
    }

    /// Continues with the record of an earlier agent.
    pub fn restore(record: ReplicaRecord) -> Self {
        let phase = match (&record.ended, record.started) {
            (Some(state), _) => ReplicaPhase::Ended(state.clone()),
            (None, true) => ReplicaPhase::Starting,
            (None, false) => ReplicaPhase::New,
        };
        ReplicaMachine { record, phase }
    }

    pub fn record(&self) -> &ReplicaRecord {
        &self.record
    }

    /// Returns the specification of the present start.
    pub fn spec(&self) -> Option<&ReplicaSpec> {
        self.record.spec.as_deref().or(self.ordered_spec())
    }

    /// Returns the specification of the last order; `None` if nothing is to run.
    pub fn ordered_spec(&self) -> Option<&ReplicaSpec> {
        match &self.record.desired {
            ContainerDesiredState::Run(spec) => Some(spec),
            ContainerDesiredState::Stopped | ContainerDesiredState::Gone => None,
        }
    }

    /// Takes an order. A late order with a lower number of start changes nothing.
    pub fn set_desired(&mut self, desired: ContainerDesiredState) {
        if let (ContainerDesiredState::Run(new), Some(present)) = (&desired, &self.record.spec)
            && new.run < present.run
        {
            return;
        }
        // A removal that has begun is completed.
        if self.record.desired != ContainerDesiredState::Gone {
            self.record.desired = desired;
        }
    }

    /// Returns the report of the replica.
    pub fn report(&self, replica: &ReplicaId) -> ReplicaReport {
        let state = match &self.phase {
            ReplicaPhase::New if self.spec().is_none() => ReplicaState::Exited { code: 0 },
            ReplicaPhase::New | ReplicaPhase::Starting => ReplicaState::Starting,
            ReplicaPhase::Fetching { percent } => ReplicaState::Fetching { percent: *percent },
            ReplicaPhase::Running { health, .. } => {
                ReplicaState::Running { healthy: health.healthy }
            }
            ReplicaPhase::Stopping { after: StopFollowUp::Restart { .. }, .. } => {
                ReplicaState::Running { healthy: Some(false) }
            }
            ReplicaPhase::Stopping { .. } | ReplicaPhase::Removing => {
                ReplicaState::Running { healthy: None }
            }
            ReplicaPhase::Waiting { code, out_of_memory, .. } => {
                ReplicaState::Waiting { code: *code, out_of_memory: *out_of_memory }
            }
            ReplicaPhase::Ended(state) => state.clone(),
        };
        ReplicaReport {
            replica: replica.clone(),
            run: self.spec().map_or(0, |spec| spec.run),
            restarts: self.record.restarts,
            state,
        }
    }

    /// Returns whether a program runs, or will without an order.
    pub fn is_workload(&self) -> bool {
        !matches!(self.phase, ReplicaPhase::Ended(_))
    }

    /// Records that the image cannot be fetched.
    pub fn fetch_failed(&mut self, kind: ContainerFault, detail: &str) {
        if matches!(self.phase, ReplicaPhase::Fetching { .. }) {
            self.fail(kind, detail);
        }
    }

    /// Records that no supervisor could be started.
    pub fn start_failed(&mut self, kind: ContainerFault, detail: &str) {
        if self.phase == ReplicaPhase::Starting {
            self.fail(kind, detail);
        }
    }

    /// Records the result of a probe.
    pub fn probe_ended(&mut self, now: Duration, is_healthy: bool) {
        let check = self.record.spec.as_ref().and_then(|spec| spec.health.clone());
        let (ReplicaPhase::Running { since, health }, Some(check)) = (&mut self.phase, check)
        else {
            return;
        };
        health.next = Some(now + Duration::from_secs(check.interval_seconds.into()));
        if is_healthy {
            *health = HealthState { failures: 0, healthy: Some(true), ..health.clone() };
        } else if now >= *since + Duration::from_secs(check.start_seconds.into()) {
            health.failures = health.failures.saturating_add(1);
            if health.failures >= check.failures {
                health.healthy = Some(false);
            }
        }
    }

    /// Returns the next action, until there is none.
    pub fn step(
        &mut self,
        now: Duration,
        supervisor: &SupervisorState,
        image: ImageState,
    ) -> Option<ReplicaAction> {
        // Each pass changes the phase; without an action the next pass sees the new one.
        for _ in 0..4 {
            let before = self.phase.clone();
            let action = self.advance(now, supervisor, image);
            if action.is_some() || self.phase == before {
                return action;
            }
        }
        None
    }

    fn advance(
        &mut self,
        now: Duration,
        supervisor: &SupervisorState,
        image: ImageState,
    ) -> Option<ReplicaAction> {
        match &self.phase {
            ReplicaPhase::Starting | ReplicaPhase::Running { .. } => {
                self.follow_program(now, supervisor)
            }
            ReplicaPhase::Stopping { kill_at, after } => {
                let after = *after;
                match supervisor {
                    SupervisorState::Starting | SupervisorState::Running if now < *kill_at => None,
                    SupervisorState::Starting | SupervisorState::Running => {
                        self.phase = ReplicaPhase::Stopping { kill_at: now + KILL_REPEAT, after };
                        Some(ReplicaAction::Kill)
                    }
                    SupervisorState::Absent => {
                        self.finish_stop(now, KILLED, after);
                        // Processes may have outlived their supervisor.
                        Some(ReplicaAction::Kill)
                    }
                    SupervisorState::Ended(end) => {
                        let code = match end {
                            ProgramEnd::Exited { code, .. } => *code,
                            ProgramEnd::NotStarted { .. } => KILLED,
                        };
                        self.finish_stop(now, code, after);
                        None
                    }
                }
            }
            ReplicaPhase::Removing => None,
            ReplicaPhase::New
            | ReplicaPhase::Fetching { .. }
            | ReplicaPhase::Waiting { .. }
            | ReplicaPhase::Ended(_) => self.follow_order(now, image),
        }
    }

    /// Follows a program that starts or runs.
    fn follow_program(
        &mut self,
        now: Duration,
        supervisor: &SupervisorState,
    ) -> Option<ReplicaAction> {
        match supervisor {
            SupervisorState::Ended(end) => {
                self.program_ended(now, end);
                None
            }
            SupervisorState::Absent => {
                let end = ProgramEnd::Exited { code: KILLED, out_of_memory: false };
                self.program_ended(now, &end);
                Some(ReplicaAction::Kill)
            }
            _ if !self.is_wanted() => Some(self.stop(now, StopFollowUp::Reconsider)),
            SupervisorState::Starting => None,
            SupervisorState::Running => {
                if self.phase == ReplicaPhase::Starting {
                    let health = HealthState { next: Some(now), ..HealthState::default() };
                    self.phase = ReplicaPhase::Running { since: now, health };
                }
                self.check_health(now)
            }
        }
    }

    fn check_health(&mut self, now: Duration) -> Option<ReplicaAction> {
        let spec = self.record.spec.as_ref()?;
        let check = spec.health.clone()?;
        let restart = spec.restart;
        let ReplicaPhase::Running { since, health } = &mut self.phase else { return None };
        if health.healthy == Some(false) && restart != ContainerRestart::Never {
            let since = *since;
            return Some(self.stop(now, StopFollowUp::Restart { since }));
        }
        health.next.take_if(|next| *next <= now).map(|_| ReplicaAction::Probe(check))
    }

    /// Follows the order while no program runs.
    fn follow_order(&mut self, now: Duration, image: ImageState) -> Option<ReplicaAction> {
        let spec = match &self.record.desired {
            ContainerDesiredState::Gone => {
                self.phase = ReplicaPhase::Removing;
                return Some(ReplicaAction::Remove);
            }
            ContainerDesiredState::Stopped => {
                if !matches!(self.phase, ReplicaPhase::Ended(_)) {
                    let code = match self.phase {
                        ReplicaPhase::Waiting { code, .. } => code,
                        _ => 0,
                    };
                    self.end(ReplicaState::Exited { code });
                }
                return None;
            }
            ContainerDesiredState::Run(spec) => spec.clone(),
        };
        let is_new = self.record.spec.as_ref().is_none_or(|present| present.run < spec.run);
        match &self.phase {
            ReplicaPhase::Ended(_) if !is_new => return None,
            ReplicaPhase::Waiting { until, .. } if !is_new && now < *until => return None,
            ReplicaPhase::Waiting { .. } if !is_new => {
                self.record.restarts = self.record.restarts.saturating_add(1);
            }
            _ => {}
        }
        if is_new {
            self.record.restarts = 0;
            self.record.in_a_row = 0;
            self.record.spec = Some(spec.clone());
        }
        self.record.ended = None;
        self.record.started = false;
        match image {
            ImageState::Present => {
                self.record.started = true;
                self.phase = ReplicaPhase::Starting;
                Some(ReplicaAction::Start(spec))
            }
            ImageState::Fetching { percent } => {
                self.phase = ReplicaPhase::Fetching { percent };
                None
            }
            ImageState::Missing => {
                self.phase = ReplicaPhase::Fetching { percent: 0 };
                Some(ReplicaAction::Fetch)
            }
        }
    }

    /// Returns whether the present start is still the desired one.
    fn is_wanted(&self) -> bool {
        match (&self.record.desired, &self.record.spec) {
            (ContainerDesiredState::Run(desired), Some(present)) => desired.run <= present.run,
            _ => false,
        }
    }

    fn stop(&mut self, now: Duration, after: StopFollowUp) -> ReplicaAction {
        let grace = self
            .record
            .spec
            .as_ref()
            .map_or(DEFAULT_GRACE, |spec| Duration::from_secs(spec.stop_seconds.into()));
        self.phase = ReplicaPhase::Stopping { kill_at: now + grace, after };
        ReplicaAction::Terminate
    }

    fn finish_stop(&mut self, now: Duration, code: u8, after: StopFollowUp) {
        self.record.started = false;
        match after {
            StopFollowUp::Restart { since } if self.is_wanted() => {
                self.restart_or_end(now, now.saturating_sub(since), code, true);
            }
            _ if self.record.desired == ContainerDesiredState::Stopped => {
                self.end(ReplicaState::Exited { code });
            }
            _ => self.phase = ReplicaPhase::New,
        }
    }

    fn program_ended(&mut self, now: Duration, end: &ProgramEnd) {
        self.record.started = false;
        match end {
            ProgramEnd::NotStarted { kind, detail } => self.fail(*kind, detail),
            ProgramEnd::Exited { code, out_of_memory } => {
                let ran = match self.phase {
                    ReplicaPhase::Running { since, .. } => now.saturating_sub(since),
                    _ => Duration::ZERO,
                };
                let is_failure = *code != 0 || *out_of_memory;
                self.restart_or_end(now, ran, *code, is_failure);
                match &mut self.phase {
                    _ if !out_of_memory => {}
                    ReplicaPhase::Waiting { out_of_memory, .. } => *out_of_memory = true,
                    // The central node names the limit.
                    _ => self.fail(ContainerFault::OutOfMemory, "the program exceeded its memory"),
                }
            }
        }
    }

    /// Applies the restart policy.
    fn restart_or_end(&mut self, now: Duration, ran: Duration, code: u8, is_failure: bool) {
        if ran >= STABLE {
            self.record.in_a_row = 0;
        }
        let policy = self.record.spec.as_ref().map_or(ContainerRestart::Never, |spec| spec.restart);
        let is_restarted = self.is_wanted()
            && match policy {
                ContainerRestart::Never => false,
                ContainerRestart::OnFailure { max } => {
                    is_failure && self.record.in_a_row < u32::from(max)
                }
                ContainerRestart::Always => true,
            };
        if !is_restarted {
            return self.end(ReplicaState::Exited { code });
        }
        let delay = BACKOFF.0.saturating_mul(1 << self.record.in_a_row.min(16)).min(BACKOFF.1);
        self.record.in_a_row = self.record.in_a_row.saturating_add(1);
        self.phase = ReplicaPhase::Waiting { code, out_of_memory: false, until: now + delay };
    }

    fn fail(&mut self, kind: ContainerFault, detail: &str) {
        let detail = truncate(detail.to_owned(), MAX_FAULT_DETAIL);
        self.end(ReplicaState::Failed { kind, detail });
    }

    fn end(&mut self, state: ReplicaState) {
        self.record.started = false;
        self.record.ended = Some(state.clone());
        self.phase = ReplicaPhase::Ended(state);
    }
}

#[cfg(test)]
#[path = "tests/replica_machine.rs"]
mod tests;
