//! The first hour of a user of Warewulf: the commands of `docs/operations/coming-from.md`, from
//! `nodes.conf` to a node that is online.

use super::{Bench, IpmiSim, order};
use crate::world::{World, node::PxeNode, stderr};
use std::fs;

/// As Warewulf 4.6 writes it.
const NODES_CONF: &str = "nodeprofiles:
  default:
    comment: This profile is automatically included for each node
    image name: rockylinux-9
    system overlay:
      - wwinit
nodes:
  n001.cluster:
    profiles:
      - default
    tags:
      Rack: a
    ipmi:
      ipaddr: 127.0.0.1
      username: admin
      password: secret
    network devices:
      default:
        device: eth0
        hwaddr: 52:54:00:00:00:01
        ipaddr: 10.77.0.21
  n002.cluster:
    network devices:
      default:
        hwaddr: 52:54:00:00:00:02
        ipaddr: 10.77.0.22
";

/// Runs a command as the page has it. The error has what it wrote.
fn run(world: &World, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split(' ').collect();
    let output = world.meshd(&words);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = format!("{shown}{}", stderr(&output));
    eprintln!("$ meshd {line}\n{text}");
    if output.status.success() { Ok(text) } else { Err(format!("meshd {line}: {text}")) }
}

fn done(world: &World, line: &str) -> String {
    run(world, line).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn user_of_warewulf_brings_a_node_online_with_the_commands_of_the_page() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("ipmi", "").replace("gpu001", "n001"));
    world.start();
    let _sim = IpmiSim::start(&world, &bench);
    let file = world.path("nodes.conf");
    fs::write(&file, NODES_CONF).unwrap();
    let import = format!("node import {}", file.display());
    let text = done(&world, &format!("{import} --dry-run"));
    assert!(text.contains("would be 2 added"), "{text}");
    done(&world, &import);
    let expected = done(&world, "node list --expected");
    assert!(expected.contains("n001") && expected.contains("n002"), "{expected}");
    let text = done(&world, "node power status n001");
    assert!(text.contains("off"), "{text}");

    let machine = PxeNode::new(&world, 1);
    let mut overlay = None;
    let (code, text) = order(&world, &["node", "power", "on", "n001"], || {
        if overlay.is_none() && bench.read("power").trim() == "1" {
            overlay = Some(machine.boot());
        }
    });
    assert!(code == Some(0) && text.contains("1 done"), "{text}");
    let _agent = machine.start_agent(&overlay.expect("it has booted"));
    assert!(done(&world, "node list").contains("discovered"));
    done(&world, "node approve n001");
    world.wait_for_phase("online");
    let shown = done(&world, "node show n001");
    assert!(shown.contains("10.77.0.21") && shown.contains("rack=a"), "{shown}");

    let lines = [
        "check",
        "reload",
        "get node n001",
        "describe node n001",
        "ls",
        "cordon n001",
        "uncordon n001",
        "power status n001",
        "node diff n001",
        "node history n001",
        "node pin n001",
        "node pin n001 --off",
        "node list -l rack=a",
        "node list n*",
        "node add --mac 52:54:00:00:00:03 --name n003",
        "node assign-profile n001 compute",
        "node set n001 kvm_nat=true",
        "node label n001 rack=b",
        "profile list",
        "image list",
        "overlay list",
        "node exec n001 -- /bin/true",
        "boot-times n001",
        "rollout plan --reboot n*",
        "node export --format hosts",
    ];
    let failed: Vec<String> =
        lines.into_iter().filter_map(|line| run(&world, line).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let out = world.path("rendered.tar.gz");
    done(&world, &format!("overlay render n001 --out {}", out.display()));
    assert!(out.exists());
    done(&world, "delete node n001 --yes");
}
