//! Rollouts with the real daemon and real agents: a bad profile stops at its canary, a good one
//! reaches all nodes while the daemon is killed.

use crate::world::{
    World, eventually,
    node::{Agent, PxeNode},
    stderr,
};
use serde_json::Value;
use std::{collections::BTreeMap, fs};

const NODES: u8 = 6;
/// At most so many nodes are out of service: the others are the floor.
const OUT: usize = 2;

/// Six nodes that run, and a profile whose check fails.
struct Rack {
    world: World,
    agents: BTreeMap<u8, Agent>,
}

impl Rack {
    fn online() -> Self {
        let mut world = World::prepared("auto");
        world.edit_site(
            "[profiles.compute]",
            "[profiles.bad]\nextends = \"discovery\"\nthresholds = { memory_mib = 9000 }\n[profiles.compute]",
        );
        world.start();
        let mut rack = Rack { world, agents: BTreeMap::new() };
        (1..=NODES).for_each(|number| rack.boot(number));
        eventually("all nodes are online", || match rack.online_count() {
            count if count == usize::from(NODES) => Ok(()),
            count => Err(format!("{count} are\n{}", rack.world.log_text())),
        });
        rack
    }

    fn boot(&mut self, number: u8) {
        self.agents.remove(&number);
        let machine = PxeNode::new(&self.world, number);
        let overlay = machine.boot();
        let agent = machine.start_agent_with(&overlay, |root| {
            fs::create_dir_all(root.join("proc")).unwrap();
            let memory = "MemTotal: 4194304 kB\nMemAvailable: 1048576 kB\n";
            fs::write(root.join("proc/meminfo"), memory).unwrap();
        });
        self.agents.insert(number, agent);
    }

    /// Reboots the machines whose agents obeyed an order to.
    fn reboot_ordered(&mut self) {
        let ordered = self.agents.iter().filter(|(_, agent)| agent.has_rebooted());
        let ordered: Vec<u8> = ordered.map(|(number, _)| *number).collect();
        ordered.into_iter().for_each(|number| self.boot(number));
    }

    fn nodes(&self) -> Vec<Value> {
        let nodes = self.world.json(&["node", "list", "-o", "json"]);
        nodes.as_array().unwrap().clone()
    }

    fn online_count(&self) -> usize {
        self.nodes().iter().filter(|node| node["phase"] == "online").count()
    }

    /// Number of nodes that left service. A node that links again after a restart of the central
    /// node is `enrolling` until its checks are there: it did not leave.
    fn out_count(&self) -> usize {
        let is_out = |node: &&Value| {
            ["draining", "maintenance", "booting", "offline"]
                .contains(&node["phase"].as_str().unwrap())
        };
        self.nodes().iter().filter(is_out).count()
    }

    /// Starts a rollout to a profile; returns its ID.
    fn start(&self, profile: &str) -> String {
        let words = [
            "rollout",
            "start",
            "node-*",
            "--profile",
            profile,
            "--wave",
            "2",
            "--floor",
            "4",
            "--soak",
            "2s",
            "--node-timeout",
            "25s",
            "--yes",
        ];
        let output = self.world.meshd(&words);
        assert!(output.status.success(), "{}", stderr(&output));
        let rollouts = self.world.json(&["rollout", "list", "-o", "json"]);
        rollouts.as_array().unwrap().last().unwrap()["id"].as_str().unwrap().to_owned()
    }

    fn show(&self, id: &str) -> Value {
        self.world.json(&["rollout", "show", id, "-o", "json"])
    }

    /// Waits until a number of the rollout changes, or until it ends. Meanwhile machines reboot as
    /// ordered, and the floor holds.
    fn step(&mut self, id: &str) -> Value {
        let progress = |shown: &Value| {
            let head = &shown["rollout"];
            [&head["state"], &head["waiting"], &head["done"], &head["failed"]].map(Value::to_string)
        };
        let before = progress(&self.show(id));
        eventually("the rollout proceeds", || {
            self.reboot_ordered();
            let out = self.out_count();
            assert!(out <= OUT, "{out} nodes are out of service");
            let shown = self.show(id);
            if progress(&shown) == before { Err(shown.to_string()) } else { Ok(shown) }
        })
    }

    fn run(&mut self, id: &str) -> Value {
        loop {
            let shown = self.step(id);
            let state = shown["rollout"]["state"].as_str().unwrap();
            if ["done", "failed", "aborted"].contains(&state) {
                return shown;
            }
        }
    }
}

/// Number of nodes of a rollout in a stage.
fn count(shown: &Value, stage: &str) -> usize {
    let nodes = shown["nodes"].as_array().unwrap();
    nodes.iter().filter(|node| node["stage"] == stage).count()
}

fn boots(nodes: &[Value]) -> BTreeMap<String, String> {
    nodes.iter().map(|node| (node["id"].to_string(), node["boot"]["session"].to_string())).collect()
}

#[test]
fn bad_profile_stops_at_its_canary_which_returns() {
    let mut rack = Rack::online();
    let before = boots(&rack.nodes());
    let id = rack.start("bad");
    let ended = rack.run(&id);
    assert_eq!(ended["rollout"]["state"], "failed", "{ended}");
    assert_eq!((count(&ended, "returned"), count(&ended, "waiting")), (1, 5), "{ended}");
    let canary = ended["nodes"].as_array().unwrap().iter().find(|node| node["stage"] == "returned");
    let canary = canary.unwrap();
    assert!(canary["reason"].as_str().unwrap().contains("checks do not pass"), "{canary}");
    let nodes = rack.nodes();
    for node in &nodes {
        assert_eq!((&node["phase"], &node["profile"]), (&"online".into(), &"discovery".into()));
    }
    let moved: Vec<_> =
        boots(&nodes).into_iter().filter(|(id, boot)| before[id] != *boot).collect();
    assert_eq!(moved.len(), 1, "five nodes never left: {moved:?}");
    assert_eq!(moved[0].0, canary["node"].to_string());
    let followed = rack.world.meshd(&["rollout", "follow", &id]);
    assert!(!followed.status.success() && stderr(&followed).contains("is failed"));
    let orders = rack.world.json(&["audit", "--limit", "1000", "-o", "json"]);
    let reason = format!("rollout {id}");
    let reboots = orders.as_array().unwrap().iter();
    let reboots = reboots.filter(|line| line["verb"] == "reboot" && line["reason"] == *reason);
    assert_eq!(reboots.count(), 2, "its reboots are in the audit log: {orders}");
}

#[test]
fn good_profile_reaches_all_nodes_while_the_daemon_is_killed() {
    let mut rack = Rack::online();
    let before = boots(&rack.nodes());
    let id = rack.start("compute");
    let overlap = rack.world.meshd(&["rollout", "start", "node-*", "--reboot", "--yes"]);
    assert!(stderr(&overlap).contains("is part of rollout"), "{}", stderr(&overlap));
    for _ in 0..4 {
        rack.step(&id);
        rack.world.kill();
        rack.world.start();
    }
    let ended = rack.run(&id);
    assert_eq!(ended["rollout"]["state"], "done", "{ended}");
    assert_eq!(count(&ended, "done"), usize::from(NODES));
    let nodes = rack.nodes();
    for node in &nodes {
        assert_eq!((&node["phase"], &node["profile"]), (&"online".into(), &"compute".into()));
        assert_eq!(node["generation"], node["next_generation"], "{node}");
    }
    assert!(boots(&nodes).iter().all(|(id, boot)| before[id] != *boot));
    let boots = rack.world.events("boot_started").len();
    assert_eq!(boots, 2 * usize::from(NODES), "no node booted twice");
}
