//! The state machine: start, retries, heartbeats and actions; invariants hold for every sequence of
//! events.

mod check_reports;

use super::*;
use crate::link_state::ordered_actions::{MAX_OUTCOMES, REBOOT_ACK_TIMEOUT};
use meshd_proto::{ActionId, ActionOrder, ActionOutcome, Check, NodeAction};
use meshd_types::{Secret, Timestamp};
use proptest::prelude::*;

const HEARTBEAT_S: u32 = 30;

fn node() -> NodeId {
    "00000001".parse().expect("a node ID")
}

fn at(seconds: u64) -> Now {
    let timer = Duration::from_secs(seconds);
    Now { timer, wall: Timestamp::from_millis(1_800_000_000_000).after(timer) }
}

fn certificate(life_s: u64) -> EnrolResponse {
    EnrolResponse { certificate_pem: "PEM".into(), life_s }
}

fn validity(seconds: u64) -> Validity {
    Validity::from_response(&certificate(seconds), at(0).wall)
}

fn welcome() -> Event {
    Event::Message(FromCentral::Welcome(Welcome {
        version: meshd_proto::VERSION,
        heartbeat_s: HEARTBEAT_S,
        now: None,
        logs: false,
    }))
}

fn reboot(id: u64, node: NodeId, expires: u64) -> ActionOrder {
    ActionOrder { id: ActionId(id), node, expires_at: at(expires).wall, action: NodeAction::Reboot }
}

fn report(status: CheckStatus, detail: &str) -> CheckReport {
    let name = "services".into();
    let detail = detail.into();
    let remediation = String::new();
    let check = Check { name, status, detail, remediation, unproven: false };
    CheckReport { checks: vec![check], ..CheckReport::default() }
}

fn order(order: ActionOrder) -> Event {
    Event::Message(FromCentral::Action(order))
}

fn acknowledged(id: u64) -> Event {
    Event::Message(FromCentral::Acknowledged { id: ActionId(id) })
}

/// Returns a machine after its first event, and the effects of this event.
fn started(has_token: bool, certificate: Option<Validity>) -> (LinkStateMachine, Vec<Effect>) {
    let mut machine = LinkStateMachine::new(node(), has_token, certificate);
    let effects = machine.handle(at(0), 0, Event::Timer);
    (machine, effects)
}

fn linked(life_s: u64) -> LinkStateMachine {
    let (mut machine, effects) = started(false, Some(validity(life_s)));
    assert_eq!(effects, [Effect::OpenLink]);
    assert_eq!(machine.handle(at(0), 0, Event::Connected), [Effect::Hello]);
    assert_eq!(machine.handle(at(0), 0, welcome()), [Effect::RunChecks, Effect::ReportSections]);
    machine
}

#[test]
fn enrol_again_order_enrols_after_the_goodbye() {
    let mut machine = linked(1000);
    let token = Secret::new("token".to_owned());
    let order = FromCentral::EnrolAgain { roots_pem: "ROOTS".into(), token: token.clone() };
    let expected =
        [Effect::TrustRoots("ROOTS".into()), Effect::StoreToken(token), Effect::DropCertificate];
    assert_eq!(machine.handle(at(1), 0, Event::Message(order)), expected);
    let goodbye = FromCentral::Goodbye { reason: "replaced".into(), retry_after_s: Some(4) };
    assert_eq!(machine.handle(at(1), 0, Event::Message(goodbye)), [Effect::Close]);
    let due = machine.deadline().expect("a retry");
    assert_eq!(machine.handle(at(due.as_secs() + 1), 0, Event::Timer), [Effect::Enrol]);
    let got = machine.handle(at(due.as_secs() + 1), 0, Event::Certified(certificate(1000)));
    assert_eq!(
        got,
        [Effect::StoreCertificate(certificate(1000)), Effect::ForgetToken, Effect::OpenLink]
    );
}

fn lost() -> Event {
    Event::ConnectionLost("test".into())
}

fn is_refused(effects: &[Effect]) -> bool {
    matches!(outcome(effects), Some(ActionOutcome::Refused { .. }))
}

fn outcome(effects: &[Effect]) -> Option<ActionOutcome> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send(FromAgent::ActionDone { outcome, .. }) => Some(outcome.clone()),
        _ => None,
    })
}

