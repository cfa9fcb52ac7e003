//! When a VM is started, and what becomes of one that its node refuses. Nothing stays reserved, and
//! nothing runs where it should not.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_api::DrainPolicy;
use meshd_central::{VmError, VmVerb};
use meshd_model::{
    fleet::{AuditContext, Phase},
    work::VmDesiredState,
};
use meshd_proto::vm::{VmFailure, VmFailureKind, VmRefusalReason, VmTarget};
use meshd_types::Digest;

/// Reports that the node cannot run the VM, by the order of this number.
async fn refuse(machine: &Machine<'_>, vm: &Vm, start: u32, reason: VmRefusalReason, cause: &str) {
    let detail = format!("{}: {cause}", reason.as_str());
    let failure =
        VmFailure { reasons: [reason].into(), ..VmFailure::new(VmFailureKind::Refused, detail) };
    let plain = VmReport::new(vm.uuid(), vm.name().clone(), ReportedVmState::Failed);
    let report = VmReport { failure: Some(failure), start: Some(start), ..plain };
    assert!(machine.say(vms_report(VmUpdate::All { vms: vec![report] })).await);
}

async fn order(rig: &Rig, vm: &Vm, verb: VmVerb) -> Result<Vm, VmError> {
    rig.central.vms.order_vm(vm.uuid(), verb, &ordered(Verb::VmStart)).await
}

fn want(rig: &Rig, node: NodeId) -> Option<VmTarget> {
    rig.vm_entries(node, None).pop().map(|order| order.desired_state)
}

/// Its checks, of which one says this.
async fn check(machine: &Machine<'_>, status: &str) {
    let kvm = json!({ "name": "kvm", "status": "PASS", "detail": "it opens" });
    let clock = json!({ "name": "clock", "status": status, "detail": "it is an hour late" });
    let report = json!({ "kind": "checks", "checks": [kvm, clock] });
    assert!(machine.say(serde_json::from_value(report).unwrap()).await);
}

#[tokio::test]
async fn vm_refused_at_first_start_is_tried_on_next_node_then_unplaced() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let one = host(&rig, 1).await;
    let two = host(&rig, 2).await;
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    let (first, second) = if vm.node() == Some(one.id()) { (&one, &two) } else { (&two, &one) };
    refuse(first, &vm, 1, VmRefusalReason::BridgeMissing, "br0").await;
    let moved = record(&rig, &vm).unwrap();
    assert_eq!(
        (moved.node(), moved.start, moved.desired_state),
        (Some(second.id()), 2, VmDesiredState::Run)
    );
    assert!(
        rig.central.store().read(|model| model.allocations(first.id()).is_none()),
        "nothing stays reserved"
    );
    assert_eq!(
        want(&rig, first.id()),
        Some(VmTarget::Release { disks: Vec::new() }),
        "what is left of it there goes"
    );
    assert!(matches!(want(&rig, second.id()), Some(VmTarget::Run { start: 2, .. })));
    refuse(first, &vm, 1, VmRefusalReason::BridgeMissing, "br0").await;
    assert!(rig.central.vms.orphan_vms().is_empty(), "it is known there");
    // Said again, it is old; the second one refuses it as well.
    refuse(second, &vm, 2, VmRefusalReason::TpmMissing, "no swtpm").await;
    let off = record(&rig, &vm).unwrap();
    assert_eq!((life(&rig, &vm), off.desired_state), (VmPhase::Unplaced, VmDesiredState::Stop));
    let why = off.obstacle.expect("a reason");
    assert!(why.contains("br0") && why.contains("swtpm"), "{why}");
    assert!(rig.central.store().read(|model| model.allocations(second.id()).is_none()));
    rig.pass(std::time::Duration::from_secs(6)).await;
    assert_eq!(life(&rig, &vm), VmPhase::Unplaced, "no endless tour");
    // An operator starts it again, on whatever node; what is old of it there goes first.
    order(&rig, &vm, VmVerb::Start).await.unwrap();
    let again = record(&rig, &vm).unwrap();
    let (node, machine) =
        if again.node() == Some(one.id()) { (one.id(), &one) } else { (two.id(), &two) };
    assert_eq!((again.node(), again.obstacle), (Some(node), None));
    assert_eq!(want(&rig, node), Some(VmTarget::Release { disks: Vec::new() }));
    released(machine, &vm).await;
    assert!(matches!(want(&rig, node), Some(VmTarget::Run { start: 3, .. })));
    report_vms(machine, &[(&vm, ReportedVmState::Running)]).await;
    assert_eq!(life(&rig, &vm), VmPhase::Running);
}

