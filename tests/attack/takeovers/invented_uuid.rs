//! A machine asks from the NIC of a node with an invented UUID: it would be another node.

use crate::world::{World, eventually, node::PxeNode, stderr};
use meshd_types::SystemUuid;
use std::fs;

/// The same NIC, with another UUID and serial number.
fn invented<'a>(world: &'a World, machine: &PxeNode<'_>, number: u8) -> PxeNode<'a> {
    PxeNode {
        uuid: SystemUuid([number; 16]),
        serial: format!("INVENTED-{number}"),
        ..PxeNode::new(world, machine.mac.0[5])
    }
}

fn run(world: &World, args: &[&str]) {
    let output = world.meshd(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
}

/// The phases of all nodes by their serial numbers.
fn phases(world: &World) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let nodes = world.json(&["node", "list", "-o", "json"]);
    let nodes = nodes.as_array().unwrap().iter();
    nodes.map(|node| (text(&node["serial"]), text(&node["phase"]))).collect()
}

fn phase(world: &World, machine: &PxeNode<'_>) -> Option<String> {
    phases(world).into_iter().find(|(serial, _)| *serial == machine.serial).map(|(_, phase)| phase)
}

#[test]
fn approval_of_expected_machine_admits_one_node() {
    let world = World::new("approve");
    let machine = PxeNode::new(&world, 3);
    let file = world.path("machines.csv");
    fs::write(&file, format!("mac,name\n{},gpu003\n", machine.mac)).unwrap();
    let import = ["node", "import", file.to_str().unwrap()];
    run(&world, &[&import[..], &["--approve"]].concat());
    machine.ipxe().unwrap();
    assert_eq!(phase(&world, &machine).as_deref(), Some("booting"));
    let thief = invented(&world, &machine, 0x77);
    thief.power_on().unwrap();
    assert_eq!(phase(&world, &thief).as_deref(), Some("discovered"), "it waits for an operator");
    run(&world, &[&import[..], &["--approve"]].concat());
    assert_eq!(phase(&world, &thief).as_deref(), Some("discovered"), "also after an import");
    // The record ends with its node, although another node has the NIC now.
    run(&world, &["node", "remove", "gpu003", "--yes"]);
    thief.power_on().unwrap();
    assert_eq!(phase(&world, &thief).as_deref(), Some("discovered"));
    let again = world.meshd(&import);
    assert!(stderr(&again).contains("1 added"), "{}", stderr(&again));
}

#[test]
fn import_without_approval_withdraws_it_until_the_machine_appears() {
    let world = World::new("approve");
    let machine = PxeNode::new(&world, 3);
    let file = world.path("machines.csv");
    fs::write(&file, format!("mac,name\n{},gpu003\n", machine.mac)).unwrap();
    let import = ["node", "import", file.to_str().unwrap()];
    run(&world, &[&import[..], &["--approve"]].concat());
    run(&world, &import);
    machine.ipxe().unwrap();
    assert_eq!(phase(&world, &machine).as_deref(), Some("discovered"));
    run(&world, &[&import[..], &["--approve"]].concat());
    assert_eq!(phase(&world, &machine).as_deref(), Some("approved"));
    run(&world, &import);
    assert_eq!(phase(&world, &machine).as_deref(), Some("approved"), "a node stays approved");
}

#[test]
fn nic_of_quarantined_or_rejected_node_admits_no_other_identity() {
    for (mode, order, lift) in [("auto", "quarantine", "release"), ("approve", "reject", "approve")]
    {
        let world = World::new(mode);
        let machine = PxeNode::new(&world, 1);
        machine.ipxe().unwrap();
        let id = world.json(&["node", "list", "-o", "json"]);
        let own = |node: &&serde_json::Value| node["serial"] == machine.serial;
        let id =
            id.as_array().unwrap().iter().find(own).unwrap()["id"].as_str().unwrap().to_owned();
        run(&world, &["node", order, &id, "--yes"]);
        let thief = invented(&world, &machine, 0x77);
        let script = thief.power_on().unwrap().0;
        assert!(script.contains("# refusal nic_held"), "{script}");
        for hint in [format!("meshd node {lift} {id}"), format!("meshd node remove {id}")] {
            assert!(script.contains(&hint), "{hint}: {script}");
        }
        assert_eq!(phase(&world, &thief), None, "it is no node");
        eventually("an alarm names the NIC", || {
            let alarms = world.events("id_collision");
            let names = |alarm: &serde_json::Value| {
                alarm["node"] == id.as_str() && alarm.to_string().contains(&machine.mac.to_string())
            };
            if alarms.iter().any(names) { Ok(()) } else { Err(format!("{alarms:?}")) }
        });
        let before = machine.power_on().unwrap().0;
        assert!(before.contains("# refusal") && !before.contains("nic_held"), "its own: {before}");
        run(&world, &["node", "remove", &id, "--yes"]);
        thief.power_on().unwrap();
        assert!(phase(&world, &thief).is_some(), "an operator has removed the node");
    }
}
