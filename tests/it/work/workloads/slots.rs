//! What belongs to a slot: its disk and its fabric device go with its unit, and with nothing else.
//! And a node's mode is not changed under those who hold it.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_central::{SlotError, SlotParts};
use meshd_model::{fleet::AuditContext, work::SlotId};
use meshd_proto::{
    DiskUse, UnitState,
    vm::{ReleasedDisk, VmTarget},
};
use std::fs;

/// A second unit, a fabric device that is a unit, and two disks.
fn wide() -> Facts {
    let mut facts = facts("ready");
    for (group, address) in [(5, "0000:42:00.0"), (6, "0000:43:00.0")] {
        let mut unit = facts.units[0].clone();
        (unit.group, unit.selected) = (Some(group), vec![address.to_owned()]);
        unit.members[0].address = address.to_owned();
        facts.units.push(unit);
    }
    let disk = |name: &str, numa: u32| json!({ "name": name, "wwid": format!("eui.{name}"), "serial": format!("SN-{name}"), "bytes": 1 << 30, "numa_node": numa });
    facts.disks =
        [disk("sda", 0), disk("sdb", 1)].map(|disk| serde_json::from_value(disk).unwrap()).into();
    facts.units[0].numa_node = Some(0);
    let near = json!({ "unit": UNIT, "numa_node": 0, "disk": "eui.sdb", "fabric": "0000:43:00.0", "mismatch": "disk eui.sdb is on NUMA node 1, the unit on 0" });
    facts.slots = vec![serde_json::from_value(near).unwrap()];
    facts
}

async fn rack<'r>(rig: &'r Rig, facts: Facts) -> Machine<'r> {
    let mut node = Machine::new(rig, 1);
    node.facts = facts;
    node.boot_approved(Stage::Online).await;
    ready(&node).await;
    node
}

fn slot(rig: &Rig, unit: &str) -> SlotId {
    rig.central
        .vms
        .slots()
        .into_iter()
        .map(|slot| slot.id)
        .find(|id| id.unit.as_str() == unit)
        .expect("a slot")
}

async fn approve(
    rig: &Rig,
    unit: &str,
    disk: Option<&str>,
    fabric: Option<&str>,
) -> Result<(), SlotError> {
    let parts = SlotParts {
        disk: disk.map(|disk| disk.parse().unwrap()),
        fabric: fabric.map(|fabric| fabric.parse().unwrap()),
        nic: None,
    };
    rig.central
        .vms
        .approve_slot(slot(rig, unit), parts, &ordered(Verb::SlotApprove))
        .await
        .map(drop)
}

fn raw(disk: &str) -> String {
    format!("[[volume]]\nname = \"d\"\nformat = \"raw\"\ndisk = \"{disk}\"")
}

fn units(vm: &Vm) -> Vec<&str> {
    vm.assigned.units.iter().map(|unit| unit.as_str()).collect()
}

fn disk(vm: &Vm) -> String {
    vm.spec().volumes[0].source.disk().expect("a disk").to_string()
}

#[tokio::test]
async fn slot_disk_is_assigned_and_released_with_its_unit() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let node = rack(&rig, wide()).await;
    approve(&rig, "0000:42:00.0", None, None).await.unwrap();
    let refused = create(&rig, ask(1, &format!("units = 1\n{}", raw("slot"))), None)
        .await
        .expect_err("no disk");
    assert!(code(&refused).contains("slot_without_disk (any; the slot of"), "{refused}");
    approve(&rig, UNIT, Some("eui.sda"), None).await.unwrap();
    let refused = create(&rig, ask(1, &raw("SN-sda")), None).await.expect_err("it is a slot's");
    assert!(
        code(&refused).contains(&format!("disk SN-sda belongs to slot {}", slot(&rig, UNIT))),
        "{refused}"
    );
    let refused =
        create(&rig, ask(1, &format!("units = [\"0000:42:00.0\"]\n{}", raw("eui.sda"))), None)
            .await;
    assert!(code(&refused.expect_err("another unit")).contains("disk_taken"));
    let named = create(&rig, ask(1, &format!("units = 1\n{}", raw("SN-sda"))), None)
        .await
        .expect("with the unit");
    assert_eq!((units(&named), disk(&named)), (vec![UNIT], "SN-sda".to_owned()));
    rig.central.vms.delete_vm(named.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    released(&node, &named).await;

    let vm = create(&rig, ask(2, &format!("units = 1\n{}", raw("slot"))), None)
        .await
        .expect("one slot has a disk");
    assert_eq!((units(&vm), disk(&vm)), (vec![UNIT], "slot:eui.sda".to_owned()));
    let orders = rig.vm_entries(node.id(), None);
    let [VmTarget::Run { spec, slots, .. }] =
        orders.iter().map(|order| &order.desired_state).collect::<Vec<_>>()[..]
    else {
        panic!("{orders:?}")
    };
    assert_eq!(spec.disks().map(ToString::to_string).collect::<Vec<_>>(), ["eui.sda"]);
    assert_eq!(
        (slots[0].unit.as_str(), slots[0].disk.as_str()),
        (UNIT, "eui.sda"),
        "the node keeps it from others, too"
    );
    let refusal = approve(&rig, "0000:42:00.0", Some("SN-sda"), None)
        .await
        .expect_err("the other slot has it");
    assert!(code(&refusal).contains("belongs to another slot"), "{refusal}");
    let second = create(&rig, ask(3, &format!("units = 1\n{}", raw("slot"))), None)
        .await
        .expect_err("there is one");
    assert!(code(&second).contains("slot_without_disk"), "{second}");

    // Its node is fenced: it is nobody's, and is found anew at its next start.
    drop(rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap());
    let orders = rig.vm_entries(node.id(), None);
    let left = ReleasedDisk { disk: "eui.sda".parse().unwrap(), wipe: true, used: false };
    assert_eq!(orders[0].desired_state, VmTarget::Release { disks: vec![left] }, "{orders:?}");
    released(&node, &vm).await;
    assert_eq!(rig.central.vms.slot(&slot(&rig, UNIT)).unwrap().state.as_str(), "available");
    let again = create(&rig, ask(4, &format!("units = 1\n{}", raw("slot"))), None).await.unwrap();
    assert_eq!(disk(&again), "slot:eui.sda");
}