#[test]
fn start_uses_token_then_certificate_then_pending_connection() {
    let first = |has_token, certificate| started(has_token, certificate).1;
    assert_eq!(first(true, Some(validity(1000))), [Effect::Enrol]);
    assert_eq!(first(false, Some(validity(1000))), [Effect::OpenLink]);
    assert_eq!(first(false, Some(validity(0))), [Effect::Renew]);
    assert!(
        matches!(&first(false, None)[..], [Effect::OpenPending { reason }] if reason.contains("neither a token"))
    );
}

#[test]
fn token_is_kept_until_the_central_node_responds() {
    let (mut machine, _) = started(true, None);
    assert_eq!(machine.handle(at(1), 0, lost()), [Effect::Close]);
    assert_eq!(machine.handle(at(10), 0, Event::Timer), [Effect::Enrol], "the token remains");
    let got = machine.handle(at(11), 0, Event::Certified(certificate(100)));
    assert_eq!(
        got,
        [Effect::StoreCertificate(certificate(100)), Effect::ForgetToken, Effect::OpenLink]
    );

    let (mut machine, _) = started(true, None);
    let got = machine.handle(at(1), 0, Event::Refused("401".into()));
    assert_eq!(got[0], Effect::ForgetToken);
    assert!(matches!(&got[1], Effect::OpenPending { reason } if reason.contains("refused")));
}

#[test]
fn refused_token_leaves_a_valid_certificate_in_use() {
    let (mut machine, _) = started(true, Some(validity(1000)));
    assert_eq!(
        machine.handle(at(1), 0, Event::Refused("401".into())),
        [Effect::ForgetToken, Effect::OpenLink]
    );
}

#[test]
fn approved_node_connects_at_once_and_rejected_node_retries_later() {
    let (mut machine, _) = started(false, None);
    assert!(
        machine
            .handle(at(1), 0, Event::Pending(PendingReply::Waiting { reason: "x".into() }))
            .is_empty()
    );
    let got = machine.handle(at(2), 0, Event::Pending(PendingReply::Approved(certificate(100))));
    assert_eq!(got, [Effect::StoreCertificate(certificate(100)), Effect::Close, Effect::OpenLink]);

    let (mut machine, _) = started(false, None);
    let rejected = Event::Pending(PendingReply::Rejected { reason: "x".into() });
    assert_eq!(machine.handle(at(0), 0, rejected), [Effect::Close]);
    assert!(machine.deadline() >= Some(REJECTED_RETRY * 3 / 4));
}

#[test]
fn refused_certificate_is_dropped_only_after_a_refused_renewal() {
    let (mut machine, _) = started(false, Some(validity(1000)));
    assert_eq!(machine.handle(at(0), 0, Event::Refused("stale".into())), [Effect::Close]);
    assert_eq!(machine.handle(at(10), 0, Event::Timer), [Effect::Renew]);
    let got = machine.handle(at(10), 0, Event::Refused("revoked".into()));
    assert_eq!(got[0], Effect::DropCertificate);
    assert!(matches!(&got[1], Effect::OpenPending { reason } if reason.contains("not renewed")));
}

#[test]
fn certificate_renewed_and_refused_in_turn_backs_off() {
    let mut machine = LinkStateMachine::new(node(), false, Some(validity(1000)));
    let mut calls = 0;
    for second in 0..60 {
        let mut effects = machine.handle(at(second), 0, Event::Timer);
        for _ in 0..10 {
            let Some(effect) =
                effects.iter().find(|effect| matches!(effect, Effect::OpenLink | Effect::Renew))
            else {
                break;
            };
            calls += 1;
            let answer = match effect {
                Effect::Renew => Event::Certified(certificate(0)),
                _ => Event::Refused("no".into()),
            };
            effects = machine.handle(at(second), 0, answer);
        }
    }
    assert!(calls <= 8, "{calls} calls in a minute");
}

