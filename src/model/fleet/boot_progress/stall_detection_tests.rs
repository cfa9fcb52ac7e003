//! Stalled boots and their causes.

use super::*;
use crate::fleet::StageMark;
use meshd_types::{BootSessionId, MacAddr};

const CHAIN: Chain = Chain {
    transport: Transport::Http,
    delivery: Delivery::Initrd,
    leases: true,
    skipped: &[Stage::Root],
};
const NEVER: Timestamp = Timestamp::EPOCH;

fn at(minutes: i64) -> Timestamp {
    Timestamp::from_millis(minutes * 60_000)
}

/// A boot in which every stage up to this one was seen, in the order of the chain, a second apart.
fn boot(chain: Chain, furthest: Stage) -> BootSession {
    let mut session =
        BootSession::open(BootSessionId([7; 12]), MacAddr([2, 0, 0, 0, 0, 1]), Stage::Dhcp, at(0));
    let mut stages: Vec<Stage> = Stage::ALL
        .into_iter()
        .filter(|stage| chain.position(*stage) <= chain.position(furthest))
        .filter(|stage| !chain.skipped.contains(stage))
        .collect();
    stages.sort_by_key(|stage| chain.position(*stage));
    for (stage, second) in stages.into_iter().zip(0..) {
        session.mark(stage, Timestamp::from_millis(second * 1000));
    }
    session
}

fn missing(session: &BootSession, chain: Chain) -> Option<Stage> {
    stall(session, chain, NEVER, at(60)).map(|stall| stall.missing)
}

#[test]
fn boot_stopped_after_a_stage_stalls_at_the_next_with_cause() {
    let stages: Vec<Stage> =
        Stage::ALL.into_iter().filter(|stage| !CHAIN.skipped.contains(stage)).collect();
    for pair in stages.windows(2) {
        let session = boot(CHAIN, pair[0]);
        let found =
            stall(&session, CHAIN, NEVER, at(60)).unwrap_or_else(|| panic!("{} stands", pair[0]));
        assert_eq!((found.after, found.missing), (pair[0], pair[1]));
        assert_eq!(Some(found.since), session.stages.last().map(|mark| mark.at));
        assert!(found.cause.len() > 40, "{}", found.cause);
    }
    assert_eq!(missing(&boot(CHAIN, Stage::Online), CHAIN), None, "that is the end of it");
}

#[test]
fn stall_is_not_reported_before_time_limit_of_stage() {
    for stage in Stage::ALL {
        let session = boot(CHAIN, stage);
        assert_eq!(stall(&session, CHAIN, NEVER, at(2)), None, "{stage}: two minutes are nothing");
    }
    let session = boot(CHAIN, Stage::Overlay);
    assert_eq!(stall(&session, CHAIN, NEVER, at(10)), None);
    assert!(stall(&session, CHAIN, NEVER, at(11)).is_some());
}

#[test]
fn boot_stalls_also_after_the_clock_went_back() {
    let mut session = boot(CHAIN, Stage::Overlay);
    session.mark(Stage::Overlay, at(70_000_000));
    session.stages.iter_mut().for_each(|mark| mark.at = at(70_000_000));
    assert_eq!(stall(&session, CHAIN, at(58), at(60)), None, "two minutes are nothing");
    assert!(stall(&session, CHAIN, at(1), at(60)).is_some(), "meshd runs for an hour");
    assert_eq!(
        stall(&session, CHAIN, at(1), at(69_999_999)),
        None,
        "the clock was corrected by a minute"
    );
}

#[test]
fn overlay_by_url_is_expected_after_dhcp_of_linux() {
    let chain = Chain { delivery: Delivery::Url, ..CHAIN };
    assert_eq!(missing(&boot(chain, Stage::Packages), chain), Some(Stage::OsDhcp));
    assert_eq!(missing(&boot(chain, Stage::OsDhcp), chain), Some(Stage::Overlay));
    assert_eq!(missing(&boot(chain, Stage::Overlay), chain), Some(Stage::Modloop));
}

