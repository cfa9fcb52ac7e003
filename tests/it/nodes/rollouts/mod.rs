//! Rollouts with the real daemon and real agents: a bad profile stops at its canary, a good one
//! reaches all nodes while the daemon is killed.
//!
//! | module | content |
//! | --- | --- |
//! | `bisect` | bisections of the generations of a profile |
//! | `pins` | rollouts to a generation, with programs of the site |
//! | `rack` | nodes with real agents |
//! | `remedy` | the remedy of the documentation for a node that did not return |
//! | `undo` | rollouts that take others back, estimates, `node reboot --max` |

mod bisect;
mod pins;
mod rack;
mod remedy;
mod undo;

use crate::world::stderr;
use rack::{NODES, Rack, boots, count};

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