#[test]
fn certificate_is_renewed_over_the_link_at_half_its_lifetime() {
    let mut machine = linked(200);
    let mut renewals = Vec::new();
    for second in 1..200 {
        let effects = machine.handle(at(second), 0, Event::Timer);
        machine.handle(at(second), 0, Event::KeepAlive);
        renewals.extend(effects.contains(&Effect::RequestRenewal).then_some(second));
    }
    assert_eq!(
        renewals,
        [120, 180],
        "at the first heartbeat past half, and again without response"
    );
    let got =
        machine.handle(at(199), 0, Event::Message(FromCentral::Certificate(certificate(200))));
    assert_eq!(got, [Effect::StoreCertificate(certificate(200)), Effect::Send(FromAgent::Renewed)]);
    assert!(!machine.handle(at(210), 0, Event::Timer).contains(&Effect::RequestRenewal));
}

#[test]
fn silent_link_is_closed() {
    let mut machine = linked(10_000);
    machine.handle(at(60), 0, Event::KeepAlive);
    assert_eq!(machine.handle(at(129), 0, Event::Timer), [Effect::Heartbeat]);
    assert_eq!(machine.handle(at(130), 0, Event::Timer), [Effect::Close]);
    assert_eq!(machine.state(), "waiting");
}

#[test]
fn goodbye_sets_the_retry_or_ends_the_link() {
    let goodbye =
        |retry_after_s| Event::Message(FromCentral::Goodbye { reason: "x".into(), retry_after_s });
    let mut machine = linked(10_000);
    assert_eq!(machine.handle(at(5), 0, goodbye(Some(100))), [Effect::Close]);
    assert_eq!(machine.deadline(), Some(Duration::from_secs(5 + 75)));
    let mut machine = linked(10_000);
    assert_eq!(machine.handle(at(5), 0, goodbye(None)), [Effect::Close]);
    assert!(machine.handle(at(6), 0, lost()).is_empty());
    assert_eq!((machine.deadline(), machine.state()), (None, "ended"));
}

#[test]
fn warm_reboot_is_an_effect_of_its_own_and_cold_after_a_restart() {
    let mut machine = linked(10_000);
    let warm = ActionOrder { action: NodeAction::WarmReboot, ..reboot(7, node(), 60) };
    machine.handle(at(1), 0, order(warm));
    assert_eq!(machine.accepted_reboot(), Some(ActionId(7)));
    assert_eq!(machine.handle(at(2), 0, acknowledged(7)), [Effect::WarmReboot]);
    assert_eq!(machine.accepted_reboot(), Some(ActionId(7)), "the agent may end while it loads");
    let (mut restarted, _) = started(false, Some(validity(10_000)));
    restarted.restore_reboot(ActionId(7), at(3));
    assert!(restarted.handle(at(9), 0, Event::Timer).contains(&Effect::Reboot));
}

#[test]
fn reboot_waits_until_its_outcome_is_acknowledged() {
    let mut machine = linked(10_000);
    let got = machine.handle(at(1), 0, order(reboot(7, node(), 60)));
    assert_eq!(outcome(&got), Some(ActionOutcome::Done));
    assert!(!got.contains(&Effect::Reboot));
    assert_eq!(machine.handle(at(2), 0, acknowledged(7)), [Effect::Reboot]);
    assert!(!machine.handle(at(100), 0, Event::Timer).contains(&Effect::Reboot), "once");
}

#[test]
fn reboot_without_acknowledgement_happens_after_the_timeout() {
    let mut machine = linked(10_000);
    machine.handle(at(1), 0, order(reboot(7, node(), 60)));
    machine.handle(at(2), 0, lost());
    assert!(machine.deadline() <= Some(Duration::from_secs(1) + REBOOT_ACK_TIMEOUT));
    assert!(machine.handle(at(6), 0, Event::Timer).contains(&Effect::Reboot));
    assert!(machine.handle(at(7), 0, Event::RebootFailed("x".into())).is_empty(), "no link");
    assert_eq!(machine.state(), "connecting", "the agent reconnects");
}

