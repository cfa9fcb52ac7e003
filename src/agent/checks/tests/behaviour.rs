//! Checks that use probes: clock, gateway, free space.

use super::*;
use crate::fake::FakeMachine;
use std::time::Duration;

struct TestProbe {
    answers: Option<bool>,
    space: Option<Space>,
}

impl Probe for TestProbe {
    fn neighbour_answers(&self, neighbour: Ipv4Addr) -> Option<bool> {
        assert_eq!(neighbour, Ipv4Addr::new(10, 77, 0, 1));
        self.answers
    }

    fn space(&self, folder: &Path) -> Option<Space> {
        assert_eq!(folder, Path::new("/srv/machines"), "the folder of VMs");
        self.space
    }

    fn unit_properties(&self, _: &str, _: &[&str]) -> Option<std::io::Result<String>> {
        None
    }

    fn user_firewalls(
        &self,
        _central: CentralServices,
    ) -> Option<std::io::Result<Vec<&'static str>>> {
        self.answers.map(|answers| Ok(if answers { Vec::new() } else { vec!["meshd-vm-users"] }))
    }

    fn private_network(
        &self,
        _: &NetworkSpec,
        _: SocketAddrV4,
    ) -> Option<Result<Ipv4Addr, String>> {
        self.answers.map(
            |answers| if answers { Ok(Ipv4Addr::LOCALHOST) } else { Err("no rule".to_owned()) },
        )
    }
}

/// Properties of a unit that waits for its next start.
struct CrashProbe;

impl Probe for CrashProbe {
    fn unit_properties(&self, _: &str, units: &[&str]) -> Option<std::io::Result<String>> {
        assert_eq!(units, ["a.service"], "the unit is active");
        Some(Ok("Id=a.service\nSubState=auto-restart\nNRestarts=1\n".to_owned()))
    }

    fn neighbour_answers(&self, _: Ipv4Addr) -> Option<bool> {
        None
    }

    fn space(&self, _: &Path) -> Option<Space> {
        None
    }

    fn user_firewalls(&self, _: CentralServices) -> Option<std::io::Result<Vec<&'static str>>> {
        None
    }

    fn private_network(
        &self,
        _: &NetworkSpec,
        _: SocketAddrV4,
    ) -> Option<Result<Ipv4Addr, String>> {
        None
    }
}

#[test]
fn unit_that_crashes_fails_the_check_although_it_has_an_invocation() {
    let fake = FakeMachine::new("", &[]);
    fake.link("run/systemd/units/invocation:a.service", "0123456789abcdef0123456789abcdef");
    let node = AgentConfig { units: vec!["a.service".into(), "b.service".into()], ..config(&[]) };
    let checks = context(&fake.tree, &node, 1000);
    let check = check_of("services", &Context { probe: Box::new(CrashProbe), ..checks });
    let expected = "not started: b.service; crashed: a.service (1 restarts)";
    assert_eq!((check.status, check.detail.as_str()), (CheckStatus::Fail, expected));
}

fn routed() -> FakeMachine {
    let fake = FakeMachine::new("", &[]);
    fake.routes(&[("eth0", [0; 4], [0; 4], [10, 77, 0, 1])]);
    fake
}

#[test]
fn default_route_passes_when_its_gateway_answers() {
    let fake = routed();
    let config = config(&[]);
    let tested = |answers| {
        let probe = Box::new(TestProbe { answers, space: None });
        check_of("network", &Context { probe, ..context(&fake.tree, &config, 1000) })
    };
    assert_eq!(tested(Some(true)).detail, "the default gateway 10.77.0.1 (eth0) answers");
    assert_eq!(tested(Some(true)).status, CheckStatus::Pass);
    let silent = tested(Some(false));
    assert!(silent.status == CheckStatus::Warn && !silent.unproven, "{silent:?}");
    assert!(tested(None).unproven);
    fake.routes(&[]);
    assert_eq!(tested(None).status, CheckStatus::Pass, "a rack may have no router");
}

#[test]
fn firewall_check_fails_while_a_firewall_is_missing() {
    let fake = FakeMachine::new("", &[]);
    let config = config(&[]);
    let tested = |answers| {
        let probe = Box::new(TestProbe { answers, space: None });
        check_of("firewall", &Context { probe, ..context(&fake.tree, &config, 1000) })
    };
    assert_eq!(tested(Some(true)).status, CheckStatus::Pass);
    let missing = tested(Some(false));
    assert_eq!(
        (missing.status, missing.detail.as_str()),
        (CheckStatus::Fail, "missing or changed: meshd-vm-users")
    );
    assert_eq!(tested(None).status, CheckStatus::Skip, "the root of another system");
}

