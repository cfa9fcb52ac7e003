//! Orders to BMCs: the ladder, and BMCs that lie, refuse, fail or answer late.

use super::{power::*, *};
use meshd_types::{BmcRequest, BootDevice, BootSessionId, PowerAction, PowerLadder, PowerState};
use std::time::Duration;

pub(super) const APPEAR_WITHIN: Duration = Duration::from_secs(300);
pub(super) const FORMER: BootSessionId = BootSessionId([1; 12]);
pub(super) const NEXT: BootSessionId = BootSessionId([2; 12]);

pub(super) fn power(action: PowerAction) -> NodeOrder {
    NodeOrder::Power { action, now: false }
}

/// A machine and its BMC, second by second.
pub(super) struct Bench {
    pub(super) order: NodeOrder,
    pub(super) progress: PowerProgress,
    /// Seconds since the start.
    pub(super) clock: i64,
    pub(super) seen: Sighting,
    /// The agent of the machine answers probes.
    pub(super) is_alive: bool,
    pub(super) requests: Vec<(i64, BmcRequest)>,
}

impl Bench {
    pub(super) fn new(order: NodeOrder) -> Self {
        let seen =
            Sighting { newest_boot: Some((FORMER, Timestamp::from_millis(-1))), is_linked: false };
        let progress = PowerProgress::new(PowerLadder::Standard, Timestamp::from_millis(0));
        Bench { order, progress, clock: 0, seen, is_alive: false, requests: Vec::new() }
    }

    /// As [`Self::new`], with cold cycles by `off` and `on`.
    pub(super) fn off_on(order: NodeOrder) -> Self {
        let progress = PowerProgress::new(PowerLadder::OffOn, Timestamp::from_millis(0));
        Bench { progress, ..Bench::new(order) }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock * 1000)
    }

    /// Runs until the order ends. `bmc` answers each request and may change what is seen.
    pub(super) fn run(
        &mut self,
        mut bmc: impl FnMut(BmcRequest, &mut Self) -> BmcResult,
    ) -> NodeOutcome {
        while self.clock < 7200 {
            let seen = self.seen;
            let now = self.now();
            match self.progress.next(&self.order, Some(FORMER), seen, APPEAR_WITHIN, now) {
                PowerStep::End(outcome) => return outcome,
                PowerStep::Wait => self.clock += 1,
                PowerStep::Request(request) => {
                    self.requests.push((self.clock, request));
                    self.progress.send(request, self.now());
                    let stored = serde_json::to_string(&self.progress).unwrap();
                    assert_eq!(
                        serde_json::from_str::<PowerProgress>(&stored).unwrap(),
                        self.progress
                    );
                    let result = bmc(request, self);
                    self.progress.answer(result, self.is_alive, self.now());
                }
            }
        }
        panic!("the order never ends: {:?}", self.progress);
    }

    /// The requests that change something.
    pub(super) fn changes(&self) -> Vec<BmcRequest> {
        let all = self.requests.iter().map(|(_, request)| *request);
        all.filter(|request| *request != BmcRequest::Status).collect()
    }

    pub(super) fn appears(&mut self) {
        self.seen.newest_boot = Some((NEXT, self.now()));
    }
}

pub(super) const OFF: BmcResult = Ok(Some(PowerState::Off));
pub(super) const ON: BmcResult = Ok(Some(PowerState::On));
pub(super) const DONE: BmcResult = Ok(None);

fn failed() -> BmcResult {
    Err(BmcFailure::Failed("status 500".to_owned()))
}

#[test]
fn power_on_ends_with_the_first_exchange_and_not_with_the_answer() {
    let mut bench = Bench::new(power(PowerAction::On));
    let outcome = bench.run(|request, bench| match request {
        BmcRequest::Status if bench.clock < 40 => {
            if bench.progress.acted_at.is_some() {
                ON
            } else {
                OFF
            }
        }
        BmcRequest::Status => {
            bench.appears();
            ON
        }
        _ => DONE,
    });
    assert_eq!((outcome, bench.changes()), (NodeOutcome::Done, vec![BmcRequest::On]));
    assert!(bench.clock >= 40, "{}", bench.clock);
}

#[test]
fn accepted_request_without_effect_is_repeated_then_the_network_is_booted() {
    let mut bench = Bench::new(power(PowerAction::On));
    let outcome = bench.run(|request, _| if request == BmcRequest::Status { OFF } else { DONE });
    let NodeOutcome::Failed(reason) = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("by hand") && reason.contains("had no effect"), "{reason}");
    let pxe = BmcRequest::BootDevice(BootDevice::Pxe);
    assert_eq!(bench.changes(), [BmcRequest::On, BmcRequest::On, pxe, BmcRequest::On]);
    assert!(bench.clock < 120, "a report of `off` shortens the wait: {} s", bench.clock);
}

