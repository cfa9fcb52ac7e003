//! Orders of an operator, and what nodes answer.

use super::*;
use crate::world::World;
use meshd_central::{SlotParts, SpecPart, VmError, VmVerb};
use meshd_proto::vm::VmTarget;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unit_ordered_concurrently_is_given_once_and_freed_on_release() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let mut orders = tokio::task::JoinSet::new();
    for number in 0..64 {
        let central = rig.central.clone();
        orders.spawn(async move {
            central
                .vms
                .create_vm(ask(number, "units = 1"), None, true, &ordered(Verb::VmCreate))
                .await
        });
    }
    let all = orders.join_all().await;
    let (good, bad): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    let vm = match good.as_slice() {
        [Ok(vm)] => vm.clone(),
        other => panic!("{} were followed", other.len()),
    };
    assert!(bad.iter().flatten_err().all(|error| error.contains("unit_taken")), "{bad:?}");
    assert_eq!(vm.assigned.units.iter().map(ToString::to_string).collect::<Vec<_>>(), [UNIT]);
    // Cancelled while it starts.
    report_vms(&node, &[(&vm, ReportedVmState::Starting)]).await;
    let by = ordered(Verb::VmDelete);
    rig.central.vms.delete_vm(vm.uuid(), None, &by).await.unwrap();
    assert_eq!(life(&rig, &vm), VmPhase::Releasing);
    rig.central.vms.delete_vm(vm.uuid(), None, &by).await.unwrap();
    assert!(
        create(&rig, ask(70, "units = 1"), None).await.is_err(),
        "its node has not released it"
    );
    released(&node, &vm).await;
    assert_eq!(record(&rig, &vm), None);
    assert!(rig.central.store().read(|model| model.allocations(node.id()).is_none()));
    assert_eq!(rig.events("vm_released").len(), 1);
    released(&node, &vm).await;
    create(&rig, ask(70, "units = 1"), None).await.unwrap();
}

trait Errors {
    fn flatten_err(self) -> Box<dyn Iterator<Item = String>>;
}

impl<'a, I: Iterator<Item = &'a Result<Vm, VmError>>> Errors for I {
    fn flatten_err(self) -> Box<dyn Iterator<Item = String>> {
        Box::new(
            self.filter_map(|result| result.as_ref().err().map(code))
                .collect::<Vec<_>>()
                .into_iter(),
        )
    }
}

#[tokio::test]
async fn unplaceable_vm_is_refused_with_reason_and_not_recorded() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let refused = |ask: VmRequest| async {
        let error = create(&rig, ask, None).await.expect_err("it cannot be placed");
        code(&error)
    };
    assert!(refused(ask(1, "")).await.contains("no node is known"));
    let mut node = host(&rig, 1).await;
    for (more, word) in [
        ("units = [\"vendor:1002\"]", "unit_missing"),
        ("units = 2", "unit_missing"),
        ("numa_node = 3", "numa_missing"),
        ("hugepages = true", "hugepages_exceeded"),
        ("[[volume]]\nname = \"d\"\nformat = \"raw\"\ndisk = \"eui.1234\"", "disk_missing"),
    ] {
        let why = refused(ask(1, more)).await;
        assert!(
            why.contains(word) && why.contains("all nodes together lack the resources"),
            "{why}"
        );
    }
    let mut large = ask(1, "");
    large.spec.memory = "8G".parse().unwrap();
    assert!(refused(large).await.contains("memory_exceeded"), "the node keeps some for itself");
    // The unit vanished, and told so.
    node.power_off().await;
    node.facts = facts("missing");
    node.boot(Stage::Online).await;
    ready(&node).await;
    assert!(refused(ask(1, "units = 1")).await.contains("unit_not_ready"));
    create(&rig, ask(1, ""), None).await.unwrap();
    let twice = create(&rig, ask(1, ""), None).await.expect_err("the same again");
    assert!(code(&twice).contains("has the UUID"), "{twice}");
    let mut same_name = ask(2, "");
    same_name.spec.name = "vm-1".parse().unwrap();
    assert!(
        code(&create(&rig, same_name, None).await.expect_err("the name")).contains("has this name")
    );
    assert_eq!(rig.central.store().read(|model| model.vm_count()), 1);
}

