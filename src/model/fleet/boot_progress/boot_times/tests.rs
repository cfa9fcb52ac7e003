//! Steps of boots, comparisons, and each kind of delay.

use super::*;
use crate::fleet::{BootSession, DhcpClient, DhcpRequest, Stage, Wait};
use meshd_types::{BootSessionId, ClientArch, MacAddr, Timestamp};
use proptest::prelude::*;
use std::time::Duration;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A session of NIC `nic`, the `number`th of the machine.
fn session(nic: u8, number: u8, begun: i64, stages: &[(Stage, i64)]) -> BootSession {
    let mac = MacAddr([2, 0, 0, 0, 0, nic]);
    let mut session = BootSession::open(BootSessionId([number; 12]), mac, Stage::Dhcp, at(begun));
    session.order = number.into();
    for (stage, seconds) in stages {
        session.mark(*stage, at(*seconds));
    }
    session
}

/// Stages of a usual boot that begins at this second. The last one ends the record of DHCP.
fn usual(begun: i64) -> Vec<(Stage, i64)> {
    [
        (Stage::Loader, 2),
        (Stage::IpxeDhcp, 4),
        (Stage::Script, 5),
        (Stage::Kernel, 8),
        (Stage::Overlay, 10),
        (Stage::OsDhcp, 14),
        (Stage::Modloop, 24),
        (Stage::Enrolled, 30),
        (Stage::Online, 33),
    ]
    .map(|(stage, after)| (stage, begun + after))
    .to_vec()
}

fn order(first: i64, last: i64) -> BootOrder {
    BootOrder { order: "power on".to_owned(), first_at: at(first), at: at(last) }
}

fn path(boot: &BootSession) -> BootPath<'_> {
    BootPath::new(boot, [], [])
}

fn discover(client: DhcpClient, arch: u16, secs: u16) -> DhcpRequest {
    DhcpRequest { client, arch: Some(ClientArch(arch)), is_discover: true, secs }
}

/// Kind, step and cost in seconds of each delay, without a comparison.
fn delays(path: &BootPath<'_>) -> Vec<(DelayKind, &'static str, u64)> {
    let found = BootComparison::default().delays(path, None);
    found.iter().map(|delay| (delay.kind, delay.step.as_str(), delay.cost.as_secs())).collect()
}

#[test]
fn usual_boot_has_steps_and_no_delay() {
    let boot = session(3, 1, 1000, &usual(1000));
    assert!(delays(&path(&boot)).is_empty());
    let steps = path(&boot).steps(None);
    let sum: Duration = steps.iter().map(|time| time.duration).sum();
    assert_eq!((steps.len(), sum), (10, seconds(33)));
}

#[test]
fn boot_of_the_third_nic_names_the_nics_before_it_and_the_order() {
    let first = session(1, 1, 1120, &[]);
    let second = session(2, 2, 1160, &[]);
    let boot = session(3, 3, 1190, &usual(1190));
    let orders = [order(1000, 1000), order(1100, 1100), order(1150, 1150)];
    let path = BootPath::new(&boot, [&second, &boot, &first], orders);
    assert_eq!(path.order, Some(order(1150, 1150)), "the last one, as a restart of the power does");
    let path = BootPath::new(&boot, [&second, &boot, &first], [order(1100, 1100)]);
    assert_eq!(path.attempts, [&first, &second]);
    let steps: Vec<_> = path.steps(None).iter().map(|time| (time.step.as_str(), time.at)).collect();
    assert_eq!(steps[..3], [("firmware", at(1120)), ("attempts", at(1190)), ("dhcp", at(1190))]);
    let found = BootComparison::default().delays(&path, None);
    assert_eq!(delays(&path), [(DelayKind::OtherNic, "attempts", 70)]);
    let detail = &found[0].detail;
    assert!(detail.contains("NIC 02:00:00:00:00:01 (40.0 s)"), "{detail}");
    assert!(detail.contains("NIC 02:00:00:00:00:02 (30.0 s)"), "{detail}");
    assert!(found[0].setting.contains("boot order"));
}

#[test]
fn attempt_before_the_former_boot_or_long_ago_does_not_count() {
    let online = session(3, 2, 1000, &usual(1000));
    let boot = session(3, 3, 1100, &usual(1100));
    let before = session(1, 1, 990, &[]);
    let after = BootPath::new(&boot, [&before, &online], [order(980, 980)]);
    assert_eq!((after.attempts.len(), after.order), (0, None), "the machine ran since");
    let late = session(3, 3, 1600, &usual(1600));
    assert_eq!(BootPath::new(&late, [&before], []).attempts.len(), 0, "it was off since");
}

