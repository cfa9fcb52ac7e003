//! Bisections with the real daemon and a real agent.

use super::rack::{Rack, boots};
use crate::world::{eventually, stderr};
use serde_json::Value;
use std::fs;

const GENERATIONS: usize = 17;

/// One node, the generations of its profile, the oldest first, and a check that reads the bad ones
/// from a file.
fn rack() -> (Rack, Vec<String>) {
    let rack = Rack::of(1, |world| {
        let bad = world.path("bad");
        let check = format!("! grep -q $MESHD_GOAL '{}'", bad.display());
        // Each second run has another result.
        let flag = world.path("flag");
        let flaps = format!("test -e '{0}' && rm '{0}' && exit 1; touch '{0}'", flag.display());
        let program = |name: &str, script: &str| {
            format!("[programs.{name}]\nprogram = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n")
        };
        let programs = [program("jobs", &check), program("flaps", &flaps)].concat();
        world.edit_site("[profiles.compute]", &format!("{programs}[profiles.compute]"));
    });
    let mut before = "store_fail_gb = 1".to_owned();
    for number in 1..GENERATIONS {
        let after = format!("store_fail_gb = 1, memory_mib = {number}");
        rack.world.edit_site(&before, &after);
        let reload = rack.world.meshd(&["reload"]);
        assert!(reload.status.success(), "{}", stderr(&reload));
        before = after;
    }
    let history = rack.world.json(&["profile", "history", "discovery", "-o", "json"]);
    let digests = history.as_array().unwrap().iter().rev();
    let digests: Vec<String> =
        digests.map(|one| one["generation"].as_str().unwrap().to_owned()).collect();
    assert_eq!(digests.len(), GENERATIONS);
    (rack, digests)
}

/// Runs the last bisection to its end. The daemon is killed after each of its boots.
fn run(rack: &mut Rack, kills: bool) -> Value {
    let mut tested = 0;
    loop {
        let found = eventually("the bisection proceeds", || {
            rack.reboot_ordered();
            let all = rack.world.json(&["bisect", "list", "-o", "json"]);
            let last = all.as_array().unwrap().last().unwrap().clone();
            let probes = last["probes"].as_array().unwrap();
            let count = probes.iter().filter(|probe| !probe["verdict"].is_null()).count();
            let is_over = ["done", "failed", "aborted"].contains(&last["state"].as_str().unwrap());
            if count > tested || is_over { Ok(last) } else { Err(last.to_string()) }
        });
        if ["done", "failed", "aborted"].contains(&found["state"].as_str().unwrap()) {
            return found;
        }
        tested += 1;
        if kills {
            rack.world.kill();
            rack.world.start();
        }
    }
}

fn start(rack: &Rack, digests: &[String], check: &str) {
    let [good, bad] = [&digests[0][..16], &digests[GENERATIONS - 1]];
    let words = ["bisect", "node-*", "--good", good, "--bad", bad, "--check", check];
    let options = ["--soak", "1s", "--node-timeout", "10m", "--yes", "--no-wait"];
    let started = rack.world.meshd(&[&words[..], &options[..]].concat());
    assert!(started.status.success(), "{}", stderr(&started));
}

#[test]
fn planted_generation_is_found_among_16_in_4_boots_of_a_node_that_returns() {
    let (mut rack, digests) = rack();
    fs::write(rack.world.path("bad"), digests[11..].join("\n")).unwrap();
    let before = rack.nodes();
    start(&rack, &digests, "jobs");
    let found = run(&mut rack, true);
    assert_eq!(
        (&found["state"], &found["first_bad"]),
        (&"done".into(), &digests[11].clone().into())
    );
    assert_eq!(found["probes"].as_array().unwrap().len(), 4, "{found}");
    let after = rack.nodes();
    assert_eq!(after[0]["phase"], "online");
    assert_eq!(after[0]["generation"], before[0]["generation"], "it runs what it ran");
    assert_eq!(after[0]["pinned"], before[0]["generation"], "its profile has moved on");
    assert_ne!(boots(&after), boots(&before));
    let boots = rack.world.events("boot_started").len();
    assert_eq!(boots, 1 + 4 + 1, "its first boot, four probes, its return");
}

#[test]
fn check_that_flaps_ends_the_bisection_as_not_deterministic() {
    let (mut rack, digests) = rack();
    start(&rack, &digests, "flaps");
    let found = run(&mut rack, false);
    assert_eq!(found["state"], "failed", "{found}");
    let reason = found["reason"].as_str().unwrap();
    assert!(reason.starts_with("the check is not deterministic: "), "{reason}");
    assert!(reason.contains("it passed 1 of 2 runs"), "{reason}");
    let refused = rack.world.meshd(&[
        "bisect",
        "node-*",
        "--good",
        &digests[3],
        "--bad",
        &digests[2],
        "--check",
        "jobs",
        "--yes",
    ]);
    assert!(stderr(&refused).contains("the good generation is not older"), "{}", stderr(&refused));
}
