//! Orders to BMCs beside other work, with a clock that is turned by hand.

use super::Bench;
use crate::{
    boot::sessions::rig::{Rig, ordered},
    work::workloads::{ask, create, host},
    world::World,
};
use meshd_api::BulkTarget;
use meshd_model::{fleet::Verb, operations::NodeOrder};
use meshd_trust::Role;
use meshd_types::PowerAction;

#[tokio::test]
async fn node_gets_no_work_while_its_power_is_about_to_be_cut() {
    let world = World::prepared("auto");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("command", ""));
    let rig = Rig::new(&world);
    let machine = host(&rig, 1).await;
    let targets = [BulkTarget { id: machine.id(), revision: None }];
    let order = NodeOrder::Power { action: PowerAction::Cycle, now: false };
    let audit = ordered(Verb::Power);
    rig.central.nodes.order(&targets, order, Role::Operator, &audit).await.unwrap();
    let refused = create(&rig, ask(1, ""), None).await;
    assert!(refused.is_err(), "no node takes it: {refused:?}");
}
