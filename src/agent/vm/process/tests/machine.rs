//! Every way of a machine through its states, and that no order of events breaks it.

use super::*;
use proptest::prelude::*;

const GRACE: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn machine(when: RestartWhen) -> VmStateMachine {
    let policy = RestartPolicy { when, delay_s: 2, max_delay_s: 6, attempts: 3, stable_after_s: 100 };
    VmStateMachine::new(policy, 1 << 30, VmRecord::default())
}

fn running(when: RestartWhen) -> VmStateMachine {
    let mut machine = machine(when);
    assert_eq!(machine.on(at(0), VmEvent::Start), [VmAction::Launch]);
    assert_eq!(machine.on(at(1), VmEvent::Answered), []);
    assert_eq!(machine.state(), ReportedVmState::Running);
    machine
}

fn ended() -> VmEvent {
    VmEvent::Ended { how: "was killed by signal 9".into(), log: vec!["its last word".into()] }
}

fn kind(machine: &VmStateMachine) -> Option<VmFailureKind> {
    machine.kept().failure.as_ref().map(|failure| failure.kind)
}

#[test]
fn a_guest_that_hears_the_button_is_stopped_and_no_policy_brings_it_back() {
    let mut machine = running(RestartWhen::Always);
    assert_eq!(machine.on(at(5), VmEvent::Stop { grace: GRACE }), [VmAction::PowerDown]);
    machine.on(at(6), VmEvent::ShuttingDown(ShutdownCause::Guest));
    assert_eq!(machine.on(at(6), ended()), []);
    assert_eq!((machine.state(), machine.deadline()), (ReportedVmState::Stopped, None));
    assert_eq!(machine.kept(), &VmRecord::default());
}

#[test]
fn a_guest_that_does_not_hear_is_terminated_then_killed() {
    let mut machine = running(RestartWhen::Never);
    machine.on(at(5), VmEvent::Stop { grace: GRACE });
    assert_eq!(machine.on(at(34), VmEvent::Tick), [], "it has time still");
    assert_eq!(machine.on(at(35), VmEvent::Tick), [VmAction::Terminate]);
    assert_eq!(machine.on(at(35) + TERM_TIMEOUT, VmEvent::Tick), [VmAction::Kill]);
    machine.on(at(46), ended());
    assert_eq!(machine.state(), ReportedVmState::Stopped);
}

#[test]
fn a_second_stop_may_only_shorten_the_patience() {
    let mut machine = running(RestartWhen::Never);
    machine.on(at(5), VmEvent::Stop { grace: GRACE });
    machine.on(at(6), VmEvent::Stop { grace: at(1000) });
    assert_eq!(machine.deadline(), Some(at(35)));
    machine.on(at(7), VmEvent::Stop { grace: at(0) });
    assert_eq!(machine.on(at(7), VmEvent::Tick), [VmAction::Terminate]);
}

#[test]
fn a_stop_during_the_start_asks_nobody() {
    let mut machine = machine(RestartWhen::Always);
    machine.on(at(0), VmEvent::Start);
    assert_eq!(machine.on(at(1), VmEvent::Stop { grace: GRACE }), [VmAction::Terminate]);
    machine.on(at(1), VmEvent::Answered);
    assert_eq!(machine.state(), ReportedVmState::Stopping, "too late");
    machine.on(at(2), ended());
    assert_eq!(machine.state(), ReportedVmState::Stopped);
}

#[test]
fn a_qemu_that_does_not_start_fails_with_its_words() {
    let mut machine = machine(RestartWhen::Never);
    machine.on(at(0), VmEvent::Start);
    machine.on(at(1), ended());
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Failed, Some(VmFailureKind::NotStarted)));
    let failure = machine.kept().failure.clone().expect("it has one");
    assert_eq!(failure.log, ["its last word"]);
    assert!(failure.detail.contains("signal 9"));
    assert_eq!(machine.on(at(2), VmEvent::Start), [VmAction::Launch], "an order tries again");
    assert_eq!(kind(&machine), None);
}

