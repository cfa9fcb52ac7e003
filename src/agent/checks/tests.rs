//! Results of the checks on fake machines.

mod behaviour;
mod virtualization;

use super::*;
use crate::{fake::FakeMachine, networks::firewall::user::CentralServices, vm::Space};
use meshd_proto::{NetworkSpec, StoreKind};
use meshd_types::BootSessionId;
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
};

pub(super) fn config(services: &[&str]) -> AgentConfig {
    AgentConfig {
        version: 1,
        node: "00000001".parse().expect("a node ID"),
        central: Ipv4Addr::LOCALHOST,
        port: 1,
        ca_file: "/etc/meshd/ca.pem".into(),
        heartbeat_s: 30,
        profile: "discovery".into(),
        services: services.iter().map(|name| (*name).to_owned()).collect(),
        units: Vec::new(),
        checks: Default::default(),
        vfio: Vec::new(),
        data_disks: Vec::new(),
        kvm: false,
    }
}

fn boot() -> BootPart {
    let node = config(&[]).node;
    let session = BootSessionId([1; 12]);
    let issued_at = Timestamp::from_millis(1000);
    BootPart {
        version: 1,
        node,
        session,
        generation: String::new(),
        issued_at,
        roots_pem: None,
        http_port: 8080,
        token: None,
    }
}

/// A machine without problems.
struct HealthyProbe;

impl Probe for HealthyProbe {
    fn neighbour_answers(&self, _: Ipv4Addr) -> Option<bool> {
        Some(true)
    }

    fn space(&self, _: &Path) -> Option<Space> {
        Some(Space { kind: StoreKind::Disk, bytes: u64::MAX, used: 0, free: u64::MAX })
    }

    fn unit_properties(&self, _: &str, _: &[&str]) -> Option<std::io::Result<String>> {
        None
    }

    fn user_firewalls(
        &self,
        _central: CentralServices,
    ) -> Option<std::io::Result<Vec<&'static str>>> {
        Some(Ok(Vec::new()))
    }

    fn private_network(
        &self,
        _: &NetworkSpec,
        _: SocketAddrV4,
    ) -> Option<Result<Ipv4Addr, String>> {
        Some(Ok(Ipv4Addr::LOCALHOST))
    }
}

/// A context in which the node's clock and the central node's are the same.
pub(super) fn context(tree: &Tree, config: &AgentConfig, now: i64) -> Context {
    let tree = tree.clone();
    let config = config.clone();
    let now = Timestamp::from_millis(now);
    let boot = boot();
    let vms = "/nowhere".into();
    let units = Vec::new();
    let probe = Box::new(HealthyProbe);
    Context { tree, vms, config, boot, units, now, central: Some(now), probe }
}

/// Runs all checks with the severities of the profile.
fn run(context: &Context) -> Vec<Check> {
    ALL.iter().map(|check| apply_rule(&context.config.checks, check(context))).collect()
}

fn check_of(name: &str, context: &Context) -> Check {
    let check = run(context).into_iter().find(|check| check.name == name).expect("there");
    assert_eq!(
        check.remediation.is_empty(),
        matches!(check.status, CheckStatus::Pass | CheckStatus::Skip)
    );
    assert!(!check.unproven || check.status == CheckStatus::Warn, "{check:?}");
    check
}

fn run_check(name: &str, tree: &Tree, config: &AgentConfig, now: i64) -> (CheckStatus, String) {
    let check = check_of(name, &context(tree, config, now));
    (check.status, check.detail)
}

#[test]
fn unstarted_service_fails_the_check() {
    let fake = FakeMachine::new("", &[]);
    // OpenRC's links point to /etc/init.d, which does not exist below this root: the link alone
    // counts.
    fake.link("run/openrc/started/sshd", "/nowhere/sshd");
    assert_eq!(run_check("services", &fake.tree, &config(&[]), 1).0, CheckStatus::Skip);
    assert_eq!(run_check("services", &fake.tree, &config(&["sshd"]), 1).0, CheckStatus::Pass);
    let (status, detail) =
        run_check("services", &fake.tree, &config(&["sshd", "libvirtd", "../started"]), 1);
    assert_eq!((status, detail.as_str()), (CheckStatus::Fail, "not started: libvirtd, ../started"));
}

#[test]
fn unit_without_invocation_fails_the_check() {
    let fake = FakeMachine::new("", &[]);
    let node = AgentConfig { units: vec!["a.service".into(), "../b".into()], ..config(&[]) };
    fake.link("run/systemd/units/invocation:a.service", "0123456789abcdef0123456789abcdef");
    let (status, detail) = run_check("services", &fake.tree, &node, 1);
    assert_eq!((status, detail.as_str()), (CheckStatus::Fail, "not started: ../b"));
    let node = AgentConfig { units: vec!["a.service".into()], ..config(&[]) };
    assert_eq!(run_check("services", &fake.tree, &node, 1).0, CheckStatus::Pass);
}

