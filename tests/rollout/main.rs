//! Rollouts over machines with real firmware and real Alpine, and a container whose node loses its
//! power. `make test-rollout` runs them: they take too long for `make test`. Integration tests have
//! the same with agents in namespaces (`tests/it/nodes/rollouts`, `tests/it/work/containers.rs`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[path = "../e2e/work/containers.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod containers;
#[path = "../kit/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests")]
mod kit;
#[path = "../e2e/racks.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod racks;

mod bisect;
mod lost_node;

use meshd_lab::{Options, Power, Rack, Shape, Wait};
use racks::{BOOT, OrEnd, SOON, TestRack, events, kernel_starts, until_phase, up_alone};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path, thread, time::Duration};

const NODES: u8 = 6;
const FLOOR: u8 = 4;
/// The least that a node of the lab has: six of them run at a time.
const MEMORY_MIB: u32 = 768;
/// Time of a node that becomes healthy, beside others.
const GOOD_TIMEOUT: &str = "8m";
/// Time of a node that does not become healthy, alone. It boots in less, and so it returns.
const BAD_TIMEOUT: &str = "3m";
/// Pause between two looks at a rollout: each look starts programs beside emulated processors.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time without progress: a node fails at its timeout, and returns.
const PROGRESS: Duration = Duration::from_secs(10 * 60);
const KILLS: usize = 4;

/// A rack whose nodes are online, with the profile `lab`. Three boot at a time: a boot keeps
/// one processor busy for most of its time.
fn online(nodes: u8, change: impl FnOnce(Options, &Path) -> Options) -> TestRack {
    let mut test = up_alone(|mut options, dir| {
        (options.nodes, options.powered) = (nodes, false);
        options.shape = Shape { cpus: 1, memory_mib: MEMORY_MIB, ..options.shape };
        let options = options
            .set("enroll.policy", "auto")
            .set("defaults.profile", "lab")
            .set("profiles.lab.extends", "discovery");
        change(options, dir)
    });
    let places: Vec<u8> = (1..=nodes).collect();
    for some in places.chunks(3) {
        for place in some {
            test.rack.power(*place, Power::On).or_end();
        }
        for place in some {
            until_phase(&test.rack, *place, "online", BOOT);
        }
    }
    test
}

/// Changes the site file: its profiles have another generation.
fn revise(rack: &Rack, from: &str, to: &str) {
    let text = fs::read_to_string(rack.site_file()).unwrap();
    assert_eq!(text.matches(from).count(), 1, "{from}");
    fs::write(rack.site_file(), text.replace(from, to)).unwrap();
    rack.run_cli(&["reload"]).or_end();
}

/// Starts a rollout of the profile to all nodes; returns its ID.
fn start(rack: &Rack, node_timeout: &str) -> String {
    let words = ["rollout", "start", "--has-profile", "lab", "--profile", "lab", "--wave", "2"];
    let floor = FLOOR.to_string();
    let policy = ["--floor", &floor, "--soak", "5s", "--node-timeout", node_timeout, "--yes"];
    rack.run_cli(&[&words[..], &policy[..]].concat()).or_end();
    let all = rack.query(&["rollout", "list"]).or_end();
    all.as_array().unwrap().last().unwrap()["id"].as_str().unwrap().to_owned()
}

