//! Steps of orders to BMCs, with a clock that is turned by hand: work that comes late, orders that
//! fail, restarts, and rollouts beside them.

use super::Bench;
use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    work::workloads::{ask, create, host},
    world::World,
};
use meshd_api::BulkTarget;
use meshd_central::{NodeGroup, RolloutRequest};
use meshd_model::{
    fleet::{ExpectedMachine, Stage, Verb},
    operations::{NodeOperation, NodeOperationState, NodeOrder, Operation, OperationStage},
    rollouts::{Amount, Floor, RolloutPolicy, RolloutTarget},
    work::{AssignedParts, Placement},
};
use meshd_store::StoreError;
use meshd_trust::Role;
use meshd_types::{Basis, NodeId, OperationId, PowerAction};
use std::time::{Duration, Instant};

const WAIT: &str = "# refusal recently_online";
/// The program accepts the request, and nothing happens.
const IGNORED: &str = "exit 0\n";

fn site_with_program() -> (World, Bench) {
    let world = World::prepared("auto");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("command", ""));
    (world, bench)
}

fn power(action: PowerAction) -> NodeOrder {
    NodeOrder::Power { action, now: false }
}

/// Gives an order. Returns its operation.
async fn give(rig: &Rig, node: NodeId, order: NodeOrder) -> OperationId {
    let targets = [BulkTarget { id: node, revision: None }];
    let audit = ordered(Verb::Power);
    let given = rig.central.nodes.order(&targets, order, Role::Operator, &audit).await.unwrap();
    given.operation.expect("the node takes it")
}

fn record(rig: &Rig, operation: OperationId) -> NodeOperation {
    let first = |model: &meshd_store::Model| model.node_operations(operation).next().cloned();
    rig.central.store().read(first).expect("a record")
}

/// Takes the steps of each second until a record is as wanted.
async fn drive(
    rig: &Rig,
    operation: OperationId,
    is_over: impl Fn(&NodeOperation) -> bool,
) -> NodeOperation {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        rig.central.nodes.drive_operations().await;
        let is_sent = |record: &NodeOperation| {
            record.power.as_ref().is_some_and(|power| power.sent.is_some())
                && record.state == NodeOperationState::Running
        };
        while is_sent(&record(rig, operation)) {
            assert!(Instant::now() < deadline, "{:?}", record(rig, operation));
            tokio::task::yield_now().await;
        }
        let record = record(rig, operation);
        if is_over(&record) {
            return record;
        }
        assert!(Instant::now() < deadline, "{record:?}");
        rig.clock.turn(Duration::from_secs(1));
    }
}

fn is_accepted(record: &NodeOperation) -> bool {
    record.power.as_ref().is_some_and(|power| power.accepted > 0)
}

fn is_final(record: &NodeOperation) -> bool {
    !record.state.is_open()
}

async fn online<'a>(rig: &'a Rig, bench: &Bench, number: u8) -> Machine<'a> {
    let mut machine = Machine { answers: true, ..Machine::new(rig, number) };
    machine.boot(Stage::Online).await;
    bench.write(&format!("power-{}", machine.mac), "on\n");
    machine
}

#[tokio::test]
async fn power_is_not_cut_under_work_that_came_after_the_order() {
    let (world, bench) = site_with_program();
    let rig = Rig::new(&world);
    let machine = host(&rig, 1).await;
    bench.write(&format!("power-{}", machine.mac), "on\n");
    let operation = give(&rig, machine.id(), power(PowerAction::Off)).await;
    let other = host(&rig, 2).await.id();
    let vm = create(&rig, ask(1, ""), Some(other)).await.unwrap();
    // As a placement that was under way when the order came.
    let since = rig.central.now();
    let placement = Placement { node: machine.id(), since, session: None };
    let mut moved = vm.clone();
    moved.unplace("its node was removed".to_owned());
    moved.assign(placement, AssignedParts::default());
    let put = rig.central.store().commit(|tx| {
        tx.put_vm(moved.clone());
        Ok::<_, StoreError>(())
    });
    put.await.unwrap();
    let record = drive(&rig, operation, is_final).await;
    let reason = record.reason.unwrap_or_default();
    let names_vm = reason.contains(&vm.name().to_string());
    assert!(record.state == NodeOperationState::Failed && names_vm, "{reason}");
    assert_eq!(bench.changes(), Vec::<String>::new());
}

#[tokio::test]
async fn node_gets_no_work_while_its_power_is_about_to_be_cut() {
    let (world, bench) = site_with_program();
    let rig = Rig::new(&world);
    let machine = host(&rig, 1).await;
    bench.write(&format!("power-{}", machine.mac), "on\n");
    bench.write("answer-cycle", IGNORED);
    give(&rig, machine.id(), power(PowerAction::Cycle)).await;
    let refused = create(&rig, ask(1, ""), None).await;
    assert!(refused.is_err(), "no node takes it: {refused:?}");
}

