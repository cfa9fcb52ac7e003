//! Checks that services are started and run. OpenRC lists a service as started even after its
//! daemon crashed; `/run/openrc/daemons/NAME/NUMBER` describes the daemon. systemd has the link
//! `/run/systemd/units/invocation:UNIT` while a unit is active, or waits for its next start:
//! its properties tell these states apart.

use super::{Context, fail, pass, skip, unproven};
use crate::system::{Tree, is_file_name, uptime};
use meshd_proto::{Check, SERVICES_CHECK};
use meshd_types::failpoint;
use std::time::Duration;

const STARTED: &str = "/run/openrc/started";
const INVOCATIONS: &str = "/run/systemd/units";
const DAEMONS: &str = "/run/openrc/daemons";
/// Properties of a unit that crashes again and again.
const PROPERTIES: &str = "Id,SubState,NRestarts,ActiveEnterTimestampMonotonic";
/// The service crashed, and starts again after a delay.
const AUTO_RESTART: &str = "auto-restart";
/// Number of restarts from which a service counts as crashing, until it runs for [`STABLE`].
const MAX_RESTARTS: u64 = 3;
const STABLE: Duration = Duration::from_secs(60);
/// State of a zombie process.
const ZOMBIE: &str = "Z";

/// Checks that every service and unit of the profile is started, and that its daemons run.
pub fn services(context: &Context) -> Check {
    const NAME: &str = SERVICES_CHECK;
    const REMEDY: &str = "see `rc-status` or `systemctl status` on the node, and `meshd node logs`";
    let tree = &context.tree;
    let required = &context.config.services;
    let units = &context.config.units;
    if required.is_empty() && units.is_empty() {
        return skip(NAME, "the profile requires no services");
    }
    let is_started = |name: &&String| is_file_name(name) && tree.has(&format!("{STARTED}/{name}"));
    let (started, missing): (Vec<&String>, Vec<&String>) = required.iter().partition(is_started);
    let mut crashed: Vec<String> =
        started.into_iter().filter_map(|name| crashed_daemon(tree, name)).collect();
    let is_active = |unit: &&str| {
        is_file_name(unit) && tree.target(&format!("{INVOCATIONS}/invocation:{unit}")).is_some()
    };
    let (active, inactive): (Vec<&str>, Vec<&str>) =
        units.iter().map(String::as_str).partition(is_active);
    let missing: Vec<&str> = missing.into_iter().map(String::as_str).chain(inactive).collect();
    let is_tested = !active.is_empty();
    match is_tested.then(|| context.probe.unit_properties(PROPERTIES, &active)).flatten() {
        Some(Ok(properties)) => crashed.extend(crashed_units(&properties, uptime(tree))),
        Some(Err(error)) => return unproven(NAME, error.to_string(), REMEDY),
        None => {}
    }
    if missing.is_empty() && crashed.is_empty() {
        return pass(NAME, format!("{} started", required.len() + units.len()));
    }
    let list = |label: &str, names: Vec<&str>| {
        (!names.is_empty()).then(|| format!("{label}: {}", names.join(", ")))
    };
    let missing = list("not started", missing);
    let crashed = list("crashed", crashed.iter().map(String::as_str).collect());
    let detail = missing.into_iter().chain(crashed).collect::<Vec<_>>().join("; ");
    fail(NAME, detail, REMEDY)
}

/// Returns the units of an output of `systemctl show` that crash again and again. Units are
/// separated by empty lines. Pure.
fn crashed_units(properties: &str, uptime: Duration) -> Vec<String> {
    let crashed = properties.split("\n\n").filter_map(|unit| {
        let number = |key: &str| value(unit, key).parse::<u64>().unwrap_or(0);
        let restarts = number("NRestarts");
        let since = Duration::from_micros(number("ActiveEnterTimestampMonotonic"));
        let is_new = uptime.saturating_sub(since) < STABLE;
        let is_crashing = restarts >= MAX_RESTARTS && is_new;
        (value(unit, "SubState") == AUTO_RESTART || is_crashing)
            .then(|| format!("{} ({restarts} restarts)", value(unit, "Id")))
    });
    crashed.collect()
}

