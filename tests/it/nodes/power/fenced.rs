//! A node hangs with its VM. Its power is cut by its BMC, which proves that the VM does not run
//! there: it runs on another node, once.

use super::Bench;
use crate::{
    work::vms::{
        central::{self, Machine, add, done},
        guest::{Guest, Node},
    },
    world::{World, eventually, node::PxeNode, stderr},
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// Waits until a node is in a phase.
fn until_phase(world: &World, node: &str, phase: &str) {
    eventually(phase, || {
        let node = world.json(&["node", "show", node, "-o", "json"]);
        if node["phase"] == phase { Ok(()) } else { Err(node.to_string()) }
    });
}

/// QEMU processes of a VM that have not ended.
fn qemus(uuid: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let has_uuid = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("qemu-system") && line.contains(uuid)
    };
    entries.filter(has_uuid).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[test]
fn vm_of_a_hung_node_runs_elsewhere_once_after_its_power_is_cut() {
    let mut world = central::prepared("auto");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("command", ""));
    world.start();
    let guests = Node::new();
    let digest = add(&world, &guests, Guest::Echo, "echo");
    let mut machines = [1, 2].map(|number| {
        let node = PxeNode::new(&world, number);
        let mut machine = Machine::new(&world, &node.boot());
        machine.start_on(number);
        bench.write(&format!("power-{}", node.mac), "on\n");
        machine
    });
    let id_of = |number| {
        let nodes = world.json(&["node", "list", "-o", "json"]);
        let mac = PxeNode::new(&world, number).mac.to_string();
        let node = nodes.as_array().unwrap().iter().find(|node| node["mac"] == mac.as_str());
        node.unwrap()["id"].as_str().unwrap().to_owned()
    };
    let ids = [1, 2].map(id_of);
    ids.iter().for_each(|id| until_phase(&world, id, "online"));
    let file = central::vm_toml(&world, "one", &digest);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("on_node_loss = \"restart\"\n{text}")).unwrap();
    done(&world, &["vm", "create", "--start", "-f", &file]);
    let vm = central::reaches(&machines[0], "one", "running");
    let uuid = vm["uuid"].as_str().unwrap();
    let lost =
        ids.iter().position(|id| vm["node"] == id.as_str()).unwrap_or_else(|| panic!("{vm}"));
    let other = 1 - lost;

    // It hangs: nothing on it runs, and nothing has ended.
    let qemu = machines[lost].qemu(uuid);
    let hung = [machines[lost].id(), qemu];
    for process in hung {
        kill_process(Pid::from_raw(process).unwrap(), Signal::STOP).unwrap();
    }
    let name = world.json(&["node", "show", &ids[lost], "-o", "json"])["name"].clone();
    let fence = ["node", "fence", &ids[lost], "--confirm", name.as_str().unwrap()];
    let refused = world.meshd(&fence);
    assert_eq!(refused.status.code(), Some(1), "its BMC reports that it is on: {refused:?}");
    assert_eq!(qemus(uuid), [qemu]);

    // With its power, its processes end.
    bench.write("answer-off", &format!("kill -9 {} {}\n", hung[0], hung[1]));
    done(&world, &["node", "power", "off", "--now", "--force", "--yes", &ids[lost]]);
    machines[lost].wait_for_end();
    assert_eq!(qemus(uuid), [0; 0], "it does not move before the node is fenced");
    let fenced = world.meshd(&fence);
    assert!(fenced.status.success(), "{}", stderr(&fenced));
    eventually("the VM runs on the other node", || {
        let vm = world.json(&["vm", "show", "one", "-o", "json"]);
        let is_moved = vm["state"] == "running" && vm["node"] == ids[other].as_str();
        if is_moved { Ok(()) } else { Err(format!("{vm}\n{}", machines[other].log())) }
    });
    assert_eq!(qemus(uuid), [machines[other].qemu(uuid)]);
}
