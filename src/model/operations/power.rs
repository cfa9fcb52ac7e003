//! An order to the BMC of a machine, as a state machine. Pure.
//!
//! An order climbs a ladder of requests: a graceful one, a forced one, a cold cycle, a network boot
//! by the BMC. A rung ends with the effect that meshd sees itself: a DHCP exchange of the machine,
//! or the end of its link. The answer of a BMC alone proves nothing. Without the effect, the next
//! rung follows, and after the last one a person.

use super::{
    NodeOrder,
    outcome::NodeOutcome,
    power_ladder::{OFF_WITHIN, Rung, ladder},
};
use meshd_types::{
    BmcRequest, BootSessionId, MacAddr, PowerAction, PowerLadder, PowerState, Timestamp,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Tries of one request before the next rung.
const MAX_TRIES: u8 = 3;
/// Pause before the second try; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Interval of the questions whether an accepted request has an effect: early, and later.
const POLL_EARLY: Duration = Duration::from_secs(2);
const POLL_LATE: Duration = Duration::from_secs(10);
const POLLS_EARLY_FOR: Duration = Duration::from_secs(60);
/// Time after which the BMC's own report counts against an order that the BMC accepted.
const REPORT_AFTER: Duration = Duration::from_secs(20);
/// Silence that proves that a machine is off if its BMC reports no state.
const SILENT_FOR: Duration = Duration::from_secs(10);
/// Why an order to power a machine on ends without a cold cycle.
const MAY_RUN: &str = "meshd saw no boot, and `on` cuts no power of a machine that may run";
/// Maximum length of an error, in characters.
const MAX_ERROR: usize = 300;

/// Why a BMC did not carry a request out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BmcFailure {
    /// The BMC, or its protocol, has no such request.
    Unsupported(String),
    /// The BMC refuses user or password. It is not asked again: it may lock the account.
    Credentials(String),
    /// The BMC does not answer, or refuses the request at present.
    Failed(String),
    /// The request was sent, and no answer came in time. The BMC may carry it out.
    Unanswered(String),
}

impl BmcFailure {
    pub fn reason(&self) -> &str {
        match self {
            BmcFailure::Unsupported(reason)
            | BmcFailure::Credentials(reason)
            | BmcFailure::Failed(reason)
            | BmcFailure::Unanswered(reason) => reason,
        }
    }
}

/// The result of a request. A BMC that has carried out a change reports no state.
pub type BmcResult = Result<Option<PowerState>, BmcFailure>;

/// What meshd sees of a machine itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// The newest boot session of the machine, and the time of its last DHCP exchange.
    pub newest_boot: Option<(BootSessionId, Timestamp)>,
    /// The agent of the machine has a link.
    pub is_linked: bool,
}

/// What an order does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerStep {
    Wait,
    Request(BmcRequest),
    End(NodeOutcome),
}

/// The progress of an order to a BMC; part of the record of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerProgress {
    /// The ladder; that of the rule of the BMC when the order started.
    #[serde(default, skip_serializing_if = "is_standard")]
    pub ladder: PowerLadder,
    /// Number of the rung, from 0.
    pub rung: u8,
    /// Requests of the rung that the BMC accepted.
    pub accepted: u8,
    /// Failed tries of the present request.
    pub tries: u8,
    /// Time of the last answer that changed the above.
    pub since: Timestamp,
    /// The request that was sent and has no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<BmcRequest>,
    /// Time at which the first request was sent that changes the power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acted_at: Option<Timestamp>,
    /// Time from which an exchange of the same boot session counts as an effect: the BMC accepted
    /// the first request that changes the power. If its answer is lost, the time of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Timestamp>,
    /// The last state that the BMC reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<PowerState>,
    /// Time of the last report of a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_at: Option<Timestamp>,
    /// Time of the last answer to a question for the state, also of one without a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polled_at: Option<Timestamp>,
    /// Last time at which the agent of the machine answered a probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive_at: Option<Timestamp>,
    /// The last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// MAC address of a machine that has not booted; `None` for a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MacAddr>,
    /// The error ends the order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_refused: bool,
    /// The BMC accepted `off`, the first half of a cold cycle: only a packet after the second half
    /// is an effect. The machine may send one before it loses its power.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

