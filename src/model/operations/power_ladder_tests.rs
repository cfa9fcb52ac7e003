//! The ladder of BMCs without `cycle`: cold cycles by `off` and `on`.

use super::{
    power_tests::{APPEAR_WITHIN, Bench, DONE, FORMER, NEXT, OFF, ON, power},
    *,
};
use meshd_types::{BmcRequest, BootDevice, PowerAction, PowerLadder};
use std::time::Duration;

/// A BMC without `cycle`: it switches off and on.
fn switches(request: BmcRequest, is_on: &mut bool) -> BmcResult {
    match request {
        BmcRequest::Status => return if *is_on { ON } else { OFF },
        BmcRequest::Off => *is_on = false,
        BmcRequest::On => *is_on = true,
        BmcRequest::Cycle => return Err(BmcFailure::Unsupported("no cycle".to_owned())),
        _ => {}
    }
    DONE
}

#[test]
fn off_on_ladder_cycles_by_off_its_report_and_on() {
    let mut bench = Bench::off_on(power(PowerAction::Cycle));
    let mut is_on = true;
    let outcome = bench.run(|request, bench| {
        let result = switches(request, &mut is_on);
        if request == BmcRequest::On {
            bench.clock += 1;
            bench.seen.newest_boot = Some((NEXT, bench.now().after(Duration::from_secs(1))));
        }
        result
    });
    assert_eq!(outcome, NodeOutcome::Done);
    assert_eq!(bench.changes(), [BmcRequest::Off, BmcRequest::On]);
    let off = bench.requests.iter().position(|(_, request)| *request == BmcRequest::Off).unwrap();
    assert_eq!(bench.requests[off + 1].1, BmcRequest::Status, "the report of `off` comes first");
}

#[test]
fn packet_between_the_halves_of_a_cold_cycle_is_no_effect() {
    let mut bench = Bench::off_on(power(PowerAction::Cycle));
    let mut is_on = true;
    let outcome = bench.run(|request, bench| {
        // The firmware sends its first packet a moment before the power is gone.
        if request == BmcRequest::Off {
            bench.appears();
        }
        switches(request, &mut is_on)
    });
    let (off, on) = (BmcRequest::Off, BmcRequest::On);
    let pxe = BmcRequest::BootDevice(BootDevice::Pxe);
    assert_eq!(bench.changes(), [off, on, off, on, pxe, off, on]);
    let NodeOutcome::Failed(reason) = outcome else { panic!("{outcome:?}") };
    assert!(
        reason.contains("tried power off, power on, power off, power on, network as"),
        "{reason}"
    );
    assert!(is_on, "no rung leaves the machine without power");
}

#[test]
fn lost_answer_of_the_second_half_counts_no_packet_of_the_first_one() {
    let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
    let order = power(PowerAction::Cycle);
    let mut progress = PowerProgress::new(PowerLadder::OffOn, at(0));
    let mut step = |seconds, exchanged: i64, result: Option<BmcResult>| {
        let seen = Sighting { newest_boot: Some((FORMER, at(exchanged))), is_linked: false };
        let next = progress.next(&order, Some(FORMER), seen, APPEAR_WITHIN, at(seconds));
        if let PowerStep::Request(request) = next {
            progress.send(request, at(seconds));
        }
        match result {
            Some(result) => progress.answer(result, false, at(seconds)),
            None => progress.lose_answer(at(seconds)),
        }
        next
    };
    assert_eq!(step(0, -1, Some(ON)), PowerStep::Request(BmcRequest::Status));
    assert_eq!(step(0, -1, Some(DONE)), PowerStep::Request(BmcRequest::Off));
    assert_eq!(step(3, 1, Some(OFF)), PowerStep::Request(BmcRequest::Status));
    // meshd ends before the answer, so it sees no earlier packet as the effect.
    assert_eq!(step(4, 1, None), PowerStep::Request(BmcRequest::On));
    assert!(!matches!(step(7, 1, Some(ON)), PowerStep::End(_)));
    assert_eq!(step(9, 8, Some(ON)), PowerStep::End(NodeOutcome::Done));
}

