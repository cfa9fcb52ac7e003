//! Stalled boots that meshd retries by the BMC of the machine, with a clock that is turned by hand.

use super::Bench;
use crate::{
    boot::sessions::rig::{LONG, Machine, Rig},
    world::{World, eventually},
};
use meshd_model::{
    fleet::{Principal, Stage},
    operations::Operation,
};
use std::time::Duration;
use tokio::{runtime::Handle, task::block_in_place};

/// The orders that meshd gave by itself.
fn retries(rig: &Rig) -> Vec<Operation> {
    let is_own = |operation: &&Operation| operation.by.principal == Principal::Meshd;
    rig.central.store().read(|model| model.operations().filter(is_own).cloned().collect())
}

/// Drives orders until the BMC has this number of requests to cycle the power. The other threads of
/// the runtime wait for its program meanwhile.
fn wait_for_cycles(rig: &Rig, bench: &Bench, cycles: usize) {
    let look = || {
        rig.clock.turn(Duration::from_secs(1));
        Handle::current().block_on(rig.central.nodes.drive_operations());
        let requests = bench.read("requests");
        if requests.matches("cycle\n").count() < cycles { Err(requests) } else { Ok(()) }
    };
    block_in_place(|| eventually("the BMC is asked to cycle", look));
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_boot_is_cycled_as_often_as_the_site_allows() {
    let world = World::prepared("auto");
    let bench = Bench::new(&world);
    let policy = "[power]\nstall_retries = 2\nstall_retry_interval = \"30m\"\n";
    let sections = bench.sections_by_hand().replace("[power]\n", policy);
    world.edit_site("[defaults]", &sections);
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    bench.write(&format!("power-{}", machine.mac), "on\n");
    for number in 1..=2 {
        machine.boot(Stage::Script).await;
        // The order before is done, because the machine was seen.
        rig.central.nodes.drive_operations().await;
        rig.pass(Duration::from_secs(60)).await;
        assert_eq!(retries(&rig).len(), number - 1, "a minute is no stall");
        rig.pass(LONG).await;
        if number == 2 {
            assert_eq!(retries(&rig).len(), 1, "within the interval");
            rig.pass(LONG).await;
        }
        let given = retries(&rig);
        assert_eq!(given.len(), number);
        let reason = format!("retry {number} of 2 of a stalled boot");
        let last = given.last().expect("it was given");
        assert_eq!(last.by.reason.as_deref(), Some(reason.as_str()));
        wait_for_cycles(&rig, &bench, number);
        let events = rig.events("node_action");
        let has_event = events.iter().any(|event| {
            event.node == Some(machine.id()) && format!("{event:?}").contains(&reason)
        });
        assert!(has_event, "{events:?}");
    }
    machine.boot(Stage::Script).await;
    rig.central.nodes.drive_operations().await;
    rig.pass(LONG).await;
    rig.pass(LONG).await;
    assert_eq!(retries(&rig).len(), 2, "as often as the site allows");
    machine.boot(Stage::Online).await;
    machine.power_off().await;
    machine.boot(Stage::Script).await;
    rig.pass(LONG).await;
    assert_eq!(retries(&rig).len(), 3, "it was online since");
}

#[tokio::test]
async fn stalled_boot_is_not_cycled_without_a_policy() {
    let world = World::prepared("auto");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections_by_hand());
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    rig.pass(LONG).await;
    assert_eq!((rig.events("boot_stalled").len(), retries(&rig).len()), (1, 0));
}
