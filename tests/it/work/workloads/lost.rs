//! What becomes of VMs when their node boots anew, is drained, lost, fenced or removed. Never two
//! copies.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_api::DrainPolicy;
use meshd_central::{ConsoleError, LinkError, OperateError};
use meshd_model::fleet::{AuditContext, Phase};
use meshd_proto::vm::VmTarget;
use std::time::Duration;

fn forced(verb: Verb) -> AuditContext {
    AuditContext { forced: true, ..ordered(verb) }
}

#[tokio::test]
async fn vm_lost_by_node_reboot_is_restarted_only_by_its_policy() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let once = create(&rig, ask(1, ""), None).await.unwrap();
    let always = create(&rig, ask(2, "[restart]\nwhen = \"always\""), None).await.unwrap();
    report_vms(&node, &[(&once, ReportedVmState::Running), (&always, ReportedVmState::Running)])
        .await;
    node.power_off().await;
    node.boot(Stage::Online).await;
    ready(&node).await;
    assert_eq!(rig.events("vm_lost").len(), 2);
    assert_eq!((life(&rig, &once), life(&rig, &always)), (VmPhase::Failed, VmPhase::Ordered));
    report_vms(&node, &[]).await;
    assert_eq!(rig.events("vm_lost").len(), 2, "that they are not there is known");
    report_vms(&node, &[(&always, ReportedVmState::Running)]).await;
    assert_eq!(record(&rig, &always).map(|vm| (vm.start, vm.node())), Some((2, Some(node.id()))));
}

#[tokio::test]
async fn vm_of_lost_node_moves_after_its_reboot_unless_it_has_a_unit() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = host(&rig, 1).await;
    let moves = create(&rig, ask(1, "on_node_loss = \"restart\""), None).await.unwrap();
    let bound = create(&rig, ask(2, "on_node_loss = \"restart\"\nunits = 1"), None).await.unwrap();
    report_vms(&first, &[(&moves, ReportedVmState::Running), (&bound, ReportedVmState::Running)])
        .await;
    let lost = first.id();
    first.power_off().await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(rig.node(lost).phase, Phase::Offline);
    let second = host(&rig, 2).await;
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(record(&rig, &moves).and_then(|vm| vm.node()), Some(lost), "it may run there still");
    let refused = create(&rig, ask(3, ""), Some(lost)).await.expect_err("it is offline");
    assert!(code(&refused).contains("not_ready"), "{refused}");
    first.boot(Stage::Script).await;
    assert!(rig.node(lost).certificates.is_empty(), "the credentials of the boot before go first");
    assert_eq!(record(&rig, &moves).and_then(|vm| vm.node()), None);
    assert_eq!(record(&rig, &bound).and_then(|vm| vm.node()), Some(lost), "its unit is there");
    assert!(second.heartbeat(0).await);
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(record(&rig, &moves).and_then(|vm| vm.node()), Some(second.id()));
    assert_eq!(rig.events("vm_moved").len(), 1);
}