#[tokio::test]
async fn end_of_a_boot_is_not_announced_by_a_power_order_that_failed() {
    let (world, bench) = site_with_program();
    bench.write("answer-cycle", IGNORED);
    bench.write("answer-boot-device", IGNORED);
    let rig = Rig::new(&world);
    for is_cancelled in [true, false] {
        let mut machine = online(&rig, &bench, if is_cancelled { 1 } else { 2 }).await;
        let operation = give(&rig, machine.id(), power(PowerAction::Cycle)).await;
        drive(&rig, operation, is_accepted).await;
        let running = rig.node(machine.id()).boot.unwrap();
        let is_announced =
            || rig.central.store().read(|model| model.session(running).unwrap().reboot_ordered);
        assert!(is_announced(), "the machine may go at any time");
        if is_cancelled {
            let audit = ordered(Verb::OperationCancel);
            rig.central.nodes.cancel_operation(operation, &audit).await.unwrap();
        } else {
            let record = drive(&rig, operation, is_final).await;
            assert_eq!(record.state, NodeOperationState::Failed, "{record:?}");
            assert!(machine.heartbeat(0).await);
        }
        // Somebody interrupts its link, and boots with its NIC and UUID.
        machine.lose_power().await;
        machine.reset(Stage::Script).await;
        assert!(!is_announced() && machine.script.contains(WAIT), "{}", machine.script);
    }
}

#[tokio::test]
async fn order_to_a_machine_that_has_not_booted_survives_a_restart() {
    let (world, bench) = site_with_program();
    let rig = Rig::new(&world);
    let (mac, now) = (Machine::new(&rig, 1).mac, rig.central.now());
    let node = Basis::Mac(mac).node_id();
    // As an operation in the background leaves them: pending after the end of the process.
    let heads = [PowerAction::On, PowerAction::Cycle].map(|action| Operation {
        id: OperationId([action as u8; 4]),
        order: power(action),
        by: ordered(Verb::Power),
        accepted_at: now,
        targets: 1,
        stage: OperationStage::Accepted,
    });
    let put = rig.central.store().commit(|tx| {
        tx.put_expected_machine(ExpectedMachine::new(mac, now));
        for head in heads.clone() {
            tx.put_node_operation(NodeOperation::pending(head.id, node, String::new()));
            tx.put_operation(head);
        }
        Ok::<_, StoreError>(())
    });
    put.await.unwrap();
    let [on, cycle] = heads.map(|head| head.id);
    drive(&rig, on, is_accepted).await;
    assert_eq!(bench.changes(), ["on"]);
    let refused = record(&rig, cycle);
    assert_eq!(refused.state, NodeOperationState::Failed, "nobody knows what runs there");
}

#[tokio::test]
async fn node_whose_power_is_about_to_be_cut_counts_against_a_floor() {
    let (world, bench) = site_with_program();
    let rig = Rig::new(&world);
    let machines = [online(&rig, &bench, 1).await, online(&rig, &bench, 2).await];
    let [first, second] = &machines;
    let mut names = Vec::new();
    for machine in &machines {
        names.push(machine.id().to_string());
    }
    let request = RolloutRequest {
        nodes: NodeGroup::Named(names.join(",").parse().unwrap()),
        target: RolloutTarget::Reboot,
        policy: RolloutPolicy {
            floors: vec![Floor { group: None, serving: Amount::Count(1) }],
            ..RolloutPolicy::default()
        },
        all_at_once: None,
    };
    let audit = ordered(Verb::RolloutStart);
    assert!(rig.central.rollouts.plan(&request, &audit).await.is_ok());
    // A shutdown takes its time: the link stays for a while.
    bench.write("answer-shut-down", IGNORED);
    let operation = give(&rig, first.id(), power(PowerAction::Off)).await;
    drive(&rig, operation, is_accepted).await;
    assert!(
        rig.node(first.id()).phase.accepts_work() && rig.node(second.id()).phase.accepts_work()
    );
    let refused = rig.central.rollouts.plan(&request, &audit).await.map(drop);
    assert!(refused.is_err_and(|error| error.to_string().contains("1 of 2 nodes serve")));
}

#[tokio::test]
async fn jump_of_the_wall_clock_sends_no_second_cycle() {
    let (world, bench) = site_with_program();
    let rig = Rig::new(&world);
    let mut machine = online(&rig, &bench, 1).await;
    bench.write("answer-cycle", IGNORED);
    let operation = give(&rig, machine.id(), power(PowerAction::Cycle)).await;
    drive(&rig, operation, is_accepted).await;
    machine.lose_power().await;
    rig.clock.jump(86_400_000);
    let until = rig.central.now().after(Duration::from_secs(15));
    drive(&rig, operation, |_| rig.central.now() >= until).await;
    assert_eq!(bench.changes(), ["cycle"]);
}