#[test]
fn clock_offset_fails_in_both_directions_and_unknown_is_unproven() {
    let fake = FakeMachine::new("", &[]);
    let mut config = config(&[]);
    let off = |config: &AgentConfig, seconds: i64| {
        let central = Some(Timestamp::from_millis(1_000_000 - seconds * 1000));
        check_of("clock", &Context { central, ..context(&fake.tree, config, 1_000_000) })
    };
    for (seconds, status) in [
        (0, CheckStatus::Pass),
        (60, CheckStatus::Pass),
        (-61, CheckStatus::Warn),
        (300, CheckStatus::Warn),
        (301, CheckStatus::Fail),
        (-301, CheckStatus::Fail),
    ] {
        assert_eq!(off(&config, seconds).status, status, "{seconds} s");
    }
    assert!(off(&config, -301).detail.starts_with("301.0 s behind the central node"));
    config.checks.thresholds.clock_offset_s = Some(5);
    assert_eq!(off(&config, 6).status, CheckStatus::Fail);
    let unknown = Context { central: None, ..context(&fake.tree, &config, 1_000_000) };
    assert!(check_of("clock", &unknown).unproven);
}

#[test]
fn central_time_advances_with_the_uptime_of_the_node() {
    let fake = FakeMachine::new("", &[]);
    fake.file("proc/uptime", "100.25 1.0\n");
    let reference = CentralClock::new(&fake.tree, Timestamp::from_millis(5_000));
    let dir = tempfile::tempdir().expect("a folder");
    reference.store(dir.path()).expect("written");
    fake.file("proc/uptime", "160.25 1.0\n");
    let loaded = CentralClock::load(dir.path()).expect("there");
    assert_eq!(
        loaded.now(&fake.tree),
        Some(Timestamp::from_millis(5_000).after(Duration::from_secs(60)))
    );
    fake.file("proc/uptime", "3.00 1.0\n");
    assert_eq!(loaded.now(&fake.tree), None, "another boot");
}

#[test]
fn store_on_disk_has_default_limits_and_in_memory_profile_limits() {
    let fake = FakeMachine::new("", &[]);
    let config = AgentConfig { kvm: true, ..config(&[]) };
    let store = |config: &AgentConfig, space| {
        let vms = "/srv/machines".into();
        let probe = Box::new(TestProbe { answers: None, space });
        check_of("store", &Context { vms, probe, ..context(&fake.tree, config, 1000) })
    };
    let free = |config: &AgentConfig, kind: StoreKind, gb: u64| {
        let space = Some(Space { kind, bytes: u64::MAX, used: 0, free: gb * 1_000_000_000 });
        store(config, space).status
    };
    assert_eq!(free(&config, StoreKind::Memory, 0), CheckStatus::Pass, "no default limit");
    let statuses = [19, 20, 49, 50].map(|gb| free(&config, StoreKind::Disk, gb));
    assert_eq!(
        statuses,
        [CheckStatus::Fail, CheckStatus::Warn, CheckStatus::Warn, CheckStatus::Pass]
    );
    let mut limited = config.clone();
    limited.checks.thresholds.store_fail_gb = Some(2);
    assert_eq!(free(&limited, StoreKind::Disk, 3), CheckStatus::Warn);
    assert_eq!(
        free(&limited, StoreKind::Memory, 1),
        CheckStatus::Fail,
        "the limit of the profile applies"
    );
    assert!(store(&config, None).unproven);
}

#[test]
fn volumes_pass_when_none_is_incomplete() {
    let fake = FakeMachine::new("", &[]);
    let host = AgentConfig { kvm: true, ..config(&[]) };
    let vms = fake.tree.path("/srv/machines");
    let checked =
        || check_of("images", &Context { vms: vms.clone(), ..context(&fake.tree, &host, 1000) });
    assert_eq!((checked().status, checked().detail.as_str()), (CheckStatus::Pass, "0 complete"));
    let digest = "ab".repeat(32);
    fake.file(&format!("srv/machines/volumes/{digest}"), "x");
    assert_eq!(checked().detail, "1 complete");
    fake.file(&format!("srv/machines/volumes/{digest}.part"), "x");
    assert!(
        checked().unproven && checked().detail.starts_with("1 complete, 1 incomplete: "),
        "{:?}",
        checked()
    );
    fake.file(&format!("srv/machines/volumes/{digest}"), "");
    assert_eq!(checked().status, CheckStatus::Fail);
}

#[test]
fn private_network_check_skips_when_disabled_and_passes_if_working() {
    let fake = FakeMachine::new("", &[]);
    let host = config(&[]);
    let tested = |answers| {
        let probe = Box::new(TestProbe { answers, space: None });
        check_of("nat", &Context { probe, ..context(&fake.tree, &host, 1000) })
    };
    assert_eq!(tested(Some(false)).status, CheckStatus::Skip);
    fake.file("etc/meshd/nat.json", "{\"enabled\": true, \"pool\": \"172.30.0.0/16\"}");
    assert_eq!(tested(Some(true)).status, CheckStatus::Pass);
    let failed = tested(Some(false));
    assert_eq!((failed.status, failed.detail.as_str()), (CheckStatus::Fail, "mesh-nat0: no rule"));
    assert!(tested(None).unproven);
}