#[tokio::test]
async fn vm_desired_state_follows_orders_and_survives_a_restart() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let id = node.id();
    let vm = create(&rig, ask(1, "[cloud_init]\nuser_data = \"hunter2\""), None).await.unwrap();
    let want = |rig: &Rig| rig.vm_entries(id, None).pop().map(|order| order.desired_state);
    assert!(matches!(want(&rig), Some(VmTarget::Run { start: 1, .. })));
    assert_eq!(life(&rig, &vm), VmPhase::Ordered);
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    assert_eq!((life(&rig, &vm), rig.events("vm_started").len()), (VmPhase::Running, 1));
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    assert_eq!(rig.events("vm_started").len(), 1, "said again, it is no news");
    let order =
        async |verb, by| rig.central.vms.order_vm(vm.uuid(), verb, &ordered(by)).await.unwrap();
    order(VmVerb::Start, Verb::VmStart).await;
    assert!(matches!(want(&rig), Some(VmTarget::Run { start: 1, .. })), "it runs");
    order(VmVerb::Restart, Verb::VmRestart).await;
    assert!(matches!(want(&rig), Some(VmTarget::Run { start: 2, .. })));
    order(VmVerb::Stop, Verb::VmStop).await;
    assert!(matches!(want(&rig), Some(VmTarget::Stop { .. })));
    report_vms(&node, &[(&vm, ReportedVmState::Stopped)]).await;
    assert_eq!(life(&rig, &vm), VmPhase::Stopped);
    let details = rig
        .events("vm_ordered")
        .iter()
        .map(|event| event.detail.clone())
        .collect::<Vec<_>>()
        .join(" ");
    assert!(!details.contains("hunter2"), "{details}");
    drop(node);
    drop(rig);
    let rig = Rig::new(&world);
    assert_eq!(life(&rig, &vm), VmPhase::Stopped);
    rig.central.vms.order_vm(vm.uuid(), VmVerb::Start, &ordered(Verb::VmStart)).await.unwrap();
    assert!(matches!(want(&rig), Some(VmTarget::Run { start: 3, .. })));
}

#[tokio::test]
async fn unrecorded_vm_is_shown_and_kept_until_an_operator_releases_it() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let unrecorded = Vm::new(ask(9, ""), None, rig.central.now());
    for _ in 0..2 {
        report_vms(&node, &[(&unrecorded, ReportedVmState::Running)]).await;
    }
    assert_eq!(rig.events("vm_unknown").len(), 1);
    assert_eq!(rig.central.vms.orphan_vms().len(), 1);
    assert!(rig.vm_entries(node.id(), None).is_empty(), "nobody ends it");
    let by = ordered(Verb::VmDelete);
    assert!(
        rig.central.vms.delete_vm(unrecorded.uuid(), None, &by).await.is_err(),
        "on which node?"
    );
    rig.central.vms.delete_vm(unrecorded.uuid(), Some(node.id()), &by).await.unwrap();
    let orders = rig.vm_entries(node.id(), None);
    assert!(
        matches!(orders.as_slice(), [order] if order.desired_state == VmTarget::Release { disks: Vec::new() }),
        "{orders:?}"
    );
    report_vms(&node, &[]).await;
    released(&node, &unrecorded).await;
    assert_eq!(record(&rig, &unrecorded), None);
    assert!(rig.central.vms.orphan_vms().is_empty());
}

