//! The machine: the order of the start, the pauses, the heartbeats, the tasks; and no sequence of events breaks a promise.

use super::*;
use crate::link_state::actions::{MAX_REMEMBERED, REBOOT_PATIENCE};
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

fn life(seconds: u64) -> Life {
    Life::of(&certificate(seconds), at(0).wall)
}

fn welcome() -> Event {
    Event::Heard(FromCentral::Welcome(Welcome {
        version: meshd_proto::VERSION,
        heartbeat_s: HEARTBEAT_S,
        now: None,
        logs: false,
    }))
}

fn task(id: u64, node: NodeId, expires: u64) -> ActionOrder {
    ActionOrder { id: ActionId(id), node, expires_at: at(expires).wall, action: NodeAction::Reboot }
}

fn report(status: CheckStatus, detail: &str) -> CheckReport {
    CheckReport { checks: vec![check(status, detail)], ..CheckReport::default() }
}

fn check(status: CheckStatus, detail: &str) -> Check {
    Check { name: "services".into(), status, detail: detail.into(), remediation: String::new(), unproven: false }
}

fn linked(life_s: u64) -> Machine {
    let mut machine = Machine::new(node(), false, Some(life(life_s)));
    assert_eq!(machine.on(at(0), 0, Event::Timer), [Action::OpenLink]);
    assert_eq!(machine.on(at(0), 0, Event::Connected), [Action::Hello]);
    assert_eq!(machine.on(at(0), 0, welcome()), [Action::Check, Action::ReportVms, Action::ReportTasks]);
    machine
}

#[test]
fn linked_node_that_is_told_to_enrol_again_does_so_after_the_goodbye() {
    let mut machine = linked(1000);
    let token = Secret::new("token".to_owned());
    let told = FromCentral::EnrolAgain { roots_pem: "ROOTS".into(), token: token.clone() };
    let expected = [Action::Trust("ROOTS".into()), Action::KeepToken(token), Action::DropCertificate];
    assert_eq!(machine.on(at(1), 0, Event::Heard(told)), expected);
    let goodbye = FromCentral::Goodbye { reason: "replaced".into(), retry_after_s: Some(4) };
    assert_eq!(machine.on(at(1), 0, Event::Heard(goodbye)), [Action::Close]);
    let due = machine.deadline().expect("it tries again");
    assert_eq!(machine.on(at(due.as_secs() + 1), 0, Event::Timer), [Action::Enrol]);
    let got = machine.on(at(due.as_secs() + 1), 0, Event::Certified(certificate(1000)));
    assert_eq!(got, [Action::Keep(certificate(1000)), Action::ForgetToken, Action::OpenLink]);
}

fn lost() -> Event {
    Event::Lost("test".into())
}

fn outcome(actions: &[Action]) -> Option<ActionOutcome> {
    actions.iter().find_map(|action| match action {
        Action::Say(FromAgent::ActionDone { outcome, .. }) => Some(outcome.clone()),
        _ => None,
    })
}

#[test]
fn the_token_of_this_boot_comes_first_then_a_certificate_then_waiting() {
    let first = |token, life| Machine::new(node(), token, life).on(at(0), 0, Event::Timer);
    assert_eq!(first(true, Some(life(1000))), [Action::Enrol]);
    assert_eq!(first(false, Some(life(1000))), [Action::OpenLink]);
    assert_eq!(first(false, Some(life(0))), [Action::Renew]);
    assert!(matches!(&first(false, None)[..], [Action::OpenPending { reason }] if reason.contains("no token")));
}

#[test]
fn a_token_is_forgotten_once_it_is_answered_and_kept_while_nobody_answers() {
    let mut machine = Machine::new(node(), true, None);
    machine.on(at(0), 0, Event::Timer);
    assert_eq!(machine.on(at(1), 0, lost()), [Action::Close]);
    assert_eq!(machine.on(at(10), 0, Event::Timer), [Action::Enrol], "still there");
    let got = machine.on(at(11), 0, Event::Certified(certificate(100)));
    assert_eq!(got, [Action::Keep(certificate(100)), Action::ForgetToken, Action::OpenLink]);

    let mut machine = Machine::new(node(), true, None);
    machine.on(at(0), 0, Event::Timer);
    let got = machine.on(at(1), 0, Event::Refused("401".into()));
    assert_eq!(got[0], Action::ForgetToken);
    assert!(matches!(&got[1], Action::OpenPending { reason } if reason.contains("refused")));
}

#[test]
fn a_refused_token_does_not_take_a_good_certificate_with_it() {
    let mut machine = Machine::new(node(), true, Some(life(1000)));
    machine.on(at(0), 0, Event::Timer);
    assert_eq!(machine.on(at(1), 0, Event::Refused("401".into())), [Action::ForgetToken, Action::OpenLink]);
}

