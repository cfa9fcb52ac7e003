//! Orders to nodes are records: they go on after a restart, are executed once, and are listed,
//! followed and cancelled.

use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    world::{DEADLINE, World, eventually, single_orders::SingleOrders as _, stderr},
};
use meshd_api::BulkTarget;
use meshd_central::{AcceptedOrder, BATCH, OperateError};
use meshd_model::{
    fleet::{Audit, Fingerprint, LONGEST_BOOT, LabelChange, Node, Phase, Stage, Verb},
    operations::{NodeOperation, NodeOperationState, NodeOrder, OperationState},
};
use meshd_proto::{ActionId, ActionOutcome, FromAgent, FromCentral, Hello};
use meshd_store::{AuditFilter, OPERATION_CHANGES, StoreError};
use meshd_trust::{Peer, Role};
use meshd_types::{Basis, MacAddr, NodeId, OperationId};
use std::time::Duration;
use tokio::sync::mpsc;

/// More nodes than one request answers for.
const MANY: u32 = 1100;

/// Stores nodes that never boot.
async fn add_nodes(rig: &Rig, count: u32) -> Vec<NodeId> {
    let macs: Vec<MacAddr> = (0..count)
        .map(|number| {
            let [_, a, b, c] = number.to_be_bytes();
            MacAddr([2, 9, 9, a, b, c])
        })
        .collect();
    let at = rig.central.now();
    let mut ids = Vec::new();
    for batch in macs.chunks(BATCH) {
        let stored = rig.central.store().commit(|tx| {
            for mac in batch {
                let mut node = Node::discovered(Basis::Mac(*mac), Fingerprint::default(), *mac, at);
                node.labels.insert("rack".parse().unwrap(), "a".parse().unwrap());
                ids.push(node.id);
                tx.put_node(node);
            }
            Ok::<_, StoreError>(())
        });
        stored.await.unwrap();
    }
    ids
}

fn label(text: &str) -> NodeOrder {
    let set = [("done".parse().unwrap(), text.parse().unwrap())].into_iter().collect();
    NodeOrder::Label { change: LabelChange { set, unset: Vec::new() } }
}

async fn order(rig: &Rig, ids: &[NodeId], order: NodeOrder) -> AcceptedOrder {
    let targets: Vec<BulkTarget> =
        ids.iter().map(|id| BulkTarget { id: *id, revision: None }).collect();
    rig.central.nodes.order(&targets, order, Role::Admin, &ordered(Verb::Label)).await.unwrap()
}

fn record(rig: &Rig, operation: OperationId, node: NodeId) -> NodeOperation {
    rig.central
        .store()
        .read(|model| model.node_operation(operation, node).cloned())
        .expect("a record of the node")
}

fn labelled(rig: &Rig, ids: &[NodeId]) -> usize {
    let has = |id: &&NodeId| rig.node(**id).labels.contains_key(&"done".parse().unwrap());
    ids.iter().filter(has).count()
}

fn counts(rig: &Rig, operation: OperationId) -> [u32; 5] {
    rig.central.store().read(|model| model.operation_counts(operation).0)
}

fn state(rig: &Rig, operation: OperationId) -> OperationState {
    rig.central.store().read(|model| model.operation_counts(operation).state())
}

