//! Boots that stand still and boots that go round in circles, and who is told. Time is an argument:
//! the central node runs in this process with a clock that is turned by hand, and then as the real
//! daemon on the same store.

mod jumps;
mod lease;
mod looping;
mod ready;
mod renewed;
pub mod rig;
mod stalled;
mod reports;

use crate::world::World;
use serde_json::Value;

fn conditions(world: &World) -> Vec<String> {
    let conditions = world.node()["conditions"].as_array().cloned().unwrap_or_default();
    conditions
        .iter()
        .filter_map(|condition| condition["kind"].as_str().map(str::to_owned))
        .collect()
}

fn doctor(world: &World) -> Value {
    let output = world.meshd(&["doctor", "-o", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn finding<'a>(findings: &'a Value, check: &str) -> &'a Value {
    let found = findings.as_array().into_iter().flatten().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("{check} in {findings}"))
}
