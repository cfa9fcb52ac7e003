//! Every kind of dropped or refused request of a foreign client has a counter, and a line of the
//! log that is not repeated.

use crate::world::{CENTRAL, World, eventually};
use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

/// Requests of each kind.
const COUNT: usize = 3;
const OWN: &str = "10.77.0.66";
const OWN_GLOBAL: &str = "2001:db8::66";

/// Counter, its label, and words of its log line.
const DROPS: [(&str, &str, &str); 13] = [
    ("meshd_dhcp_dropped_total", "reason=\"malformed\"", "it is no DHCP request of a client"),
    ("meshd_dhcp_dropped_total", "reason=\"source_port\"", "clients send from port 68"),
    ("meshd_dhcp_dropped_total", "reason=\"no_address\"", "it names no address"),
    ("meshd_dhcp_dropped_total", "reason=\"unproven_sender\"", "its sender is not proven"),
    ("meshd_dhcp_dropped_total", "reason=\"unfounded\"", "it gives up an address"),
    (
        "meshd_tftp_refused_total",
        "cause=\"malformed\"",
        "at the TFTP port is no packet of a client",
    ),
    ("meshd_tftp_refused_total", "cause=\"illegal\"", "cannot be read: refused"),
    ("meshd_tftp_refused_total", "cause=\"write\"", "TFTP write request"),
    ("meshd_tftp_refused_total", "cause=\"mode\"", "in text mode"),
    ("meshd_tftp_refused_total", "cause=\"not_found\"", "\"nosuch\""),
    ("meshd_http_unread_requests_total", "cause=\"malformed\"", "to the boot API is refused"),
    ("meshd_http_unread_requests_total", "cause=\"too_large\"", "to the boot API is refused"),
    ("meshd_ndp_dropped_total", "reason=\"sender\"", OWN_GLOBAL),
];

fn run(world: &World, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = world.nodes.spawn(&mut command).unwrap().wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the series of the metrics page, such as `name{label="value"}`, with their values.
fn series(world: &World) -> BTreeMap<String, f64> {
    let page =
        run(world, "curl", &["-sS", "-f", "-m", "60", &format!("http://{CENTRAL}:9109/metrics")]);
    let pairs =
        page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn every_dropped_request_is_counted_and_logged_once() {
    let mut world = World::prepared("auto");
    world.edit_site(
        "[enroll]",
        &format!("[metrics]\naddress = \"{CENTRAL}\"\nport = 9109\n[enroll]"),
    );
    world.start();
    world.nodes.ip(&["address", "add", &format!("{OWN}/24"), "dev", "eth0"]).unwrap();
    world
        .nodes
        .ip(&["address", "add", &format!("{OWN_GLOBAL}/64"), "dev", "eth0", "nodad"])
        .unwrap();
    run(
        &world,
        "python3",
        &["-c", include_str!("drops.py"), CENTRAL, OWN, OWN_GLOBAL, &COUNT.to_string()],
    );
    eventually("all drops are counted", || {
        let series = series(&world);
        let count = |(name, label, _): &(&str, &str, &str)| {
            series.get(&format!("{name}{{{label}}}")).copied()
        };
        let other: Vec<_> = DROPS.iter().filter(|drop| count(drop) != Some(COUNT as f64)).collect();
        let seen: Vec<_> = other.iter().map(|drop| (drop, count(drop))).collect();
        if other.is_empty() { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    let log = world.log_text();
    for (name, label, words) in DROPS {
        let lines =
            log.lines().filter(|line| line.contains("WARN") && line.contains(words)).count();
        assert!(lines > 0, "{name} {label}: {words}\n{log}");
        assert!(lines < 2 * COUNT, "{name} {label}: each request has a line\n{log}");
    }
}