/// The open record of a node's reboot, once its action was sent.
async fn sent_reboot(rig: &Rig, id: NodeId) -> NodeOperation {
    let found = async {
        loop {
            let sent = rig.central.store().read(|model| {
                let mut open = model.open_operations_of(id).map(|(_, record)| record.clone());
                open.find(NodeOperation::is_unanswered)
            });
            if let Some(sent) = sent {
                // The action is sent when the record is on the disk.
                rig.central.store().read_acknowledged(|_| ()).await.expect("it is written");
                tokio::task::yield_now().await;
                return sent;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, found).await.expect("the reboot is sent")
}

/// Opens a link of a node that runs.
async fn link(machine: &Machine<'_>, commands: mpsc::Sender<meshd_central::LinkCommand>) {
    let rig = machine.rig;
    let node = rig.node(machine.id());
    let newest = node.certificates.last().cloned().expect("a certificate");
    let peer = Peer { node: node.id, serial: newest.serial, key: newest.key, expired: false };
    let session = node.boot.expect("a boot");
    let hello =
        Hello { version: machine.version, node: node.id, session, facts: machine.facts.clone() };
    rig.central.agents.link_up(&peer, hello, machine.address.into(), commands).await.unwrap();
}

/// Opens a link of a node that runs, and returns the actions that come by it.
async fn actions(machine: &Machine<'_>) -> mpsc::Receiver<meshd_central::LinkCommand> {
    let (commands, inbox) = mpsc::channel(16);
    link(machine, commands).await;
    inbox
}

fn action_numbers(inbox: &mut mpsc::Receiver<meshd_central::LinkCommand>) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Ok(command) = inbox.try_recv() {
        if let meshd_central::LinkCommand::Send(FromCentral::Action(action)) = command {
            numbers.push(action.id.0);
        }
    }
    numbers
}

#[tokio::test]
async fn operation_over_10000_nodes_has_one_record_each_in_bounded_commits() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let ids = add_nodes(&rig, 10_000).await;
    OPERATION_CHANGES.take();
    let accepted = order(&rig, &ids, label("yes")).await;
    let operation = accepted.operation.unwrap();
    assert!(accepted.results.is_none(), "it is answered before it is executed");
    let accepting = OPERATION_CHANGES.take();
    assert_eq!(accepting.len(), 10_000_usize.div_ceil(BATCH));
    assert_eq!(counts(&rig, operation), [10_000, 0, 0, 0, 0]);
    let [heads, records] = rig
        .central
        .store()
        .read(|model| [model.operations().count(), model.node_operations(operation).count()]);
    assert_eq!((heads, records), (1, 10_000), "one head record, one record for each node");
    for _ in 0..accepting.len() {
        rig.central.nodes.drive_operations().await;
    }
    let executing = OPERATION_CHANGES.take();
    let largest = accepting.iter().chain(&executing).max();
    assert!(largest.is_some_and(|largest| *largest <= BATCH), "{largest:?}");
    assert_eq!(counts(&rig, operation), [0, 0, 10_000, 0, 0]);
    assert_eq!(labelled(&rig, &ids), 10_000);
}

#[tokio::test]
async fn accepted_operation_goes_on_after_a_restart_and_changes_each_node_once() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let ids = add_nodes(&rig, MANY).await;
    let operation = order(&rig, &ids, label("yes")).await.operation.unwrap();
    rig.central.nodes.drive_operations().await;
    let done = labelled(&rig, &ids);
    assert!(done > 0 && done < ids.len(), "it is in the middle: {done}");
    let rig = rig.restarted(&world);
    while state(&rig, operation) == OperationState::Running {
        rig.central.nodes.drive_operations().await;
    }
    assert_eq!(labelled(&rig, &ids), ids.len());
    assert_eq!(rig.events("labels_changed").len(), ids.len(), "each node once");
}

#[tokio::test]
async fn cancel_ends_the_nodes_that_have_not_started() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let ids = add_nodes(&rig, MANY).await;
    let operation = order(&rig, &ids, label("yes")).await.operation.unwrap();
    rig.central.nodes.drive_operations().await;
    let done = labelled(&rig, &ids);
    let by = ordered(Verb::OperationCancel);
    let cancelled = rig.central.nodes.cancel_operation(operation, &by).await.unwrap();
    assert_eq!(cancelled + done, ids.len());
    rig.central.nodes.drive_operations().await;
    assert_eq!((labelled(&rig, &ids), state(&rig, operation)), (done, OperationState::Cancelled));
    assert!(
        rig.central.nodes.cancel_operation(operation, &by).await.is_err(),
        "nothing is left to cancel"
    );
    let unknown = OperationId([0xee; 4]);
    assert!(rig.central.nodes.cancel_operation(unknown, &by).await.is_err());
}

