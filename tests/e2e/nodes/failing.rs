//! Parts of a node that fail: a disk with an unreadable sector, a disk that hangs, a service that
//! dies. The node says so and goes on.

use crate::{
    overlays,
    racks::{BOOT, OrEnd, until_phase, up},
};
use meshd_lab::{Extra, Wait};
use serde_json::Value;
use std::time::{Duration, Instant};

const NODE: u8 = 1;
const HEARTBEAT: &str = "5s";
const OFFLINE_AFTER: &str = "20s";
/// Several times [`OFFLINE_AFTER`]. The hanging disk hangs for hours.
const WATCHED: Duration = Duration::from_secs(75);
/// All checks run again within a minute.
const CHECKED: Duration = Duration::from_secs(180);
/// A service whose daemon dies as soon as the agent has reported that all is well.
const DOOMED: &str = r#"#!/sbin/openrc-run
description="dies"
command=/bin/sleep
command_args=1000000
command_background=yes
pidfile=/run/doomed.pid

kill_later() {
	until grep -q "check report sent.*failures=0" /var/log/messages; do sleep 1; done
	kill -9 "$(cat /run/doomed.pid)"
}

start_post() {
	kill_later >/dev/null 2>&1 &
}
"#;

fn disk<'a>(node: &'a Value, serial: &str) -> &'a Value {
    let disks = node["facts"]["disks"].as_array().map(Vec::as_slice).unwrap_or_default();
    disks
        .iter()
        .find(|disk| disk["serial"] == serial)
        .unwrap_or_else(|| panic!("no {serial} in {node}"))
}

#[test]
fn node_reports_its_bad_disks_and_its_dead_service_and_stays_linked() {
    let mut test = up(|mut options, dir| {
        options.nodes = 1;
        options.extras = vec![vec![Extra::Disk, Extra::BadDisks]];
        options
            .set("enroll.policy", "auto")
            .set("agent.heartbeat", HEARTBEAT)
            .set("agent.offline_after", OFFLINE_AFTER)
            .set(
                "site.overlays_dir",
                &overlays::with_service(dir, "doomed", DOOMED).display().to_string(),
            )
            .set("defaults.profile", "doomed")
            .set("profiles.doomed.extends", "discovery")
            .set("profiles.doomed.overlays", r#"["doomed"]"#)
            // blkid of util-linux, which tells whether a disk is empty.
            .set("profiles.doomed.bundles", r#"["qemu"]"#)
    });
    let rack = &mut test.rack;
    until_phase(rack, NODE, "online", BOOT);
    let node = rack.query(&["node", "show", &rack.id(NODE).to_string()]).or_end();
    assert_eq!(disk(&node, "LAB-DISK")["blocked"], Value::Null, "the good disk beside them");
    let why = |serial: &str| disk(&node, serial)["blocked"].as_str().unwrap_or_default().to_owned();
    assert!(why("LAB-UNREADABLE").contains("read"), "{}", why("LAB-UNREADABLE"));
    assert!(why("LAB-HANGING").contains("within 5 s"), "{}", why("LAB-HANGING"));

    // DR-14.
    let is_degraded =
        |node: &Value| node["phase"] == "degraded" && node.to_string().contains("doomed");
    rack.wait_node(NODE, CHECKED, "degraded, for its dead service", is_degraded).or_end();

    // Heartbeats come while a thread of the agent waits for the disk.
    let mut heartbeats: Vec<String> = Vec::new();
    let id = rack.id(NODE).to_string();
    let end = Instant::now() + WATCHED;
    rack.wait(WATCHED * 2, "heartbeats while a disk hangs", |rack| {
        let shown = rack.query(&["node", "show", &id])?;
        assert_eq!(shown["phase"], "degraded", "it does not fall silent: {heartbeats:?}");
        let seen = shown["last_seen"].as_str().unwrap_or_default().to_owned();
        if heartbeats.last() != Some(&seen) {
            heartbeats.push(seen);
        }
        Ok(Wait::some((Instant::now() > end).then_some(()), format!("heard at {heartbeats:?}")))
    })
    .or_end();
    assert!(heartbeats.len() > 8, "a heartbeat each {HEARTBEAT}: {heartbeats:?}");
}