#[test]
fn machine_that_boots_another_nic_gets_the_network_as_boot_device() {
    let mut bench = Bench::new(power(PowerAction::On));
    let outcome = bench.run(|request, bench| match request {
        BmcRequest::Status if bench.progress.acted_at.is_none() => OFF,
        BmcRequest::Status => ON,
        BmcRequest::Cycle => {
            bench.appears();
            DONE
        }
        _ => DONE,
    });
    assert_eq!(outcome, NodeOutcome::Done);
    let pxe = BmcRequest::BootDevice(BootDevice::Pxe);
    assert_eq!(bench.changes(), [BmcRequest::On, BmcRequest::On, pxe, BmcRequest::Cycle]);
}

#[test]
fn refused_credentials_end_the_order_at_the_first_refusal() {
    for refused_at in [BmcRequest::Status, BmcRequest::On] {
        let mut bench = Bench::new(power(PowerAction::On));
        let outcome = bench.run(|request, _| match request {
            _ if request == refused_at => Err(BmcFailure::Credentials("status 401".to_owned())),
            _ => OFF,
        });
        assert_eq!(outcome, NodeOutcome::Failed("status 401".to_owned()));
        let refused = bench.requests.iter().filter(|(_, request)| *request == refused_at);
        assert_eq!(refused.count(), 1, "a third try may lock the account");
    }
}

#[test]
fn failed_request_is_repeated_with_pauses_and_then_replaced() {
    let mut bench = Bench::new(power(PowerAction::Reset));
    let outcome = bench.run(|request, bench| match request {
        BmcRequest::Status => ON,
        BmcRequest::Reset => failed(),
        _ => {
            bench.appears();
            DONE
        }
    });
    assert_eq!(outcome, NodeOutcome::Done);
    let reset = BmcRequest::Reset;
    let cycle = BmcRequest::Cycle;
    assert_eq!(bench.changes(), [reset, reset, reset, cycle]);
    assert!(bench.clock >= 6, "2 and 4 s of pause: {}", bench.clock);
}

#[test]
fn silent_bmc_fails_the_order_before_anything_changed() {
    let mut bench = Bench::new(power(PowerAction::Cycle));
    let outcome = bench.run(|_, _| failed());
    assert_eq!(outcome, NodeOutcome::Failed("status 500".to_owned()));
    assert_eq!((bench.changes(), bench.requests.len()), (vec![], 3));
}

#[test]
fn refused_shutdown_is_followed_by_a_forced_power_off() {
    for unsupported in [true, false] {
        let mut bench = Bench::new(power(PowerAction::Off));
        (bench.seen.is_linked, bench.is_alive) = (true, true);
        let outcome = bench.run(|request, bench| match request {
            BmcRequest::Status if bench.is_alive => ON,
            BmcRequest::Status => OFF,
            BmcRequest::ShutDown if unsupported => {
                Err(BmcFailure::Unsupported("no such reset type".to_owned()))
            }
            // Accepted, and nothing happens.
            BmcRequest::ShutDown => DONE,
            _ => {
                (bench.seen.is_linked, bench.is_alive) = (false, false);
                DONE
            }
        });
        assert_eq!(outcome, NodeOutcome::Done);
        assert_eq!(bench.changes(), [BmcRequest::ShutDown, BmcRequest::Off]);
        assert_eq!(bench.clock < 10, unsupported, "{}", bench.clock);
    }
}

#[test]
fn power_off_is_not_done_while_the_agent_answers() {
    let mut bench = Bench::new(NodeOrder::Power { action: PowerAction::Off, now: true });
    (bench.seen.is_linked, bench.is_alive) = (true, true);
    let outcome = bench.run(|request, bench| match request {
        // The BMC of another machine, or a lie.
        BmcRequest::Status if bench.progress.acted_at.is_some() => OFF,
        BmcRequest::Status => ON,
        _ => DONE,
    });
    assert!(matches!(outcome, NodeOutcome::Failed(_)), "{outcome:?}");
}

#[test]
fn reset_of_a_machine_whose_agent_still_answers_becomes_a_cycle() {
    let mut bench = Bench::new(power(PowerAction::Reset));
    (bench.seen.is_linked, bench.is_alive) = (true, true);
    let outcome = bench.run(|request, bench| match request {
        BmcRequest::Status => ON,
        BmcRequest::Cycle => {
            (bench.seen.is_linked, bench.is_alive) = (false, false);
            bench.appears();
            DONE
        }
        _ => DONE,
    });
    assert_eq!(outcome, NodeOutcome::Done);
    assert_eq!(bench.changes(), [BmcRequest::Reset, BmcRequest::Cycle]);
    assert!(bench.clock < 60, "{}", bench.clock);
}

