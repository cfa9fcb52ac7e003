//! The link state machine: enrolment, connection, heartbeats, retries. Pure: events, time and randomness in, actions out.
//!
//! ```text
//!                              start
//!            token of this boot? │ certificate?        neither
//!          ┌─────────────────────┼──────────────────────────────┐
//!          ▼                     │ valid       expired          ▼
//!      Enrolling                 │   │       ┌─▶ Renewing     Pending ◀─────────┐
//!       │    │ refused: forget   │   │       │    │   │ refused: drop it │       │
//!       │    └──the token, choose again      │    │   └─────────▶ choose again   │
//!       │ certificate            ▼   ▼       │    │ certificate      │ approved  │
//!       └──────────────────▶ Connecting ◀────┼────┴──────────────────┘           │
//!                   refused: │   │ connected │                                   │
//!                   renew ───┘   ▼           │                       rejected:   │
//!                             Greeting ──────┤ goodbye, silence,     later ──────┘
//!                                │ welcome   │ broken
//!                                ▼           ▼
//!                              Linked ──▶ Waiting ──▶ choose again
//! ```
//! "Choose" is EN-10: the token of this boot, else a valid certificate, else a pending connection with a stated reason.
//! Every failure waits about 5 s, then 10, 20 and 30 (AG-4), until the next welcome. A token is forgotten after any answer of the central node
//! (EN-11). Workloads and tasks continue in every state.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `linked` | the state while connected: next heartbeat, report or renewal |
//! | `check_runs` | runs of the checks, one at a time |
//! | `actions` | ordered actions, each executed at most once |
//! | `events` | events and actions |

mod linked;
mod check_runs;
pub mod actions;
mod events;

pub use events::{Action, Event, Life, Now};

use self::{
    check_runs::CheckRuns,
    linked::{Linked, silence},
};
use actions::Actions;
use meshd_proto::{
    ActionId, ActionOutcome, CheckReport, CheckStatus, EnrolResponse, FromAgent, FromCentral, PendingReply, Welcome,
};
use meshd_types::NodeId;
use std::time::Duration;

/// First pause before another try.
pub const RETRY: Duration = Duration::from_secs(5);
/// Longest pause before another try, without jitter.
pub const RETRY_CAP: Duration = Duration::from_secs(30);
/// Silence after which a pending connection is closed; the central node pings several times within it.
const PENDING_SILENCE: Duration = Duration::from_secs(180);
/// Pause after a rejection: only an operator can change it.
pub const REJECTED_RETRY: Duration = Duration::from_secs(60);
/// Shortest pause, even if the central node asks for none.
pub const MIN_RETRY: Duration = Duration::from_secs(1);
/// Timeout of the welcome.
const GREETING: Duration = Duration::from_secs(15);
/// Interval of checks while one fails, and while all pass.
const CHECK_AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Unchanged check results are repeated after this time: the central node ignores old results.
const REPEAT_AFTER: Duration = Duration::from_secs(5 * 60);

#[derive(Debug)]
enum State {
    Fresh,
    Enrolling,
    Renewing,
    /// Waits for an operator. Only pings of the central node show that the connection is alive.
    Pending {
        silent_at: Duration,
    },
    Connecting,
    Greeting {
        until: Duration,
    },
    Linked(Linked),
    Waiting {
        until: Duration,
    },
    Ended,
}

/// The state machine of the agent's link.
#[derive(Debug)]
pub struct Machine {
    state: State,
    token: bool,
    certificate: Option<Life>,
    /// The link refused the certificate: it needs renewal, also before half of its lifetime.
    stale: bool,
    why_pending: &'static str,
    attempts: u32,
    heartbeat: Duration,
    ordered: Actions,
    runs: CheckRuns,
}

impl Machine {
    /// Returns the machine of an agent that has just started.
    pub fn new(node: NodeId, token: bool, certificate: Option<Life>) -> Self {
        Machine {
            state: State::Fresh,
            token,
            certificate,
            stale: false,
            why_pending: "the overlay carries no token: the node is not approved yet",
            attempts: 0,
            heartbeat: Duration::from_secs(30),
            ordered: Actions::new(node),
            runs: CheckRuns::default(),
        }
    }

