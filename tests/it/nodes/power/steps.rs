//! Orders to BMCs beside other work, with a clock that is turned by hand.

use super::Bench;
use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    work::workloads::{ask, create, host},
    world::{World, eventually},
};
use meshd_api::BulkTarget;
use meshd_model::{
    fleet::{Stage, Verb},
    operations::{NodeOperation, NodeOperationState, NodeOrder},
};
use meshd_store::StoreError;
use meshd_trust::Role;
use meshd_types::{NodeId, OperationId, PowerAction};
use std::time::Duration;
use tokio::{runtime::Handle, task::block_in_place};

fn prepared(policy: &str) -> (World, Bench) {
    let world = World::prepared(policy);
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections_by_hand());
    (world, bench)
}

async fn order_cycle(rig: &Rig, node: NodeId) -> OperationId {
    let targets = [BulkTarget { id: node, revision: None }];
    let order = NodeOrder::Power { action: PowerAction::Cycle, now: false };
    let audit = ordered(Verb::Power);
    rig.central
        .nodes
        .order(&targets, order, Role::Operator, &audit)
        .await
        .unwrap()
        .operation
        .unwrap()
}

fn record(rig: &Rig, order: OperationId, node: NodeId) -> NodeOperation {
    rig.central.store().read(|model| model.node_operation(order, node).cloned()).expect("a record")
}

/// Drives orders, a second each time, until something holds. The other threads of the runtime wait
/// for the program of the BMC meanwhile.
fn drive_until(rig: &Rig, what: &str, look: impl Fn() -> Result<(), String>) {
    let step = || {
        rig.clock.turn(Duration::from_secs(1));
        Handle::current().block_on(rig.central.nodes.drive_operations());
        look()
    };
    block_in_place(|| eventually(what, step));
}

