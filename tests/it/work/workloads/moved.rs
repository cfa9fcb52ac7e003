//! What a node has when its ID becomes another one, and what becomes of it when a link comes back
//! while it is fenced.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_central::{LinkCommand, LinkError, OperateError, SlotParts, VmVerb};
use meshd_proto::vm::VmTarget;
use meshd_types::SystemUuid;

/// The site trusts this UUID no more.
async fn deny(world: &World, rig: &Rig, uuid: SystemUuid) {
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    std::fs::write(
        world.path("site.toml"),
        format!("{site}[identity]\ndeny_uuids = [\"{uuid}\"]\n"),
    )
    .unwrap();
    assert!(rig.central.generations.reload(&ordered(Verb::Reload)).await.changed);
}

#[tokio::test]
async fn vms_and_slots_follow_a_machine_to_its_new_id() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut node = Machine::new(&rig, 1);
    node.facts = facts("ready");
    node.boot_approved(Stage::Online).await;
    ready(&node).await;
    let old = node.id();
    let slot = rig.central.vms.slots().pop().expect("a candidate").id;
    rig.central
        .vms
        .approve_slot(slot.clone(), SlotParts::default(), &ordered(Verb::SlotApprove))
        .await
        .unwrap();
    let restart = "units = 1\n[restart]\nwhen = \"always\"";
    let stays = create(&rig, ask(1, restart), Some(old)).await.unwrap();
    let going = create(&rig, ask(2, ""), None).await.unwrap();
    report_vms(&node, &[(&stays, ReportedVmState::Running), (&going, ReportedVmState::Running)])
        .await;
    rig.central.vms.delete_vm(going.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    deny(&world, &rig, node.uuid).await;
    node.power_off().await;
    node.boot(Stage::Online).await;
    ready(&node).await;
    let new = node.id();
    assert_ne!(new, old);

    let vm = record(&rig, &stays).expect("it is on record");
    assert_eq!((vm.node(), vm.required_node, vm.start), (Some(new), Some(new), 2));
    assert_eq!(life(&rig, &stays), VmPhase::Ordered);
    let orders = rig.vm_entries(new, None);
    let want = |vm: &Vm| {
        orders.iter().find(|order| order.uuid == vm.uuid()).map(|order| &order.desired_state)
    };
    assert!(matches!(want(&stays), Some(VmTarget::Run { start: 2, .. })), "{orders:?}");
    assert!(want(&going).is_some(), "it is asked to release it");
    let [slot] = rig.central.vms.slots().try_into().expect("one slot");
    assert_eq!(
        (slot.id.node, slot.approved.is_some(), slot.state.as_str()),
        (new, true, "reserved")
    );
    assert!(rig.central.store().read(|model| model.allocations(old).is_none()));
    report_vms(&node, &[(&stays, ReportedVmState::Running)]).await;
    released(&node, &going).await;
    assert_eq!((record(&rig, &going), life(&rig, &stays)), (None, VmPhase::Running));
}

#[tokio::test]
async fn vm_of_replaced_node_may_run_on_the_new_node() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut old = host(&rig, 1).await;
    let new = host(&rig, 2).await;
    let vm = create(&rig, ask(1, ""), Some(old.id())).await.unwrap();
    report_vms(&old, &[(&vm, ReportedVmState::Running)]).await;
    old.power_off().await;
    let by = meshd_model::fleet::AuditContext { forced: true, ..ordered(Verb::Replace) };
    rig.central.nodes.replace(old.id(), new.id(), &by).await.unwrap();
    assert_eq!(
        (life(&rig, &vm), record(&rig, &vm).and_then(|vm| vm.required_node)),
        (VmPhase::Unplaced, Some(new.id()))
    );
    rig.central.vms.order_vm(vm.uuid(), VmVerb::Start, &ordered(Verb::VmStart)).await.unwrap();
    assert_eq!(record(&rig, &vm).and_then(|vm| vm.node()), Some(new.id()));
}

#[tokio::test]
async fn node_that_returns_during_fencing_is_not_fenced() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let id = node.id();
    let vm = create(&rig, ask(1, ""), None).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    // Its link is one that does not answer, and does not end either.
    let mut inbox = read_orders(&mut node).await;
    let central = rig.central.clone();
    let fence = tokio::spawn(async move { central.nodes.fence(id, &ordered(Verb::Fence)).await });
    let probe = loop {
        match inbox.recv().await.expect("it is asked whether it is there") {
            LinkCommand::Probe(probe) => break probe,
            _ => continue,
        }
    };
    node.link_up().await;
    drop(probe);
    let fenced = fence.await.unwrap();
    assert!(
        matches!(
            fenced,
            Err(OperateError::Link(LinkError::StillLinked { .. }) | OperateError::NotSilent { .. })
        ),
        "{fenced:?}"
    );
    assert_eq!(
        (rig.node(id).certificates.len(), record(&rig, &vm).and_then(|vm| vm.node())),
        (1, Some(id))
    );
}