    /// Adds the outcomes of actions from an earlier run.
    pub fn remember(&mut self, ended: impl IntoIterator<Item = (ActionId, ActionOutcome)>) {
        self.ordered.remember(ended);
    }

    /// Returns when [`Event::Timer`] is due next, by the monotonic clock.
    pub fn deadline(&self) -> Option<Duration> {
        let own = match &self.state {
            State::Fresh => Some(Duration::ZERO),
            State::Greeting { until } | State::Waiting { until } | State::Pending { silent_at: until } => Some(*until),
            State::Linked(link) => {
                let times = [Some(link.next_heartbeat), Some(link.silent_at), link.next_check];
                times.into_iter().flatten().min()
            }
            _ => None,
        };
        own.into_iter().chain(self.ordered.reboot_at()).min().filter(|at| *at < Duration::MAX)
    }

    /// Returns the name of the state for the log.
    pub fn state(&self) -> &'static str {
        match self.state {
            State::Fresh => "starting",
            State::Enrolling => "enrolling",
            State::Renewing => "renewing",
            State::Pending { .. } => "pending",
            State::Connecting => "connecting",
            State::Greeting { .. } => "greeting",
            State::Linked(_) => "linked",
            State::Waiting { .. } => "waiting",
            State::Ended => "ended",
        }
    }

    /// Processes one event. `random` spreads the pauses of many agents.
    pub fn on(&mut self, now: Now, random: u32, event: Event) -> Vec<Action> {
        let mut actions = match event {
            Event::Timer => self.timer(now, random),
            Event::Certified(response) => self.certified(now, random, response),
            Event::Refused(_) => self.refused(now, random),
            Event::Lost(_) => self.wait(now, random, None),
            Event::StaleCa(_) => self.wait(now, random, Some(REJECTED_RETRY)),
            Event::Connected => self.connected(now),
            Event::Heard(message) => self.receive(now, random, message),
            Event::UnknownAction(id) => {
                self.alive(now);
                vec![Action::Say(self.ordered.unknown(id))]
            }
            Event::Alive => {
                self.alive(now);
                Vec::new()
            }
            Event::Pending(reply) => self.pending(now, random, reply),
            Event::Checked(report) => self.checked(now, report),
            Event::Vm(news) => vec![Action::Say(FromAgent::Vm(news))],
            Event::Log(piece) => vec![Action::Say(FromAgent::Log(piece))],
            Event::Task(news) => vec![Action::Say(FromAgent::Task(news))],
            Event::RebootFailed(reason) => self.ordered.reboot_failed(reason).into_iter().map(Action::Say).collect(),
        };
        if self.ordered.reboots_now(now.timer) {
            actions.push(Action::Reboot);
        }
        // Reports without a link are not lost: they are repeated after the next welcome.
        if !matches!(self.state, State::Linked(_)) {
            actions.retain(|action| !matches!(action, Action::Say(_)));
        }
        actions
    }

    fn choose(&mut self, now: Now) -> Vec<Action> {
        let expired = self.certificate.is_some_and(|life| now.wall >= life.expires_at);
        let (state, action) = if self.token {
            (State::Enrolling, Action::Enrol)
        } else if self.certificate.is_none() {
            (
                State::Pending { silent_at: now.timer + PENDING_SILENCE },
                Action::OpenPending { reason: self.why_pending.to_owned() },
            )
        } else if expired || self.stale {
            (State::Renewing, Action::Renew)
        } else {
            (State::Connecting, Action::OpenLink)
        };
        self.state = state;
        vec![action]
    }

    fn timer(&mut self, now: Now, random: u32) -> Vec<Action> {
        match &mut self.state {
            State::Fresh => self.choose(now),
            State::Waiting { until } if *until <= now.timer => self.choose(now),
            State::Greeting { until } if *until <= now.timer => self.wait(now, random, None),
            State::Pending { silent_at } if *silent_at <= now.timer => self.wait(now, random, None),
            State::Linked(link) if link.silent_at <= now.timer => self.wait(now, random, None),
            State::Linked(link) => link.timer(now, self.heartbeat, self.certificate, &mut self.runs),
            _ => Vec::new(),
        }
    }

    /// Closes the connection and retries: after `at_least`, or after a pause that grows with each failure.
    fn wait(&mut self, now: Now, random: u32, at_least: Option<Duration>) -> Vec<Action> {
        if matches!(self.state, State::Ended) {
            return Vec::new();
        }
        let growing = RETRY.saturating_mul(1 << self.attempts.min(8)).min(RETRY_CAP);
        let pause = at_least.map_or(growing, |pause| pause.max(MIN_RETRY));
        self.attempts = self.attempts.saturating_add(1);
        // Between 3/4 and 5/4 of the pause: the agents of a rack do not reconnect all at once.
        let spread = pause / 2 * (random % 1024) / 1024;
        self.state = State::Waiting { until: now.timer + pause * 3 / 4 + spread };
        vec![Action::Close]
    }

    fn certified(&mut self, now: Now, random: u32, response: EnrolResponse) -> Vec<Action> {
        let (was_enrolling, was_stale) = (matches!(self.state, State::Enrolling), self.stale);
        self.certificate = Some(Life::of(&response, now.wall));
        let over = response.life_s == 0;
        self.stale = false;
        let mut actions = vec![Action::Keep(response)];
        match self.state {
            State::Enrolling | State::Pending { .. } => actions.extend(self.forget_token()),
            // A central node that renews and then refuses again must not cause a loop without pauses.
            State::Renewing if over || was_stale && self.attempts > 1 => {
                actions.extend(self.wait(now, random, None));
                return actions;
            }
            State::Renewing => {}
            _ => return actions,
        }
        if !was_enrolling {
            actions.push(Action::Close);
        }
        actions.extend(self.choose(now));
        actions
    }

    fn forget_token(&mut self) -> Option<Action> {
        std::mem::take(&mut self.token).then_some(Action::ForgetToken)
    }

    fn refused(&mut self, now: Now, random: u32) -> Vec<Action> {
        match self.state {
            State::Enrolling => {
                let mut actions: Vec<Action> = self.forget_token().into_iter().collect();
                self.why_pending = "the token of this boot was refused";
                actions.extend(self.choose(now));
                actions
            }
            State::Renewing => {
                self.certificate = None;
                self.stale = false;
                self.why_pending = "the certificate was refused and not renewed";
                let mut actions = vec![Action::DropCertificate];
                actions.extend(self.choose(now));
                actions
            }
            State::Connecting => {
                self.stale = true;
                self.wait(now, random, None)
            }
            _ => self.wait(now, random, None),
        }
    }

    fn connected(&mut self, now: Now) -> Vec<Action> {
        if !matches!(self.state, State::Connecting) {
            return Vec::new();
        }
        self.state = State::Greeting { until: now.timer + GREETING };
        vec![Action::Hello]
    }

    fn pending(&mut self, now: Now, random: u32, reply: PendingReply) -> Vec<Action> {
        if !matches!(self.state, State::Pending { .. }) {
            return Vec::new();
        }
        self.alive(now);
        match reply {
            PendingReply::Waiting { .. } => {
                self.attempts = 0;
                Vec::new()
            }
            PendingReply::Approved(response) => self.certified(now, random, response),
            PendingReply::Rejected { .. } => self.wait(now, random, Some(REJECTED_RETRY)),
        }
    }

    fn receive(&mut self, now: Now, random: u32, message: FromCentral) -> Vec<Action> {
        self.alive(now);
        match (&mut self.state, message) {
            (State::Greeting { .. }, FromCentral::Welcome(welcome)) => self.welcome(now, random, &welcome),
            (State::Greeting { .. } | State::Linked(_), FromCentral::Goodbye { retry_after_s, .. }) => {
                let Some(seconds) = retry_after_s else {
                    self.state = State::Ended;
                    return vec![Action::Close];
                };
                self.wait(now, random, Some(Duration::from_secs(seconds.into())))
            }
            (State::Linked(link), FromCentral::Action(order)) => {
                let wall = link.central.map_or(now.wall, |(wall, timer)| wall.after(now.timer.saturating_sub(timer)));
                vec![Action::Say(self.ordered.accept(&order, wall, now.timer))]
            }
            (State::Linked(_), FromCentral::Acknowledged { id }) => {
                self.ordered.acknowledge(id, now.timer);
                Vec::new()
            }
            (State::Linked(link), FromCentral::Certificate(response)) => {
                link.ask_renewal_at = now.timer;
                let mut actions = self.certified(now, random, response);
                actions.push(Action::Say(FromAgent::Renewed));
                actions
            }
            (State::Linked(_), FromCentral::Check { asked }) => self.runs.want(Some(asked)).into_iter().collect(),
            (State::Linked(_), FromCentral::Vm(order)) => vec![Action::Vm(order)],
            (State::Linked(_), FromCentral::Console(order)) => vec![Action::Console(order)],
            (State::Linked(_), FromCentral::Task(order)) => vec![Action::Task(order)],
            (State::Linked(_), FromCentral::LogStored(stored)) => vec![Action::LogStored(stored)],
            (State::Linked(_), FromCentral::OutputStored(kept)) => vec![Action::OutputStored(kept)],
            (State::Linked(_), FromCentral::Roots { roots_pem, renew }) => {
                if let Some(life) = self.certificate.as_mut().filter(|_| renew) {
                    // Requested with a heartbeat, so that the requests of a rack are spread.
                    life.renew_at = life.renew_at.min(now.wall);
                }
                vec![Action::Trust(roots_pem)]
            }
            (State::Linked(_), FromCentral::EnrolAgain { roots_pem, token }) => {
                (self.token, self.certificate, self.stale) = (true, None, false);
                vec![Action::Trust(roots_pem), Action::KeepToken(token), Action::DropCertificate]
            }
            _ => Vec::new(),
        }
    }

    fn welcome(&mut self, now: Now, random: u32, welcome: &Welcome) -> Vec<Action> {
        if !meshd_proto::is_supported_version(welcome.version) {
            return self.wait(now, random, Some(REJECTED_RETRY));
        }
        self.attempts = 0;
        self.heartbeat = Duration::from_secs(welcome.heartbeat_s.clamp(1, 3600).into());
        self.state = State::Linked(Linked {
            next_heartbeat: now.timer + self.heartbeat,
            silent_at: now.timer + silence(self.heartbeat),
            next_check: None,
            reported: None,
            repeat_at: now.timer,
            ask_renewal_at: now.timer,
            central: welcome.now.map(|wall| (wall, now.timer)),
        });
        let mut actions: Vec<Action> = self.runs.want(None).into_iter().collect();
        actions.extend([Action::ReportVms, Action::ReportTasks]);
        actions.extend(self.ordered.unacknowledged().into_iter().map(Action::Say));
        actions
    }

    fn checked(&mut self, now: Now, mut report: CheckReport) -> Vec<Action> {
        let (asked, again) = self.runs.done();
        let mut actions: Vec<Action> = again.into_iter().collect();
        let State::Linked(link) = &mut self.state else { return actions };
        let verdicts: Vec<_> = report.checks.iter().map(|check| (check.name.clone(), check.status)).collect();
        let failing = verdicts.iter().any(|(_, status)| *status == CheckStatus::Fail);
        link.next_check = Some(now.timer + if failing { CHECK_AGAIN.0 } else { CHECK_AGAIN.1 });
        let reported = (verdicts, report.resources.clone());
        if asked.is_none() && link.reported.as_deref() == Some(&reported) && now.timer < link.repeat_at {
            return actions;
        }
        link.reported = Some(Box::new(reported));
        link.repeat_at = now.timer + REPEAT_AFTER;
        report.asked = asked;
        actions.push(Action::Say(FromAgent::Checks(Box::new(report))));
        actions
    }

    fn alive(&mut self, now: Now) {
        match &mut self.state {
            State::Linked(link) => link.silent_at = now.timer + silence(self.heartbeat),
            State::Pending { silent_at } => *silent_at = now.timer + PENDING_SILENCE,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