#[tokio::test]
async fn blocked_release_reports_reason_and_keeps_its_unit() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    let blocked =
        VmUpdate::ReleaseBlocked { uuid: vm.uuid(), reason: "QEMU does not end".to_owned() };
    for _ in 0..2 {
        assert!(node.say(vms_report(blocked.clone())).await);
    }
    assert_eq!(
        (life(&rig, &vm), rig.events("vm_release_blocked").len()),
        (VmPhase::ReleaseBlocked, 1)
    );
    let slot = rig.central.vms.slots().pop().expect("it has one");
    assert_eq!((slot.state.as_str(), slot.reason.contains("QEMU")), ("cleanup_blocked", true));
    assert!(create(&rig, ask(2, "units = 1"), None).await.is_err());
    released(&node, &vm).await;
    assert_eq!(rig.central.vms.slots().pop().expect("it has one").state.as_str(), "available");
}

#[tokio::test]
async fn slot_of_node_with_unproven_check_is_not_approved() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut node = Machine::new(&rig, 1);
    node.facts = facts("ready");
    node.boot_approved(Stage::Online).await;
    let check = json!({ "name": "network", "status": "WARN", "detail": "nobody answered", "unproven": true });
    assert!(
        node.say(serde_json::from_value(json!({ "kind": "checks", "checks": [check] })).unwrap())
            .await
    );
    let slot = rig.central.vms.slots().pop().expect("a candidate");
    let approve = || async {
        rig.central
            .vms
            .approve_slot(slot.id.clone(), Default::default(), &ordered(Verb::SlotApprove))
            .await
    };
    let refused = approve().await.expect_err("it proved nothing");
    assert!(code(&refused).contains("check network says WARN: nobody answered"), "{refused}");
    assert_eq!(rig.central.vms.slot(&slot.id).unwrap().state.as_str(), "candidate");
    ready(&node).await;
    assert_eq!(approve().await.unwrap().state.as_str(), "available");
}

#[tokio::test]
async fn disk_belongs_to_one_slot_under_any_of_its_names() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut node = Machine::new(&rig, 1);
    node.facts = facts("ready");
    let mut second = node.facts.units[0].clone();
    second.group = Some(5);
    second.selected = vec!["0000:42:00.0".to_owned()];
    second.members[0].address = "0000:42:00.0".to_owned();
    node.facts.units.push(second);
    let disk = json!({ "name": "sda", "wwid": "naa.5000c500a1b2c3d4", "serial": "ZA1B2C3D" });
    node.facts.disks = vec![serde_json::from_value(disk).unwrap()];
    node.boot_approved(Stage::Online).await;
    ready(&node).await;
    let slots = rig.central.vms.slots();
    assert_eq!(slots.len(), 2);
    let approve = async |slot: usize, name: &str| {
        let parts = SlotParts { disk: Some(name.parse().unwrap()), ..SlotParts::default() };
        rig.central
            .vms
            .approve_slot(slots[slot].id.clone(), parts, &ordered(Verb::SlotApprove))
            .await
    };
    assert!(approve(0, "naa.5000c500ffffffff").await.is_err(), "no disk is called so");
    approve(0, "naa.5000c500a1b2c3d4").await.unwrap();
    let refused = approve(1, "ZA1B2C3D").await.expect_err("it is the other one's");
    assert!(code(&refused).contains("belongs to another slot"), "{refused}");
    approve(0, "ZA1B2C3D").await.expect("its own, by its other name");
}