#[tokio::test]
async fn vm_refused_after_it_ran_stays_on_its_node() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let one = host(&rig, 1).await;
    let two = host(&rig, 2).await;
    let vm = create(&rig, ask(1, ""), Some(one.id())).await.unwrap();
    report_vms(&one, &[(&vm, ReportedVmState::Running)]).await;
    order(&rig, &vm, VmVerb::Stop).await.unwrap();
    report_vms(&one, &[(&vm, ReportedVmState::Stopped)]).await;
    order(&rig, &vm, VmVerb::Start).await.unwrap();
    refuse(&one, &vm, 2, VmRefusalReason::MemoryExceeded, "1G").await;
    assert_eq!(
        (life(&rig, &vm), record(&rig, &vm).unwrap().node()),
        (VmPhase::Failed, Some(one.id())),
        "its disk is there"
    );
    // Every node would refuse this one: only one is asked.
    let bad = create(&rig, ask(2, ""), None).await.unwrap();
    let chosen = if bad.node() == Some(one.id()) { &one } else { &two };
    refuse(chosen, &bad, 1, VmRefusalReason::VolumeDiffers, "root").await;
    assert_eq!(
        (life(&rig, &bad), record(&rig, &bad).unwrap().desired_state),
        (VmPhase::Unplaced, VmDesiredState::Stop)
    );
    // An agent that does not say by which order it failed is not understood as if it did.
    let old = create(&rig, ask(3, ""), Some(two.id())).await.unwrap();
    let failure = VmFailure::new(VmFailureKind::Refused, "x".to_owned());
    let report = VmReport {
        failure: Some(failure),
        ..VmReport::new(old.uuid(), old.name().clone(), ReportedVmState::Failed)
    };
    assert!(two.say(vms_report(VmUpdate::All { vms: vec![report] })).await);
    assert_eq!(record(&rig, &old).unwrap().node(), Some(two.id()));
}

#[tokio::test]
async fn vm_is_not_started_on_drained_or_failing_node_or_disabled_slot() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let id = node.id();
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    order(&rig, &vm, VmVerb::Stop).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Stopped)]).await;
    let refused = async |verb| code(&order(&rig, &vm, verb).await.expect_err("it is not started"));
    // Its slot.
    let slot = rig.central.vms.slots().pop().expect("a slot").id;
    rig.central.vms.disable_slot(slot.clone(), &ordered(Verb::SlotDisable)).await.unwrap();
    for verb in [VmVerb::Start, VmVerb::Restart] {
        assert!(refused(verb).await.contains("disabled"));
    }
    rig.central.vms.enable_slot(slot, &ordered(Verb::SlotEnable)).await.unwrap();
    // A check.
    check(&node, "FAIL").await;
    assert!(refused(VmVerb::Start).await.contains("check clock reports it is an hour late"));
    check(&node, "PASS").await;
    // An operator.
    rig.central.nodes.drain_with(id, DrainPolicy::Wait, None, &ordered(Verb::Drain)).await.unwrap();
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Maintenance);
    for verb in [VmVerb::Start, VmVerb::Restart] {
        assert!(refused(verb).await.contains("meshd node resume"));
    }
    assert!(matches!(want(&rig, id), Some(VmTarget::Stop { .. })), "no changes");
    rig.central.nodes.resume(id, &ordered(Verb::Resume)).await.unwrap();
    ready(&node).await;
    order(&rig, &vm, VmVerb::Start).await.unwrap();
}