#[test]
fn an_approved_node_goes_on_at_once_and_a_rejected_one_comes_back_later() {
    let mut machine = Machine::new(node(), false, None);
    machine.on(at(0), 0, Event::Timer);
    assert!(machine.on(at(1), 0, Event::Pending(PendingReply::Waiting { reason: "x".into() })).is_empty());
    let got = machine.on(at(2), 0, Event::Pending(PendingReply::Approved(certificate(100))));
    assert_eq!(got, [Action::Keep(certificate(100)), Action::Close, Action::OpenLink]);

    let mut machine = Machine::new(node(), false, None);
    machine.on(at(0), 0, Event::Timer);
    assert_eq!(machine.on(at(0), 0, Event::Pending(PendingReply::Rejected { reason: "x".into() })), [Action::Close]);
    assert!(machine.deadline() >= Some(REJECTED_RETRY * 3 / 4));
}

#[test]
fn a_refused_certificate_is_renewed_and_only_then_dropped() {
    let mut machine = Machine::new(node(), false, Some(life(1000)));
    machine.on(at(0), 0, Event::Timer);
    assert_eq!(machine.on(at(0), 0, Event::Refused("stale".into())), [Action::Close]);
    assert_eq!(machine.on(at(10), 0, Event::Timer), [Action::Renew]);
    let got = machine.on(at(10), 0, Event::Refused("revoked".into()));
    assert_eq!(got[0], Action::DropCertificate);
    assert!(matches!(&got[1], Action::OpenPending { reason } if reason.contains("not renewed")));
}

#[test]
fn a_central_node_that_renews_and_refuses_is_not_asked_in_a_loop() {
    let mut machine = Machine::new(node(), false, Some(life(1000)));
    let mut asked = 0;
    for second in 0..60 {
        let mut actions = machine.on(at(second), 0, Event::Timer);
        for _ in 0..10 {
            let Some(action) = actions.iter().find(|action| matches!(action, Action::OpenLink | Action::Renew)) else {
                break;
            };
            asked += 1;
            let answer = match action {
                Action::Renew => Event::Certified(certificate(0)),
                _ => Event::Refused("no".into()),
            };
            actions = machine.on(at(second), 0, answer);
        }
    }
    assert!(asked <= 8, "asked {asked} times in a minute");
}

#[test]
fn a_certificate_is_renewed_over_the_link_at_half_its_life() {
    let mut machine = linked(200);
    let mut asked = Vec::new();
    for second in 1..200 {
        let actions = machine.on(at(second), 0, Event::Timer);
        machine.on(at(second), 0, Event::Alive);
        asked.extend(actions.contains(&Action::AskRenewal).then_some(second));
    }
    assert_eq!(asked, [120, 180], "at the first heartbeat past half, and once more when nothing came");
    let got = machine.on(at(199), 0, Event::Heard(FromCentral::Certificate(certificate(200))));
    assert_eq!(got, [Action::Keep(certificate(200)), Action::Say(FromAgent::Renewed)]);
    assert!(!machine.on(at(210), 0, Event::Timer).contains(&Action::AskRenewal));
}

#[test]
fn a_silent_link_is_given_up() {
    let mut machine = linked(10_000);
    machine.on(at(60), 0, Event::Alive);
    assert_eq!(machine.on(at(129), 0, Event::Timer), [Action::Heartbeat]);
    assert_eq!(machine.on(at(130), 0, Event::Timer), [Action::Close]);
    assert_eq!(machine.state(), "waiting");
}

#[test]
fn checks_run_again_and_are_told_when_their_verdict_changes() {
    let mut machine = linked(10_000);
    let failed = report(CheckStatus::Fail, "1");
    assert_eq!(
        machine.on(at(1), 0, Event::Checked(failed.clone())),
        [Action::Say(FromAgent::Checks(Box::new(failed)))]
    );
    assert_eq!(machine.on(at(6), 0, Event::Timer), [Action::Check]);
    assert!(machine.on(at(7), 0, Event::Checked(report(CheckStatus::Fail, "2"))).is_empty(), "nothing new");
    assert_eq!(machine.on(at(12), 0, Event::Timer), [Action::Check]);
    assert_eq!(machine.on(at(13), 0, Event::Checked(report(CheckStatus::Pass, ""))).len(), 1);
    assert!(machine.on(at(20), 0, Event::Timer).is_empty(), "all is well: no hurry");
}