fn is_standard(ladder: &PowerLadder) -> bool {
    *ladder == PowerLadder::Standard
}

impl PowerProgress {
    pub fn new(ladder: PowerLadder, now: Timestamp) -> Self {
        PowerProgress {
            ladder,
            rung: 0,
            accepted: 0,
            tries: 0,
            since: now,
            sent: None,
            acted_at: None,
            accepted_at: None,
            reported: None,
            reported_at: None,
            polled_at: None,
            alive_at: None,
            error: None,
            machine: None,
            is_refused: false,
            is_cut: false,
        }
    }

    /// Returns what follows, and moves to the next rung if the present one had no effect.
    /// `former_boot` is the newest boot session of the machine when the order started.
    pub fn next(
        &mut self,
        order: &NodeOrder,
        former_boot: Option<BootSessionId>,
        seen: Sighting,
        appear_within: Duration,
        now: Timestamp,
    ) -> PowerStep {
        // Its answer decides whether an earlier packet of the machine counts.
        if self.sent == Some(BmcRequest::Off) {
            return PowerStep::Wait;
        }
        if self.has_effect(order, former_boot, seen, now) {
            return PowerStep::End(NodeOutcome::Done);
        }
        if self.is_refused {
            return PowerStep::End(NodeOutcome::Failed(self.error.clone().unwrap_or_default()));
        }
        if self.sent.is_some() || now.distance(self.since) < self.pause() {
            return PowerStep::Wait;
        }
        let ladder = ladder(order, self.ladder);
        let is_plain = matches!(ladder.first(), Some(Rung::Plain(_)));
        if self.polled_at.is_none() && !is_plain {
            return PowerStep::Request(BmcRequest::Status);
        }
        if let Some(outcome) = self.idle_outcome(order, seen) {
            return PowerStep::End(outcome);
        }
        while let Some(rung) = ladder.get(usize::from(self.rung)).copied() {
            if rung == Rung::TurnOn && self.may_lose_power(now) {
                return self.poll(now);
            }
            if rung.is_over(self.accepted, self.reported) {
                self.climb(now);
                continue;
            }
            let requests = rung.requests(self.reported);
            if let Some(request) = requests.get(usize::from(self.accepted)) {
                if rung.disturbs(self.reported) && !self.may_cut(order, seen) {
                    self.error = Some(MAY_RUN.to_owned());
                    break;
                }
                return PowerStep::Request(*request);
            }
            let waited = now.distance(self.since);
            if waited < rung.patience(appear_within) && !self.is_contradicted(rung) {
                return self.poll(now);
            }
            self.error = Some(format!("the {} had no effect", rung.words()));
            self.climb(now);
        }
        PowerStep::End(NodeOutcome::Failed(self.by_hand(&ladder)))
    }

    /// Asks for the state at intervals.
    fn poll(&self, now: Timestamp) -> PowerStep {
        let is_early = now.distance(self.since) < POLLS_EARLY_FOR;
        let interval = if is_early { POLL_EARLY } else { POLL_LATE };
        let is_due = self.polled_at.is_none_or(|polled| now.distance(polled) >= interval);
        if is_due { PowerStep::Request(BmcRequest::Status) } else { PowerStep::Wait }
    }

    /// Whether the BMC may still carry an `off` out, although it reports that the machine is on.
    /// Without `on`, the machine would then stay off.
    fn may_lose_power(&self, now: Timestamp) -> bool {
        let is_on_way = self.is_cut && self.accepted_at.is_none();
        let is_early = now.distance(self.since) < OFF_WITHIN;
        is_on_way && self.reported == Some(PowerState::On) && is_early
    }

    /// Returns the number of the attempt and the last error, for people.
    pub fn words(&self) -> String {
        let error = self.error.iter().map(|error| format!("; {error}")).collect::<String>();
        format!("attempt {}{error}", self.rung.saturating_add(1))
    }

