//! Transitions of the state machine, and random sequences of events.

use super::*;
use proptest::prelude::*;

const GRACE: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn machine(when: RestartWhen) -> VmStateMachine {
    let policy =
        RestartPolicy { when, delay_s: 2, max_delay_s: 6, attempts: 3, stable_after_s: 100 };
    VmStateMachine::new(policy, 1 << 30, RestartState::default())
}

fn running(when: RestartWhen) -> VmStateMachine {
    let mut machine = machine(when);
    assert_eq!(machine.handle(at(0), VmEvent::Start), Some(VmAction::Launch));
    assert_eq!(machine.handle(at(1), VmEvent::GuestRunning), None);
    assert_eq!(machine.state(), ReportedVmState::Running);
    machine
}

fn ended() -> VmEvent {
    VmEvent::Ended { exit: "was killed by signal 9".into(), log: vec!["last line".into()] }
}

fn kind(machine: &VmStateMachine) -> Option<VmFailureKind> {
    machine.restart_state().failure.as_ref().map(|failure| failure.kind)
}

#[test]
fn stopped_guest_is_not_restarted_by_its_policy() {
    let mut machine = running(RestartWhen::Always);
    assert_eq!(machine.handle(at(5), VmEvent::Stop { grace: GRACE }), Some(VmAction::PowerDown));
    machine.handle(at(6), VmEvent::ShuttingDown(ShutdownCause::Guest));
    assert_eq!(machine.handle(at(6), ended()), None);
    assert_eq!((machine.state(), machine.deadline()), (ReportedVmState::Stopped, None));
    assert_eq!(machine.restart_state(), &RestartState::default());
}

#[test]
fn guest_that_ignores_acpi_is_terminated_then_killed() {
    let mut machine = running(RestartWhen::Never);
    machine.handle(at(5), VmEvent::Stop { grace: GRACE });
    assert_eq!(machine.handle(at(34), VmEvent::Tick), None, "within the grace period");
    assert_eq!(machine.handle(at(35), VmEvent::Tick), Some(VmAction::Terminate));
    assert_eq!(machine.handle(at(35) + TERM_TIMEOUT, VmEvent::Tick), Some(VmAction::Kill));
    machine.handle(at(46), ended());
    assert_eq!(machine.state(), ReportedVmState::Stopped);
}

#[test]
fn second_stop_shortens_the_grace_period_only() {
    let mut machine = running(RestartWhen::Never);
    machine.handle(at(5), VmEvent::Stop { grace: GRACE });
    machine.handle(at(6), VmEvent::Stop { grace: at(1000) });
    assert_eq!(machine.deadline(), Some(at(35)));
    machine.handle(at(7), VmEvent::Stop { grace: at(0) });
    assert_eq!(machine.handle(at(7), VmEvent::Tick), Some(VmAction::Terminate));
}

#[test]
fn ordered_restart_resets_the_restart_counter() {
    for waits in [true, false] {
        let mut machine = running(RestartWhen::OnFailure);
        for crash in 1..=3 {
            machine.handle(at(crash * 10), ended());
            assert_eq!(machine.state(), ReportedVmState::Waiting);
            if !waits || crash < 3 {
                machine.handle(at(crash * 10 + 6), VmEvent::Tick);
                machine.handle(at(crash * 10 + 7), VmEvent::GuestRunning);
            }
        }
        machine.handle(at(50), VmEvent::Restart { grace: GRACE });
        if !waits {
            assert_eq!(machine.handle(at(51), ended()), Some(VmAction::Launch));
        }
        assert_eq!(machine.state(), ReportedVmState::Starting);
        assert_eq!(machine.restart_state().restarts, 0, "waits: {waits}");
        machine.handle(at(52), VmEvent::GuestRunning);
        machine.handle(at(53), ended());
        assert_eq!(machine.state(), ReportedVmState::Waiting, "waits: {waits}");
    }
}

#[test]
fn stop_during_the_start_terminates_qemu() {
    let mut machine = machine(RestartWhen::Always);
    machine.handle(at(0), VmEvent::Start);
    assert_eq!(machine.handle(at(1), VmEvent::Stop { grace: GRACE }), Some(VmAction::Terminate));
    machine.handle(at(1), VmEvent::GuestRunning);
    assert_eq!(machine.state(), ReportedVmState::Stopping, "too late");
    machine.handle(at(2), ended());
    assert_eq!(machine.state(), ReportedVmState::Stopped);
}