#[test]
fn a_qemu_that_never_answers_is_killed_and_more_memory_gives_more_time() {
    let mut machine = machine(RestartWhen::Never);
    machine.on(at(0), VmEvent::Start);
    assert_eq!(machine.on(at(120), VmEvent::Tick), []);
    assert_eq!(machine.on(at(121), VmEvent::Tick), [VmAction::Kill]);
    machine.on(at(122), ended());
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Failed, Some(VmFailureKind::StartTimeout)));
    assert_eq!(machine.kept().failure.as_ref().map(|failure| failure.log.len()), Some(1));
}

#[test]
fn a_crash_is_waited_out_longer_each_time_and_given_up() {
    let mut machine = running(RestartWhen::OnFailure);
    let mut now = 10;
    for (restarts, delay) in [(1, 2), (2, 4), (3, 6)] {
        machine.on(at(now), ended());
        assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Waiting, Some(VmFailureKind::Crashed)));
        assert_eq!((machine.kept().restarts, machine.deadline()), (restarts, Some(at(now + delay))));
        assert_eq!(machine.on(at(now + delay), VmEvent::Tick), [VmAction::Launch]);
        machine.on(at(now + delay), VmEvent::Answered);
        now += delay + 1;
    }
    machine.on(at(now), ended());
    assert_eq!(machine.state(), ReportedVmState::Failed);
    assert!(machine.kept().failure.as_ref().is_some_and(|failure| failure.detail.contains("given up after 3")));
}

#[test]
fn a_long_run_ends_a_row() {
    let mut machine = running(RestartWhen::OnFailure);
    machine.on(at(10), ended());
    machine.on(at(12), VmEvent::Tick);
    machine.on(at(12), VmEvent::Answered);
    machine.on(at(112), ended());
    assert_eq!(machine.kept().restarts, 1);
}

#[test]
fn a_guest_that_switches_itself_off_comes_back_only_where_it_shall_always() {
    for (when, state) in [
        (RestartWhen::Never, ReportedVmState::Stopped),
        (RestartWhen::OnFailure, ReportedVmState::Stopped),
        (RestartWhen::Always, ReportedVmState::Waiting),
    ] {
        let mut machine = running(when);
        machine.on(at(5), VmEvent::ShuttingDown(ShutdownCause::Guest));
        machine.on(at(5), ended());
        assert_eq!(machine.state(), state, "{when:?}");
    }
}

#[test]
fn a_panic_is_no_switching_off() {
    let mut machine = running(RestartWhen::Never);
    machine.on(at(5), VmEvent::ShuttingDown(ShutdownCause::Panic));
    machine.on(at(5), VmEvent::ShuttingDown(ShutdownCause::Guest));
    machine.on(at(5), ended());
    assert_eq!(kind(&machine), Some(VmFailureKind::GuestPanic));
}

#[test]
fn a_restart_is_a_stop_and_a_start_and_a_stop_meanwhile_wins() {
    let mut machine = running(RestartWhen::Never);
    assert_eq!(machine.on(at(5), VmEvent::Restart { grace: GRACE }), [VmAction::PowerDown]);
    assert_eq!(machine.on(at(6), ended()), [VmAction::Launch]);
    machine.on(at(7), VmEvent::Answered);
    machine.on(at(8), VmEvent::Restart { grace: GRACE });
    machine.on(at(9), VmEvent::Stop { grace: GRACE });
    assert_eq!(machine.on(at(10), ended()), []);
    assert_eq!(machine.state(), ReportedVmState::Stopped);
    assert_eq!(machine.on(at(11), VmEvent::Restart { grace: GRACE }), [VmAction::Launch], "one that is off is started");
}