    /// Records that a request is being sent.
    pub fn send(&mut self, request: BmcRequest, now: Timestamp) {
        self.sent = Some(request);
        if request.changes_power() {
            self.acted_at.get_or_insert(now);
        }
    }

    /// Records the answer to the request that was sent. `is_alive`: the agent answered a probe.
    pub fn answer(&mut self, result: BmcResult, is_alive: bool, now: Timestamp) {
        let Some(request) = self.sent.take() else { return };
        if is_alive {
            self.alive_at = Some(now);
        }
        let failure = match (request, result) {
            (BmcRequest::Status, Ok(state)) => return self.report(state, now),
            (BmcRequest::Status, Err(BmcFailure::Unsupported(_))) => return self.report(None, now),
            (_, Ok(_)) => return self.accept(request, now, now),
            (_, Err(failure)) => failure,
        };
        self.error = Some(failure.reason().chars().take(MAX_ERROR).collect());
        match (request, failure) {
            (_, BmcFailure::Credentials(_)) => self.is_refused = true,
            // A question that is repeated anyway.
            (BmcRequest::Status, _) if self.polled_at.is_some() => self.polled_at = Some(now),
            (BmcRequest::Status, _) => {
                (self.tries, self.since) = (self.tries.saturating_add(1), now);
                self.is_refused = self.tries >= MAX_TRIES;
            }
            (_, BmcFailure::Unsupported(_)) => self.climb(now),
            // A repetition would cut the power again.
            (_, BmcFailure::Unanswered(_)) if request.changes_power() => {
                // The second half of a cold cycle was sent after the first one had its effect.
                let cut_at = self.reported_at.max(Some(self.since));
                let sent_at = if self.is_cut { cut_at } else { self.acted_at };
                self.accept(request, sent_at.unwrap_or(now), now);
            }
            (_, BmcFailure::Failed(_) | BmcFailure::Unanswered(_)) => {
                (self.tries, self.since) = (self.tries.saturating_add(1), now);
                if self.tries >= MAX_TRIES {
                    self.climb(now);
                }
            }
        }
    }

    fn report(&mut self, state: Option<PowerState>, now: Timestamp) {
        (self.reported, self.polled_at) = (state, Some(now));
        self.reported_at = state.map(|_| now);
    }

    /// Records that the BMC accepted a request. From `carried_out_at` on, it may have an effect.
    fn accept(&mut self, request: BmcRequest, carried_out_at: Timestamp, now: Timestamp) {
        (self.tries, self.since) = (0, now);
        self.accepted = self.accepted.saturating_add(1);
        match (self.is_cut, request) {
            (_, BmcRequest::Off) => (self.is_cut, self.accepted_at) = (true, None),
            (true, BmcRequest::On) => self.accepted_at = Some(carried_out_at),
            (false, request) if request.changes_power() => {
                self.accepted_at.get_or_insert(carried_out_at);
            }
            _ => {}
        }
    }

    /// Records that the answer to the sent request is lost, because meshd ended. A change of the
    /// power counts as accepted: it is not repeated before its effect could be seen.
    pub fn lose_answer(&mut self, now: Timestamp) {
        let lost = BmcFailure::Unanswered("meshd was restarted".to_owned());
        self.answer(Err(lost), false, now);
    }

    /// Starts the wait for an effect anew: the wall clock jumped, or meshd did not run. No time of
    /// the record stays in the future.
    pub fn restart_wait(&mut self, now: Timestamp) {
        self.since = now;
        let times = [
            &mut self.acted_at,
            &mut self.accepted_at,
            &mut self.polled_at,
            &mut self.reported_at,
            &mut self.alive_at,
        ];
        for time in times.into_iter().flatten() {
            *time = (*time).min(now);
        }
    }

    fn climb(&mut self, now: Timestamp) {
        self.rung = self.rung.saturating_add(1);
        (self.accepted, self.tries, self.since) = (0, 0, now);
    }

    /// The pause before the next try.
    fn pause(&self) -> Duration {
        match self.tries {
            0 => Duration::ZERO,
            tries => FIRST_PAUSE * (1 << (tries.min(MAX_TRIES) - 1)),
        }
    }