#[tokio::test]
async fn unplaced_vm_has_no_slot_disk_and_gets_one_on_placement() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut node = rack(&rig, wide()).await;
    approve(&rig, UNIT, Some("eui.sda"), None).await.unwrap();
    let vm = create(&rig, ask(1, &format!("units = 1\n{}", raw("slot"))), None).await.unwrap();
    node.power_off().await;
    rig.clock.turn(SILENT);
    rig.central.nodes.fence(node.id(), &ordered(Verb::Fence)).await.unwrap();
    let unplaced = record(&rig, &vm).expect("on record");
    assert_eq!((disk(&unplaced), unplaced.assigned.units.len()), ("slot".to_owned(), 0));
    node.boot(Stage::Online).await;
    ready(&node).await;
    approve(&rig, UNIT, Some("eui.sdb"), None).await.unwrap();
    use meshd_central::VmVerb;
    let placed =
        rig.central.vms.order_vm(vm.uuid(), VmVerb::Start, &ordered(Verb::VmStart)).await.unwrap();
    assert_eq!(disk(&placed), "slot:eui.sdb", "what its slot has now");
}

/// The node tells that it runs, and that its disk is its own.
async fn runs(machine: &Machine<'_>, vm: &Vm) {
    let disks = [("d".parse().unwrap(), DiskUse::Done)].into();
    let report =
        VmReport { disks, ..VmReport::new(vm.uuid(), vm.name().clone(), ReportedVmState::Running) };
    assert!(machine.say(vms_report(VmUpdate::All { vms: vec![report] })).await);
}