#[tokio::test]
async fn fenced_node_loses_its_vms_and_movable_ones_move() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = Machine::new(&rig, 1);
    (first.facts, first.answers) = (facts("ready"), true);
    first.boot(Stage::Online).await;
    ready(&first).await;
    let moves = create(&rig, ask(1, "on_node_loss = \"restart\""), None).await.unwrap();
    let stays = create(&rig, ask(2, ""), None).await.unwrap();
    let going = create(&rig, ask(3, ""), None).await.unwrap();
    rig.central.vms.delete_vm(going.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    let second = host(&rig, 2).await;
    let by = ordered(Verb::Fence);
    assert!(matches!(
        rig.central.nodes.fence(first.id(), &by).await,
        Err(OperateError::Link(LinkError::StillLinked { .. }))
    ));
    first.power_off().await;
    rig.clock.turn(SILENT);
    rig.central.nodes.fence(first.id(), &by).await.unwrap();
    assert!(rig.node(first.id()).certificates.is_empty());
    assert_eq!(record(&rig, &moves).and_then(|vm| vm.node()), Some(second.id()));
    assert_eq!(life(&rig, &stays), VmPhase::Unplaced);
    assert_eq!(record(&rig, &going), None, "nothing of it can be there");
    assert!(rig.central.store().read(|model| model.allocations(first.id()).is_none()));
    // The old machine comes back with what it had: it is a stranger there.
    first.boot(Stage::Online).await;
    report_vms(&first, &[(&moves, ReportedVmState::Running)]).await;
    assert_eq!(rig.events("vm_unknown").len(), 1);
    assert_eq!(record(&rig, &moves).and_then(|vm| vm.node()), Some(second.id()));
    rig.central
        .vms
        .delete_vm(moves.uuid(), Some(first.id()), &ordered(Verb::VmDelete))
        .await
        .unwrap();
    assert_eq!(rig.vm_entries(first.id(), None).len(), 1);
    released(&first, &moves).await;
    assert!(rig.vm_entries(first.id(), None).is_empty());
    assert_eq!(
        record(&rig, &moves).and_then(|vm| vm.node()),
        Some(second.id()),
        "the other copy is the one that counts"
    );
    // Whoever says that it has a machine that has no node is not given what an operator types for
    // it.
    report_vms(&first, &[(&stays, ReportedVmState::Running)]).await;
    let sat = rig.central.vms.open_console(stays.uuid(), 0, true, None).await;
    assert!(matches!(sat, Err(ConsoleError::Unplaced(uuid)) if uuid == stays.uuid()));
}

#[tokio::test]
async fn node_with_vms_is_not_rebooted_or_removed_unless_drained_or_forced() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let id = node.id();
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    let profile = || "compute".parse().unwrap();
    let holds = |what: Result<(), OperateError>| {
        assert!(code(&what.expect_err("it holds one")).contains("vm-1"))
    };
    holds(rig.central.nodes.reboot(id, &ordered(Verb::Reboot)).await.map(drop));
    holds(
        rig.central
            .nodes
            .assign_profile(id, profile(), &ordered(Verb::AssignProfile))
            .await
            .map(drop),
    );
    holds(rig.central.nodes.quarantine(id, &ordered(Verb::Quarantine)).await.map(drop));
    holds(rig.central.nodes.remove(id, &ordered(Verb::Remove)).await.map(drop));
    // Drained, it takes nothing new and is in maintenance when what runs has ended.
    let drain = async |grace_s| {
        rig.central
            .nodes
            .drain_with(id, DrainPolicy::Stop, grace_s, &ordered(Verb::Drain))
            .await
            .unwrap()
    };
    let patience = || match rig
        .vm_entries(id, Some(vm.uuid()))
        .first()
        .map(|order| order.desired_state.clone())
    {
        Some(VmTarget::Stop { grace_s }) => grace_s,
        want => panic!("{want:?}"),
    };
    drain(None).await;
    assert_eq!(patience(), vm.request.grace_s, "its own");
    drain(Some(5)).await;
    assert_eq!(patience(), 5, "also of one that is being stopped");
    assert!(create(&rig, ask(2, ""), None).await.is_err());
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Draining, "it has not said that it is off");
    report_vms(&node, &[(&vm, ReportedVmState::Stopped)]).await;
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Maintenance);
    rig.central.nodes.assign_profile(id, profile(), &ordered(Verb::AssignProfile)).await.unwrap();
    holds(rig.central.nodes.remove(id, &ordered(Verb::Remove)).await.map(drop));
    rig.central.nodes.remove(id, &forced(Verb::Remove)).await.unwrap();
    assert_eq!(life(&rig, &vm), VmPhase::Unplaced);
    assert!(
        rig.central
            .store()
            .read(|model| model.allocations(id).is_none() && model.slots().is_empty())
    );
}

#[tokio::test]
async fn recently_heard_node_is_not_fenced() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let by = ordered(Verb::Fence);
    node.power_off().await;
    let refused = rig
        .central
        .nodes
        .fence(node.id(), &by)
        .await
        .expect_err("its link broke, and nothing more is known");
    assert!(matches!(refused, OperateError::NotSilent { .. }), "{refused}");
    assert_eq!(rig.node(node.id()).certificates.len(), 1, "nothing was taken from it");
    rig.clock.turn(SILENT);
    rig.central.nodes.fence(node.id(), &by).await.unwrap();
}
