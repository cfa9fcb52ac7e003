//! Nodes with real agents, which reboot as ordered.

use crate::world::{
    World, eventually,
    node::{Agent, PxeNode},
    stderr,
};
use serde_json::Value;
use std::{collections::BTreeMap, fs};

pub(super) const NODES: u8 = 6;
/// At most so many nodes are out of service: the others are the floor.
const OUT: usize = 2;

/// Six nodes that run, and a profile whose check fails.
pub(super) struct Rack {
    pub(super) world: World,
    count: u8,
    agents: BTreeMap<u8, Agent>,
}

impl Rack {
    pub(super) fn online() -> Self {
        Rack::of(NODES, |world| {
            world.edit_site(
                "[profiles.compute]",
                "[profiles.bad]\nextends = \"discovery\"\nthresholds = { memory_mib = 9000 }\n[profiles.compute]",
            );
        })
    }

    /// So many nodes that run, of a site that is edited first.
    pub(super) fn of(count: u8, edit: impl FnOnce(&World)) -> Self {
        let mut world = World::prepared("auto");
        edit(&world);
        world.start();
        let mut rack = Rack { world, count, agents: BTreeMap::new() };
        (1..=count).for_each(|number| rack.boot(number));
        eventually("all nodes are online", || match rack.online_count() {
            online if online == usize::from(rack.count) => Ok(()),
            online => Err(format!("{online} are\n{}", rack.world.log_text())),
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
    pub(super) fn reboot_ordered(&mut self) {
        let ordered = self.agents.iter().filter(|(_, agent)| agent.has_rebooted());
        let ordered: Vec<u8> = ordered.map(|(number, _)| *number).collect();
        ordered.into_iter().for_each(|number| self.boot(number));
    }

    pub(super) fn nodes(&self) -> Vec<Value> {
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
    pub(super) fn start(&self, profile: &str) -> String {
        self.start_with(&["--profile", profile, "--wave", "2", "--floor", "4"])
    }

    /// Starts a rollout over all nodes; returns its ID.
    pub(super) fn start_with(&self, options: &[&str]) -> String {
        let mut words = vec!["rollout", "start", "node-*", "--soak", "2s"];
        // A bad node is waited for so long; a good one is back earlier also on a busy machine.
        words.extend(["--node-timeout", "90s", "--yes"]);
        words.extend(options);
        let output = self.world.meshd(&words);
        assert!(output.status.success(), "{}", stderr(&output));
        let rollouts = self.world.json(&["rollout", "list", "-o", "json"]);
        rollouts.as_array().unwrap().last().unwrap()["id"].as_str().unwrap().to_owned()
    }

    fn show(&self, id: &str) -> Value {
        self.world.json(&["rollout", "show", id, "-o", "json"])
    }

    /// Waits until a number of the rollout changes, or until it has ended: it can end while meshd
    /// starts again after the step before. Meanwhile machines reboot as ordered, and the floor holds.
    pub(super) fn step(&mut self, id: &str) -> Value {
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
            if progress(&shown) != before || has_ended(&shown) {
                Ok(shown)
            } else {
                Err(shown.to_string())
            }
        })
    }

    pub(super) fn run(&mut self, id: &str) -> Value {
        loop {
            let shown = self.step(id);
            if has_ended(&shown) {
                return shown;
            }
        }
    }
}

fn has_ended(shown: &Value) -> bool {
    ["done", "failed", "aborted"].contains(&shown["rollout"]["state"].as_str().unwrap())
}

/// Number of nodes of a rollout in a stage.
pub(super) fn count(shown: &Value, stage: &str) -> usize {
    let nodes = shown["nodes"].as_array().unwrap();
    nodes.iter().filter(|node| node["stage"] == stage).count()
}

pub(super) fn boots(nodes: &[Value]) -> BTreeMap<String, String> {
    nodes.iter().map(|node| (node["id"].to_string(), node["boot"]["session"].to_string())).collect()
}
