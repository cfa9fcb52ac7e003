//! A rack of 200 machines: four commands take it from a list to approved nodes.

use super::{Bench, order};
use crate::world::{World, node::PxeNode, stderr};
use serde_json::Value;
use std::{fs, sync::Mutex, thread};

const MACHINES: u8 = 200;
const ALL: &str = "gpu[001-200]";
/// Machines that boot at a time.
const THREADS: usize = 8;

fn done(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Boots all machines that have power and have not booted, up to their script.
fn boot_powered(world: &World, bench: &Bench, booted: &mut [bool]) {
    let power = |number| format!("power-{}", PxeNode::new(world, number).mac);
    let is_on = |number| bench.read(&power(number)).trim() == "on";
    let waiting = (1..=MACHINES).filter(|number| !booted[usize::from(*number) - 1]);
    let powered: Vec<u8> = waiting.filter(|number| is_on(*number)).collect();
    let next = Mutex::new(powered.iter());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(number) = { next.lock().unwrap().next() } {
                    PxeNode::new(world, *number).ipxe().unwrap();
                }
            });
        }
    });
    powered.iter().for_each(|number| booted[usize::from(*number) - 1] = true);
}

#[test]
fn rack_of_200_is_imported_powered_on_and_approved_by_four_commands() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("command", "").replace("\"2s\"", "\"0s\""));
    world.start();
    let line = |number| {
        let mac = PxeNode::new(&world, number).mac;
        // Not the addresses of meshd and of the pool.
        let host = u16::from(number) + if number < 80 { 20 } else { 31 };
        format!("{mac},gpu{number:03},10.77.0.{host},compute,rack=a slot={number}\n")
    };
    let lines: String = (1..=MACHINES).map(line).collect();
    let file = world.path("machines.csv");
    fs::write(&file, format!("mac,name,address,profile,labels\n{lines}")).unwrap();

    done(&world, &["node", "import", file.to_str().unwrap()]);
    let mut booted = [false; MACHINES as usize];
    let (code, text) = order(&world, &["node", "power", "on", ALL], || {
        boot_powered(&world, &bench, &mut booted);
    });
    assert!(code == Some(0) && text.contains("200 done"), "{text}");
    done(&world, &["node", "approve", ALL]);
    let nodes: Value =
        serde_json::from_str(&done(&world, &["node", "list", "-l", "rack=a", "-o", "json"]))
            .unwrap();

    let nodes = nodes.as_array().unwrap();
    assert_eq!(nodes.len(), usize::from(MACHINES));
    let mut names: Vec<_> = nodes.iter().map(|node| node["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, (1..=MACHINES).map(|number| format!("gpu{number:03}")).collect::<Vec<_>>());
    for node in nodes {
        assert!(node["phase"] != "discovered" && node["profile"] == "compute", "{node}");
    }
    assert_eq!(bench.changes().iter().filter(|request| *request == "on").count(), 200);
}
