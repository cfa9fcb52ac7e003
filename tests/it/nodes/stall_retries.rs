//! Stalled boots that meshd retries by the BMC of the machine, with a clock that is turned by hand.

use super::power::Bench;
use crate::{
    boot::sessions::rig::{LONG, Machine, Rig},
    world::World,
};
use meshd_model::{
    fleet::{Principal, Stage},
    operations::Operation,
};
use std::time::Duration;

/// The orders that meshd gave by itself.
fn retries(rig: &Rig) -> Vec<Operation> {
    let is_own = |operation: &&Operation| operation.by.principal == Principal::Meshd;
    rig.central.store().read(|model| model.operations().filter(is_own).cloned().collect())
}

#[tokio::test]
async fn stalled_boot_is_cycled_as_the_site_allows() {
    let world = World::prepared("auto");
    let bench = Bench::new(&world);
    let policy = "[power]\nstall_retries = 2\nstall_retry_interval = \"30m\"\n";
    let sections = bench.sections("command", "").replace("[power]\n", policy);
    world.edit_site("[defaults]", &sections);
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    bench.write(&format!("power-{}", machine.mac), "on\n");
    machine.boot(Stage::Script).await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(retries(&rig).len(), 0, "a minute is no stall");
    rig.pass(LONG).await;
    let given = retries(&rig);
    assert_eq!(given.len(), 1);
    let last = given.last().expect("it was given");
    assert_eq!(last.by.reason.as_deref(), Some("retry 1 of 2 of a stalled boot"));
}

#[tokio::test]
async fn stalled_boot_is_not_cycled_without_a_policy() {
    let world = World::prepared("auto");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("command", ""));
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    rig.pass(LONG).await;
    assert_eq!((rig.events("boot_stalled").len(), retries(&rig).len()), (1, 0));
}