/// Number of nodes in each stage.
fn counts(shown: &Value) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in shown["nodes"].as_array().unwrap() {
        *counts.entry(node["stage"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

/// Nodes that have not begun and those that are finished, and the state of the rollout.
fn progress(shown: &Value) -> String {
    let counts = counts(shown);
    let of = |stage: &str| counts.get(stage).copied().unwrap_or_default();
    format!("{} {} {}", of("waiting"), of("done"), shown["rollout"]["state"])
}

fn has_ended(shown: &Value) -> bool {
    ["done", "failed", "aborted"].contains(&shown["rollout"]["state"].as_str().unwrap())
}

/// Waits until nodes begin or are done, or the rollout has ended: it can end while meshd starts
/// again after the step before. Meanwhile the floor holds.
fn step(rack: &Rack, id: &str) -> Value {
    let before = progress(&rack.query(&["rollout", "show", id]).or_end());
    rack.wait(PROGRESS, "the rollout to proceed", |rack| {
        thread::park_timeout(PAUSE);
        let nodes = rack.nodes()?;
        // A node that links again after a restart of meshd did not leave.
        let is_out = |node: &&Value| {
            ["draining", "maintenance", "booting", "offline"]
                .contains(&node["phase"].as_str().unwrap())
        };
        let out = nodes.iter().filter(is_out).count();
        assert!(out <= usize::from(NODES - FLOOR), "{out} nodes are out of service: {nodes:?}");
        let shown = rack.query(&["rollout", "show", id])?;
        let is_next = progress(&shown) != before || has_ended(&shown);
        let seen = format!("{:?}", counts(&shown));
        Ok(Wait::some(is_next.then_some(shown), seen))
    })
    .or_end()
}

/// Runs a rollout to its end. Kills meshd after each of the first steps.
fn run(rack: &mut Rack, id: &str, kills: usize) -> Value {
    let mut steps = 0;
    loop {
        let shown = step(rack, id);
        if has_ended(&shown) {
            assert!(steps >= kills, "it ended after {steps} kills");
            return shown;
        }
        if steps < kills {
            rack.kill_central().or_end();
            rack.start_central().or_end();
        }
        steps += 1;
    }
}

/// Each node as `node list` has it, by its place in the rack.
fn nodes(rack: &Rack) -> BTreeMap<u8, Value> {
    (1..=rack.size())
        .map(|place| (place, rack.node(place).or_end().expect("it is known")))
        .collect()
}

/// How often a node was ordered out of service.
fn drains(rack: &Rack, place: u8) -> usize {
    let id = rack.id(place).to_string();
    let is_drain = |event: &&Value| {
        event["node"] == id.as_str() && (event["to"] == "draining" || event["to"] == "maintenance")
    };
    events(rack).iter().filter(is_drain).count()
}

#[test]
fn bad_generation_returns_at_its_canary_and_good_one_reaches_all_six() {
    let mut test =
        online(NODES, |options, _| options.set("profiles.lab.thresholds", "{ memory_mib = 64 }"));
    let rack = &mut test.rack;
    let first = nodes(rack);

    revise(rack, "memory_mib = 64 }", "memory_mib = 9000 }");
    let id = start(rack, BAD_TIMEOUT);
    let ended = run(rack, &id, 0);
    assert_eq!(ended["rollout"]["state"], "failed", "{ended}");
    let expected = [("returned".to_owned(), 1), ("waiting".to_owned(), usize::from(NODES) - 1)];
    assert_eq!(counts(&ended), BTreeMap::from(expected), "{ended}");
    let mut records = ended["nodes"].as_array().unwrap().iter();
    let record = records.find(|node| node["stage"] == "returned").unwrap();
    assert!(record["reason"].as_str().unwrap().contains("checks do not pass"), "{record}");
    let is_canary = |node: &Value| node["id"] == record["node"];
    for (place, node) in nodes(rack) {
        let before = &first[&place];
        assert_eq!(
            (&node["phase"], &node["generation"]),
            (&"online".into(), &before["generation"])
        );
        if is_canary(&node) {
            assert_eq!(node["pinned"], before["generation"], "its profile has moved on");
            assert_eq!(kernel_starts(rack, place), 3, "its boot, the bad one, its return");
            assert!(drains(rack, place) > 0, "the drain of a node is found");
        } else {
            assert_eq!(node["boot"]["session"], before["boot"]["session"], "it never left");
            assert_eq!((kernel_starts(rack, place), drains(rack, place)), (1, 0));
        }
    }

    revise(rack, "memory_mib = 9000 }", "memory_mib = 65 }");
    let id = start(rack, GOOD_TIMEOUT);
    let ended = run(rack, &id, KILLS);
    assert_eq!(ended["rollout"]["state"], "done", "{ended}");
    assert_eq!(counts(&ended), BTreeMap::from([("done".to_owned(), usize::from(NODES))]));
    for (place, node) in nodes(rack) {
        until_phase(rack, place, "online", SOON);
        assert_eq!(
            (&node["generation"], &node["pinned"]),
            (&node["next_generation"], &Value::Null)
        );
        assert_ne!(node["generation"], first[&place]["generation"], "{node}");
        let boots = if is_canary(&node) { 4 } else { 2 };
        assert_eq!(kernel_starts(rack, place), boots, "no node booted twice");
    }
}