#[test]
fn root_image_stalls_at_its_root_and_not_at_packages_or_modules() {
    let chain = Chain { skipped: &[Stage::Packages, Stage::Modloop], ..CHAIN };
    assert_eq!(missing(&boot(chain, Stage::Initramfs), chain), Some(Stage::Overlay));
    assert_eq!(missing(&boot(chain, Stage::OsDhcp), chain), Some(Stage::Root));
    assert_eq!(missing(&boot(chain, Stage::Root), chain), Some(Stage::Enrolled));
}

#[test]
fn dhcp_of_linux_is_not_expected_with_another_dhcp_server() {
    let chain = Chain { leases: false, ..CHAIN };
    let session = boot(chain, Stage::Overlay);
    assert_eq!(missing(&session, chain), Some(Stage::Modloop));
    assert_eq!(stall(&session, chain, NEVER, at(19)), None, "it has the time of both stages");
}

#[test]
fn tftp_transport_has_longer_time_limit() {
    let chain = Chain { transport: Transport::Tftp, ..CHAIN };
    let session = boot(chain, Stage::Script);
    assert_eq!(stall(&session, chain, NEVER, at(9)), None);
    assert!(stall(&session, CHAIN, NEVER, at(9)).is_some());
    assert_eq!(missing(&session, chain), Some(Stage::Kernel));
}

#[test]
fn repeated_stage_is_not_progress() {
    let mut session = boot(CHAIN, Stage::Script);
    for minute in 1..60 {
        session.mark(Stage::IpxeDhcp, at(minute));
        session.mark(Stage::Script, at(minute));
    }
    let found = stall(&session, CHAIN, NEVER, at(60)).expect("it never fetched its kernel");
    assert!(found.cause.contains("60 times"), "{}", found.cause);
}

#[test]
fn waiting_machine_is_stalled_only_after_its_last_request() {
    let mut session = boot(CHAIN, Stage::Loader);
    for minute in 1..60 {
        session.mark(Stage::IpxeDhcp, at(minute));
        session.record_wait("quarantined", at(minute));
    }
    assert_eq!(stall(&session, CHAIN, NEVER, at(60)), None);
    let found = stall(&session, CHAIN, NEVER, at(70)).expect("it is gone");
    assert_eq!((found.missing, found.since), (Stage::Script, at(59)));
    assert!(found.cause.contains("quarantined"), "{}", found.cause);
    session.mark(Stage::Script, at(70));
    assert_eq!(
        stall(&session, CHAIN, NEVER, at(75)),
        None,
        "it was let go on, and has its time again"
    );
}

#[test]
fn node_waiting_for_approval_never_stalls() {
    let mut session = boot(CHAIN, Stage::Modloop);
    session.record_wait(Wait::APPROVAL, at(1));
    assert_eq!(stall(&session, CHAIN, NEVER, at(100_000)), None);
}

#[test]
fn central_node_downtime_does_not_count_as_stall() {
    let session = boot(CHAIN, Stage::Modloop);
    assert_eq!(stall(&session, CHAIN, at(59), at(60)), None);
    assert!(stall(&session, CHAIN, at(49), at(60)).is_some());
}

#[test]
fn stage_skipped_by_a_cache_is_not_expected() {
    let mut session = boot(CHAIN, Stage::Script);
    session.stages.push(StageMark { stage: Stage::Overlay, at: at(1), last: at(1), count: 1 });
    assert_eq!(missing(&session, CHAIN), Some(Stage::OsDhcp));
}

#[test]
fn later_stage_ends_stall() {
    let mut session = boot(CHAIN, Stage::Overlay);
    session.stalls.push(stall(&session, CHAIN, NEVER, at(30)).expect("it stands"));
    assert!(session.stalled().is_some());
    session.mark(Stage::Script, at(31));
    assert!(session.stalled().is_some(), "that is no step forward");
    session.mark(Stage::OsDhcp, at(32));
    assert_eq!((session.stalled(), session.stalls[0].ended), (None, Some(at(32))));
}