#[test]
fn refused_order_is_not_retried_by_the_restart_policy_and_refused_restart_is() {
    let refused = || VmEvent::LaunchFailed(VmFailure { kind: VmFailureKind::Refused, ..failure() });
    let mut ordered = machine(RestartWhen::Always);
    ordered.handle(at(0), VmEvent::Start);
    assert_eq!(ordered.handle(at(1), refused()), None);
    assert_eq!(
        (ordered.state(), kind(&ordered)),
        (ReportedVmState::Failed, Some(VmFailureKind::Refused))
    );
    assert_eq!(
        (ordered.deadline(), ordered.restart_state().restarts, ordered.restart_state().should_run),
        (None, 0, false)
    );
    let mut again = running(RestartWhen::Always);
    again.handle(at(5), ended());
    assert_eq!(again.handle(at(7), VmEvent::Tick), Some(VmAction::Launch));
    again.handle(at(8), refused());
    assert_eq!(again.state(), ReportedVmState::Waiting, "the device may be free soon");
}

#[test]
fn qemu_that_ends_before_the_guest_runs_fails_with_its_log() {
    let mut machine = machine(RestartWhen::Never);
    machine.handle(at(0), VmEvent::Start);
    machine.handle(at(1), ended());
    assert_eq!(
        (machine.state(), kind(&machine)),
        (ReportedVmState::Failed, Some(VmFailureKind::NotStarted))
    );
    let failure = machine.restart_state().failure.clone().expect("set");
    assert_eq!(failure.log, ["last line"]);
    assert!(failure.detail.contains("signal 9"));
    assert_eq!(
        machine.handle(at(2), VmEvent::Start),
        Some(VmAction::Launch),
        "an order starts it again"
    );
    assert_eq!(kind(&machine), None);
}

#[test]
fn start_timeout_kills_qemu_and_grows_with_memory() {
    let mut machine = machine(RestartWhen::Never);
    machine.handle(at(0), VmEvent::Start);
    assert_eq!(machine.handle(at(120), VmEvent::Tick), None);
    assert_eq!(machine.handle(at(121), VmEvent::Tick), Some(VmAction::Kill));
    machine.handle(at(122), ended());
    assert_eq!(
        (machine.state(), kind(&machine)),
        (ReportedVmState::Failed, Some(VmFailureKind::StartTimeout))
    );
    assert_eq!(machine.restart_state().failure.as_ref().map(|failure| failure.log.len()), Some(1));
}

#[test]
fn restart_delay_doubles_until_the_attempts_are_used_up() {
    let mut machine = running(RestartWhen::OnFailure);
    let mut now = 10;
    for (restarts, delay) in [(1, 2), (2, 4), (3, 6)] {
        machine.handle(at(now), ended());
        assert_eq!(
            (machine.state(), kind(&machine)),
            (ReportedVmState::Waiting, Some(VmFailureKind::Crashed))
        );
        assert_eq!(
            (machine.restart_state().restarts, machine.deadline()),
            (restarts, Some(at(now + delay)))
        );
        assert_eq!(machine.handle(at(now + delay), VmEvent::Tick), Some(VmAction::Launch));
        machine.handle(at(now + delay), VmEvent::GuestRunning);
        now += delay + 1;
    }
    machine.handle(at(now), ended());
    assert_eq!(machine.state(), ReportedVmState::Failed);
    assert!(
        machine
            .restart_state()
            .failure
            .as_ref()
            .is_some_and(|failure| failure.detail.contains("gave up after 3 restarts"))
    );
}

#[test]
fn stable_run_resets_the_restart_counter() {
    let mut machine = running(RestartWhen::OnFailure);
    machine.handle(at(10), ended());
    machine.handle(at(12), VmEvent::Tick);
    machine.handle(at(12), VmEvent::GuestRunning);
    machine.handle(at(112), ended());
    assert_eq!(machine.restart_state().restarts, 1);
}

#[test]
fn guest_that_powers_off_restarts_only_with_policy_always() {
    for (when, state) in [
        (RestartWhen::Never, ReportedVmState::Stopped),
        (RestartWhen::OnFailure, ReportedVmState::Stopped),
        (RestartWhen::Always, ReportedVmState::Waiting),
    ] {
        let mut machine = running(when);
        machine.handle(at(5), VmEvent::ShuttingDown(ShutdownCause::Guest));
        machine.handle(at(5), ended());
        assert_eq!(machine.state(), state, "{when:?}");
    }
}

