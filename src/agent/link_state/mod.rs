//! The link state machine: enrolment, connection, heartbeats, retries. Pure: events, time and
//! randomness in, effects out.
//!
//! ```text
//!                              start
//!            token of this boot? │ certificate?        neither
//!          ┌─────────────────────┼──────────────────────────────┐
//!          ▼                     │ valid       expired          ▼
//!      Enrolling                 │   │       ┌─▶ Renewing     Pending ◀─────────┐
//!       │    │ refused: forget   │   │       │    │   │ refused: delete  │       │
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
//! "Choose" is EN-10: the token of this boot, else a valid certificate, else a pending connection
//! with a reason. After a failure the agent waits about 5 s, then 10, 20 and 30 (AG-4), until the
//! next welcome. Any response to an enrolment uses up the token (EN-11). VMs and tasks continue in
//! every state.
//!
//! | module | content |
//! | --- | --- |
//! | `linked` | the state while connected: next heartbeat, check run and renewal |
//! | `check_runs` | runs of the checks, one at a time |
//! | `ordered_actions` | actions that the central node orders, each executed at most once |
//! | `events` | events and effects |

mod linked;
mod check_runs;
pub mod ordered_actions;
mod events;

pub use events::{Effect, Event, Now, Validity};

use self::{
    check_runs::CheckRuns,
    linked::{Linked, silence},
};
use meshd_proto::{
    ActionId, ActionOutcome, CheckReport, CheckStatus, EnrolResponse, FromAgent, FromCentral,
    PendingReply, SERVICES_CHECK, Welcome,
};
use meshd_types::NodeId;
use ordered_actions::OrderedActions;
use std::time::Duration;

/// First pause before a retry.
pub const RETRY: Duration = Duration::from_secs(5);
/// Longest pause before a retry, without jitter.
pub const RETRY_CAP: Duration = Duration::from_secs(30);
/// Silence after which a pending connection is closed; the central node pings several times within
/// it.
const PENDING_SILENCE: Duration = Duration::from_secs(180);
/// Pause after a rejection: only an operator can revoke a rejection.
pub const REJECTED_RETRY: Duration = Duration::from_secs(60);
/// Shortest pause, even if the central node requests none.
pub const MIN_RETRY: Duration = Duration::from_secs(1);
const WELCOME_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval of check runs while a check fails.
const FAILING_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of check runs while all checks pass.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of check runs while services start.
const STARTING_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time from the start of the kernel until services that are not started are reported.
pub const STARTING_PATIENCE: Duration = Duration::from_secs(90);
/// Unchanged check results are repeated after this time: the central node ignores old results.
const REPEAT_AFTER: Duration = Duration::from_secs(5 * 60);

#[derive(Debug)]
enum State {
    Starting,
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
pub struct LinkStateMachine {
    state: State,
    has_token: bool,
    certificate: Option<Validity>,
    /// The central node refused the certificate: renew it even before half of its lifetime.
    needs_renewal: bool,
    pending_reason: &'static str,
    attempts: u32,
    heartbeat: Duration,
    ordered_actions: OrderedActions,
    check_runs: CheckRuns,
    /// Until then services may still start.
    services_start_until: Duration,
}

impl LinkStateMachine {
    pub fn new(node: NodeId, has_token: bool, certificate: Option<Validity>) -> Self {
        LinkStateMachine {
            state: State::Starting,
            has_token,
            certificate,
            needs_renewal: false,
            pending_reason: "there is neither a token nor a certificate",
            attempts: 0,
            heartbeat: Duration::from_secs(30),
            ordered_actions: OrderedActions::new(node),
            check_runs: CheckRuns::default(),
            services_start_until: Duration::ZERO,
        }
    }

    /// Sets how long services of this boot may start. The agent starts with them: until then, the
    /// first report waits for them.
    pub fn set_services_start(&mut self, until: Duration) {
        self.services_start_until = until;
    }

    /// Restores the outcomes of actions from an earlier run of the agent.
    pub fn restore(&mut self, outcomes: impl IntoIterator<Item = (ActionId, ActionOutcome)>) {
        self.ordered_actions.restore(outcomes);
    }

