//! What a node runs against what it would boot: conditions, history, differences, pins.

use super::{
    done, refused,
    reload::{edit, put, world},
};
use crate::world::{World, eventually, node::PxeNode};
use serde_json::Value;
use std::fs;

fn conditions(world: &World) -> Vec<String> {
    let conditions = world.node()["conditions"].as_array().cloned().unwrap_or_default();
    let kinds =
        conditions.iter().filter_map(|condition| condition["kind"].as_str().map(str::to_owned));
    // Nobody orders the reboots here, which is an alarm of its own.
    kinds.filter(|kind| kind != "certificate_replaced").collect()
}

/// Waits until a condition is there, or is not.
fn settles(world: &World, kind: &str, there: bool) {
    eventually(kind, || {
        let now = conditions(world);
        if now.iter().any(|one| one == kind) == there { Ok(()) } else { Err(format!("{now:?}")) }
    });
}

/// Waits until every generation that the node was given is kept; newest first.
fn history(world: &World, id: &str) -> Vec<Value> {
    eventually("all are kept", || {
        let all = world.json(&["node", "history", id, "-o", "json"]);
        let all = all.as_array().cloned().unwrap_or_default();
        if all.iter().all(|one| one["archived"] == true) {
            Ok(all)
        } else {
            Err(format!("{all:?}"))
        }
    })
}

#[test]
fn reboot_required_is_shown_while_running_generation_differs() {
    let mut world = world();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let agent = machine.start_agent(&overlay);
    let node = world.wait_for_phase("online");
    let id = node["id"].as_str().unwrap();
    settles(&world, "reboot_required", false);
    assert_eq!(node["generation"], node["next_generation"]);
    // A profile, and back.
    done(&world, &["node", "assign-profile", id, "compute"]);
    assert_eq!(conditions(&world), ["reboot_required"]);
    let diff = world.json(&["node", "diff", id, "-o", "json"]);
    let files = diff["diff"]["files"].as_array().unwrap();
    assert!(
        files.iter().any(|file| file["path"] == "/etc/motd" && file["change"] == "added"),
        "{diff}"
    );
    assert_eq!(diff["diff"]["changed"]["profile"], serde_json::json!(["discovery", "compute"]));
    done(&world, &["node", "assign-profile", id, "discovery"]);
    assert_eq!(conditions(&world), [""; 0]);
    assert!(done(&world, &["node", "diff", id]).is_empty());
    // An overlay that was edited, and edited back: no reboot is required any more.
    let file = world.path("overlays/base/rootfs/etc/hostname.j2");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}# more\n")).unwrap();
    done(&world, &["reload"]);
    settles(&world, "reboot_required", true);
    fs::write(&file, text).unwrap();
    done(&world, &["reload"]);
    settles(&world, "reboot_required", false);
    // A kernel argument for one boot.
    done(&world, &["node", "boot-once", id, "--kernel-arg", "debug"]);
    assert_eq!(conditions(&world), ["reboot_required"]);
    done(&world, &["node", "boot-once", id, "--clear"]);
    // A change of the profile that a restart does not lose; a boot ends it.
    edit(
        &world,
        "overlays = [\"base\", \"agent\"]",
        "overlays = [\"base\", \"agent\"]\nkernel_args = [\"debug\"]",
    );
    done(&world, &["reload"]);
    settles(&world, "reboot_required", true);
    drop(agent);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    eventually("it runs what it would boot", || {
        let node = world.node();
        let settled = node["generation"] == node["next_generation"] && node["phase"] == "online";
        if settled && conditions(&world).is_empty() { Ok(()) } else { Err(node.to_string()) }
    });
    assert_eq!(history(&world, id).len(), 2);
}

#[test]
fn unknown_generation_is_drift_until_node_runs_a_known_one() {
    let mut world = world();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let mut overlay = machine.boot();
    let boot = overlay.get_mut("etc/meshd/boot.json").unwrap();
    let mut part: Value = serde_json::from_slice(&boot.1).unwrap();
    let known = part["generation"].as_str().unwrap().to_owned();
    part["generation"] = "0".repeat(64).into();
    boot.1 = serde_json::to_vec(&part).unwrap();
    let agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    settles(&world, "drift", true);
    drop(agent);
    let overlay = machine.boot();
    let again: Value = serde_json::from_slice(&overlay["etc/meshd/boot.json"].1).unwrap();
    assert_eq!(again["generation"], known, "the same input, the same generation");
    let _agent = machine.start_agent(&overlay);
    settles(&world, "drift", false);
    assert_eq!((world.events("drift").len(), world.events("discovered").len()), (1, 1));
}