#[test]
fn panic_before_shutdown_is_reported_as_panic() {
    let mut machine = running(RestartWhen::Never);
    machine.handle(at(5), VmEvent::ShuttingDown(ShutdownCause::Panic));
    machine.handle(at(5), VmEvent::ShuttingDown(ShutdownCause::Guest));
    machine.handle(at(5), ended());
    assert_eq!(kind(&machine), Some(VmFailureKind::GuestPanic));
}

#[test]
fn power_down_and_resume_are_repeated_on_a_new_qmp_session() {
    let mut machine = running(RestartWhen::Never);
    machine.handle(at(5), VmEvent::Stop { grace: GRACE });
    assert_eq!(machine.handle(at(6), VmEvent::GuestRunning), Some(VmAction::PowerDown));
    assert_eq!(machine.deadline(), Some(at(35)), "the grace period goes on");
    machine.handle(at(35), VmEvent::Tick);
    assert_eq!(machine.handle(at(36), VmEvent::GuestRunning), None, "SIGTERM was sent");

    let mut machine = running(RestartWhen::Never);
    machine.handle(at(5), paused(true));
    assert_eq!(machine.handle(at(6), VmEvent::GuestRunning), None, "nobody has resumed it");
    assert_eq!(machine.handle(at(7), VmEvent::Start), Some(VmAction::Resume));
    assert_eq!(machine.handle(at(8), VmEvent::GuestRunning), Some(VmAction::Resume));
    machine.handle(at(9), VmEvent::Resumed);
    assert_eq!(machine.handle(at(10), VmEvent::GuestRunning), None);
}

#[test]
fn restart_stops_then_starts_and_a_later_stop_wins() {
    let mut machine = running(RestartWhen::Never);
    assert_eq!(machine.handle(at(5), VmEvent::Restart { grace: GRACE }), Some(VmAction::PowerDown));
    assert_eq!(machine.handle(at(6), ended()), Some(VmAction::Launch));
    machine.handle(at(7), VmEvent::GuestRunning);
    machine.handle(at(8), VmEvent::Restart { grace: GRACE });
    machine.handle(at(9), VmEvent::Stop { grace: GRACE });
    assert_eq!(machine.handle(at(10), ended()), None);
    assert_eq!(machine.state(), ReportedVmState::Stopped);
    assert_eq!(
        machine.handle(at(11), VmEvent::Restart { grace: GRACE }),
        Some(VmAction::Launch),
        "a stopped VM is started"
    );
}

#[test]
fn adopted_vm_continues_in_its_stored_state() {
    let adopted = |should_run, is_alive, when| {
        let mut machine = machine(when);
        (machine.restart_state.should_run, machine.restart_state.guest_ran) = (should_run, true);
        let action = machine.adopt(at(0), is_alive, None);
        (machine.state(), action)
    };
    assert_eq!(adopted(true, true, RestartWhen::Never), (ReportedVmState::Running, None));
    assert_eq!(adopted(true, false, RestartWhen::Never), (ReportedVmState::Failed, None));
    assert_eq!(adopted(true, false, RestartWhen::OnFailure), (ReportedVmState::Waiting, None));
    assert_eq!(
        adopted(false, true, RestartWhen::Always),
        (ReportedVmState::Stopping, Some(VmAction::Terminate))
    );
    assert_eq!(adopted(false, false, RestartWhen::Always), (ReportedVmState::Stopped, None));
}

#[test]
fn guest_that_shuts_down_keeps_its_grace_period_under_the_next_agent() {
    for order in [VmEvent::Stop { grace: GRACE }, VmEvent::Restart { grace: GRACE }] {
        let restarts = matches!(order, VmEvent::Restart { .. });
        let mut former = running(RestartWhen::Never);
        former.handle(at(5), order);
        assert_eq!(former.power_down_until(), Some(at(35)));
        let mut adopted = machine(RestartWhen::Never);
        adopted.restart_state = former.restart_state().clone();
        let action = adopted.adopt(at(0), true, Some(at(20)));
        assert_eq!(action, Some(VmAction::PowerDown), "the agent may have ended before it");
        assert_eq!(adopted.handle(at(19), VmEvent::Tick), None);
        let mut ignored = adopted.clone();
        assert_eq!(ignored.handle(at(20), VmEvent::Tick), Some(VmAction::Terminate));
        assert_eq!(ignored.power_down_until(), None);
        adopted.handle(at(19), VmEvent::ShuttingDown(ShutdownCause::Guest));
        let started = adopted.handle(at(19), ended());
        assert_eq!(started, restarts.then_some(VmAction::Launch));
    }
}

