//! The remedy of the documentation for a node that failed, serves, and did not return.

use super::rack::{Rack, count};
use crate::world::{World, eventually, stderr};
use serde_json::Value;
use std::fs;

/// The site with a gate that refuses as soon as the file `verdict` exists. It notes its node in the
/// file `gated` first.
fn refusing_gate(world: &World) {
    let gated = world.path("gated");
    let verdict = world.path("verdict");
    let script = format!(
        "echo $MESHD_NAME > '{}'; while [ ! -e '{}' ]; do sleep 0.2; done; exit 1",
        gated.display(),
        verdict.display()
    );
    let gate = format!("program = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\ntimeout = \"4m\"");
    world.edit_site("[profiles.compute]", &format!("[programs.slow]\n{gate}\n[profiles.compute]"));
}

fn order(rack: &Rack, words: &[&str]) {
    let output = rack.world.meshd(&[&["node"], words].concat());
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
}

fn node(rack: &Rack, name: &str) -> Value {
    rack.nodes().into_iter().find(|node| node["name"] == name).expect("a node")
}

/// Waits for the phase of a node, while machines reboot as ordered.
fn wait_for_phase(rack: &mut Rack, name: &str, phase: &str) -> Value {
    eventually(&format!("{name} is {phase}"), || {
        rack.reboot_ordered();
        let node = node(rack, name);
        if node["phase"] == phase { Ok(node) } else { Err(node.to_string()) }
    })
}

#[test]
fn failed_node_that_serves_returns_by_drain_reboot_and_resume() {
    let mut rack = Rack::of(3, refusing_gate);
    let options = ["--profile", "compute", "--wave", "1", "--floor", "2", "--gate", "slow"];
    let id = rack.start_with(&options);
    let failed = eventually("the gate runs", || {
        rack.reboot_ordered();
        let name = fs::read_to_string(rack.world.path("gated")).unwrap_or_default();
        let name = name.trim().to_owned();
        if name.is_empty() { Err("it does not run".to_owned()) } else { Ok(name) }
    });
    // The floor breaks while the gate looks at the canary.
    let is_other = |node: &Value| node["name"] != failed;
    let other = rack.nodes().into_iter().find(is_other).expect("another node");
    let other = other["name"].as_str().unwrap().to_owned();
    order(&rack, &["drain", &other, "--yes"]);
    wait_for_phase(&mut rack, &other, "maintenance");
    fs::write(rack.world.path("verdict"), "").unwrap();
    let ended = rack.run(&id);
    assert_eq!((&ended["rollout"]["state"], count(&ended, "failed")), (&"failed".into(), 1));
    let records = ended["nodes"].as_array().unwrap();
    let reason = records.iter().find(|node| node["stage"] == "failed").unwrap()["reason"].clone();
    assert!(reason.as_str().unwrap().contains("it did not return: it is online"), "{reason}");
    let left = node(&rack, &failed);
    assert_eq!((&left["phase"], &left["profile"]), (&"online".into(), &"discovery".into()));
    assert_ne!(left["generation"], left["next_generation"], "it runs what the gate refused");

    // The remedy of docs/operations/rollouts.md.
    order(&rack, &["resume", &other]);
    wait_for_phase(&mut rack, &other, "online");
    order(&rack, &["drain", &failed, "--yes"]);
    wait_for_phase(&mut rack, &failed, "maintenance");
    let before = node(&rack, &failed)["boot"]["session"].clone();
    order(&rack, &["reboot", &failed, "--yes"]);
    let back = eventually("the node has rebooted", || {
        rack.reboot_ordered();
        let node = node(&rack, &failed);
        let is_back = node["boot"]["session"] != before
            && node["generation"] == node["next_generation"]
            && node["phase"] == "maintenance";
        if is_back { Ok(node) } else { Err(node.to_string()) }
    });
    assert_eq!(back["profile"], "discovery", "{back}");
    order(&rack, &["resume", &failed]);
    wait_for_phase(&mut rack, &failed, "online");
}