    /// Restores a reboot that an earlier run of the agent accepted in this boot and did not begin.
    pub fn restore_reboot(&mut self, action: ActionId, now: Now) {
        self.ordered_actions.restore_reboot(action, now.timer);
    }

    /// Returns the accepted reboot, which a restarted agent has to carry out.
    pub fn accepted_reboot(&self) -> Option<ActionId> {
        self.ordered_actions.accepted_reboot()
    }

    /// Returns when [`Event::Timer`] is due next, by the monotonic clock.
    pub fn deadline(&self) -> Option<Duration> {
        let state_deadline = match &self.state {
            State::Starting => Some(Duration::ZERO),
            State::Greeting { until }
            | State::Waiting { until }
            | State::Pending { silent_at: until } => Some(*until),
            State::Linked(link) => {
                let times = [Some(link.next_heartbeat), Some(link.silent_at), link.next_check];
                times.into_iter().flatten().min()
            }
            _ => None,
        };
        state_deadline.into_iter().chain(self.ordered_actions.reboot_at()).min()
    }

    /// Returns the name of the state for the log.
    pub fn state(&self) -> &'static str {
        match self.state {
            State::Starting => "starting",
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
    pub fn handle(&mut self, now: Now, random: u32, event: Event) -> Vec<Effect> {
        let mut effects = match event {
            Event::Timer => self.handle_timer(now, random),
            Event::Certified(response) => self.handle_certificate(now, random, response),
            Event::Refused(_) => self.handle_refusal(now, random),
            Event::ConnectionLost(_) => self.retry_later(now, random, None),
            Event::StaleCa(_) => self.retry_later(now, random, Some(REJECTED_RETRY)),
            Event::Connected => self.handle_connection(now),
            Event::Message(message) => self.receive(now, random, message),
            Event::UnknownAction(id) => {
                self.extend_silence(now);
                vec![Effect::Send(self.ordered_actions.reject_unknown(id))]
            }
            Event::KeepAlive => {
                self.extend_silence(now);
                Vec::new()
            }
            Event::Pending(reply) => self.handle_pending_reply(now, random, reply),
            Event::ChecksDone(report) => self.handle_check_report(now, report),
            Event::Report(message) => vec![Effect::Send(message)],
            Event::RebootFailed(reason) => {
                self.ordered_actions.fail_reboot(reason).into_iter().map(Effect::Send).collect()
            }
        };
        effects.extend(self.ordered_actions.take_due_reboot(now.timer));
        // The next welcome repeats reports that have no link.
        if !matches!(self.state, State::Linked(_)) {
            effects.retain(|effect| !matches!(effect, Effect::Send(_)));
        }
        effects
    }

    fn choose_connection(&mut self, now: Now) -> Effect {
        let (state, effect) = match self.certificate {
            _ if self.has_token => (State::Enrolling, Effect::Enrol),
            None => (
                State::Pending { silent_at: now.timer + PENDING_SILENCE },
                Effect::OpenPending { reason: self.pending_reason.to_owned() },
            ),
            Some(validity) if self.needs_renewal || now.wall >= validity.expires_at => {
                (State::Renewing, Effect::Renew)
            }
            Some(_) => (State::Connecting, Effect::OpenLink),
        };
        self.state = state;
        effect
    }

    fn handle_timer(&mut self, now: Now, random: u32) -> Vec<Effect> {
        match &mut self.state {
            State::Starting => vec![self.choose_connection(now)],
            State::Waiting { until } if *until <= now.timer => vec![self.choose_connection(now)],
            State::Greeting { until } if *until <= now.timer => self.retry_later(now, random, None),
            State::Pending { silent_at } if *silent_at <= now.timer => {
                self.retry_later(now, random, None)
            }
            State::Linked(link) if link.silent_at <= now.timer => {
                self.retry_later(now, random, None)
            }
            State::Linked(link) => {
                link.handle_timer(now, self.heartbeat, self.certificate, &mut self.check_runs)
            }
            _ => Vec::new(),
        }
    }

    /// Closes the connection and retries after `at_least`, or with exponential backoff.
    fn retry_later(&mut self, now: Now, random: u32, at_least: Option<Duration>) -> Vec<Effect> {
        if matches!(self.state, State::Ended) {
            return Vec::new();
        }
        let backoff = RETRY.saturating_mul(1 << self.attempts.min(8)).min(RETRY_CAP);
        let pause = at_least.map_or(backoff, |pause| pause.max(MIN_RETRY));
        self.attempts = self.attempts.saturating_add(1);
        // Between 3/4 and 5/4 of the pause: the agents of a rack do not reconnect all at once.
        let jitter = pause / 2 * (random % 1024) / 1024;
        self.state = State::Waiting { until: now.timer + pause * 3 / 4 + jitter };
        vec![Effect::Close]
    }

    fn handle_certificate(
        &mut self,
        now: Now,
        random: u32,
        response: EnrolResponse,
    ) -> Vec<Effect> {
        let was_enrolling = matches!(self.state, State::Enrolling);
        let needed_renewal = self.needs_renewal;
        self.certificate = Some(Validity::from_response(&response, now.wall));
        let is_expired = response.life_s == 0;
        self.needs_renewal = false;
        let mut effects = vec![Effect::StoreCertificate(response)];
        match self.state {
            State::Enrolling | State::Pending { .. } => effects.extend(self.forget_token()),
            // A central node that renews and then refuses again must not cause a loop without
            // pauses.
            State::Renewing if is_expired || needed_renewal && self.attempts > 1 => {
                effects.extend(self.retry_later(now, random, None));
                return effects;
            }
            State::Renewing => {}
            _ => return effects,
        }
        if !was_enrolling {
            effects.push(Effect::Close);
        }
        effects.push(self.choose_connection(now));
        effects
    }

    fn forget_token(&mut self) -> Option<Effect> {
        std::mem::take(&mut self.has_token).then_some(Effect::ForgetToken)
    }

    fn handle_refusal(&mut self, now: Now, random: u32) -> Vec<Effect> {
        match self.state {
            State::Enrolling => {
                let mut effects: Vec<Effect> = self.forget_token().into_iter().collect();
                self.pending_reason = "the token of this boot was refused";
                effects.push(self.choose_connection(now));
                effects
            }
            State::Renewing => {
                self.certificate = None;
                self.needs_renewal = false;
                self.pending_reason = "the certificate was refused and not renewed";
                vec![Effect::DropCertificate, self.choose_connection(now)]
            }
            State::Connecting => {
                self.needs_renewal = true;
                self.retry_later(now, random, None)
            }
            _ => self.retry_later(now, random, None),
        }
    }

    fn handle_connection(&mut self, now: Now) -> Vec<Effect> {
        if !matches!(self.state, State::Connecting) {
            return Vec::new();
        }
        self.state = State::Greeting { until: now.timer + WELCOME_TIMEOUT };
        vec![Effect::Hello]
    }

    fn handle_pending_reply(&mut self, now: Now, random: u32, reply: PendingReply) -> Vec<Effect> {
        if !matches!(self.state, State::Pending { .. }) {
            return Vec::new();
        }
        self.extend_silence(now);
        match reply {
            PendingReply::Waiting { .. } => {
                self.attempts = 0;
                Vec::new()
            }
            PendingReply::Approved(response) => self.handle_certificate(now, random, response),
            PendingReply::Rejected { .. } => self.retry_later(now, random, Some(REJECTED_RETRY)),
        }
    }

    fn receive(&mut self, now: Now, random: u32, message: FromCentral) -> Vec<Effect> {
        self.extend_silence(now);
        match (&mut self.state, message) {
            (State::Greeting { .. }, FromCentral::Welcome(welcome)) => {
                self.handle_welcome(now, random, &welcome)
            }
            (
                State::Greeting { .. } | State::Linked(_),
                FromCentral::Goodbye { retry_after_s, .. },
            ) => {
                let Some(seconds) = retry_after_s else {
                    self.state = State::Ended;
                    return vec![Effect::Close];
                };
                self.retry_later(now, random, Some(Duration::from_secs(seconds.into())))
            }
            (State::Linked(link), FromCentral::Action(order)) => {
                let wall = link
                    .central
                    .map_or(now.wall, |(wall, timer)| wall.after(now.timer.saturating_sub(timer)));
                vec![Effect::Send(self.ordered_actions.accept(&order, wall, now.timer))]
            }
            (State::Linked(_), FromCentral::Acknowledged { id }) => {
                self.ordered_actions.acknowledge(id, now.timer);
                Vec::new()
            }
            (State::Linked(link), FromCentral::Certificate(response)) => {
                link.renewal_due_at = now.timer;
                let mut effects = self.handle_certificate(now, random, response);
                effects.push(Effect::Send(FromAgent::Renewed));
                effects
            }
            (State::Linked(_), FromCentral::Check { request_id }) => {
                self.check_runs.request(Some(request_id)).into_iter().collect()
            }
            (State::Linked(_), FromCentral::Roots { roots_pem, renew }) => {
                if let Some(validity) = self.certificate.as_mut().filter(|_| renew) {
                    // The next heartbeat requests the renewal, so that the requests of a rack are
                    // spread.
                    validity.renew_at = validity.renew_at.min(now.wall);
                }
                vec![Effect::TrustRoots(roots_pem)]
            }
            (State::Linked(_), FromCentral::EnrolAgain { roots_pem, token }) => {
                (self.has_token, self.certificate, self.needs_renewal) = (true, None, false);
                vec![
                    Effect::TrustRoots(roots_pem),
                    Effect::StoreToken(token),
                    Effect::DropCertificate,
                ]
            }
            // Desired state and streams do not concern the link.
            (State::Linked(_), message) => vec![Effect::Deliver(message)],
            _ => Vec::new(),
        }
    }

    fn handle_welcome(&mut self, now: Now, random: u32, welcome: &Welcome) -> Vec<Effect> {
        if !meshd_proto::is_supported_version(welcome.version) {
            return self.retry_later(now, random, Some(REJECTED_RETRY));
        }
        self.attempts = 0;
        self.heartbeat = Duration::from_secs(welcome.heartbeat_s.clamp(1, 3600).into());
        self.state = State::Linked(Linked {
            next_heartbeat: now.timer + self.heartbeat,
            silent_at: now.timer + silence(self.heartbeat),
            next_check: None,
            reported: None,
            repeat_at: now.timer,
            renewal_due_at: now.timer,
            central: welcome.now.map(|wall| (wall, now.timer)),
        });
        let mut effects: Vec<Effect> = self.check_runs.request(None).into_iter().collect();
        effects.push(Effect::ReportSections);
        effects.extend(self.ordered_actions.unacknowledged().into_iter().map(Effect::Send));
        effects
    }

    fn handle_check_report(&mut self, now: Now, mut report: CheckReport) -> Vec<Effect> {
        let (request, next_run) = self.check_runs.finish();
        let mut effects: Vec<Effect> = next_run.into_iter().collect();
        let State::Linked(link) = &mut self.state else { return effects };
        let statuses: Vec<_> =
            report.checks.iter().map(|check| (check.name.clone(), check.status)).collect();
        let failing = statuses.iter().any(|(_, status)| *status == CheckStatus::Fail);
        let fails = |(name, status): &(String, CheckStatus)| {
            name == SERVICES_CHECK && *status == CheckStatus::Fail
        };
        let is_first = request.is_none() && link.reported.is_none();
        if is_first && now.timer < self.services_start_until && statuses.iter().any(fails) {
            link.next_check = Some(now.timer + STARTING_CHECK_INTERVAL);
            return effects;
        }
        link.next_check =
            Some(now.timer + if failing { FAILING_CHECK_INTERVAL } else { CHECK_INTERVAL });
        let reported = (statuses, report.resources.clone());
        if request.is_none()
            && link.reported.as_deref() == Some(&reported)
            && now.timer < link.repeat_at
        {
            return effects;
        }
        link.reported = Some(Box::new(reported));
        link.repeat_at = now.timer + REPEAT_AFTER;
        report.request_id = request;
        effects.push(Effect::Send(FromAgent::Checks(Box::new(report))));
        effects
    }

    fn extend_silence(&mut self, now: Now) {
        match &mut self.state {
            State::Linked(link) => link.silent_at = now.timer + silence(self.heartbeat),
            State::Pending { silent_at } => *silent_at = now.timer + PENDING_SILENCE,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