fn left(rig: &Rig, node: NodeId) -> Vec<ReleasedDisk> {
    match rig.vm_entries(node, None).pop().map(|order| order.desired_state) {
        Some(VmTarget::Release { disks }) => disks,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn slot_disk_stays_taken_until_wiped_even_after_fencing() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut node = rack(&rig, wide()).await;
    approve(&rig, UNIT, Some("eui.sda"), None).await.unwrap();
    let wants = |number| ask(number, &format!("units = 1\n{}", raw("slot")));
    let vm = create(&rig, wants(1), None).await.unwrap();
    let fresh = ReleasedDisk { disk: "eui.sda".parse().unwrap(), wipe: true, used: false };
    runs(&node, &vm).await;
    let node_orders = rig.vm_entries(node.id(), None);
    assert!(
        matches!(&node_orders[0].desired_state, VmTarget::Run { disks, .. } if disks.len() == 1),
        "a boot makes it forget: {node_orders:?}"
    );
    node.power_off().await;
    rig.clock.turn(SILENT);
    rig.central.nodes.fence(node.id(), &ordered(Verb::Fence)).await.unwrap();
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    assert!(record(&rig, &vm).is_some(), "its disk is not clean");
    node.boot(Stage::Online).await;
    ready(&node).await;
    let refused =
        create(&rig, wants(2), None).await.expect_err("it holds what the other one wrote");
    assert!(code(&refused).contains("disk_taken"), "{refused}");
    assert_eq!(left(&rig, node.id()), [ReleasedDisk { used: true, ..fresh.clone() }]);
    let blocked =
        VmUpdate::ReleaseBlocked { uuid: vm.uuid(), reason: "it cannot be wiped".to_owned() };
    assert!(node.say(vms_report(blocked)).await);
    assert_eq!(record(&rig, &vm).and_then(|vm| vm.obstacle).as_deref(), Some("it cannot be wiped"));
    released(&node, &vm).await;
    assert_eq!(record(&rig, &vm), None);
    let next = create(&rig, wants(2), None).await.unwrap();
    rig.central.vms.delete_vm(next.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    assert_eq!(left(&rig, node.id()), [fresh], "it never had it: nothing is wiped");
    let forced = AuditContext { forced: true, ..ordered(Verb::VmDelete) };
    rig.central.vms.delete_vm(next.uuid(), None, &forced).await.unwrap();
    assert!(!left(&rig, node.id())[0].wipe, "an operator gave that up");
}

#[tokio::test]
async fn slot_shows_nearest_parts_and_takes_them_on_approval() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let node = rack(&rig, wide()).await;
    let shown = rig.central.vms.slot(&slot(&rig, UNIT)).unwrap();
    assert_eq!(
        (shown.near.disk.as_deref(), shown.near.fabric.as_deref()),
        (Some("eui.sdb"), Some("0000:43:00.0"))
    );
    assert_eq!(shown.mismatch, "disk eui.sdb is on NUMA node 1, the unit on 0");
    approve(&rig, UNIT, None, None).await.unwrap();
    let plain = rig.central.vms.slot(&slot(&rig, UNIT)).unwrap();
    assert_eq!(
        (plain.approved.and_then(|slot| slot.disk), plain.mismatch.as_str()),
        (None, ""),
        "it was not asked for"
    );
    let none = approve(&rig, "0000:42:00.0", Some("nearest"), None)
        .await
        .expect_err("its node tells of none");
    assert!(code(&none).contains("has no nearest disk"), "{none}");
    approve(&rig, UNIT, Some("nearest"), Some("nearest")).await.unwrap();
    let picked = rig.central.vms.slot(&slot(&rig, UNIT)).unwrap();
    assert_eq!(picked.mismatch, "disk eui.sdb is on NUMA node 1, the unit on 0");
    approve(&rig, "0000:43:00.0", None, None).await.unwrap();
    let alone = create(&rig, ask(1, "units = [\"0000:43:00.0\"]"), None)
        .await
        .expect_err("it goes with the slot");
    assert!(code(&alone).contains("is the fabric device of slot"), "{alone}");
    let vm = create(&rig, ask(1, &format!("units = 1\n{}", raw("slot"))), None).await.unwrap();
    assert_eq!((units(&vm), disk(&vm)), (vec![UNIT, "0000:43:00.0"], "slot:eui.sdb".to_owned()));
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    released(&node, &vm).await;
    assert!(rig.central.store().read(|model| model.allocations(node.id()).is_none()));
}

#[tokio::test]
async fn slot_with_missing_or_busy_disk_is_not_assigned() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut node = rack(&rig, wide()).await;
    approve(&rig, UNIT, Some("eui.sda"), None).await.unwrap();
    let state = || {
        rig.central
            .vms
            .slot(&slot(&rig, UNIT))
            .map(|slot| (slot.state.as_str(), slot.reason))
            .unwrap()
    };
    for (change, word, why) in
        [("mounted", "cleanup", "is mounted on /mnt"), ("gone", "failed", "no disk eui.sda")]
    {
        node.power_off().await;
        match change {
            "mounted" => {
                node.facts.disks[0].blocked = Some("disk sda is mounted on /mnt".to_owned())
            }
            _ => drop(node.facts.disks.remove(0)),
        }
        node.boot(Stage::Online).await;
        ready(&node).await;
        let (state, reason) = state();
        assert!(state == word && reason.contains(why), "{state}: {reason}");
        let refused = create(&rig, ask(1, &format!("units = [\"{UNIT}\"]")), None)
            .await
            .expect_err("not whole");
        assert!(code(&refused).contains("slot_closed"), "{refused}");
    }
    let blocked = wide().disks;
    node.power_off().await;
    node.facts.disks = blocked;
    node.facts.disks[1].blocked = Some("disk sdb is swapped to".to_owned());
    node.boot(Stage::Online).await;
    ready(&node).await;
    let refused = approve(&rig, UNIT, Some("eui.sdb"), None).await.expect_err("the node uses it");
    assert!(code(&refused).contains("is swapped to"), "{refused}");
    assert_eq!(node.facts.units[0].state, UnitState::Ready);
}