#[test]
fn reboot_that_an_earlier_run_accepted_happens() {
    let mut former = linked(10_000);
    former.handle(at(1), 0, order(reboot(7, node(), 60)));
    let accepted = former.accepted_reboot();
    assert_eq!(accepted, Some(ActionId(7)));
    let mut machine = LinkStateMachine::new(node(), true, None);
    machine.restore([(ActionId(7), ActionOutcome::Done)]);
    machine.restore_reboot(ActionId(7), at(0));
    assert!(!machine.handle(at(0), 0, Event::Timer).contains(&Effect::Reboot));
    assert_eq!(machine.deadline(), Some(REBOOT_ACK_TIMEOUT));
    assert!(machine.handle(at(5), 0, Event::Timer).contains(&Effect::Reboot));
    assert_eq!(machine.accepted_reboot(), None, "it has begun");
    machine.handle(at(6), 0, Event::RebootFailed("exited with 1".to_owned()));
    assert_eq!(machine.accepted_reboot(), None, "it is not tried again");
}

#[test]
fn late_acknowledgement_of_a_started_reboot_starts_no_second_one() {
    let mut machine = linked(10_000);
    machine.handle(at(1), 0, order(reboot(7, node(), 60)));
    assert!(machine.handle(at(6), 0, Event::Timer).contains(&Effect::Reboot));
    assert_eq!(machine.handle(at(7), 0, acknowledged(7)), []);
    let failed = machine.handle(at(8), 0, Event::RebootFailed("x".into()));
    assert!(matches!(outcome(&failed), Some(ActionOutcome::Failed { .. })), "{failed:?}");
}

#[test]
fn expired_or_foreign_action_is_refused_and_none_runs_twice() {
    let mut machine = linked(10_000);
    let other = "00000002".parse().expect("a node ID");
    for (id, invalid) in [(1, reboot(1, other, 60)), (2, reboot(2, node(), 0))] {
        let got = machine.handle(at(1), 0, order(invalid.clone()));
        assert!(is_refused(&got), "{id}");
        // A valid order with the same ID repeats the first outcome.
        let valid = ActionOrder { node: node(), expires_at: at(60).wall, ..invalid };
        let again = machine.handle(at(1), 0, order(valid));
        assert_eq!(outcome(&again), outcome(&got));
    }
    assert!(is_refused(&machine.handle(at(1), 0, Event::UnknownAction(ActionId(3)))));
    assert!(!machine.handle(at(30), 0, Event::Timer).contains(&Effect::Reboot));
}

#[test]
fn action_expires_by_the_clock_of_the_central_node() {
    let (mut machine, _) = started(false, Some(validity(10_000)));
    machine.handle(at(0), 0, Event::Connected);
    let now = Some(Timestamp::from_millis(0));
    let welcome =
        Welcome { version: meshd_proto::VERSION, heartbeat_s: HEARTBEAT_S, now, logs: false };
    machine.handle(at(0), 0, Event::Message(FromCentral::Welcome(welcome)));
    let expires_at = Timestamp::from_millis(10_000);
    let early = ActionOrder { expires_at, ..reboot(1, node(), 0) };
    let late = ActionOrder { expires_at, ..reboot(2, node(), 0) };
    assert!(is_refused(&machine.handle(at(11), 0, order(late))));
    assert_eq!(outcome(&machine.handle(at(9), 0, order(early))), Some(ActionOutcome::Done));
}

#[test]
fn outcomes_are_repeated_until_acknowledged() {
    let mut machine = linked(10_000);
    machine.handle(at(1), 0, Event::UnknownAction(ActionId(1)));
    machine.handle(at(1), 0, Event::UnknownAction(ActionId(2)));
    machine.handle(at(1), 0, acknowledged(1));
    machine.handle(at(2), 0, lost());
    machine.handle(at(60), 0, Event::Timer);
    machine.handle(at(60), 0, Event::Connected);
    let effects: Vec<_> = machine.handle(at(60), 0, welcome());
    let repeated = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Send(FromAgent::ActionDone { .. })))
        .count();
    assert_eq!(repeated, 1);
    // IDs are random: the newest one may be the smallest.
    for id in (10..10 + 2 * MAX_OUTCOMES as u64).rev() {
        machine.handle(at(60), 0, Event::UnknownAction(ActionId(id)));
    }
    let unacknowledged = machine.ordered_actions.unacknowledged();
    assert_eq!(unacknowledged.len(), MAX_OUTCOMES);
    let is_newest =
        |message: &FromAgent| matches!(message, FromAgent::ActionDone { id: ActionId(10), .. });
    assert!(unacknowledged.iter().any(is_newest), "the oldest outcomes are removed");
}