#[test]
fn machine_that_is_in_the_state_already_gets_no_request() {
    let mut on = Bench::new(power(PowerAction::On));
    on.seen.is_linked = true;
    assert_eq!(on.run(|_, _| ON), NodeOutcome::Done);
    let mut off = Bench::new(power(PowerAction::Off));
    assert_eq!(off.run(|_, _| OFF), NodeOutcome::Done);
    let mut unseen = Bench::new(power(PowerAction::On));
    let NodeOutcome::Failed(reason) = unseen.run(|_, _| ON) else { panic!("it is not seen") };
    assert!(reason.contains("power cycle"), "{reason}");
    assert!([on, off, unseen].iter().all(|bench| bench.changes().is_empty()));
}

#[test]
fn machine_that_is_off_is_powered_on_by_a_cycle() {
    let mut bench = Bench::new(power(PowerAction::Cycle));
    let outcome = bench.run(|request, bench| {
        if request == BmcRequest::On {
            bench.appears();
        }
        if request == BmcRequest::Status { OFF } else { DONE }
    });
    assert_eq!((outcome, bench.changes()), (NodeOutcome::Done, vec![BmcRequest::On]));
}

#[test]
fn driver_without_states_relies_on_what_meshd_sees() {
    let none = || Err(BmcFailure::Unsupported("no status".to_owned()));
    let mut on = Bench::new(power(PowerAction::On));
    let outcome = on.run(|request, bench| {
        if request == BmcRequest::On {
            bench.appears();
            return DONE;
        }
        none()
    });
    assert_eq!(outcome, NodeOutcome::Done);
    let mut off = Bench::new(power(PowerAction::Off));
    (off.seen.is_linked, off.is_alive) = (true, true);
    let outcome = off.run(|request, bench| match request {
        BmcRequest::ShutDown => {
            (bench.seen.is_linked, bench.is_alive) = (false, false);
            DONE
        }
        _ => none(),
    });
    assert_eq!(outcome, NodeOutcome::Done);
}

#[test]
fn lost_answer_of_a_change_is_not_repeated_before_its_effect() {
    let now = Timestamp::from_millis(1000);
    let mut progress = PowerProgress::new(PowerLadder::Standard, now);
    progress.send(BmcRequest::Status, now);
    progress.answer(ON, false, now);
    progress.send(BmcRequest::Cycle, now);
    progress.lose_answer(now);
    let next = progress.next(
        &power(PowerAction::Cycle),
        Some(FORMER),
        Sighting::default(),
        APPEAR_WITHIN,
        now,
    );
    assert_eq!(next, PowerStep::Wait);
    assert_eq!((progress.rung, progress.accepted), (0, 1));
}

#[test]
fn plain_request_is_done_when_the_bmc_has_carried_it_out() {
    let device = BmcRequest::BootDevice(BootDevice::Pxe);
    let mut bench = Bench::new(NodeOrder::BootDevice { device: BootDevice::Pxe });
    assert_eq!(bench.run(|_, _| DONE), NodeOutcome::Done);
    assert_eq!(bench.changes(), [device]);
    let mut bench = Bench::new(NodeOrder::Identify { on: true });
    let outcome = bench.run(|_, _| Err(BmcFailure::Unsupported("no light".to_owned())));
    assert_eq!(outcome, NodeOutcome::Failed("no light".to_owned()));
}

/// A machine whose boot meshd does not see: it boots from its disk.
#[test]
fn power_on_of_a_machine_that_boots_its_disk_ends_with_its_link() {
    let mut bench = Bench::new(power(PowerAction::On));
    let outcome = bench.run(|request, bench| match request {
        BmcRequest::Status if bench.progress.acted_at.is_none() => OFF,
        BmcRequest::Status => {
            (bench.seen.is_linked, bench.is_alive) = (bench.clock > 30, bench.clock > 30);
            ON
        }
        _ => DONE,
    });
    assert_eq!((outcome, bench.changes()), (NodeOutcome::Done, vec![BmcRequest::On]));
}

#[test]
fn power_on_never_cuts_the_power_of_a_machine_that_may_run() {
    // A link that answers no probe yet, or a driver without states.
    for (is_linked, report) in [(true, ON), (false, Err(BmcFailure::Unsupported(String::new())))] {
        let mut bench = Bench::new(power(PowerAction::On));
        let outcome = bench.run(|request, bench| match request {
            BmcRequest::Status if bench.progress.acted_at.is_none() && is_linked => OFF,
            BmcRequest::Status => {
                bench.seen.is_linked = is_linked;
                report.clone()
            }
            _ => DONE,
        });
        let NodeOutcome::Failed(reason) = outcome else { panic!("{outcome:?}") };
        assert!(reason.starts_with("tried power on; last: meshd saw no boot"), "{reason}");
        assert_eq!(bench.changes(), [BmcRequest::On, BmcRequest::On]);
    }
}

