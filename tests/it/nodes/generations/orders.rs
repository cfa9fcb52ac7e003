//! Variables of a node, and what is ordered for one boot only.

use super::{args, done, refused, reload};
use crate::world::{World, node::PxeNode};
use std::fs;

#[test]
fn boot_once_order_survives_restart_and_applies_to_one_session() {
    let mut world = World::new("auto");
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    refused(
        &world,
        &["node", "boot-once", &id, "--kernel-arg", "panic=3"],
        &["panic", "set by meshd itself"],
    );
    refused(
        &world,
        &["node", "boot-once", &id, "--profile", "computer"],
        &["compute", "discovery"],
    );
    refused(&world, &["node", "boot-once", &id, "--clear"], &["has no override"]);
    let order = ["node", "boot-once", &id, "--kernel-arg", "debug", "--profile", "compute"];
    done(&world, &order);
    let once =
        |world: &World| world.json(&["node", "show", &id, "-o", "json"])["boot_override"].clone();
    assert_eq!(
        (&once(&world)["profile"], &once(&world)["kernel_args"][0]),
        (&"compute".into(), &"debug".into())
    );
    world.kill();
    world.start();
    let machine = PxeNode::new(&world, 1);
    // The machine's session has begun, and its script did not have it: the next power-on is another
    // session.
    let overlay = machine.boot();
    assert!(overlay.contains_key("etc/motd"), "profile compute");
    let used = once(&world)["used_by"].clone();
    assert!(used.is_string(), "shown until the next boot: {}", once(&world));
    assert_eq!(world.events("boot_once").len(), 2, "ordered, and used once");
    let next = machine.power_on().unwrap();
    assert!(
        !args(&next).contains(&"debug".to_owned()) && next.0.contains("profile discovery"),
        "{}",
        next.0
    );
    assert!(once(&world).is_null());
}

#[test]
fn boot_once_order_applies_to_repeated_scripts_of_one_boot() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    machine.boot();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    done(&world, &["node", "boot-once", &id, "--kernel-arg", "debug"]);
    let first = machine.power_on().unwrap();
    for script in [first, machine.ipxe().unwrap(), machine.ipxe().unwrap()] {
        assert!(args(&script).contains(&"debug".to_owned()), "{}", script.0);
    }
    assert_eq!(world.events("boot_once").len(), 2);
    machine.load(&machine.ipxe().unwrap()).unwrap();
    assert!(!args(&machine.power_on().unwrap()).contains(&"debug".to_owned()));
}

#[test]
fn node_variables_are_typed_and_can_be_set_and_unset() {
    let mut world = reload::world();
    let types = [
        ("slots", "integer"),
        ("tuned", "bool"),
        ("rack", "text"),
        ("disks", "list"),
        ("serial", "text"),
    ];
    let variable =
        |(name, kind)| format!("[variables.{name}]\ntype = \"{kind}\"\nrequired = false\n");
    let declared = format!("description = \"words\"\n{}", types.map(variable).concat());
    fs::create_dir_all(world.path("overlays/words/rootfs")).unwrap();
    fs::write(world.path("overlays/words/overlay.toml"), declared).unwrap();
    world.start();
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    done(
        &world,
        &[
            "node",
            "set",
            &id,
            "slots=8",
            "tuned=true",
            "rack=r 7",
            "disks=[sda, sdb]",
            "serial=\"0815\"",
        ],
    );
    let vars = || world.json(&["node", "show", &id, "-o", "json"])["vars"].clone();
    let expected = serde_json::json!({
        "slots": 8, "tuned": true, "rack": "r 7", "disks": ["sda", "sdb"], "serial": "0815"
    });
    assert_eq!(vars(), expected);
    done(&world, &["node", "unset", &id, "slots", "rack"]);
    assert_eq!(
        vars(),
        serde_json::json!({ "tuned": true, "disks": ["sda", "sdb"], "serial": "0815" })
    );
    refused(&world, &["node", "unset", &id, "slots"], &["no variable `slots`"]);
    for wrong in [["node", "set", &id, "Slots=8"], ["node", "set", &id, "slots"]] {
        assert_eq!(world.meshd(&wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(world.events("vars_changed").len(), 2);
}