fn event() -> impl Strategy<Value = Event> {
    let node = |other: bool| if other { "00000002".parse().expect("a node ID") } else { node() };
    prop_oneof![
        8 => Just(()).prop_map(|()| Event::Timer),
        2 => (0u64..2000).prop_map(|life_s| Event::Certified(certificate(life_s))),
        1 => Just(()).prop_map(|()| Event::Refused(String::new())),
        2 => Just(()).prop_map(|()| lost()),
        4 => Just(()).prop_map(|()| Event::Connected),
        4 => Just(()).prop_map(|()| welcome()),
        1 => (0u64..2000).prop_map(|life_s| Event::Message(FromCentral::Certificate(certificate(life_s)))),
        1 => (0u32..100).prop_map(|s| Event::Message(FromCentral::Goodbye { reason: String::new(), retry_after_s: Some(s) })),
        2 => (0u64..9, any::<bool>(), 0u64..5000).prop_map(move |(id, other, expires)| {
            order(reboot(id, node(other), expires))
        }),
        1 => (0u64..9).prop_map(acknowledged),
        2 => Just(()).prop_map(|()| Event::KeepAlive),
        1 => (0u64..2000).prop_map(|life_s| Event::Pending(PendingReply::Approved(certificate(life_s)))),
        1 => Just(()).prop_map(|()| Event::ChecksDone(report(CheckStatus::Fail, ""))),
        1 => Just(()).prop_map(|()| Event::RebootFailed(String::new())),
    ]
}

proptest! {
    #[test]
    fn event_sequences_keep_the_invariants(
        token: bool, old in prop::option::of(0u64..2000),
        steps in prop::collection::vec((event(), 0u64..40, any::<u32>()), 0..200),
    ) {
        let mut machine = LinkStateMachine::new(node(), token, old.map(validity));
        let mut has_token = token;
        let mut second = 0;
        let mut heartbeat = None::<u64>;
        for (event, pause, random) in steps {
            second += pause;
            let answered = matches!(machine.state, State::Enrolling)
                && matches!(event, Event::Certified(_) | Event::Refused(_));
            let effects = machine.handle(at(second), random, event);
            for effect in &effects {
                match effect {
                    Effect::Heartbeat => {
                        prop_assert!(heartbeat.is_none_or(|last| second - last >= u64::from(HEARTBEAT_S)));
                        heartbeat = Some(second);
                    }
                    Effect::Enrol => prop_assert!(has_token, "a token is not used after it was forgotten"),
                    Effect::ForgetToken => has_token = false,
                    Effect::OpenPending { reason } => prop_assert!(!has_token && !reason.is_empty()),
                    _ => {}
                }
            }
            if answered {
                prop_assert!(!has_token, "every response uses up the token");
            }
            if let State::Waiting { until } = machine.state {
                let longest = Duration::from_secs(100) * 5 / 4;
                prop_assert!(until <= Duration::from_secs(second) + longest);
                if effects.contains(&Effect::Close) {
                    prop_assert!(until >= Duration::from_secs(second) + MIN_RETRY * 3 / 4);
                }
            }
            let opened = effects.iter().filter(|effect| matches!(
                effect, Effect::Enrol | Effect::Renew | Effect::OpenLink | Effect::OpenPending { .. }
            )).count();
            prop_assert!(opened <= 1, "one call at a time");
        }
    }

    #[test]
    fn pauses_grow_from_five_to_thirty_seconds_with_jitter(randoms in prop::collection::vec(any::<u32>(), 1..12)) {
        let mut machine = LinkStateMachine::new(node(), false, Some(validity(1_000_000)));
        let mut second = 0;
        for (attempt, random) in randoms.into_iter().enumerate() {
            machine.handle(at(second), random, Event::Timer);
            machine.handle(at(second), random, lost());
            let pause = machine.deadline().expect("a retry") - Duration::from_secs(second);
            let middle = (RETRY * 2u32.pow(attempt.min(8) as u32)).min(RETRY_CAP);
            prop_assert!(pause >= middle * 3 / 4 && pause < middle * 5 / 4, "{:?} of {:?}", pause, middle);
            second += 100;
        }
    }
}
