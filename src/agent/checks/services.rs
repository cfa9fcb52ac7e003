//! Checks that services are started and run. OpenRC lists a service as started even after its
//! daemon crashed; `/run/openrc/daemons/NAME/NUMBER` describes the daemon. systemd has the link
//! `/run/systemd/units/invocation:UNIT` while a unit is active, or waits for its next start.

use super::{Context, fail, pass, skip};
use crate::system::{Tree, is_file_name};
use meshd_proto::Check;
use meshd_types::failpoint;

const STARTED: &str = "/run/openrc/started";
const INVOCATIONS: &str = "/run/systemd/units";
const DAEMONS: &str = "/run/openrc/daemons";
/// State of a zombie process.
const ZOMBIE: &str = "Z";

/// Checks that every service and unit of the profile is started, and that its daemons run.
pub fn services(context: &Context) -> Check {
    const NAME: &str = "services";
    const REMEDY: &str = "see `rc-status` or `systemctl status` on the node, and `meshd node logs`";
    let tree = &context.tree;
    let required = &context.config.services;
    let units = &context.config.units;
    if required.is_empty() && units.is_empty() {
        return skip(NAME, "the profile requires no services");
    }
    let is_started = |name: &&String| is_file_name(name) && tree.has(&format!("{STARTED}/{name}"));
    let (started, missing): (Vec<&String>, Vec<&String>) = required.iter().partition(is_started);
    let crashed: Vec<String> =
        started.into_iter().filter_map(|name| crashed_daemon(tree, name)).collect();
    let is_active = |unit: &str| {
        is_file_name(unit) && tree.target(&format!("{INVOCATIONS}/invocation:{unit}")).is_some()
    };
    let inactive = units.iter().map(String::as_str).filter(|unit| !is_active(unit));
    let missing: Vec<&str> = missing.into_iter().map(String::as_str).chain(inactive).collect();
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
    fn daemon_without_pidfile_is_found_by_its_program() {
        let fake = FakeMachine::new("", &[]);
        fake.file("run/openrc/daemons/x/001", "exec=/usr/bin/x\n");
        assert!(crashed_daemon(&fake.tree, "x").is_some());
        fake.file("proc/9/cmdline", "/usr/bin/x\0--flag\0");
        assert_eq!(crashed_daemon(&fake.tree, "x"), None);
    }
}