#[test]
fn second_request_to_the_bmc_and_repeated_boots_are_named() {
    let stopped = session(3, 1, 1310, &[(Stage::Loader, 1312), (Stage::Script, 1320)]);
    let boot = session(3, 2, 1340, &usual(1340));
    let path = BootPath::new(&boot, [&stopped], [order(1000, 1300)]);
    assert_eq!(
        delays(&path),
        [(DelayKind::PowerAttempts, "firmware", 300), (DelayKind::RepeatedAttempt, "attempts", 30)]
    );
    assert_eq!(path.begun_at(), at(1300));
}

#[test]
fn time_before_the_first_packet_is_that_of_the_port_or_the_relay() {
    let mut boot = session(3, 1, 1000, &usual(1000)[..8]);
    boot.record_dhcp(discover(DhcpClient::Firmware, 7, 32), at(1000));
    boot.record_dhcp(discover(DhcpClient::Ipxe, 7, 4), at(1004));
    assert_eq!(delays(&path(&boot)), [(DelayKind::LostDiscovers, "dhcp", 32)]);
    boot.is_relayed = true;
    assert_eq!(delays(&path(&boot)), [(DelayKind::SlowRelay, "dhcp", 32)]);
    let mut swapped = session(3, 1, 1000, &usual(1000)[..8]);
    swapped.record_dhcp(discover(DhcpClient::Firmware, 7, 4 << 8), at(1000));
    assert!(delays(&path(&swapped)).is_empty(), "the field has the wrong byte order");
}

#[test]
fn repeated_discovers_and_the_first_protocol_are_named() {
    let mut boot = session(3, 1, 1000, &usual(1060)[..8]);
    for (arch, seconds) in [(16, 1000), (16, 1008), (16, 1024), (7, 1060)] {
        boot.record_dhcp(discover(DhcpClient::Firmware, arch, 0), at(seconds));
    }
    assert_eq!(
        delays(&path(&boot)),
        [(DelayKind::OtherProtocol, "loader", 60), (DelayKind::RepeatedDiscovers, "dhcp", 24)]
    );
    let detail = &BootComparison::default().delays(&path(&boot), None)[0].detail;
    assert!(detail.contains("HTTP boot with architecture 16"), "{detail}");
}

#[test]
fn attempt_with_another_architecture_is_another_protocol() {
    let mut http = session(3, 1, 1000, &[(Stage::Loader, 1001)]);
    http.arch = Some(ClientArch(16));
    let mut boot = session(3, 2, 1090, &usual(1090));
    boot.arch = Some(ClientArch(7));
    let path = BootPath::new(&boot, [&http], []);
    assert_eq!(delays(&path), [(DelayKind::OtherProtocol, "attempts", 90)]);
}

#[test]
fn ipv6_before_the_first_packet_is_named_if_it_followed_the_order() {
    let mut first = session(1, 1, 1100, &[]);
    first.ipv6_since = Some(at(1030));
    let boot = session(3, 2, 1104, &usual(1104));
    let path = BootPath::new(&boot, [&first], [order(1000, 1000)]);
    assert_eq!(delays(&path), [(DelayKind::OtherProtocol, "firmware", 70)]);
    let late = BootPath::new(&boot, [&first], [order(1040, 1040)]);
    assert!(delays(&late).is_empty(), "that was before the order");
}

#[test]
fn waits_and_repeated_scripts_are_named() {
    let mut boot = session(3, 1, 1000, &[(Stage::Script, 1005), (Stage::Kernel, 1080)]);
    boot.record_wait("busy", at(1005));
    boot.record_wait("busy", at(1065));
    assert_eq!(delays(&path(&boot)), [(DelayKind::BootQueue, "kernel", 75)]);
    let mut boot = session(3, 1, 1000, &[(Stage::Script, 1005), (Stage::Enrolled, 1500)]);
    boot.record_wait(Wait::APPROVAL, at(1100));
    assert_eq!(delays(&path(&boot)), [(DelayKind::Approval, "approval", 400)]);
    let mut boot = session(3, 1, 1000, &[(Stage::Script, 1005), (Stage::Kernel, 1050)]);
    boot.mark(Stage::Script, at(1045));
    assert_eq!(delays(&path(&boot)), [(DelayKind::RepeatedScript, "kernel", 40)]);
}

