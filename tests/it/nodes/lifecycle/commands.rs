//! The words of the command line, with the real daemon and the real agent.

use crate::world::{World, eventually, node::PxeNode, stderr};
use serde_json::Value;
use std::fs;

/// A verb that has to succeed.
fn tell(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    let talk = stderr(&output);
    assert!(output.status.success(), "{args:?}: {talk}");
    talk
}

fn shown(world: &World, id: &str) -> Value {
    world.json(&["node", "show", id, "-o", "json"])
}

#[test]
fn waiting_machine_shows_facts_and_is_approved_by_a_new_rule() {
    let world = World::new("approve");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let waiting = eventually("it tells of itself", || {
        let shown = shown(&world, &id);
        if shown["facts"].is_null() { Err(shown.to_string()) } else { Ok(shown) }
    });
    assert_eq!(waiting["phase"], "discovered");
    assert_eq!(waiting["fingerprint"]["serial"], "SN-1");
    let site = fs::read_to_string(world.path("site.toml")).unwrap();
    let rule = "[[enroll.rule]]\nname = \"bought\"\nserials = [\"SN-1\"]\n";
    fs::write(world.path("site.toml"), site + rule).unwrap();
    tell(&world, &["reload"]);
    world.wait_for_phase("online");
    let approved = world
        .events("phase")
        .into_iter()
        .find(|event| event["to"] == "approved")
        .expect("an event");
    assert_eq!(approved["by"]["actor"], "rule:bought", "{approved}");
    assert_eq!(machine.world.events("boot_started").len(), 1, "without a reboot");
}

#[test]
fn reservation_names_a_node_until_an_operator_renames_it() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    machine.boot();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    assert_eq!(world.node()["name"], format!("node-{id}"));

    let site = fs::read_to_string(world.path("site.toml")).unwrap();
    let reservation = format!("[[reservation]]\nmac = \"{}\"\nname = \"web-1\"\n", machine.mac);
    fs::write(world.path("site.toml"), site + reservation.as_str()).unwrap();
    tell(&world, &["reload"]);
    machine.boot();
    assert_eq!(world.node()["name"], "web-1");
    assert_eq!(shown(&world, "web-1")["id"].as_str(), Some(id.as_str()), "verbs accept the name");
    let renamed = world.events("renamed");
    assert_eq!(renamed.len(), 1, "{renamed:?}");

    tell(&world, &["node", "rename", "web-1", "db-1"]);
    machine.boot();
    assert_eq!(world.node()["name"], "db-1", "the name of an operator stays");
}

#[test]
fn running_node_is_drained_resumed_and_removed_by_commands() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let agent = machine.start_agent(&overlay);
    let id = world.wait_for_phase("online")["id"].as_str().unwrap().to_owned();

    tell(&world, &["node", "drain", &id, "--reason", "new memory"]);
    world.wait_for_phase("maintenance");
    let drained = world
        .events("phase")
        .into_iter()
        .find(|event| event["by"]["verb"] == "drain")
        .expect("an event");
    assert_eq!(drained["by"]["reason"], "new memory", "{drained}");
    tell(&world, &["node", "resume", &id]);
    world.wait_for_phase("online");

    let unconfirmed = world.meshd(&["node", "remove", &id]);
    assert_eq!(unconfirmed.status.code(), Some(1), "nobody at a terminal to ask");
    assert_eq!(world.node()["phase"], "online");
    let talk = tell(&world, &["node", "remove", &id, "--yes", "--reason", "sold"]);
    assert!(talk.contains("removed"), "{talk}");
    // Before the answer came: there is no link, and nobody that it counts for.
    assert!(shown(&world, &id)["link_since"].is_null());
    assert_eq!(world.json(&["node", "list", "-o", "json"]).as_array().map(Vec::len), Some(0));
    let gone = world.json(&["node", "list", "--removed", "-o", "json"]);
    assert_eq!(
        (gone[0]["id"].as_str(), gone[0]["phase"].as_str()),
        (Some(id.as_str()), Some("removed"))
    );
    eventually("its agent is told, and comes back in vain", || {
        let log = agent.log();
        if log.contains("removed this node") && log.contains("refused") { Ok(()) } else { Err(log) }
    });
    assert_eq!(world.events("boot_impersonated").len(), 0, "it is no stranger");
    drop(agent);

    machine.boot();
    let back = world.wait_for_phase("booting");
    assert_eq!(
        back["id"].as_str(),
        Some(id.as_str()),
        "under auto it is let in again, with the same ID"
    );
    assert_eq!(world.events("discovered").len(), 2);
}