    /// Whether meshd sees the effect of the order.
    fn has_effect(
        &self,
        order: &NodeOrder,
        former_boot: Option<BootSessionId>,
        seen: Sighting,
        now: Timestamp,
    ) -> bool {
        let Some(acted_at) = self.acted_at else {
            return matches!(order, NodeOrder::BootDevice { .. } | NodeOrder::Identify { .. })
                && self.accepted > 0;
        };
        match order {
            NodeOrder::Power { action: PowerAction::Off, .. } => {
                let is_new = |at: Option<Timestamp>| at.is_some_and(|at| at > acted_at);
                let is_silent = self.alive_at.is_none_or(|alive| now.since(alive) >= SILENT_FOR)
                    && self.sent.is_none()
                    && now.since(self.since) >= SILENT_FOR;
                let is_off = match self.reported {
                    Some(state) => state == PowerState::Off && is_new(self.reported_at),
                    None => is_silent && is_new(self.polled_at),
                };
                !seen.is_linked && is_off
            }
            NodeOrder::Power { action, .. } => {
                let has_booted = seen.newest_boot.is_some_and(|(boot, exchanged_at)| {
                    (Some(boot) != former_boot && !self.is_cut)
                        || self.accepted_at.is_some_and(|accepted| exchanged_at > accepted)
                });
                // A machine that boots from its disk sends no DHCP that meshd sees.
                let started_at = if self.is_cut { self.accepted_at } else { Some(acted_at) };
                let is_up = *action == PowerAction::On
                    && seen.is_linked
                    && started_at.is_some_and(|at| self.alive_at.is_some_and(|alive| alive > at));
                has_booted || is_up
            }
            _ => false,
        }
    }

    /// Whether a rung may disturb the machine. An order to power a machine on has no confirmation, so it
    /// cuts only that of a machine that was off and is not heard of since.
    fn may_cut(&self, order: &NodeOrder, seen: Sighting) -> bool {
        !matches!(order, NodeOrder::Power { action: PowerAction::On, .. })
            || (self.reported == Some(PowerState::On) && !seen.is_linked)
    }

    /// The outcome of an order to a machine that is in the state already, before any change.
    fn idle_outcome(&self, order: &NodeOrder, seen: Sighting) -> Option<NodeOutcome> {
        let NodeOrder::Power { action, .. } = order else { return None };
        match (action, self.reported) {
            _ if self.acted_at.is_some() => None,
            (PowerAction::On, Some(PowerState::On)) if seen.is_linked => Some(NodeOutcome::Done),
            (PowerAction::On, Some(PowerState::On)) => Some(NodeOutcome::Failed(
                "the BMC reports that the machine is on already, but meshd does not see it; boot it anew with `meshd node power cycle`".to_owned(),
            )),
            (PowerAction::Off, Some(PowerState::Off)) if !seen.is_linked => Some(NodeOutcome::Done),
            _ => None,
        }
    }

    /// Whether a report after an accepted request shows that it had no effect.
    fn is_contradicted(&self, rung: Rung) -> bool {
        let late = self.since.after(REPORT_AFTER);
        let reported = self.reported.filter(|_| self.reported_at.is_some_and(|at| at >= late));
        match rung {
            Rung::ShutDown | Rung::NetworkDevice | Rung::Plain(_) => false,
            Rung::Off | Rung::CutOff => reported == Some(PowerState::On),
            Rung::On | Rung::TurnOn | Rung::Cycle | Rung::Reset | Rung::NetworkBoot => {
                reported == Some(PowerState::Off) || self.alive_at.is_some_and(|at| at >= late)
            }
        }
    }

    /// The reason of an order whose last rung had no effect.
    fn by_hand(&self, ladder: &[Rung]) -> String {
        let tried = ladder.iter().take(usize::from(self.rung));
        let mut tried: Vec<&str> = tried.map(|rung| rung.words()).collect();
        tried.dedup();
        let error = self.error.clone().unwrap_or_default();
        match ladder {
            [Rung::Plain(_)] => error,
            _ => format!("tried {}; last: {error}; do it by hand", tried.join(", ")),
        }
    }
}