#[tokio::test]
async fn second_order_is_refused_while_one_is_pending_but_removal_withdraws_it() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let ids = add_nodes(&rig, MANY).await;
    let operation = order(&rig, &ids, label("yes")).await.operation.unwrap();
    let one = ids[0];
    let refused =
        rig.central.nodes.order_one(one, label("no"), Role::Admin, &ordered(Verb::Label)).await;
    assert!(
        matches!(refused, Err(OperateError::Busy { operation: by, .. }) if by == operation),
        "{refused:?}"
    );
    rig.central.nodes.remove(one, &ordered(Verb::Remove)).await.unwrap();
    assert_eq!(
        record(&rig, operation, one).state,
        NodeOperationState::Cancelled,
        "the node was removed"
    );
    rig.central.nodes.rename(ids[1], "renamed", &ordered(Verb::Rename)).await.unwrap();
    while state(&rig, operation) == OperationState::Running {
        rig.central.nodes.drive_operations().await;
    }
    assert_eq!(counts(&rig, operation), [0, 0, MANY - 1, 0, 1]);
    assert_eq!((rig.node(ids[1]).name.as_str(), labelled(&rig, &ids[1..2])), ("renamed", 1));
    assert_eq!(rig.node(one).phase, Phase::Removed);
}

#[tokio::test]
async fn refused_rejection_cancels_no_pending_order() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let ids = add_nodes(&rig, MANY).await;
    let operation = order(&rig, &ids, label("yes")).await.operation.unwrap();
    let boots = rig.central.store().commit(|tx| {
        tx.edit_node(ids[0], |node| node.phase = Phase::Booting);
        Ok::<_, StoreError>(())
    });
    boots.await.unwrap();
    rig.central.nodes.reject(ids[0], &ordered(Verb::Reject)).await.expect_err("it is approved");
    assert_eq!(record(&rig, operation, ids[0]).state, NodeOperationState::Pending);
    assert_eq!(counts(&rig, operation), [MANY, 0, 0, 0, 0]);
}

/// Repetitions of a refused order would drive the records of others out of the store.
#[tokio::test]
async fn refused_order_to_one_node_leaves_no_record() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let ids = add_nodes(&rig, 1).await;
    let refused = rig.central.nodes.resume(ids[0], &ordered(Verb::Resume)).await.unwrap_err();
    assert!(matches!(refused, OperateError::Unlawful(_)), "{refused}");
    rig.central.nodes.remove(ids[0], &ordered(Verb::Remove)).await.unwrap();
    let orders = rig
        .central
        .store()
        .read(|model| model.operations().map(|head| head.order.clone()).collect::<Vec<_>>());
    assert_eq!(orders, [NodeOrder::Remove]);
}

/// A link whose queue is full delays nobody, and gets its reboot later.
#[tokio::test]
async fn full_queue_of_a_link_delays_only_its_own_reboot() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let (commands, mut inbox) = mpsc::channel(1);
    commands.try_send(meshd_central::LinkCommand::Close(String::new())).expect("an empty queue");
    link(&machine, commands).await;
    let mut ids = add_nodes(&rig, MANY).await;
    ids.push(machine.id());
    let operation = order(&rig, &ids, NodeOrder::Reboot).await.operation.unwrap();
    let driven = async {
        while rig
            .central
            .store()
            .read(|model| model.operation_counts(operation).of(NodeOperationState::Pending))
            > 0
        {
            rig.central.nodes.drive_operations().await;
        }
    };
    tokio::time::timeout(DEADLINE, driven).await.expect("a full queue delays nobody");
    assert_eq!(action_numbers(&mut inbox), [0; 0], "the queue was full");
    rig.central.nodes.drive_operations().await;
    rig.central.nodes.drive_operations().await;
    assert_eq!(
        action_numbers(&mut inbox),
        [record(&rig, operation, machine.id()).action.unwrap()],
        "sent once"
    );
}