#[test]
fn identity_mismatch_warns_and_early_clock_fails() {
    let fake = FakeMachine::new("", &[]);
    assert_eq!(run_check("identity", &fake.tree, &config(&[]), 1).0, CheckStatus::Warn);
    let uuid = "01020304-0506-0708-090a-0b0c0d0e0f10";
    fake.file("sys/class/dmi/id/product_uuid", uuid);
    let (status, detail) = run_check("identity", &fake.tree, &config(&[]), 1);
    assert!(status == CheckStatus::Warn && detail.contains(uuid), "{detail}");
    let node = format!("uuid:{uuid}").parse::<meshd_types::Basis>().expect("basis").node_id();
    let ours = AgentConfig { node, ..config(&[]) };
    assert_eq!(run_check("identity", &fake.tree, &ours, 1).0, CheckStatus::Pass);
    assert_eq!(run_check("clock", &fake.tree, &ours, 999).0, CheckStatus::Fail);
    assert_eq!(run_check("clock", &fake.tree, &ours, 1000).0, CheckStatus::Pass);
}

#[test]
fn memory_below_threshold_warns() {
    let fake = FakeMachine::new("", &[]);
    for (available, expected) in [(65_535, CheckStatus::Warn), (65_536, CheckStatus::Pass)] {
        fake.file("proc/meminfo", &format!("MemTotal: 1000000 kB\nMemAvailable: {available} kB\n"));
        assert_eq!(run_check("memory", &fake.tree, &config(&[]), 1).0, expected);
    }
}

#[test]
fn memory_of_the_root_is_reported() {
    let fake = FakeMachine::new("", &[]);
    fake.file("proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n");
    let detail = || run_check("memory", &fake.tree, &config(&[]), 1).1;
    assert_eq!(detail(), "1024 of 2048 MiB available");
    let report = |text: &str| fake.file(ROOT_REPORT_FILE.trim_start_matches('/'), text);
    report("no JSON");
    assert_eq!(detail(), "1024 of 2048 MiB available");
    report(r#"{"mode":"ram","size":228589568}"#);
    assert_eq!(detail(), "1024 of 2048 MiB available, 218 MiB used by the root");
    report(r#"{"mode":"tethered","size":228589568,"process":99}"#);
    let lost = "1024 of 2048 MiB available, the process 99 of the tethered root is lost";
    assert_eq!(detail(), lost);
    fake.file("proc/99/status", "Name:\tmeshd\nVmRSS:\t   13313 kB\n");
    fake.file("proc/99/cmdline", "@meshd-roots\0");
    assert_eq!(detail(), lost, "another process has its number");
    fake.file("proc/99/cmdline", "@meshd-root\0");
    let tethered = "1024 of 2048 MiB available, 14 MiB used by the tethered root of 218 MiB";
    assert_eq!(detail(), tethered);
}

#[test]
fn check_names_equal_those_of_profiles() {
    let fake = FakeMachine::new("", &[]);
    let checks = run(&context(&fake.tree, &config(&[]), 1));
    assert!(checks.iter().map(|check| check.name.as_str()).eq(CHECKS), "{checks:?}");
}

#[test]
fn profile_disables_a_check_lowers_its_severity_and_sets_a_threshold() {
    let fake = FakeMachine::new("", &[]);
    fake.file("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n");
    let mut config = config(&["sshd"]);
    for (rule, expected) in [
        (CheckRule::On, CheckStatus::Fail),
        (CheckRule::Warn, CheckStatus::Warn),
        (CheckRule::Off, CheckStatus::Skip),
    ] {
        config.checks.rules.insert("services".into(), rule);
        let (status, detail) = run_check("services", &fake.tree, &config, 1);
        assert!(status == expected && detail.contains("sshd"), "{detail}");
    }
    for (minimum, expected) in [(1024, CheckStatus::Pass), (1025, CheckStatus::Fail)] {
        config.checks.thresholds.memory_mib = Some(minimum);
        assert_eq!(run_check("memory", &fake.tree, &config, 1).0, expected);
    }
}

#[test]
fn memory_of_workloads_counts_as_available() {
    let fake = FakeMachine::new("", &[]);
    fake.file("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 524288 kB\n");
    let mut config = config(&[]);
    config.checks.thresholds.memory_mib = Some(2048);
    let vms = fake.tree.path("/var/lib/machines");
    let checked =
        || check_of("memory", &Context { vms: vms.clone(), ..context(&fake.tree, &config, 1000) });
    assert_eq!(checked().status, CheckStatus::Fail);
    let pidfile = vms.join("11223344-5566-7788-99aa-bbccddeeff00/qemu.pid");
    fake.file("var/lib/machines/11223344-5566-7788-99aa-bbccddeeff00/qemu.pid", "7\n");
    fake.file("proc/7/cmdline", &format!("qemu\0-pidfile\0{}\0", pidfile.display()));
    fake.file("proc/7/status", "RssAnon: 1048576 kB\n");
    assert_eq!(checked().status, CheckStatus::Fail, "1.5 GiB of 2");
    fake.file("proc/9/cgroup", &format!("0::/meshd-{}/7\n", config.node));
    fake.file("proc/9/status", "RssAnon: 524288 kB\n");
    let check = checked();
    let detail = "512 of 4096 MiB available, 1536 MiB used by workloads";
    assert_eq!((check.status, check.detail.as_str()), (CheckStatus::Pass, detail));
}