#[tokio::test]
async fn profile_change_is_refused_when_a_vm_is_placed_concurrently() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let central = rig.central.clone();
    // Somebody is faster, between the beginning of the order and its transaction.
    rig.clock.at_next_look(move || {
        let placing = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime
                .block_on(central.vms.create_vm(ask(1, ""), None, true, &ordered(Verb::VmCreate)))
                .map(drop)
        });
        placing.join().unwrap().expect("the node has room");
    });
    let refused = rig
        .central
        .nodes
        .assign_profile(node.id(), "compute".parse().unwrap(), &ordered(Verb::AssignProfile))
        .await;
    let refused = refused.expect_err("it holds one now");
    assert!(code(&refused).contains("vm-1"), "{refused}");
    assert_eq!(rig.node(node.id()).profile, None);
}

#[tokio::test]
async fn reload_that_changes_profile_of_node_with_vms_is_refused() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let vm = create(&rig, ask(1, ""), None).await.unwrap();
    let text = fs::read_to_string(world.path("site.toml")).unwrap();
    let other =
        text.replace("[defaults]\nprofile = \"discovery\"", "[defaults]\nprofile = \"compute\"");
    assert_ne!(other, text);
    fs::write(world.path("site.toml"), other).unwrap();
    let by = ordered(Verb::Reload);
    let refused = rig.central.generations.reload(&by).await;
    assert!(!refused.changed && refused.faults[0].to_string().contains("vm-1"), "{refused:?}");
    assert_eq!(rig.central.site().default_profile.to_string(), "discovery");
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    released(&node, &vm).await;
    assert!(rig.central.generations.reload(&by).await.changed);
}

#[tokio::test]
async fn disk_write_and_wipe_are_events_and_audit_records() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let node = rack(&rig, wide()).await;
    approve(&rig, UNIT, Some("eui.sda"), None).await.unwrap();
    let vm = create(&rig, ask(1, &format!("units = 1\n{}", raw("slot"))), None).await.unwrap();
    let disks = [("d".parse().unwrap(), DiskUse::Done)].into();
    let contents = [("d".parse().unwrap(), vec!["xfs file system on sda".to_owned()])].into();
    let report = VmReport {
        disks,
        contents,
        ..VmReport::new(vm.uuid(), vm.name().clone(), ReportedVmState::Running)
    };
    for _ in 0..2 {
        assert!(node.say(vms_report(VmUpdate::All { vms: vec![report.clone()] })).await);
    }
    let written = rig.events("disk_written");
    assert_eq!(written.len(), 1, "told twice, it is one");
    assert!(
        written[0]
            .detail
            .contains("disk eui.sda unchanged, which contained xfs file system on sda"),
        "{written:?}"
    );
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    released(&node, &vm).await;
    let wiped = rig.events("disk_wiped");
    assert!(wiped.len() == 1 && wiped[0].detail.contains("disk eui.sda is wiped"), "{wiped:?}");
    let audit = rig
        .central
        .store()
        .audit(&meshd_store::AuditFilter { limit: 100, ..Default::default() })
        .unwrap();
    for verb in [Verb::DiskWrite, Verb::DiskWipe] {
        let line = audit.iter().find(|(_, line)| line.by.verb == verb).map(|(_, line)| line);
        assert!(line.is_some_and(|line| line.node == Some(node.id()) && line.detail.contains("eui.sda")), "{audit:?}");
    }
}

#[tokio::test]
async fn profile_with_other_vm_resources_is_refused_while_a_slot_is_open() {
    let world = World::prepared("approve");
    world.edit_site(
        "overlays = [\"motd\"]",
        "overlays = [\"motd\"]\nstorage = { data = [\"SN-9\"] }",
    );
    let rig = Rig::new(&world);
    let node = rack(&rig, wide()).await;
    let assign = async |profile: &str, forced: bool| {
        let audit = AuditContext { forced, ..ordered(Verb::AssignProfile) };
        rig.central
            .nodes
            .assign_profile(node.id(), profile.parse().unwrap(), &audit)
            .await
            .map(drop)
    };
    approve(&rig, UNIT, Some("eui.sda"), None).await.unwrap();
    // Available, and while its disk is wiped for the next VM.
    let refused = assign("compute", false).await.expect_err("the slot is available");
    assert!(
        code(&refused).contains("approved slots") && code(&refused).contains(UNIT),
        "{refused}"
    );
    let vm = create(&rig, ask(1, &format!("units = 1\n{}", raw("slot"))), None).await.unwrap();
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    assert!(
        code(&assign("compute", false).await.expect_err("its cleanup is not over"))
            .contains("vm-1")
    );
    released(&node, &vm).await;
    assert!(
        code(&assign("compute", false).await.expect_err("it is available again")).contains(UNIT)
    );
    rig.central.vms.disable_slot(slot(&rig, UNIT), &ordered(Verb::SlotDisable)).await.unwrap();
    assign("compute", false).await.expect("no slot is open");
    rig.central.vms.enable_slot(slot(&rig, UNIT), &ordered(Verb::SlotEnable)).await.unwrap();
    assign("discovery", false).await.expect_err("it is open");
    assign("discovery", true).await.expect("forced");
}