#[test]
fn who_asks_for_checks_is_answered_by_a_run_that_began_later_whatever_it_says() {
    let mut machine = linked(10_000);
    let ask = |asked| Event::Heard(FromCentral::Check { asked });
    let told = |actions: &[Action]| {
        actions.iter().find_map(|action| match action {
            Action::Say(FromAgent::Checks(report)) => Some(report.asked),
            _ => None,
        })
    };
    let passed = || Event::Checked(report(CheckStatus::Pass, ""));
    assert!(machine.on(at(1), 0, ask(1)).is_empty(), "the run of the welcome is under way");
    assert!(machine.on(at(1), 0, ask(2)).is_empty());
    let actions = machine.on(at(2), 0, passed());
    assert_eq!((told(&actions), actions.contains(&Action::Check)), (Some(None), true), "{actions:?}");
    let actions = machine.on(at(3), 0, passed());
    assert_eq!((told(&actions), actions.len()), (Some(Some(2)), 1), "nothing new, and told all the same");
    assert_eq!(machine.on(at(4), 0, ask(3)), [Action::Check]);
    machine.on(at(5), 0, lost());
    assert!(machine.on(at(6), 0, passed()).is_empty(), "nobody to tell it to");
}

#[test]
fn a_goodbye_is_obeyed() {
    let goodbye = |retry_after_s| Event::Heard(FromCentral::Goodbye { reason: "x".into(), retry_after_s });
    let mut machine = linked(10_000);
    assert_eq!(machine.on(at(5), 0, goodbye(Some(100))), [Action::Close]);
    assert_eq!(machine.deadline(), Some(Duration::from_secs(5 + 75)));
    let mut machine = linked(10_000);
    assert_eq!(machine.on(at(5), 0, goodbye(None)), [Action::Close]);
    assert!(machine.on(at(6), 0, lost()).is_empty());
    assert_eq!((machine.deadline(), machine.state()), (None, "ended"));
}

#[test]
fn a_reboot_is_reported_first_and_done_when_the_report_is_stored() {
    let mut machine = linked(10_000);
    let got = machine.on(at(1), 0, Event::Heard(FromCentral::Action(task(7, node(), 60))));
    assert_eq!(outcome(&got), Some(ActionOutcome::Done));
    assert!(!got.contains(&Action::Reboot));
    let acknowledged = Event::Heard(FromCentral::Acknowledged { id: ActionId(7) });
    assert_eq!(machine.on(at(2), 0, acknowledged), [Action::Reboot]);
    assert!(!machine.on(at(100), 0, Event::Timer).contains(&Action::Reboot), "once");
}

#[test]
fn a_reboot_does_not_wait_for_ever_for_its_acknowledgement() {
    let mut machine = linked(10_000);
    machine.on(at(1), 0, Event::Heard(FromCentral::Action(task(7, node(), 60))));
    machine.on(at(2), 0, lost());
    assert!(machine.deadline() <= Some(Duration::from_secs(1) + REBOOT_PATIENCE));
    assert!(machine.on(at(6), 0, Event::Timer).contains(&Action::Reboot));
    assert!(machine.on(at(7), 0, Event::RebootFailed("x".into())).is_empty(), "no link to say it on");
    assert_eq!(machine.state(), "connecting", "life goes on");
}

#[test]
fn an_expired_or_foreign_task_is_refused_without_effect_and_none_runs_twice() {
    let mut machine = linked(10_000);
    let other = "00000002".parse().expect("a node ID");
    for (id, task) in [(1, task(1, other, 60)), (2, task(2, node(), 0))] {
        let got = machine.on(at(1), 0, Event::Heard(FromCentral::Action(task.clone())));
        assert!(matches!(outcome(&got), Some(ActionOutcome::Refused { .. })), "{id}");
        // The same again, now with a valid form: what was said stands.
        let valid = ActionOrder { node: node(), expires_at: at(60).wall, ..task };
        let again = machine.on(at(1), 0, Event::Heard(FromCentral::Action(valid)));
        assert_eq!(outcome(&again), outcome(&got));
    }
    assert!(matches!(
        outcome(&machine.on(at(1), 0, Event::UnknownAction(ActionId(3)))),
        Some(ActionOutcome::Refused { .. })
    ));
    assert!(!machine.on(at(30), 0, Event::Timer).contains(&Action::Reboot));
}

#[test]
fn a_task_is_judged_by_the_central_nodes_clock() {
    let mut machine = Machine::new(node(), false, Some(life(10_000)));
    machine.on(at(0), 0, Event::Timer);
    machine.on(at(0), 0, Event::Connected);
    let now = Some(Timestamp::from_millis(0));
    let welcome = Welcome { version: meshd_proto::VERSION, heartbeat_s: HEARTBEAT_S, now, logs: false };
    machine.on(at(0), 0, Event::Heard(FromCentral::Welcome(welcome)));
    let expires_at = Timestamp::from_millis(10_000);
    let early = ActionOrder { expires_at, ..task(1, node(), 0) };
    let late = ActionOrder { expires_at, ..task(2, node(), 0) };
    assert!(matches!(
        outcome(&machine.on(at(11), 0, Event::Heard(FromCentral::Action(late)))),
        Some(ActionOutcome::Refused { .. })
    ));
    assert_eq!(outcome(&machine.on(at(9), 0, Event::Heard(FromCentral::Action(early)))), Some(ActionOutcome::Done));
}

