//! Rollouts to a generation, with programs of the site: a good one is a pin of all nodes, a bad one
//! fails at its canary, which returns to its pin.

use super::rack::{Rack, boots, count};
use crate::world::stderr;
use serde_json::Value;
use std::fs;

/// The site with programs that note their calls, and one that hangs.
fn rack(nodes: u8) -> Rack {
    Rack::of(nodes, |world| {
        let log = world.path("calls");
        let note = format!("echo $MESHD_POINT $MESHD_NAME >> '{}'", log.display());
        let note = format!("program = \"/bin/sh\"\nargs = [\"-c\", \"{note}\"]");
        let hangs = "program = \"/bin/sleep\"\nargs = [\"1000\"]\ntimeout = \"1s\"";
        let programs =
            format!("[programs.note]\n{note}\n[programs.hangs]\n{hangs}\n[profiles.compute]");
        world.edit_site("[profiles.compute]", &programs);
    })
}

/// Adds a generation of the profile of all nodes; returns its digest.
fn revise(rack: &Rack, from: &str, to: &str) -> String {
    rack.world.edit_site(from, to);
    let reload = rack.world.meshd(&["reload"]);
    assert!(reload.status.success(), "{}", stderr(&reload));
    let history = rack.world.json(&["profile", "history", "discovery", "-o", "json"]);
    history[0]["generation"].as_str().unwrap().to_owned()
}

fn calls(rack: &Rack) -> Vec<String> {
    let text = fs::read_to_string(rack.world.path("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn generation_is_rolled_out_as_a_pin_and_a_bad_one_returns_to_it() {
    let mut rack = rack(2);
    let good = revise(&rack, "store_fail_gb = 1", "store_fail_gb = 1, memory_mib = 100");
    let bad = revise(&rack, "memory_mib = 100", "memory_mib = 9000");
    let programs = ["--before-leave", "note", "--gate", "note", "--after-return", "note"];
    let options =
        |generation| [&["--generation", generation, "--wave", "1"], &programs[..]].concat();
    let id = rack.start_with(&options(&good[..16]));
    let ended = rack.run(&id);
    assert_eq!((&ended["rollout"]["state"], count(&ended, "done")), (&"done".into(), 2), "{ended}");
    let nodes = rack.nodes();
    for node in &nodes {
        assert_eq!((&node["phase"], &node["pinned"]), (&"online".into(), &node["generation"]));
        let name = node["name"].as_str().unwrap();
        let own: Vec<_> = calls(&rack).into_iter().filter(|call| call.ends_with(name)).collect();
        let points = ["before-leave", "gate", "after-return"];
        assert_eq!(own, points.map(|point| format!("{point} {name}")));
    }
    let pins =
        |nodes: &[Value]| nodes.iter().map(|node| node["pinned"].clone()).collect::<Vec<_>>();

    let before = boots(&nodes);
    let id = rack.start_with(&options(&bad));
    let ended = rack.run(&id);
    assert_eq!(ended["rollout"]["state"], "failed", "{ended}");
    assert_eq!((count(&ended, "returned"), count(&ended, "waiting")), (1, 1), "{ended}");
    let after = rack.nodes();
    assert_eq!(pins(&after), pins(&nodes), "the canary has its pin back");
    let moved = boots(&after).into_iter().filter(|(id, boot)| before[id] != *boot);
    assert_eq!(moved.count(), 1, "the other node never left");
}

#[test]
fn program_that_hangs_is_killed_and_its_node_never_leaves() {
    let mut rack = rack(2);
    let before = boots(&rack.nodes());
    let id = rack.start_with(&["--reboot", "--wave", "1", "--before-leave", "hangs"]);
    let ended = rack.run(&id);
    let reason = ended["rollout"]["reason"].as_str().unwrap();
    assert!(
        reason.contains("before-leave program hangs: /bin/sleep: no end within 1 s"),
        "{reason}"
    );
    assert_eq!((count(&ended, "failed"), count(&ended, "waiting")), (1, 1), "{ended}");
    assert_eq!(boots(&rack.nodes()), before);
}

#[test]
fn plan_names_the_generation_of_an_image_and_refuses_what_no_node_can_boot() {
    let rack = rack(1);
    let version = rack.world.json(&["profile", "history", "discovery", "-o", "json"])[0]["version"]
        .as_str()
        .unwrap()
        .to_owned();
    let image = format!("small@{}", &version[..8]);
    let plan = |options: &[&str]| {
        let words = [&["rollout", "plan", "node-*", "-o", "json"], options].concat();
        rack.world.meshd(&words)
    };
    let planned = plan(&["--image", &image]);
    let planned: Value = serde_json::from_slice(&planned.stdout).expect("a plan");
    assert_eq!(planned["rollout"]["target"]["to"], "image", "{planned}");
    for (options, why) in [
        (["--image", "small@00000000"], "has no generation `small@00000000`"),
        (["--generation", "ffffffff"], "has no generation `ffffffff`"),
        (["--reboot", "--gate=none"], "the site file has no program `none`"),
        (["--reboot", "--window=25:00-26:00"], "is not a part of a day"),
    ] {
        let refused = plan(&options);
        assert!(
            !refused.status.success() && stderr(&refused).contains(why),
            "{}",
            stderr(&refused)
        );
    }
}
