//! A rollout is taken back by another one, the time of later ones is estimated from it, and
//! `node reboot --max` is a rollout too.

use super::rack::{Rack, boots, count};
use crate::world::stderr;
use serde_json::Value;

fn last(rack: &Rack) -> Value {
    let rollouts = rack.world.json(&["rollout", "list", "-o", "json"]);
    rollouts.as_array().unwrap().last().unwrap().clone()
}

#[test]
fn undo_returns_all_nodes_and_later_plans_know_the_time_of_nodes() {
    let mut rack = Rack::of(2, |_| {});
    let before = rack.nodes();
    let plan = ["rollout", "plan", "node-*", "--profile", "compute", "-o", "json"];
    let eta = |rack: &Rack| rack.world.json(&plan)["rollout"]["eta_s"].clone();
    assert_eq!(eta(&rack), Value::Null, "no node has taken any time yet");
    let id = rack.start_with(&["--profile", "compute", "--wave", "1"]);
    let refused = rack.world.meshd(&["rollout", "undo", &id, "--yes"]);
    assert!(stderr(&refused).contains("is running"), "{}", stderr(&refused));
    let ended = rack.run(&id);
    assert_eq!((&ended["rollout"]["state"], count(&ended, "done")), (&"done".into(), 2), "{ended}");

    let undo = rack.world.meshd(&["rollout", "undo", &id, "--yes"]);
    assert!(undo.status.success(), "{}", stderr(&undo));
    let undo = last(&rack);
    assert_eq!((&undo["undoes"], &undo["target"]["to"]), (&id.into(), &"previous".into()));
    let ended = rack.run(undo["id"].as_str().unwrap());
    assert_eq!((&ended["rollout"]["state"], count(&ended, "done")), (&"done".into(), 2), "{ended}");
    let after = rack.nodes();
    for (node, old) in after.iter().zip(&before) {
        assert_eq!((&node["profile"], &node["generation"]), (&old["profile"], &old["generation"]));
        assert_eq!((&node["phase"], &node["pinned"]), (&"online".into(), &Value::Null));
    }
    assert_ne!(boots(&after), boots(&before));
    // The earlier rollout had a soak time of 2 s, the new one has two waves of 60 s each.
    assert!(eta(&rack).as_u64().is_some_and(|seconds| seconds > 120), "{}", eta(&rack));
}

#[test]
fn reboot_with_a_maximum_is_a_rollout_without_canaries() {
    let rack = Rack::of(2, |_| {});
    for node in rack.nodes() {
        let label = rack.world.meshd(&["node", "label", node["id"].as_str().unwrap(), "rack=a"]);
        assert!(label.status.success(), "{}", stderr(&label));
    }
    let reboot = |options: &[&str]| {
        let words = [&["node", "reboot", "-l", "rack=a", "--max"], options].concat();
        rack.world.meshd(&words)
    };
    let listed = reboot(&["1", "--dry-run"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("2 in 2 waves of 1"), "{listed:?}");
    // All at once wants the typed number, whatever `--yes` says.
    let all = reboot(&["100%", "--yes"]);
    let refusal = stderr(&all);
    assert!(refusal.contains("All 2 nodes leave service"), "{refusal}");
    assert!(refusal.contains("rollout start --reboot --all-at-once 2`"), "{refusal}");
    assert!(refusal.contains("2 in 1 wave of 100%"), "{refusal}");
    assert_eq!(rack.world.json(&["rollout", "list", "-o", "json"]).as_array().unwrap().len(), 0);
    let started = reboot(&["1", "--yes"]);
    assert!(started.status.success(), "{}", stderr(&started));
    let rollout = last(&rack);
    assert_eq!(rollout["target"]["to"], "reboot", "{rollout}");
    assert_eq!(
        (&rollout["policy"]["canaries"], &rollout["policy"]["wave"]),
        (&0.into(), &"1".into())
    );
    let aborted = rack.world.meshd(&["rollout", "abort", rollout["id"].as_str().unwrap()]);
    assert!(aborted.status.success(), "{}", stderr(&aborted));
}