#[test]
fn vm_adopted_during_its_start_runs_or_times_out() {
    let adopted = || {
        let mut machine = machine(RestartWhen::Never);
        machine.restart_state.should_run = true;
        assert_eq!(
            (machine.adopt(at(0), true, None), machine.state()),
            (None, ReportedVmState::Starting)
        );
        machine
    };
    let mut running = adopted();
    running.handle(at(1), VmEvent::GuestRunning);
    assert_eq!(
        (running.state(), running.restart_state().guest_ran),
        (ReportedVmState::Running, true)
    );
    let mut hanging = adopted();
    let deadline = hanging.deadline().expect("set");
    assert_eq!(hanging.handle(deadline, VmEvent::Tick), Some(VmAction::Kill));
    hanging.handle(deadline, VmEvent::Ended { exit: "was killed".to_owned(), log: Vec::new() });
    assert_eq!(hanging.state(), ReportedVmState::Failed);
}

#[test]
fn vm_of_an_earlier_boot_waits_for_an_order() {
    let mut machine = machine(RestartWhen::Always);
    machine.restart_state =
        RestartState { should_run: true, restarts: 1, ..RestartState::default() };
    machine.adopt_after_reboot();
    assert_eq!(
        (machine.state(), kind(&machine)),
        (ReportedVmState::Failed, Some(VmFailureKind::EndedUnseen))
    );
    assert_eq!((machine.deadline(), machine.handle(at(9999), VmEvent::Tick)), (None, None));
    assert_eq!(machine.handle(at(10_000), VmEvent::Start), Some(VmAction::Launch));
}

#[test]
fn process_that_survives_sigkill_is_reported() {
    let mut machine = running(RestartWhen::Always);
    assert_eq!(machine.handle(at(5), VmEvent::Discard), Some(VmAction::Kill));
    machine.handle(at(5) + KILL_TIMEOUT, VmEvent::Tick);
    assert_eq!(
        (machine.state(), kind(&machine)),
        (ReportedVmState::Failed, Some(VmFailureKind::Immortal))
    );
}

fn paused(resumable: bool) -> VmEvent {
    VmEvent::Paused { reason: "the store is full".into(), resumable }
}

#[test]
fn paused_guest_is_reported_and_resumes_by_order() {
    let mut machine = running(RestartWhen::Never);
    assert_eq!(machine.handle(at(5), paused(true)), None);
    assert_eq!(
        (machine.state(), kind(&machine)),
        (ReportedVmState::Paused, Some(VmFailureKind::Paused))
    );
    assert_eq!((machine.deadline(), machine.restart_state().should_run), (None, true));
    assert_eq!(machine.handle(at(6), VmEvent::Start), Some(VmAction::Resume));
    assert_eq!(machine.state(), ReportedVmState::Paused, "until QEMU reports it");
    machine.handle(at(7), VmEvent::Resumed);
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Running, None));
    machine.handle(at(8), paused(true));
    assert_eq!(machine.handle(at(9), VmEvent::Restart { grace: GRACE }), Some(VmAction::Resume));
    machine.handle(at(10), paused(true));
    assert_eq!(
        machine.handle(at(11), VmEvent::Stop { grace: GRACE }),
        Some(VmAction::Terminate),
        "a paused guest cannot handle ACPI"
    );
    machine.handle(at(12), ended());
    assert_eq!((machine.state(), kind(&machine)), (ReportedVmState::Stopped, None));
}

