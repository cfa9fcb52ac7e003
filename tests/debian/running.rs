//! A running Debian node has what stage 1 set up: the clock, the writable layer and the lease. It
//! runs a container, of which nothing stays.

use crate::{
    NODE, containers,
    racks::{OrEnd, SOON},
};
use meshd_lab::{Rack, Wait};
use serde_json::Value;
use std::{process::Command, time::Duration};

/// Longer than half of a lease, after which its owner renews it.
const RENEWAL: Duration = Duration::from_secs(180);
/// No board without a battery has run for so long, in seconds.
const LATE: u64 = 365 * 86_400;
/// Fills the writable layer of 256 MiB, and empties it.
const FILL: &str = "df --output=size -m / | tail -n 1; \
     dd if=/dev/zero of=/var/lib/fill bs=1M count=512 2>&1 | grep -o 'No space left on device'; \
     stat -c %s /var/lib/fill; rm /var/lib/fill";
/// What replicas use: mounts, control groups, loop devices, files.
const USED: &str = "grep -c meshd-containers /proc/mounts; \
     find /sys/fs/cgroup -type d -path '*meshd-containers*/*' | wc -l; \
     cat /sys/block/loop*/loop/backing_file 2>/dev/null | sort; \
     ls -d /run/meshd-containers/*.* /run/meshd-containers/runtime/* 2>/dev/null; true";

pub fn keeps_what_stage_1_set_up(rack: &Rack, node: &Value) {
    let expires = lease_end(rack, node);
    keeps_its_time(rack);
    has_its_machine_id(rack);
    has_a_bounded_writable_layer(rack);
    let used = shell(rack, USED);
    containers::serve_on_nodes_and_leave_nothing(rack, std::slice::from_ref(node));
    rack.wait(SOON, "nothing of the container stays", |rack| {
        let now = shell(rack, USED);
        Ok(Wait::on(now == used, format!("before: {used}now: {now}")))
    })
    .or_end();
    renews_its_lease(rack, node, &expires);
}

/// Runs a script as root on the node.
fn shell(rack: &Rack, script: &str) -> String {
    let id = rack.id(NODE).to_string();
    rack.run_cli(&["node", "exec", "--user", "root", &id, "--", "/bin/sh", "-c", script]).or_end()
}

/// The board woke up in 1970, and stage 1 set the clock.
fn keeps_its_time(rack: &Rack) {
    let serial = rack.serial(NODE);
    let (_, line) = serial.rsplit_once("stage1: clock set from ").expect("it was wrong");
    let before = line.split(' ').next().and_then(|seconds| seconds.parse().ok());
    assert!(before.is_some_and(|seconds: u64| seconds < LATE), "{line:.80}");
    let seconds = |text: &str| text.trim().parse::<u64>().expect("seconds");
    let here = Command::new("date").arg("+%s").output().expect("date");
    let here = seconds(&String::from_utf8_lossy(&here.stdout));
    let there = seconds(&shell(rack, "date +%s"));
    assert!(there.abs_diff(here) < 120, "{there} on the node, {here} here");
}

/// systemd uses the ID that meshd derives from that of the node, which each boot brings.
fn has_its_machine_id(rack: &Rack) {
    let id = rack.id(NODE).to_string();
    let archive = rack.dir().join("rendered.tar.gz");
    let out = archive.to_str().expect("plain");
    rack.run_cli(&["overlay", "render", &id, "--out", out]).or_end();
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--to-stdout", "--file", out, "etc/machine-id"]);
    let rendered = String::from_utf8(tar.output().expect("tar").stdout).expect("UTF-8");
    assert_eq!(rendered.trim().len(), 32, "{rendered}");
    assert_eq!(shell(rack, "cat /etc/machine-id"), rendered);
}

/// A full layer refuses to grow, and the node works on.
fn has_a_bounded_writable_layer(rack: &Rack) {
    let told = shell(rack, FILL);
    let lines: Vec<&str> = told.lines().map(str::trim).collect();
    let [size, error, written] = lines[..] else { panic!("{told}") };
    assert_eq!((size, error), ("256", "No space left on device"), "{told}");
    let written: u64 = written.parse().expect("bytes");
    assert!(written > 128 << 20 && written < 256 << 20, "{told}");
}

/// When the only lease of the node's NIC ends.
fn lease_end(rack: &Rack, node: &Value) -> String {
    let leases = rack.query(&["dhcp", "leases"]).or_end();
    let leases = leases.as_array().into_iter().flatten();
    let leases: Vec<&Value> = leases.filter(|lease| lease["mac"] == node["mac"]).collect();
    let [lease] = leases[..] else { panic!("one lease: {leases:?}") };
    assert_eq!((&lease["address"], &lease["state"]), (&node["address"], &"active".into()));
    lease["expires_at"].to_string()
}

/// The network of the OS renews the lease that stage 1 took: the server knows it by its client ID.
fn renews_its_lease(rack: &Rack, node: &Value, before: &str) {
    let mut ends = vec![before.to_owned()];
    rack.wait(RENEWAL, "two renewals of the lease", |rack| {
        let end = lease_end(rack, node);
        if ends.last() != Some(&end) {
            ends.push(end);
        }
        Ok(Wait::on(ends.len() > 2, format!("{ends:?}")))
    })
    .or_end();
    let address = shell(rack, "ip -4 -o address show scope global");
    assert_eq!(address.lines().count(), 1, "{address}");
    assert!(address.contains(node["address"].as_str().expect("an address")), "{address}");
}