#[test]
fn slow_step_is_compared_with_own_and_neighbouring_boots() {
    let slow = |number: u8, kernel: i64| {
        let mut stages = usual(1000);
        stages[3] = (Stage::Kernel, 1005 + kernel);
        stages.truncate(4);
        session(3, number, 1000, &stages)
    };
    let own = [slow(1, 20), slow(2, 60), slow(3, 30)];
    let model = [slow(4, 9)];
    let comparison = BootComparison {
        own: Baseline::new(own.iter().map(path)),
        model: Baseline::new(model.iter().map(path)),
    };
    let kernel = BootStep::Stage(Stage::Kernel);
    assert_eq!(comparison.own.median(kernel), Some(seconds(30)));
    assert_eq!((comparison.own.boots, comparison.model.boots), (3, 1));
    let boot = slow(9, 40);
    let found = comparison.delays(&path(&boot), None);
    let kinds: Vec<_> = found.iter().map(|delay| (delay.kind, delay.cost)).collect();
    assert_eq!(kinds, [(DelayKind::SlowStep, seconds(31))], "the faster median counts");
    assert!(found[0].detail.ends_with("the median of 1 boot of the same model is 9.0 s"));
    let is_silent = |comparison: &BootComparison, boot: &BootSession| {
        comparison.delays(&path(boot), None).is_empty()
    };
    assert!(is_silent(&comparison, &slow(9, 18)), "twice as long, but 9 s only");
    assert!(is_silent(&BootComparison::default(), &boot), "nothing to compare with");
}

#[test]
fn known_delay_of_a_step_is_not_counted_as_slow_again() {
    let usual_boot = session(3, 1, 1000, &usual(1000));
    let comparison =
        BootComparison { own: Baseline::new([path(&usual_boot)]), ..BootComparison::default() };
    let mut boot = session(3, 2, 2000, &[(Stage::Script, 2005), (Stage::Kernel, 2080)]);
    boot.record_wait("busy", at(2005));
    boot.record_wait("busy", at(2072));
    let kinds: Vec<_> =
        comparison.delays(&path(&boot), None).iter().map(|delay| delay.kind).collect();
    assert_eq!(kinds, [DelayKind::BootQueue]);
}

#[test]
fn long_installation_of_packages_is_named_without_other_boots() {
    let mut stages = usual(1000);
    stages[6] = (Stage::Modloop, 1060);
    stages.truncate(7);
    let boot = session(3, 1, 1000, &stages);
    assert_eq!(delays(&path(&boot)), [(DelayKind::PackageInstallation, "modloop", 46)]);
}

#[test]
fn dhcp_records_of_a_boot_are_bounded_and_end_online() {
    let mut boot = session(3, 1, 1000, &[]);
    for arch in 0..100 {
        boot.record_dhcp(discover(DhcpClient::Firmware, arch, 0), at(1000));
    }
    assert_eq!(boot.dhcp.len(), crate::fleet::MAX_DHCP_ATTEMPTS);
    boot.mark(Stage::Online, at(1010));
    let before = boot.clone();
    boot.record_dhcp(discover(DhcpClient::Firmware, 0, 0), at(9000));
    assert_eq!(boot, before, "renewals of a running node are no part of its boot");
}

proptest! {
    /// Clocks go back, and records of strangers have any order.
    #[test]
    fn any_records_give_bounded_delays(
        times in proptest::collection::vec((0u8..4, 0i64..4000, 0i64..4000, 0usize..14), 1..12),
        first in 0i64..4000,
        last in 0i64..4000,
    ) {
        let sessions: Vec<_> = times
            .iter()
            .zip(1u8..)
            .map(|((nic, begun, reached, stage), number)| {
                session(*nic, number, *begun, &[(Stage::ALL[*stage], *reached)])
            })
            .collect();
        let boot = sessions.last().expect("there is one");
        let path = BootPath::new(boot, &sessions, [order(first, last)]);
        let baseline = Baseline::new(sessions.iter().map(self::path));
        let comparison = BootComparison { own: baseline.clone(), model: baseline };
        for delay in comparison.delays(&path, Some(at(4000))) {
            prop_assert!(delay.cost <= seconds(4000) * 12 && !delay.setting.is_empty());
        }
    }
}