#[test]
fn machine_that_does_not_lose_its_power_gets_no_power_on() {
    let mut bench = Bench::off_on(power(PowerAction::Reset));
    let outcome = bench.run(|request, _| if request == BmcRequest::Status { ON } else { DONE });
    let pxe = BmcRequest::BootDevice(BootDevice::Pxe);
    let (reset, off) = (BmcRequest::Reset, BmcRequest::Off);
    assert_eq!(bench.changes(), [reset, off, pxe, off]);
    assert!(matches!(outcome, NodeOutcome::Failed(_)), "{outcome:?}");
}

#[test]
fn power_on_by_the_off_on_ladder_cuts_no_power_of_a_machine_that_may_run() {
    let mut bench = Bench::off_on(power(PowerAction::On));
    let mut is_on = false;
    let outcome = bench.run(|request, bench| {
        bench.seen.is_linked = is_on;
        switches(request, &mut is_on)
    });
    assert_eq!(bench.changes(), [BmcRequest::On, BmcRequest::On], "its boot device stays");
    assert!(matches!(outcome, NodeOutcome::Failed(_)), "{outcome:?}");
}

#[test]
fn off_on_ladder_sets_the_boot_device_of_a_machine_that_stays_off() {
    let mut bench = Bench::off_on(power(PowerAction::On));
    let outcome = bench.run(|request, _| if request == BmcRequest::Status { OFF } else { DONE });
    let (on, pxe) = (BmcRequest::On, BmcRequest::BootDevice(BootDevice::Pxe));
    assert_eq!(bench.changes(), [on, on, pxe, on]);
    assert!(matches!(outcome, NodeOutcome::Failed(_)), "{outcome:?}");
}

#[test]
fn machine_that_boots_while_a_further_cold_cycle_waits_is_not_cut() {
    let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
    let order = power(PowerAction::Cycle);
    let mut progress = PowerProgress::new(PowerLadder::OffOn, at(0));
    let mut seen = Sighting { newest_boot: Some((FORMER, at(-1))), is_linked: false };
    let mut is_on = true;
    let mut seconds = 0;
    let mut cuts = 0;
    loop {
        seconds += 1;
        match progress.next(&order, Some(FORMER), seen, APPEAR_WITHIN, at(seconds)) {
            PowerStep::Request(BmcRequest::Off) if cuts == 1 => break,
            PowerStep::Request(request) => {
                cuts += u8::from(request == BmcRequest::Off);
                progress.send(request, at(seconds));
                progress.answer(switches(request, &mut is_on), false, at(seconds));
            }
            PowerStep::Wait => {}
            PowerStep::End(outcome) => panic!("{outcome:?}"),
        }
    }
    // The request waits for a permit.
    seen.newest_boot = Some((NEXT, at(seconds)));
    let next = progress.next(&order, Some(FORMER), seen, APPEAR_WITHIN, at(seconds + 1));
    assert_eq!(next, PowerStep::End(NodeOutcome::Done));
}

#[test]
fn boot_counts_if_the_bmc_never_accepts_the_first_half() {
    let mut bench = Bench::off_on(power(PowerAction::Cycle));
    let outcome = bench.run(|request, bench| match request {
        BmcRequest::Status => ON,
        BmcRequest::Off => {
            bench.appears();
            Err(BmcFailure::Failed("busy".to_owned()))
        }
        _ => DONE,
    });
    assert_eq!(outcome, NodeOutcome::Done);
}

#[test]
fn machine_that_loses_its_power_late_is_switched_on() {
    let mut bench = Bench::off_on(power(PowerAction::Cycle));
    let (mut off_at, mut is_on) = (None, true);
    bench.run(|request, bench| {
        if off_at.is_some_and(|at| bench.clock >= at) {
            (off_at, is_on) = (None, false);
        }
        match request {
            BmcRequest::Status => return if is_on { ON } else { OFF },
            BmcRequest::Off => off_at = Some(bench.clock + 25),
            BmcRequest::On => is_on = true,
            _ => {}
        }
        DONE
    });
    assert!(is_on && off_at.is_none(), "no order ends with `off` under way");
}
