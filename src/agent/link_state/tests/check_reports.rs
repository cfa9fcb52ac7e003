//! Reports of the checks.

use super::{at, linked, lost, report};
use crate::link_state::{Effect, Event};
use meshd_proto::{CheckStatus, FromAgent, FromCentral};

#[test]
fn checks_repeat_and_report_only_changed_statuses() {
    let mut machine = linked(10_000);
    let failed = report(CheckStatus::Fail, "1");
    let effects = machine.handle(at(1), 0, Event::ChecksDone(failed.clone()));
    assert_eq!(effects, [Effect::Send(FromAgent::Checks(Box::new(failed)))]);
    assert_eq!(machine.handle(at(6), 0, Event::Timer), [Effect::RunChecks]);
    assert!(
        machine.handle(at(7), 0, Event::ChecksDone(report(CheckStatus::Fail, "2"))).is_empty(),
        "nothing new"
    );
    assert_eq!(machine.handle(at(12), 0, Event::Timer), [Effect::RunChecks]);
    assert_eq!(
        machine.handle(at(13), 0, Event::ChecksDone(report(CheckStatus::Pass, ""))).len(),
        1
    );
    assert!(
        machine.handle(at(20), 0, Event::Timer).is_empty(),
        "the interval of passing checks is longer"
    );
}

#[test]
fn first_report_waits_for_services_that_start() {
    let mut machine = linked(10_000);
    machine.set_services_start(at(10).timer);
    let failed = || Event::ChecksDone(report(CheckStatus::Fail, "not started: sshd"));
    assert!(machine.handle(at(1), 0, failed()).is_empty(), "they start");
    assert_eq!(machine.handle(at(2), 0, Event::Timer), [Effect::RunChecks], "after half a second");
    assert_eq!(machine.handle(at(3), 0, Event::ChecksDone(report(CheckStatus::Pass, ""))).len(), 1);
    machine.handle(at(4), 0, Event::Message(FromCentral::Check { request_id: 1 }));
    assert_eq!(machine.handle(at(5), 0, failed()).len(), 1, "they were started");

    let mut machine = linked(10_000);
    machine.set_services_start(at(10).timer);
    assert!(machine.handle(at(9), 0, failed()).is_empty());
    assert_eq!(machine.handle(at(10), 0, Event::Timer), [Effect::RunChecks]);
    assert_eq!(machine.handle(at(10), 0, failed()).len(), 1, "they had their time");
}

#[test]
fn check_request_is_answered_by_a_run_that_began_later() {
    let mut machine = linked(10_000);
    let request = |request_id| Event::Message(FromCentral::Check { request_id });
    let answered = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Send(FromAgent::Checks(report)) => Some(report.request_id),
            _ => None,
        })
    };
    let passed = || Event::ChecksDone(report(CheckStatus::Pass, ""));
    assert!(
        machine.handle(at(1), 0, request(1)).is_empty(),
        "the run of the welcome has not ended"
    );
    assert!(machine.handle(at(1), 0, request(2)).is_empty());
    let effects = machine.handle(at(2), 0, passed());
    assert_eq!(
        (answered(&effects), effects.contains(&Effect::RunChecks)),
        (Some(None), true),
        "{effects:?}"
    );
    let effects = machine.handle(at(3), 0, passed());
    assert_eq!(
        (answered(&effects), effects.len()),
        (Some(Some(2)), 1),
        "unchanged, but a response to the request"
    );
    assert_eq!(machine.handle(at(4), 0, request(3)), [Effect::RunChecks]);
    machine.handle(at(5), 0, lost());
    assert!(machine.handle(at(6), 0, passed()).is_empty(), "no link");
}