#[test]
fn a_machine_is_taken_over_as_it_was_left() {
    let left = |wanted, is_alive, when| {
        let mut machine = machine(when);
        (machine.kept.wanted, machine.kept.answered) = (wanted, true);
        let actions = machine.adopt(at(0), is_alive);
        (machine.state(), actions)
    };
    assert_eq!(left(true, true, RestartWhen::Never), (ReportedVmState::Running, vec![]));
    assert_eq!(left(true, false, RestartWhen::Never), (ReportedVmState::Failed, vec![]));
    assert_eq!(left(true, false, RestartWhen::OnFailure), (ReportedVmState::Waiting, vec![]));
    assert_eq!(left(false, true, RestartWhen::Always), (ReportedVmState::Stopping, vec![VmAction::Terminate]));
    assert_eq!(left(false, false, RestartWhen::Always), (ReportedVmState::Stopped, vec![]));
}

#[test]
fn one_whose_agent_ended_while_it_started_is_waited_for_and_failed_in_time() {
    let left = || {
        let mut machine = machine(RestartWhen::Never);
        machine.kept.wanted = true;
        assert_eq!((machine.adopt(at(0), true), machine.state()), (vec![], ReportedVmState::Starting));
        machine
    };
    let mut answers = left();
    answers.on(at(1), VmEvent::Answered);
    assert_eq!((answers.state(), answers.kept().answered), (ReportedVmState::Running, true));
    let mut hangs = left();
    let deadline = hangs.deadline().expect("it has one");
    assert_eq!(hangs.on(deadline, VmEvent::Tick), [VmAction::Kill]);
    hangs.on(deadline, VmEvent::Ended { how: "was killed".to_owned(), log: Vec::new() });
    assert_eq!(hangs.state(), ReportedVmState::Failed);
}

#[test]
fn one_of_another_boot_waits_for_an_order_whatever_its_policy() {
    let mut machine = machine(RestartWhen::Always);
    machine.kept = VmRecord { wanted: true, restarts: 1, ..VmRecord::default() };
    machine.left_over();
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Failed, Some(VmFailureKind::EndedUnseen)));
    assert_eq!((machine.deadline(), machine.on(at(9999), VmEvent::Tick)), (None, vec![]));
    assert_eq!(machine.on(at(10_000), VmEvent::Start), [VmAction::Launch]);
}

#[test]
fn what_does_not_die_is_told() {
    let mut machine = running(RestartWhen::Always);
    assert_eq!(machine.on(at(5), VmEvent::Discard), [VmAction::Kill]);
    machine.on(at(5) + KILL_TIMEOUT, VmEvent::Tick);
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Failed, Some(VmFailureKind::Immortal)));
}

fn paused(resumable: bool) -> VmEvent {
    VmEvent::Paused { why: "the store is full".into(), resumable }
}

#[test]
fn a_guest_that_is_held_is_told_and_goes_on_by_an_order() {
    let mut machine = running(RestartWhen::Never);
    assert_eq!(machine.on(at(5), paused(true)), []);
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Paused, Some(VmFailureKind::Paused)));
    assert_eq!((machine.deadline(), machine.kept().wanted), (None, true));
    assert_eq!(machine.on(at(6), VmEvent::Start), [VmAction::Resume]);
    assert_eq!(machine.state(), ReportedVmState::Paused, "until QEMU says so");
    machine.on(at(7), VmEvent::Resumed);
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Running, None));
    machine.on(at(8), paused(true));
    assert_eq!(machine.on(at(9), VmEvent::Restart { grace: GRACE }), [VmAction::Resume]);
    machine.on(at(10), paused(true));
    assert_eq!(machine.on(at(11), VmEvent::Stop { grace: GRACE }), [VmAction::Terminate], "it hears no button");
    machine.on(at(12), ended());
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Stopped, None));
}