#[test]
fn pinned_node_boots_same_generation_after_profile_edits() {
    let mut world = world();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let first = machine.boot();
    let agent = machine.start_agent(&first);
    let id = world.wait_for_phase("online")["id"].as_str().unwrap().to_owned();
    let pinned = history(&world, &id)[0]["generation"].as_str().unwrap().to_owned();
    done(&world, &["node", "pin", &id]);
    refused(&world, &["node", "boot-once", &id, "--kernel-arg", "debug"], &["pinned", "--off"]);
    refused(&world, &["node", "pin", &id, "--generation", "ffff"], &["node history"]);
    // Everything changes: overlay, arguments, profile; and the process.
    fs::write(world.path("overlays/base/rootfs/etc/new-file"), "new").unwrap();
    edit(&world, "overlays = [\"motd\"]", "overlays = [\"motd\"]\nkernel_args = [\"debug\"]");
    done(&world, &["reload"]);
    done(&world, &["node", "assign-profile", &id, "compute"]);
    assert!(conditions(&world).is_empty(), "it would boot what it runs");
    drop(agent);
    world.kill();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let script = machine.power_on().unwrap();
    assert!(!script.0.contains("debug"), "{}", script.0);
    let again = machine.load(&script).unwrap();
    let public = |overlay: &crate::world::node::Overlay| {
        let mut overlay = overlay.clone();
        overlay.retain(|path, _| !path.starts_with("etc/meshd/boot."));
        overlay
    };
    assert_eq!(public(&again), public(&first));
    let part: Value = serde_json::from_slice(&again["etc/meshd/boot.json"].1).unwrap();
    assert_eq!(part["generation"], pinned);
    // Let go, it is what its profile says.
    done(&world, &["node", "pin", &id, "--off"]);
    refused(&world, &["node", "pin", &id, "--off"], &["not pinned"]);
    let overlay = machine.boot();
    assert!(overlay.contains_key("etc/motd") && overlay.contains_key("etc/new-file"));
    // And back to the first one by the beginning of its name.
    done(&world, &["node", "pin", &id, "--generation", &pinned[..12]]);
    assert!(!machine.boot().contains_key("etc/new-file"));
}

#[test]
fn pin_to_damaged_or_missing_generation_is_refused() {
    let mut world = world();
    world.start();
    let machine = PxeNode::new(&world, 1);
    machine.boot();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let generation = history(&world, &id)[0]["generation"].as_str().unwrap().to_owned();
    refused(&world, &["node", "pin", &id], &["has not reported which"]);
    let kept = world.path("state/generations").join(format!("{generation}.json"));
    let bytes = fs::read(&kept).unwrap();
    fs::write(&kept, String::from_utf8(bytes.clone()).unwrap().replace("panic=10", "panic=11"))
        .unwrap();
    refused(&world, &["node", "pin", &id, "--generation", &generation], &["damaged"]);
    fs::remove_file(&kept).unwrap();
    refused(&world, &["node", "pin", &id, "--generation", &generation], &["is not archived"]);
    fs::write(&kept, bytes).unwrap();
    done(&world, &["node", "pin", &id, "--generation", &generation]);
}

#[test]
fn profile_rollback_applies_to_every_node_until_ended() {
    let mut world = world();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    let first = world.wait_for_phase("online")["generation"].clone();
    let revisions = |world: &World| {
        let all = world.json(&["profile", "history", "discovery", "-o", "json"]);
        all.as_array().cloned().unwrap_or_default()
    };
    assert_eq!(
        eventually("it is kept", || Some(revisions(&world))
            .filter(|all| all.len() == 1)
            .ok_or(String::new()))
        .len(),
        1
    );
    refused(&world, &["profile", "rollback", "discovery"], &["no earlier generation"]);
    refused(&world, &["profile", "rollback", "discovery", "--off"], &["is not rolled back"]);
    // One change at a time: meshd looks by itself too, and each that it sees is a revision.
    put(&world, "overlays/base/rootfs/etc/new-file", "new");
    done(&world, &["reload"]);
    settles(&world, "reboot_required", true);
    assert_eq!(revisions(&world).len(), 2);
    done(&world, &["profile", "rollback", "discovery"]);
    settles(&world, "reboot_required", false);
    assert_eq!(world.node()["next_generation"], first, "its nodes boot what they booted then");
    // It outlives a restart and another edit, and holds for a node that was never seen before.
    world.kill();
    world.start();
    edit(&world, "[profiles.compute]", "kernel_args = [\"quiet\"]\n[profiles.compute]");
    done(&world, &["reload"]);
    let other = PxeNode::new(&world, 2);
    let script = other.power_on().unwrap();
    assert!(!script.0.contains("quiet"), "{}", script.0);
    assert!(!other.load(&script).unwrap().contains_key("etc/new-file"));
    let all = revisions(&world);
    let marks: Vec<(bool, bool)> =
        all.iter().map(|one| (one["current"] == true, one["pinned"] == true)).collect();
    assert_eq!(marks, [(true, false), (false, false), (false, true)], "{all:?}");
    done(&world, &["profile", "rollback", "discovery", "--off"]);
    let script = other.ipxe().unwrap();
    assert!(script.0.contains("quiet"), "{}", script.0);
    assert!(other.load(&script).unwrap().contains_key("etc/new-file"));
    assert_eq!(world.events("profile_rolled_back").len(), 2);
    // What is gone is refused, and nothing has changed.
    let name = all[2]["generation"].as_str().unwrap();
    fs::remove_file(world.path("state/revisions").join(format!("{name}.json"))).unwrap();
    refused(
        &world,
        &["profile", "rollback", "discovery", "--to", name],
        &["cannot be rolled back", "profile history"],
    );
    assert!(other.ipxe().unwrap().0.contains("quiet"));
}
