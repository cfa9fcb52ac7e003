//! PR-4: orders and edits that give a node another mode are refused while it holds work, unless it
//! is drained or forced.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_api::DrainPolicy;
use meshd_central::SlotParts;
use meshd_model::{fleet::AuditContext, operations::NodeOrder};
use meshd_types::ProfileName;

fn guarded_world() -> World {
    let world = World::prepared("auto");
    world.edit_site(
        "[profiles.compute]",
        "[profiles.discovery.vfio]\ndevices = [\"class:0302\"]\n[profiles.compute]",
    );
    world
}

fn compute() -> ProfileName {
    "compute".parse().unwrap()
}

fn forced(verb: Verb) -> AuditContext {
    AuditContext { forced: true, ..ordered(verb) }
}

/// The node is drained: its machine is off and it says so.
async fn drain(rig: &Rig, node: &Machine<'_>, vm: &Vm) {
    rig.central
        .nodes
        .drain_with(node.id(), DrainPolicy::Stop, None, &ordered(Verb::Drain))
        .await
        .unwrap();
    report_vms(node, &[(vm, ReportedVmState::Stopped)]).await;
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(node.id()).phase, meshd_model::fleet::Phase::Maintenance);
}

#[tokio::test]
async fn pr4_boot_once_of_another_profile_is_refused_while_a_vm_runs() {
    let world = guarded_world();
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    let id = node.id();
    let role = meshd_trust::Role::Admin;
    let once = async |profile: Option<ProfileName>, args: &[&str], by: AuditContext| {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let order = NodeOrder::BootOnce { profile, kernel_args: args };
        rig.central.nodes.order_one(id, order, role, &by).await
    };
    let refused = once(Some(compute()), &[], ordered(Verb::BootOnce))
        .await
        .expect_err("its machine would be lost");
    assert!(code(&refused).contains("vm-1"), "{refused}");
    assert_eq!(rig.node(id).boot_override, None);
    once(None, &["quiet"], ordered(Verb::BootOnce)).await.expect("the same profile");
    once(Some("discovery".parse().unwrap()), &[], ordered(Verb::BootOnce))
        .await
        .expect("the same profile");
    once(Some(compute()), &[], forced(Verb::BootOnce)).await.expect("forced");
    drain(&rig, &node, &vm).await;
    once(Some(compute()), &[], ordered(Verb::BootOnce)).await.expect("drained");
}

#[tokio::test]
async fn pr4_profile_edit_of_vfio_is_refused_while_a_slot_is_in_use() {
    let world = guarded_world();
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    world.edit_site("overlays = [\"motd\"]", "overlays = [\"motd\"]\nkernel_args = [\"quiet\"]");
    let reload = rig.central.generations.reload(&ordered(Verb::Reload)).await;
    assert!(reload.changed, "nobody hosts otherwise by it: {reload:?}");
    world.edit_site("class:0302", "class:0200");
    let reload = rig.central.generations.reload(&ordered(Verb::Reload)).await;
    let message = reload.faults.first().map(ToString::to_string).unwrap_or_default();
    assert!(
        !reload.changed && message.contains("vfio.devices") && message.contains("vm-1"),
        "{reload:?}"
    );
    drain(&rig, &node, &vm).await;
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed, "drained");
}

#[tokio::test]
async fn pr4_rollback_to_another_vfio_is_refused_while_a_slot_is_in_use() {
    let world = guarded_world();
    let rig = Rig::new(&world);
    rig.central.generations.archive_revisions().await;
    world.edit_site("class:0302", "class:0300");
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    let node = host(&rig, 1).await;
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    let discovery: ProfileName = "discovery".parse().unwrap();
    let rollback = async |by: AuditContext| {
        rig.central.generations.rollback(discovery.clone(), None, &by).await
    };
    let refused = rollback(ordered(Verb::Rollback)).await.expect_err("its units would be others");
    assert!(code(&refused).contains("vm-1"), "{refused}");
    assert_eq!(rig.central.generations.revisions(&discovery).pinned, None, "no changes");
    rollback(forced(Verb::Rollback)).await.expect("forced");
    let refused = rig
        .central
        .generations
        .end_rollback(discovery.clone(), &ordered(Verb::Rollback))
        .await
        .expect_err("back is a change");
    assert!(code(&refused).contains("vm-1"), "{refused}");
    drain(&rig, &node, &vm).await;
    rig.central
        .generations
        .end_rollback(discovery, &ordered(Verb::Rollback))
        .await
        .expect("drained");
}

#[tokio::test]
async fn pr4_profile_edit_and_rollback_are_refused_while_a_slot_is_open() {
    let world = guarded_world();
    let rig = Rig::new(&world);
    rig.central.generations.archive_revisions().await;
    world.edit_site("class:0302", "class:0300");
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
    let node = host(&rig, 1).await;
    let slot = rig.central.vms.slots().pop().expect("one").id;
    let approved =
        rig.central.vms.approve_slot(slot, SlotParts::default(), &ordered(Verb::SlotApprove)).await;
    approved.expect("approved: no VM holds it");
    let discovery: ProfileName = "discovery".parse().unwrap();
    let rolled_back =
        rig.central.generations.rollback(discovery.clone(), None, &ordered(Verb::Rollback)).await;
    let refused = rolled_back.expect_err("its units would be others");
    assert!(code(&refused).contains("approved slots"), "{refused}");
    world.edit_site("class:0300", "class:0200");
    let reload = rig.central.generations.reload(&ordered(Verb::Reload)).await;
    let message = reload.faults.first().map(ToString::to_string).unwrap_or_default();
    assert!(!reload.changed && message.contains("approved slots"), "{reload:?}");
    rig.central
        .nodes
        .drain_with(node.id(), DrainPolicy::Stop, None, &ordered(Verb::Drain))
        .await
        .unwrap();
    assert!(node.heartbeat(0).await);
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed, "drained");
}