#[test]
fn a_policy_lets_a_held_guest_go_on_in_measure() {
    let mut machine = running(RestartWhen::OnFailure);
    let mut now = 5;
    for (restarts, delay) in [(1, 2), (2, 4), (3, 6)] {
        machine.on(at(now), paused(true));
        assert_eq!((machine.kept().restarts, machine.deadline()), (restarts, Some(at(now + delay))));
        assert_eq!(machine.on(at(now + delay), VmEvent::Tick), [VmAction::Resume]);
        now += delay;
        machine.on(at(now), VmEvent::Resumed);
    }
    machine.on(at(now), paused(true));
    assert_eq!((machine.state(), machine.deadline()), (ReportedVmState::Paused, None), "given up until an order");
    assert_eq!(machine.on(at(now), VmEvent::Start), [VmAction::Resume]);
    assert_eq!(machine.kept().restarts, 0);
}

#[test]
fn a_guest_that_cannot_go_on_is_started_anew() {
    let mut machine = running(RestartWhen::OnFailure);
    assert_eq!(machine.on(at(5), paused(false)), [VmAction::Terminate]);
    machine.on(at(6), ended());
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Waiting, Some(VmFailureKind::Paused)));
    let mut machine = running(RestartWhen::Never);
    assert_eq!(machine.on(at(5), paused(false)), []);
    assert_eq!(machine.state(), ReportedVmState::Paused);
    assert_eq!(machine.on(at(6), VmEvent::Start), [VmAction::Terminate]);
    assert_eq!(machine.on(at(7), ended()), [VmAction::Launch]);
    let mut machine = running(RestartWhen::Never);
    machine.on(at(5), paused(true));
    machine.on(at(6), ended());
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Failed, Some(VmFailureKind::Crashed)));
}

fn failure() -> VmFailure {
    VmFailure { kind: VmFailureKind::Prepare, detail: "no bridge".into(), log: Vec::new() }
}

#[test]
fn a_guest_that_cannot_be_let_run_is_killed_before_it_does() {
    let mut machine = machine(RestartWhen::Never);
    machine.on(at(0), VmEvent::Start);
    assert_eq!(machine.on(at(1), VmEvent::CannotGo(failure())), [VmAction::Kill]);
    machine.on(at(2), ended());
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Failed, Some(VmFailureKind::Prepare)));
    assert_eq!(running(RestartWhen::Never).on(at(3), VmEvent::CannotGo(failure())), [], "too late");
}

fn any_event() -> impl Strategy<Value = VmEvent> {
    prop_oneof![
        Just(VmEvent::Start),
        Just(VmEvent::Stop { grace: GRACE }),
        Just(VmEvent::Restart { grace: GRACE }),
        Just(VmEvent::Discard),
        Just(VmEvent::Answered),
        any::<bool>().prop_map(paused),
        Just(VmEvent::Resumed),
        Just(VmEvent::ShuttingDown(ShutdownCause::Guest)),
        Just(VmEvent::ShuttingDown(ShutdownCause::Outside { reason: "host-signal".into() })),
        Just(ended()),
        Just(VmEvent::Tick),
        Just(VmEvent::LaunchFailed(failure())),
        Just(VmEvent::CannotGo(failure())),
    ]
}

proptest! {
    #[test]
    fn no_order_of_events_leaves_a_machine_that_does_not_know_what_to_wait_for(
        events in proptest::collection::vec((0u64..200, any_event()), 0..60), when in 0usize..3,
    ) {
        let when = [RestartWhen::Never, RestartWhen::OnFailure, RestartWhen::Always][when];
        let (mut machine, mut now) = (machine(when), Duration::ZERO);
        for (pause, event) in events {
            now += Duration::from_secs(pause);
            machine.on(now, event);
            let waits = matches!(machine.state(), ReportedVmState::Starting | ReportedVmState::Stopping | ReportedVmState::Waiting);
            prop_assert!(machine.deadline().is_some() == waits || machine.state() == ReportedVmState::Paused);
            prop_assert!(machine.kept().restarts <= 3);
        }
        // Left alone, it always comes to rest or runs.
        for _ in 0..40 {
            let Some(deadline) = machine.deadline() else { break };
            now = now.max(deadline);
            if machine.on(now, VmEvent::Tick).contains(&VmAction::Launch) {
                machine.on(now, ended());
            }
        }
        prop_assert_eq!(machine.deadline(), None);
    }
}