/// Returns the first daemon of a service that does not run.
fn crashed_daemon(tree: &Tree, service: &str) -> Option<String> {
    if !failpoint::defends("crashed-services") {
        return None;
    }
    let folder = format!("{DAEMONS}/{service}");
    let daemons = tree.list(&folder);
    let dead = daemons.into_iter().filter_map(|number| tree.read(&format!("{folder}/{number}")));
    dead.filter(|daemon| !runs(tree, daemon))
        .map(|daemon| format!("{service} ({})", value(&daemon, "exec")))
        .next()
}

/// Returns whether a daemon runs: by its pidfile, else by the program of any process.
fn runs(tree: &Tree, daemon: &str) -> bool {
    match (value(daemon, "pidfile"), value(daemon, "exec")) {
        ("", "") => true,
        ("", exec) => tree.processes().any(|process| {
            let line = tree.read(&format!("/proc/{process}/cmdline")).unwrap_or_default();
            line.split('\0').next() == Some(exec)
                || tree.target(&format!("/proc/{process}/exe")).as_deref() == Some(exec)
        }),
        (pidfile, _) => tree.number::<u32>(pidfile).is_some_and(|process| is_alive(tree, process)),
    }
}

fn is_alive(tree: &Tree, process: u32) -> bool {
    let status = tree.read(&format!("/proc/{process}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(ZOMBIE))
}

/// Returns the value of a line `key=value`.
fn value<'a>(daemon: &'a str, key: &str) -> &'a str {
    daemon.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    #[test]
    fn started_service_whose_daemon_is_dead_has_crashed() {
        let fake = FakeMachine::new("", &[]);
        let dead = || crashed_daemon(&fake.tree, "sshd");
        assert_eq!(dead(), None, "it has no daemon");
        fake.file(
            "run/openrc/daemons/sshd/001",
            "exec=/usr/sbin/sshd\nargv_0=/usr/sbin/sshd\npidfile=/run/sshd.pid\n",
        );
        let crashed = Some("sshd (/usr/sbin/sshd)".to_owned());
        assert_eq!(dead(), crashed, "there is no pidfile");
        fake.file("run/sshd.pid", "7\n");
        assert_eq!(dead(), crashed, "there is no such process");
        fake.file("proc/7/status", "Name:\tsshd\nState:\tS (sleeping)\n");
        assert_eq!(dead(), None);
        fake.file("proc/7/status", "Name:\tsshd\nState:\tZ (zombie)\n");
        assert_eq!(dead(), crashed);
    }

    #[test]
    fn unit_that_restarts_again_and_again_has_crashed() {
        let unit = |state: &str, restarts: u32, since: u64| {
            let since = since * 1_000_000;
            format!(
                "Id=a.service\nSubState={state}\nNRestarts={restarts}\nActiveEnterTimestampMonotonic={since}\n"
            )
        };
        let crashed = |unit: &str| crashed_units(unit, Duration::from_secs(1000));
        let found = |restarts: u32| vec![format!("a.service ({restarts} restarts)")];
        assert_eq!(crashed(&unit("auto-restart", 1, 0)), found(1), "it waits for its next start");
        assert_eq!(crashed(&unit("running", 3, 990)), found(3), "it runs between two crashes");
        assert!(crashed(&unit("running", 3, 900)).is_empty(), "it runs for a minute");
        assert!(crashed(&unit("running", 2, 999)).is_empty(), "it was restarted");
        let mount = "Id=b.mount\nSubState=mounted\nActiveEnterTimestampMonotonic=999000000\n";
        let both = format!("{mount}\n{}", unit("auto-restart", 9, 0));
        assert_eq!(crashed(&both), found(9));
        assert!(crashed("").is_empty());
    }

    #[test]
    fn daemon_without_pidfile_is_found_by_its_program() {
        let fake = FakeMachine::new("", &[]);
        fake.file("run/openrc/daemons/x/001", "exec=/usr/bin/x\n");
        assert!(crashed_daemon(&fake.tree, "x").is_some());
        fake.file("proc/9/cmdline", "/usr/bin/x\0--flag\0");
        assert_eq!(crashed_daemon(&fake.tree, "x"), None);
    }
}