#[tokio::test]
async fn vm_start_is_sent_only_after_checks_of_this_boot_pass() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let id = node.id();
    let always = create(&rig, ask(1, "[restart]\nwhen = \"always\""), None).await.unwrap();
    let off = create(&rig, ask(2, ""), None).await.unwrap();
    report_vms(&node, &[(&always, ReportedVmState::Running), (&off, ReportedVmState::Running)])
        .await;
    order(&rig, &off, VmVerb::Stop).await.unwrap();
    assert_eq!(rig.vm_entries(id, None).len(), 2);
    // A link that is made anew changes nothing.
    node.power_off().await;
    node.link_up().await;
    assert_eq!(rig.vm_entries(id, None).len(), 2);
    // A boot does.
    node.power_off().await;
    node.boot(Stage::Link).await;
    let orders = rig.vm_entries(id, None);
    assert!(
        matches!(orders.as_slice(), [one] if matches!(one.desired_state, VmTarget::Stop { .. })),
        "{orders:?}"
    );
    assert!(rig.vm_entries(id, Some(always.uuid())).is_empty());
    check(&node, "FAIL").await;
    assert_eq!(rig.vm_entries(id, None).len(), 1);
    check(&node, "PASS").await;
    let orders = rig.vm_entries(id, None);
    assert!(
        orders.iter().any(|order| matches!(order.desired_state, VmTarget::Run { start: 2, .. })),
        "{orders:?}"
    );
}

#[tokio::test]
async fn vm_is_not_restarted_on_rebooted_node_out_of_service() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let id = node.id();
    let vm = create(&rig, ask(1, "[restart]\nwhen = \"always\""), None).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    rig.central.nodes.drain_with(id, DrainPolicy::Wait, None, &ordered(Verb::Drain)).await.unwrap();
    node.power_off().await;
    node.boot(Stage::Online).await;
    ready(&node).await;
    assert_eq!(
        (life(&rig, &vm), record(&rig, &vm).unwrap().desired_state),
        (VmPhase::Failed, VmDesiredState::Stop)
    );
    let lost = rig.events("vm_lost").pop().expect("it is written down");
    assert!(lost.detail.contains("meshd node resume"), "{}", lost.detail);
    assert!(node.heartbeat(0).await);
    assert_eq!(rig.node(id).phase, Phase::Maintenance, "nothing is waited for");
}

#[tokio::test]
async fn unrecorded_vm_blocks_its_node_and_is_not_started_elsewhere() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let unrecorded = Vm::new(ask(9, ""), None, rig.central.now());
    report_vms(&node, &[(&unrecorded, ReportedVmState::Running)]).await;
    let refused =
        code(&create(&rig, ask(1, ""), None).await.expect_err("what it has left is not known"));
    assert!(refused.contains("has_work_not_on_record"), "{refused}");
    let other = host(&rig, 2).await;
    let twice = code(&create(&rig, ask(9, ""), None).await.expect_err("it runs"));
    assert!(twice.contains(&format!("--node {}", node.id())), "{twice}");
    assert_eq!(create(&rig, ask(1, ""), None).await.unwrap().node(), Some(other.id()));
    report_vms(&node, &[]).await;
    create(&rig, ask(9, ""), Some(node.id())).await.unwrap();
}

#[tokio::test]
async fn missing_volume_is_reported_before_the_vm_is_recorded() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let _node = host(&rig, 1).await;
    let digest = Digest::of(b"nobody added it");
    let volume = format!("[[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"");
    let refused = code(&create(&rig, ask(1, &volume), None).await.expect_err("it is not here"));
    assert!(
        refused.contains("meshd volume add") && refused.contains(&digest.to_string()),
        "{refused}"
    );
    assert_eq!(rig.central.store().read(|model| model.vm_count()), 0);
    let blobs = rig.central.site().blobs_dir.join("volumes");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(digest.to_string()), "a file").unwrap();
    create(&rig, ask(1, &volume), None).await.unwrap();
}