#[tokio::test]
async fn cancellation_has_its_audit_line_in_its_own_transaction() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let ids = add_nodes(&rig, MANY).await;
    let operation = order(&rig, &ids, label("yes")).await.operation.unwrap();
    let audit = ordered(Verb::OperationCancel);
    rig.central.nodes.cancel_operation(operation, &audit).await.unwrap();
    let lines =
        rig.central.store().audit(&AuditFilter { limit: 100, ..AuditFilter::default() }).unwrap();
    let of_operation =
        |(_, line): &&(_, Audit)| line.target.as_ref() == Some(&operation.to_string());
    assert_eq!(lines.iter().filter(of_operation).count(), 1, "{lines:?}");
}

#[tokio::test]
async fn reboot_is_sent_again_after_a_restart_with_the_same_number_and_ends_with_the_next_boot() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let (sent, id) = {
        let mut machine = Machine::new(&rig, 1);
        machine.boot(Stage::Online).await;
        let id = machine.id();
        let nodes = rig.central.nodes.clone();
        let waiting = tokio::spawn(async move { nodes.reboot(id, &ordered(Verb::Reboot)).await });
        let sent = sent_reboot(&rig, id).await;
        waiting.abort();
        let _ = waiting.await;
        (sent, id)
    };
    let rig = rig.restarted(&world);
    let mut machine = Machine::new(&rig, 1);
    let mut inbox = actions(&machine).await;
    assert_eq!(
        action_numbers(&mut inbox),
        [sent.action.unwrap()],
        "an agent executes a number once"
    );
    machine.link_up().await;
    let done =
        FromAgent::ActionDone { id: ActionId(sent.action.unwrap()), outcome: ActionOutcome::Done };
    assert!(machine.say(done).await);
    let confirmed = record(&rig, sent.operation, id);
    assert!(
        confirmed.confirmed_at.is_some() && confirmed.state == NodeOperationState::Running,
        "{confirmed:?}"
    );
    let (activities, _) = rig.central.activities();
    let reboot = activities
        .iter()
        .find(|activity| activity.request == "reboot")
        .expect("it is not finished");
    assert_eq!(reboot.since, confirmed.confirmed_at, "the time of the record");
    machine.boot(Stage::Online).await;
    rig.central.nodes.drive_operations().await;
    assert_eq!(record(&rig, sent.operation, id).state, NodeOperationState::Done);
    let orders = rig.events("node_action").into_iter().filter(|event| event.by.is_some()).count();
    assert_eq!(orders, 1, "one order was given");
    let mut inbox = actions(&machine).await;
    assert_eq!(action_numbers(&mut inbox), [0; 0], "a new boot does not receive it");
}

#[tokio::test]
async fn second_reboot_waits_for_the_answer_then_replaces_the_first_and_fails_without_a_boot() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let by = ordered(Verb::Reboot);
    let node_side = async {
        let sent = sent_reboot(&rig, id).await;
        let second = rig.central.nodes.reboot(id, &by).await;
        assert!(matches!(second, Err(OperateError::Busy { .. })), "{second:?}");
        // The first one is on the disk, and sends its action when it runs next.
        tokio::task::yield_now().await;
        rig.clock.jump(120_000);
        rig.central.nodes.drive_operations().await;
        let state = record(&rig, sent.operation, id).state;
        assert_eq!(state, NodeOperationState::Running, "no time has passed");
        let outcome = ActionOutcome::Done;
        assert!(
            machine
                .say(FromAgent::ActionDone { id: ActionId(sent.action.unwrap()), outcome })
                .await
        );
        sent.operation
    };
    let (first, operation) = tokio::join!(rig.central.nodes.reboot(id, &by), node_side);
    first.unwrap();
    let node_side = async {
        let sent = sent_reboot(&rig, id).await;
        assert_eq!(record(&rig, operation, id).state, NodeOperationState::Cancelled, "replaced");
        let outcome = ActionOutcome::Done;
        assert!(
            machine
                .say(FromAgent::ActionDone { id: ActionId(sent.action.unwrap()), outcome })
                .await
        );
        sent.operation
    };
    let (second, operation) = tokio::join!(rig.central.nodes.reboot(id, &by), node_side);
    second.unwrap();
    let is_end_announced = || {
        let session = rig.node(id).boot.expect("a boot");
        rig.central
            .store()
            .read(|model| model.session(session).expect("on record").is_end_announced())
    };
    assert!(is_end_announced());
    rig.clock.turn(LONGEST_BOOT + Duration::from_secs(1));
    rig.central.nodes.drive_operations().await;
    let failed = record(&rig, operation, id);
    assert_eq!(failed.state, NodeOperationState::Failed);
    assert!(failed.reason.is_some_and(|reason| reason.contains("did not boot")));
    assert!(!is_end_announced(), "the node runs on");
}