fn drive_until_state(rig: &Rig, order: OperationId, node: NodeId, state: NodeOperationState) {
    drive_until(rig, "the order has the state", || {
        let record = record(rig, order, node);
        if record.state == state { Ok(()) } else { Err(format!("{record:?}")) }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_are_powered_on_one_after_another() {
    let (world, _bench) = prepared("auto");
    let rig = Rig::new(&world);
    let mut ids = Vec::new();
    for number in 1..=3 {
        let mut machine = Machine::new(&rig, number);
        machine.boot(Stage::Script).await;
        ids.push(machine.id());
    }
    let targets: Vec<_> = ids.iter().map(|id| BulkTarget { id: *id, revision: None }).collect();
    let order = NodeOrder::Power { action: PowerAction::On, now: false };
    let audit = ordered(Verb::Power);
    let accepted = rig.central.nodes.order(&targets, order, Role::Operator, &audit).await.unwrap();
    let operation = accepted.operation.unwrap();
    let requests = || -> Vec<_> {
        let power = |id: &NodeId| record(&rig, operation, *id).power;
        ids.iter().filter_map(|id| power(id)?.acted_at).collect()
    };
    drive_until(&rig, "all are powered on", || match requests().len() {
        3 => Ok(()),
        count => Err(count.to_string()),
    });
    let mut times = requests();
    times.sort_unstable();
    let is_staggered = times.windows(2).all(|pair| pair[1].since(pair[0]).as_secs() >= 2);
    assert!(is_staggered, "stagger of 2 s: {times:?}");
}

/// Whether the end of the present boot is announced.
fn is_end_announced(rig: &Rig, node: NodeId) -> bool {
    rig.central.store().read(|model| {
        let boot = model.node(node).and_then(|node| node.boot).expect("a boot");
        model.session(boot).expect("its session").reboot_ordered
    })
}

#[tokio::test]
async fn node_gets_no_work_while_its_power_is_about_to_be_cut() {
    let (world, _bench) = prepared("auto");
    let rig = Rig::new(&world);
    let machine = host(&rig, 1).await;
    order_cycle(&rig, machine.id()).await;
    let refused = create(&rig, ask(1, ""), None).await;
    assert!(refused.is_err(), "no node takes it: {refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_came_after_the_order_keeps_the_power_on() {
    let (world, bench) = prepared("auto");
    let rig = Rig::new(&world);
    let machine = host(&rig, 1).await;
    bench.write(&format!("power-{}", machine.mac), "on\n");
    let vm = create(&rig, ask(1, ""), None).await.unwrap();
    let taken = rig.central.store().commit(|tx| {
        tx.remove_vm(vm.uuid());
        Ok::<_, StoreError>(())
    });
    taken.await.unwrap();
    let order = order_cycle(&rig, machine.id()).await;
    let stored = rig.central.store().commit(|tx| {
        tx.put_vm(vm.clone());
        Ok::<_, StoreError>(())
    });
    stored.await.unwrap();
    drive_until_state(&rig, order, machine.id(), NodeOperationState::Failed);
    let outcome = format!("{:?}", record(&rig, order, machine.id()));
    assert!(outcome.contains("vm-1"), "the VM is the reason: {outcome}");
    assert!(bench.changes().is_empty(), "{:?}", bench.changes());
    assert!(!is_end_announced(&rig, machine.id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn order_announces_the_end_of_the_boot_and_takes_it_back_if_it_fails() {
    let (world, bench) = prepared("auto");
    let rig = Rig::new(&world);
    let machine = host(&rig, 1).await;
    bench.write(&format!("power-{}", machine.mac), "on\n");
    bench.write("hold", "");
    // The BMC refuses the password of the first change; the order ends at once.
    bench.write("answer-cycle", "while [ -e \"$dir/hold\" ]; do sleep 0.1; done\nexit 3\n");
    let order = order_cycle(&rig, machine.id()).await;
    assert!(!is_end_announced(&rig, machine.id()), "nothing is sent");
    drive_until(&rig, "the request is sent", || {
        if bench.changes() == ["cycle"] { Ok(()) } else { Err(bench.read("requests")) }
    });
    assert!(is_end_announced(&rig, machine.id()));
    std::fs::remove_file(bench.0.join("hold")).unwrap();
    drive_until_state(&rig, order, machine.id(), NodeOperationState::Failed);
    assert!(!is_end_announced(&rig, machine.id()), "the machine runs on");
    assert_eq!(bench.changes(), ["cycle"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_order_takes_the_announced_end_of_the_boot_back() {
    let (world, bench) = prepared("auto");
    let rig = Rig::new(&world);
    let machine = host(&rig, 1).await;
    bench.write(&format!("power-{}", machine.mac), "on\n");
    bench.write("answer-cycle", "exit 0\n");
    let order = order_cycle(&rig, machine.id()).await;
    drive_until(&rig, "the BMC accepts and does nothing", || {
        let power = record(&rig, order, machine.id()).power.expect("a power order");
        if power.accepted == 1 { Ok(()) } else { Err(format!("{power:?}")) }
    });
    assert!(is_end_announced(&rig, machine.id()));
    rig.central.nodes.cancel_operation(order, &ordered(Verb::OperationCancel)).await.unwrap();
    assert!(!is_end_announced(&rig, machine.id()), "the machine runs on");
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_of_meshd_during_an_order_starts_the_wait_for_the_machine_anew() {
    let (world, bench) = prepared("auto");
    let rig = Rig::new(&world);
    let (node, order) = {
        let mut machine = Machine::new(&rig, 1);
        bench.write(&format!("power-{}", machine.mac), "on\n");
        machine.boot(Stage::Script).await;
        (machine.id(), order_cycle(&rig, machine.id()).await)
    };
    drive_until(&rig, "the BMC accepts", || {
        let power = record(&rig, order, node).power.expect("a power order");
        if power.accepted == 1 { Ok(()) } else { Err(format!("{power:?}")) }
    });
    assert_eq!(bench.changes(), ["cycle"]);
    // `appear_within` is 60 s: meshd did not run for most of them, and saw no packet.
    rig.clock.turn(Duration::from_secs(55));
    let rig = rig.restarted(&world);
    block_in_place(|| Handle::current().block_on(rig.central.nodes.drive_operations()));
    let polls = || bench.read("requests").matches("status\n").count();
    let before = polls();
    rig.clock.turn(Duration::from_secs(20));
    drive_until(&rig, "the BMC is polled", || {
        if polls() > before { Ok(()) } else { Err(bench.read("requests")) }
    });
    assert_eq!(bench.changes(), ["cycle"], "the power is not cut twice");
    assert_eq!(record(&rig, order, node).state, NodeOperationState::Running);
    rig.clock.turn(Duration::from_secs(60));
    drive_until(&rig, "the next attempt follows", || {
        if bench.changes() == ["cycle", "cycle"] { Ok(()) } else { Err(bench.read("requests")) }
    });
}