#[tokio::test]
async fn unit_is_assigned_only_after_its_slot_is_approved() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut node = Machine::new(&rig, 1);
    node.facts = facts("ready");
    node.boot_approved(Stage::Online).await;
    ready(&node).await;
    let slot = rig.central.vms.slots().pop().expect("a candidate");
    assert_eq!(slot.state.as_str(), "candidate");
    let refused = create(&rig, ask(1, "units = 1"), None).await.expect_err("nobody approved it");
    assert!(code(&refused).contains("slot_closed"), "{refused}");
    let by = ordered(Verb::SlotApprove);
    rig.central.vms.approve_slot(slot.id.clone(), Default::default(), &by).await.unwrap();
    rig.central.vms.disable_slot(slot.id.clone(), &by).await.unwrap();
    assert!(create(&rig, ask(1, "units = 1"), None).await.is_err());
    assert_eq!(
        rig.central.vms.enable_slot(slot.id.clone(), &by).await.unwrap().state.as_str(),
        "available"
    );
    let vm = create(&rig, ask(1, "units = 1"), None).await.unwrap();
    assert_eq!(rig.central.vms.slot(&slot.id).unwrap().state.as_str(), "reserved");
    assert!(
        rig.central.vms.approve_slot(slot.id.clone(), Default::default(), &by).await.is_err(),
        "it is held"
    );
    report_vms(&node, &[(&vm, ReportedVmState::Running)]).await;
    assert_eq!(rig.central.vms.slot(&slot.id).unwrap().state.as_str(), "active");
}

#[tokio::test]
async fn order_is_repeated_only_after_the_node_has_taken_it() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    let mut inbox = read_orders(&mut node).await;
    ready(&node).await;
    let link = node.link.expect("a link");
    // The generations of the entries that its link sends now.
    let mut sent = async || {
        let mut generations = Vec::new();
        while let Ok(command) = inbox.try_recv() {
            if let LinkCommand::Spec(part) = command {
                let specs = rig.central.agents.specs(link, part).await;
                generations.extend(specs.iter().map(|spec| spec.generation));
            }
        }
        generations
    };
    assert_eq!(sent().await, [0; 0], "nothing is ordered");
    create(&rig, ask(1, ""), None).await.unwrap();
    assert_eq!(sent().await, [1]);
    assert!(node.heartbeat(0).await);
    assert_eq!(sent().await, [0; 0], "the node is busy, and has the order");
    // A number that was not sent counts as the last one.
    for (observed, next) in [(1, 2), (99, 3)] {
        let state = SectionReport::Vms(VmUpdate::All { vms: Vec::new() });
        assert!(node.say(FromAgent::Report(NodeReport { observed, state })).await);
        assert!(node.heartbeat(0).await);
        assert_eq!(sent().await, [next], "the node does not do it");
    }
    let inbox = read_orders(&mut node).await;
    let newer = node.link.expect("a link");
    let specs = rig.central.agents.specs(newer, SpecPart::All).await;
    assert_eq!(specs[0].generation, 1, "a new link");
    let specs = rig.central.agents.specs(link, SpecPart::All).await;
    assert!(specs.is_empty(), "the old link sends nothing");
    drop(inbox);
}

#[tokio::test]
async fn repeated_orders_of_many_vms_do_not_depend_on_the_length_of_a_queue() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = Machine::new(&rig, 1);
    node.facts = serde_json::from_value(json!({
        "cpu": { "threads": 128 },
        "memory": { "total_kib": 128 << 20, "available_kib": 127 << 20 },
    }))
    .unwrap();
    node.boot(Stage::Online).await;
    ready(&node).await;
    let mut vms = Vec::new();
    for number in 1..=20 {
        vms.push(create(&rig, ask(number, ""), None).await.unwrap());
    }
    let mut orders = read_orders(&mut node).await;
    // Guests that ignore ACPI, after an order to stop them.
    let stopping: Vec<_> = vms.iter().map(|vm| (vm, ReportedVmState::Stopping)).collect();
    report_vms(&node, &stopping).await;
    while orders.try_recv().is_ok() {}
    assert!(node.heartbeat(20).await);
    let sent: Vec<_> = std::iter::from_fn(|| orders.try_recv().ok()).collect();
    let is_all = |command: &LinkCommand| matches!(command, LinkCommand::Spec(SpecPart::All));
    assert!(sent.iter().any(is_all), "{sent:?}");
    let link = node.link.expect("a link");
    let specs = rig.central.agents.specs(link, SpecPart::All).await;
    assert_eq!(specs.len(), 20, "no VM is left out");
}