#[tokio::test]
async fn drain_is_running_until_its_work_ends_and_cancelled_by_resume() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let drain = || NodeOrder::Drain {
        workloads: meshd_model::operations::DrainPolicy::Wait,
        grace_s: None,
    };
    assert!(machine.heartbeat(1).await);
    let first = order(&rig, &[id], drain()).await.operation.unwrap();
    assert_eq!(record(&rig, first, id).state, NodeOperationState::Running);
    let second = order(&rig, &[id], drain()).await.operation.unwrap();
    assert_eq!(
        record(&rig, first, id).state,
        NodeOperationState::Cancelled,
        "the second one replaces it"
    );
    rig.central.nodes.resume(id, &ordered(Verb::Resume)).await.unwrap();
    assert_eq!(record(&rig, second, id).state, NodeOperationState::Cancelled);
    let third = order(&rig, &[id], drain()).await.operation.unwrap();
    let started = record(&rig, third, id).started_at;
    rig.clock.turn(Duration::from_secs(5));
    assert!(machine.heartbeat(0).await);
    let done = record(&rig, third, id);
    assert_eq!(
        (done.state, done.started_at, rig.node(id).phase),
        (NodeOperationState::Done, started, Phase::Maintenance)
    );
    assert!(done.finished_at > started);
}

/// kill -9 at each step of an operation of the real daemon: what was acknowledged goes on, and no
/// node is changed twice.
#[test]
fn killed_daemon_finishes_acknowledged_operations_and_forgets_others() {
    let mut world = World::prepared("approve");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let rig = Rig::new(&world);
        add_nodes(&rig, MANY).await;
        rig.central.store().close().await.unwrap();
    });
    let label = |world: &World, value: &str| {
        world.meshd(&["node", "label", "-l", "rack=a", &format!("done={value}")])
    };
    let labelled = |world: &World, value: &str| {
        let nodes = world.json(&["node", "list", "-l", &format!("done={value}"), "-o", "json"]);
        nodes.as_array().unwrap().len()
    };
    world.start_with(&[("MESHD_FAIL", "operation-accepting:2".to_owned())]);
    let output = label(&world, "never");
    assert!(!output.status.success(), "{}", stderr(&output));
    world.kill();
    for (place, value) in [("operation-accepted", "accepted"), ("operation-applied:2", "applied")] {
        world.start_with(&[("MESHD_FAIL", place.to_owned())]);
        assert_eq!(labelled(&world, "never"), 0, "it was not acknowledged");
        let output = label(&world, value);
        assert!(!output.status.success(), "{place}: {}", stderr(&output));
        world.kill();
        world.start();
        eventually("the operation is finished", || match labelled(&world, value) {
            count if count == MANY as usize => Ok(()),
            count => Err(format!("{place}: {count}")),
        });
        world.kill();
    }
    world.start();
    let operations = world.json(&["operation", "list", "-o", "json"]);
    let states: Vec<_> =
        operations.as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["done", "done"], "the first was not acknowledged");
    let id = operations[1]["id"].as_str().unwrap();
    let shown = world.json(&["operation", "show", id, "-o", "json"]);
    assert_eq!(shown["nodes"].as_array().unwrap().len(), MANY as usize);
    assert!(world.meshd(&["operation", "follow", id]).status.success());
    let cancelled = world.meshd(&["operation", "cancel", id]);
    assert!(stderr(&cancelled).contains("all have started"), "{}", stderr(&cancelled));
}