#[test]
fn failed_poll_does_not_confirm_the_report_before_it() {
    let mut bench = Bench::new(power(PowerAction::On));
    // The BMC shares its NIC with the host, and does not answer while the host starts.
    let outcome = bench.run(|request, bench| match request {
        BmcRequest::Status if bench.progress.acted_at.is_none() => OFF,
        BmcRequest::Status => {
            if bench.clock > 200 {
                bench.appears();
            }
            failed()
        }
        _ => DONE,
    });
    assert_eq!((outcome, bench.changes()), (NodeOutcome::Done, vec![BmcRequest::On]));
    let mut off = Bench::new(NodeOrder::Power { action: PowerAction::Off, now: true });
    let outcome = off.run(|request, bench| match request {
        BmcRequest::Status if bench.progress.acted_at.is_none() => ON,
        BmcRequest::Status if bench.clock < 28 => failed(),
        BmcRequest::Status => OFF,
        _ => DONE,
    });
    assert_eq!((outcome, off.changes()), (NodeOutcome::Done, vec![BmcRequest::Off]));
}

#[test]
fn packet_before_the_answer_of_the_bmc_ends_no_cycle() {
    let order = power(PowerAction::Cycle);
    let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
    let mut progress = PowerProgress::new(PowerLadder::Standard, at(0));
    progress.send(BmcRequest::Status, at(0));
    progress.answer(ON, false, at(1));
    progress.send(BmcRequest::Cycle, at(2));
    // A machine that stalls in iPXE repeats DHCP in its boot session.
    let stalled = |seconds| Sighting { newest_boot: Some((FORMER, at(seconds))), is_linked: false };
    let next = |progress: &mut PowerProgress, seen, seconds| {
        progress.next(&order, Some(FORMER), seen, APPEAR_WITHIN, at(seconds))
    };
    assert_eq!(next(&mut progress, stalled(3), 4), PowerStep::Wait);
    let mut refused = progress.clone();
    refused.answer(Err(BmcFailure::Credentials("status 401".to_owned())), false, at(5));
    let outcome = PowerStep::End(NodeOutcome::Failed("status 401".to_owned()));
    assert_eq!(next(&mut refused, stalled(3), 6), outcome);
    progress.answer(DONE, false, at(5));
    assert_ne!(next(&mut progress, stalled(3), 6), PowerStep::End(NodeOutcome::Done));
    assert_eq!(next(&mut progress, stalled(7), 8), PowerStep::End(NodeOutcome::Done));
}

#[test]
fn cycle_without_an_answer_in_time_is_not_repeated() {
    let mut bench = Bench::new(power(PowerAction::Cycle));
    let outcome = bench.run(|request, bench| match request {
        BmcRequest::Status => {
            if bench.clock > 120 {
                bench.appears();
            }
            ON
        }
        _ => Err(BmcFailure::Unanswered("no answer within 30 s".to_owned())),
    });
    assert_eq!((outcome, bench.changes()), (NodeOutcome::Done, vec![BmcRequest::Cycle]));
}

#[test]
fn jump_of_the_wall_clock_ends_no_wait() {
    let order = power(PowerAction::Cycle);
    let start = Timestamp::from_millis(1_000_000_000);
    let mut cycled = PowerProgress::new(PowerLadder::Standard, start);
    cycled.send(BmcRequest::Status, start);
    cycled.answer(ON, false, start);
    cycled.send(BmcRequest::Cycle, start);
    cycled.answer(DONE, true, start);
    for now in [start.after(Duration::from_secs(86_400)), Timestamp::from_millis(1000)] {
        let mut progress = cycled.clone();
        progress.restart_wait(now);
        let seen = Sighting { newest_boot: Some((FORMER, Timestamp::EPOCH)), is_linked: true };
        for seconds in 0..15 {
            let later = now.after(Duration::from_secs(seconds));
            let next = progress.next(&order, Some(FORMER), seen, APPEAR_WITHIN, later);
            let cuts = matches!(next, PowerStep::Request(request) if request.cuts_power());
            assert!(!cuts, "{next:?} {progress:?}");
        }
        let packet = now.after(Duration::from_secs(30));
        let seen = Sighting { newest_boot: Some((FORMER, packet)), is_linked: false };
        let next = progress.next(&order, Some(FORMER), seen, APPEAR_WITHIN, packet);
        assert_eq!(next, PowerStep::End(NodeOutcome::Done));
    }
}