#[test]
fn restart_policy_resumes_a_paused_guest_a_limited_number_of_times() {
    let mut machine = running(RestartWhen::OnFailure);
    let mut now = 5;
    for (restarts, delay) in [(1, 2), (2, 4), (3, 6)] {
        machine.handle(at(now), paused(true));
        assert_eq!(
            (machine.restart_state().restarts, machine.deadline()),
            (restarts, Some(at(now + delay)))
        );
        assert_eq!(machine.handle(at(now + delay), VmEvent::Tick), Some(VmAction::Resume));
        now += delay;
        machine.handle(at(now), VmEvent::Resumed);
    }
    machine.handle(at(now), paused(true));
    assert_eq!(
        (machine.state(), machine.deadline()),
        (ReportedVmState::Paused, None),
        "paused until an order"
    );
    assert_eq!(machine.handle(at(now), VmEvent::Start), Some(VmAction::Resume));
    assert_eq!(machine.restart_state().restarts, 0);
}

#[test]
fn guest_that_cannot_resume_is_restarted() {
    let mut machine = running(RestartWhen::OnFailure);
    assert_eq!(machine.handle(at(5), paused(false)), Some(VmAction::Terminate));
    machine.handle(at(6), ended());
    assert_eq!(
        (machine.state(), kind(&machine)),
        (ReportedVmState::Waiting, Some(VmFailureKind::Paused))
    );
    let mut machine = running(RestartWhen::Never);
    assert_eq!(machine.handle(at(5), paused(false)), None);
    assert_eq!(machine.state(), ReportedVmState::Paused);
    assert_eq!(machine.handle(at(6), VmEvent::Start), Some(VmAction::Terminate));
    assert_eq!(machine.handle(at(7), ended()), Some(VmAction::Launch));
    let mut machine = running(RestartWhen::Never);
    machine.handle(at(5), paused(true));
    machine.handle(at(6), ended());
    assert_eq!(
        (machine.state(), kind(&machine)),
        (ReportedVmState::Failed, Some(VmFailureKind::Crashed))
    );
}

fn failure() -> VmFailure {
    VmFailure::new(VmFailureKind::Prepare, "no bridge".into())
}

#[test]
fn guest_that_cannot_start_is_killed() {
    let mut machine = machine(RestartWhen::Never);
    machine.handle(at(0), VmEvent::Start);
    assert_eq!(machine.handle(at(1), VmEvent::GuestStartFailed(failure())), Some(VmAction::Kill));
    machine.handle(at(2), ended());
    assert_eq!(
        (machine.state(), kind(&machine)),
        (ReportedVmState::Failed, Some(VmFailureKind::Prepare))
    );
    assert_eq!(
        running(RestartWhen::Never).handle(at(3), VmEvent::GuestStartFailed(failure())),
        None,
        "too late"
    );
}

fn any_event() -> impl Strategy<Value = VmEvent> {
    prop_oneof![
        Just(VmEvent::Start),
        Just(VmEvent::Stop { grace: GRACE }),
        Just(VmEvent::Restart { grace: GRACE }),
        Just(VmEvent::Discard),
        Just(VmEvent::GuestRunning),
        any::<bool>().prop_map(paused),
        Just(VmEvent::Resumed),
        Just(VmEvent::ShuttingDown(ShutdownCause::Guest)),
        Just(VmEvent::ShuttingDown(ShutdownCause::Outside { reason: "host-signal".into() })),
        Just(ended()),
        Just(VmEvent::Tick),
        Just(VmEvent::LaunchFailed(failure())),
        Just(VmEvent::GuestStartFailed(failure())),
    ]
}

proptest! {
    #[test]
    fn event_sequences_leave_a_deadline_or_a_resting_state(
        events in proptest::collection::vec((0u64..200, any_event()), 0..60), when in 0usize..3,
    ) {
        let when = [RestartWhen::Never, RestartWhen::OnFailure, RestartWhen::Always][when];
        let mut machine = machine(when);
        let mut now = Duration::ZERO;
        for (pause, event) in events {
            now += Duration::from_secs(pause);
            machine.handle(now, event);
            let waits = matches!(machine.state(), ReportedVmState::Starting | ReportedVmState::Stopping | ReportedVmState::Waiting);
            prop_assert!(machine.deadline().is_some() == waits || machine.state() == ReportedVmState::Paused);
            prop_assert!(machine.restart_state().restarts <= 3);
        }
        // Without further events the machine stops or runs.
        for _ in 0..40 {
            let Some(deadline) = machine.deadline() else { break };
            now = now.max(deadline);
            if machine.handle(now, VmEvent::Tick) == Some(VmAction::Launch) {
                machine.handle(now, ended());
            }
        }
        prop_assert_eq!(machine.deadline(), None);
    }
}