#[tokio::test]
async fn volumes_in_use_are_declared_at_changes_and_not_when_listed() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let digest = Digest::of(b"a disk");
    let volume = format!("[[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"");
    let blobs = rig.central.site().blobs_dir.clone();
    std::fs::create_dir_all(blobs.join("volumes")).unwrap();
    std::fs::write(blobs.join("volumes").join(digest.to_string()), "a file").unwrap();
    let vm = create(&rig, ask(1, &volume), None).await.unwrap();
    let declared = || {
        let lists =
            std::fs::read_dir(blobs.join("in-use")).unwrap().map(|list| list.unwrap().path());
        let mut volumes =
            lists.filter(|list| list.extension().is_some_and(|kind| kind == "volumes"));
        let list = volumes.next().expect("a list of volumes");
        std::fs::read_to_string(list).unwrap().contains(&digest.to_string())
    };
    assert!(declared());
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    released(&node, &vm).await;
    assert_eq!(rig.central.store().read(|model| model.vm_count()), 0);
    rig.central.vms.list_volumes().await.unwrap();
    assert!(declared(), "a list of volumes changes nothing");
    rig.pass(std::time::Duration::from_secs(10)).await;
    rig.central.watch().await;
    assert!(!declared());
}

#[tokio::test]
async fn restored_vm_is_not_started_before_confirmation() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = host(&rig, 1).await;
    let vm = create(&rig, ask(1, "on_node_loss = \"restart\""), None).await.unwrap();
    report_vms(&first, &[(&vm, ReportedVmState::Running)]).await;
    let restored = async || {
        let all = |tx: &mut meshd_store::Tx<'_>| {
            let mut vm = tx.vm(vm.uuid()).cloned().unwrap();
            vm.mark_unconfirmed();
            tx.put_vm(vm);
            Ok::<_, meshd_store::StoreError>(())
        };
        rig.central.store().commit(all).await.unwrap();
    };
    restored().await;
    assert_eq!(life(&rig, &vm), VmPhase::Unconfirmed);
    assert!(rig.vm_entries(first.id(), None).is_empty());
    report_vms(&first, &[(&vm, ReportedVmState::Running)]).await;
    assert_eq!(
        (life(&rig, &vm), record(&rig, &vm).unwrap().obstacle),
        (VmPhase::Running, None),
        "its node has it"
    );
    // It was moved after the backup: the other one has it, and this one boots anew.
    restored().await;
    let second = host(&rig, 2).await;
    report_vms(&second, &[(&vm, ReportedVmState::Running)]).await;
    first.power_off().await;
    first.boot(Stage::Online).await;
    ready(&first).await;
    report_vms(&first, &[]).await;
    rig.pass(std::time::Duration::from_secs(10)).await;
    assert!(rig.vm_entries(first.id(), None).is_empty(), "never two copies");
    assert!(
        code(&order(&rig, &vm, VmVerb::Start).await.expect_err("it runs"))
            .contains("release that one")
    );
    let by = AuditContext { forced: true, ..ordered(Verb::VmDelete) };
    rig.central.vms.delete_vm(vm.uuid(), Some(second.id()), &by).await.unwrap();
    report_vms(&second, &[]).await;
    released(&second, &vm).await;
    order(&rig, &vm, VmVerb::Start).await.unwrap();
    assert!(matches!(want(&rig, first.id()), Some(VmTarget::Run { .. })));
}

#[tokio::test]
async fn restarted_meshd_places_no_work_on_nodes_that_have_not_reported() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let id = node.id();
    node.lose_power().await;
    drop(node);
    let rig = rig.restarted(&world);
    let mut node = Machine::new(&rig, 1);
    node.facts = rig.node(id).facts.expect("reported");
    node.link_up().await;
    ready(&node).await;
    let refused = code(&create(&rig, ask(1, ""), None).await.expect_err("its work is not known"));
    assert!(refused.contains("has_not_reported_its_work"), "{refused}");
    let unrecorded = Vm::new(ask(9, ""), None, rig.central.now());
    report_vms(&node, &[(&unrecorded, ReportedVmState::Running)]).await;
    assert!(node.say(tasks_report(TaskUpdate::All { tasks: Vec::new() })).await);
    let refused = code(&create(&rig, ask(1, ""), None).await.expect_err("the VM is not on record"));
    assert!(refused.contains("has_work_not_on_record"), "{refused}");
    report_vms(&node, &[]).await;
    create(&rig, ask(1, ""), None).await.unwrap();
}