#[test]
fn outcomes_are_told_again_until_they_are_acknowledged() {
    let mut machine = linked(10_000);
    machine.on(at(1), 0, Event::UnknownAction(ActionId(1)));
    machine.on(at(1), 0, Event::UnknownAction(ActionId(2)));
    machine.on(at(1), 0, Event::Heard(FromCentral::Acknowledged { id: ActionId(1) }));
    machine.on(at(2), 0, lost());
    machine.on(at(60), 0, Event::Timer);
    machine.on(at(60), 0, Event::Connected);
    let said: Vec<_> = machine.on(at(60), 0, welcome());
    let told = said.iter().filter(|action| matches!(action, Action::Say(FromAgent::ActionDone { .. }))).count();
    assert_eq!(told, 1);
    for id in 10..10 + 2 * MAX_REMEMBERED as u64 {
        machine.on(at(60), 0, Event::UnknownAction(ActionId(id)));
    }
    assert_eq!(machine.ordered.unacknowledged().len(), MAX_REMEMBERED);
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
        1 => (0u64..2000).prop_map(|life_s| Event::Heard(FromCentral::Certificate(certificate(life_s)))),
        1 => (0u32..100).prop_map(|s| Event::Heard(FromCentral::Goodbye { reason: String::new(), retry_after_s: Some(s) })),
        2 => (0u64..9, any::<bool>(), 0u64..5000).prop_map(move |(id, other, expires)| {
            Event::Heard(FromCentral::Action(task(id, node(other), expires)))
        }),
        1 => (0u64..9).prop_map(|id| Event::Heard(FromCentral::Acknowledged { id: ActionId(id) })),
        2 => Just(()).prop_map(|()| Event::Alive),
        1 => (0u64..2000).prop_map(|life_s| Event::Pending(PendingReply::Approved(certificate(life_s)))),
        1 => Just(()).prop_map(|()| Event::Checked(report(CheckStatus::Fail, ""))),
        1 => Just(()).prop_map(|()| Event::RebootFailed(String::new())),
    ]
}

proptest! {
    #[test]
    fn no_sequence_of_events_breaks_a_promise(
        token: bool, old in prop::option::of(0u64..2000),
        steps in prop::collection::vec((event(), 0u64..40, any::<u32>()), 0..200),
    ) {
        let mut machine = Machine::new(node(), token, old.map(life));
        let mut has_token = token;
        let (mut second, mut heartbeat) = (0, None::<u64>);
        for (event, pause, random) in steps {
            second += pause;
            let answered = matches!(machine.state, State::Enrolling)
                && matches!(event, Event::Certified(_) | Event::Refused(_));
            let actions = machine.on(at(second), random, event);
            for action in &actions {
                match action {
                    Action::Heartbeat => {
                        prop_assert!(heartbeat.is_none_or(|last| second - last >= u64::from(HEARTBEAT_S)));
                        heartbeat = Some(second);
                    }
                    Action::Enrol => prop_assert!(has_token, "a token is not used after it was forgotten"),
                    Action::ForgetToken => has_token = false,
                    Action::OpenPending { reason } => prop_assert!(!has_token && !reason.is_empty()),
                    _ => {}
                }
            }
            if answered {
                prop_assert!(!has_token, "whatever the answer was, the token is gone");
            }
            if let State::Waiting { until } = machine.state {
                let longest = Duration::from_secs(100) * 5 / 4;
                prop_assert!(until <= Duration::from_secs(second) + longest);
                if actions.contains(&Action::Close) {
                    prop_assert!(until >= Duration::from_secs(second) + MIN_RETRY * 3 / 4);
                }
            }
            let opened = actions.iter().filter(|action| matches!(
                action, Action::Enrol | Action::Renew | Action::OpenLink | Action::OpenPending { .. }
            )).count();
            prop_assert!(opened <= 1, "one call at a time");
        }
    }

    #[test]
    fn pauses_grow_from_five_to_thirty_seconds_with_jitter(randoms in prop::collection::vec(any::<u32>(), 1..12)) {
        let mut machine = Machine::new(node(), false, Some(life(1_000_000)));
        let mut second = 0;
        for (attempt, random) in randoms.into_iter().enumerate() {
            machine.on(at(second), random, Event::Timer);
            machine.on(at(second), random, lost());
            let pause = machine.deadline().expect("it tries again") - Duration::from_secs(second);
            let middle = (RETRY * 2u32.pow(attempt.min(8) as u32)).min(RETRY_CAP);
            prop_assert!(pause >= middle * 3 / 4 && pause < middle * 5 / 4, "{:?} of {:?}", pause, middle);
            second += 100;
        }
    }
}
