//! A node claims VMs that the record places elsewhere, or that nobody ordered: what that blocks,
//! and until when.

use super::{ask, code, create, facts, host, life, ready, record, released, report_vms};
use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    work::workloads::SILENT,
    world::{World, single_orders::SingleOrders as _},
};
use meshd_central::VmVerb;
use meshd_model::{
    fleet::{AuditContext, Stage, Verb},
    work::{AssignedParts, Placement, Vm, VmPhase},
};
use meshd_proto::vm::ReportedVmState;

#[tokio::test]
async fn claim_of_another_node_blocks_neither_start_nor_failover() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut owner = Machine::new(&rig, 1);
    (owner.facts, owner.answers) = (facts("ready"), true);
    owner.boot(Stage::Online).await;
    ready(&owner).await;
    let vm = create(&rig, ask(1, "on_node_loss = \"restart\""), None).await.unwrap();
    assert_eq!(vm.node(), Some(owner.id()));
    report_vms(&owner, &[(&vm, ReportedVmState::Running)]).await;
    let liar = host(&rig, 2).await;
    report_vms(&liar, &[(&vm, ReportedVmState::Running)]).await;
    assert_eq!(rig.events("vm_unknown").len(), 1, "an operator sees the claim");

    let order =
        async |verb| rig.central.vms.order_vm(vm.uuid(), verb, &ordered(Verb::VmStart)).await;
    order(VmVerb::Stop).await.unwrap();
    report_vms(&owner, &[(&vm, ReportedVmState::Stopped)]).await;
    order(VmVerb::Start).await.unwrap();
    report_vms(&owner, &[(&vm, ReportedVmState::Running)]).await;
    assert_eq!(life(&rig, &vm), VmPhase::Running);

    owner.power_off().await;
    rig.clock.turn(SILENT);
    let rescuer = host(&rig, 3).await;
    report_vms(&liar, &[(&vm, ReportedVmState::Running)]).await;
    rig.central.nodes.fence(owner.id(), &ordered(Verb::Fence)).await.unwrap();
    assert_eq!(record(&rig, &vm).and_then(|vm| vm.node()), Some(rescuer.id()));
}

#[tokio::test]
async fn former_node_of_a_vm_may_claim_it() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let owner = host(&rig, 1).await;
    let vm = create(&rig, ask(1, ""), None).await.unwrap();
    report_vms(&owner, &[(&vm, ReportedVmState::Running)]).await;
    let second = host(&rig, 2).await.id();
    let forgotten = |tx: &mut meshd_store::Tx<'_>| {
        let mut vm = tx.vm(vm.uuid()).cloned().unwrap();
        // As after a removal of its node, whose machine may run on, and of the next node.
        vm.unplace("its node was removed".to_owned());
        vm.assign(
            Placement { node: second, since: rig.central.now(), session: None },
            AssignedParts::default(),
        );
        vm.unplace("its node was removed".to_owned());
        tx.put_vm(vm);
        Ok::<_, meshd_store::StoreError>(())
    };
    rig.central.store().commit(forgotten).await.unwrap();
    report_vms(&owner, &[(&vm, ReportedVmState::Running)]).await;
    let _other = host(&rig, 3).await;
    let start =
        async || rig.central.vms.order_vm(vm.uuid(), VmVerb::Start, &ordered(Verb::VmStart)).await;
    assert!(
        code(&start().await.expect_err("it may run there"))
            .contains(&format!("--node {}", owner.id()))
    );

    rig.central.vms.delete_vm(vm.uuid(), Some(owner.id()), &ordered(Verb::VmDelete)).await.unwrap();
    released(&owner, &vm).await;
    report_vms(&owner, &[]).await;
    assert_eq!(record(&rig, &vm).unwrap().former_nodes, [second].into());
    start().await.unwrap();
}

#[tokio::test]
async fn claims_of_a_node_end_with_quarantine_and_revocation() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let unrecorded = Vm::new(ask(9, ""), None, rig.central.now());
    let _host = host(&rig, 1).await;
    for (number, verb) in [(2, Verb::Quarantine), (3, Verb::CertificateRevoke)] {
        let liar = host(&rig, number).await;
        report_vms(&liar, &[(&unrecorded, ReportedVmState::Running)]).await;
        let refused = code(&create(&rig, ask(9, ""), None).await.expect_err("nobody knows better"));
        assert!(refused.contains(&format!("meshd node quarantine {}", liar.id())), "{refused}");
        let by = ordered(verb);
        match verb {
            Verb::Quarantine => rig.central.nodes.quarantine(liar.id(), &by).await.unwrap(),
            _ => rig.central.nodes.revoke(liar.id(), &by).await.unwrap(),
        };
        assert!(rig.central.vms.orphan_vms().is_empty(), "{verb:?}");
        let made = create(&rig, ask(9, ""), None).await.unwrap();
        rig.central
            .vms
            .delete_vm(made.uuid(), None, &AuditContext { forced: true, ..by })
            .await
            .unwrap();
        let removed = |tx: &mut meshd_store::Tx<'_>| {
            tx.remove_vm(made.uuid());
            Ok::<_, meshd_store::StoreError>(())
        };
        rig.central.store().commit(removed).await.unwrap();
    }
}

#[tokio::test]
async fn operator_may_create_a_vm_in_spite_of_an_unrecorded_claim() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let liar = host(&rig, 1).await;
    report_vms(&liar, &[(&Vm::new(ask(9, ""), None, rig.central.now()), ReportedVmState::Running)])
        .await;
    let host = host(&rig, 2).await;
    let forced = AuditContext { forced: true, ..ordered(Verb::VmCreate) };
    let made = rig.central.vms.create_vm(ask(9, ""), None, true, &forced).await.unwrap();
    assert_eq!(made.node(), Some(host.id()));
}
