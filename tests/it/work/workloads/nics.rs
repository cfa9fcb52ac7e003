//! Network cards: a MAC address and an address are one machine's, from the order that records it
//! until its record goes.

use super::*;
use crate::world::{World, single_orders::SingleOrders as _};
use meshd_central::{SlotError, SlotParts};
use meshd_model::work::{ReservedNic, SlotNic};
use meshd_proto::vm::{Nic, VmTarget};
use meshd_types::MacAddr;
use std::{collections::BTreeSet, fs, net::Ipv4Addr};

const MORE: &str = r#"
[[reservation]]
mac = "52:54:00:00:00:77"
address = "10.77.0.20"
[vms]
mac_prefix = "02:4d:45"
[[vms.pool]]
bridge = "br0"
range = "10.77.0.210-10.77.0.211"
[[vms.pool]]
bridge = "br0"
range = "10.77.0.19-10.77.0.22"
"#;
/// What the pools have: one of them is reserved.
const POOLED: usize = 5;
const ON_BR0: &str = "[[nic]]\nbridge = \"br0\"";

fn site() -> World {
    let world = World::prepared("auto");
    let text = fs::read_to_string(world.path("site.toml")).unwrap();
    fs::write(world.path("site.toml"), text + MORE).unwrap();
    world
}

/// The NICs of VMs as DHCP knows them.
fn vm_nics(rig: &Rig) -> Vec<ReservedNic> {
    let update = rig.central.boot.dhcp_record_update(None).expect("everything");
    update.nics.into_values().filter_map(|record| record?.vm).collect()
}

/// One that is so small that many of it fit on a node.
fn small(number: u8, more: &str) -> VmRequest {
    let mut ask = ask(number, more);
    ask.spec.memory = "64M".parse().unwrap();
    ask
}

fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

fn addresses(vm: &Vm) -> Vec<Ipv4Addr> {
    vm.nics().filter_map(|nic| nic.address).collect()
}

async fn refused(rig: &Rig, ask: VmRequest, node: Option<NodeId>) -> String {
    code(&create(rig, ask, node).await.expect_err("it is refused"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_vm_orders_get_distinct_addresses_until_pool_is_empty() {
    let world = site();
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let mut orders = tokio::task::JoinSet::new();
    for number in 0..32 {
        let central = rig.central.clone();
        let by = ordered(Verb::VmCreate);
        orders.spawn(
            async move { central.vms.create_vm(small(number, ON_BR0), None, true, &by).await },
        );
    }
    let (good, bad): (Vec<_>, Vec<_>) =
        orders.join_all().await.into_iter().partition(Result::is_ok);
    let good: Vec<Vm> = good.into_iter().map(Result::unwrap).collect();
    let given: BTreeSet<Ipv4Addr> = good.iter().flat_map(addresses).collect();
    assert_eq!(given, [19, 21, 22, 210, 211].map(ip).into(), "all but the reserved one");
    assert_eq!((good.len(), bad.len()), (POOLED, 32 - POOLED));
    for error in bad {
        let why = code(&error.unwrap_err());
        assert!(
            why.contains("nic[0].address: every address of [[vms.pool]] for br0 is taken"),
            "{why}"
        );
    }
    assert_eq!(
        rig.central.store().read(|model| model.vm_count()),
        POOLED,
        "nothing stays of those that were refused"
    );
    assert!(good.iter().all(|vm| vm.spec().nics[0].mac.0.starts_with(&[0x02, 0x4d, 0x45])));

    // Its node is told; what one had is free once nothing is left of it, and not before.
    let first = &good[0];
    let target_state = rig.vm_entries(node.id(), Some(first.uuid())).remove(0).desired_state;
    assert!(
        matches!(&target_state, VmTarget::Run { spec, .. } if spec.nics == first.spec().nics),
        "{target_state:?}"
    );
    rig.central.vms.delete_vm(first.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    refused(&rig, small(40, ON_BR0), None).await;
    released(&node, first).await;
    let next = create(&rig, small(40, ON_BR0), None).await.unwrap();
    assert_eq!(addresses(&next), addresses(first));
    let elsewhere =
        create(&rig, small(41, "[[nic]]\nbridge = \"br9\"\n[[nic]]\nbridge = \"mesh-nat0\""), None)
            .await
            .unwrap();
    assert!(addresses(&elsewhere).is_empty(), "no pool, no address");
}

#[tokio::test]
async fn nic_conflicts_are_reported_for_all_nics_at_once() {
    let world = site();
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let named = |mac: &str, address: &str| {
        format!("[[nic]]\nbridge = \"br0\"\nmac = \"{mac}\"\naddress = \"{address}\"\n")
    };
    let first =
        create(&rig, small(1, &named("02:00:00:00:00:01", "10.77.0.50")), None).await.unwrap();
    let all = [
        named("02:00:00:00:00:01", "10.77.0.50"),
        named("52:54:00:00:00:77", "10.77.0.20"),
        named(&node.mac.to_string(), "10.77.0.100"),
        named("02:00:00:00:00:02", "10.77.0.255"),
    ];
    let why = refused(&rig, small(2, &all.concat()), None).await;
    let whose = format!("the VM vm-1 ({})", first.uuid());
    for part in [
        format!("nic[0].mac: 02:00:00:00:00:01 is a NIC of {whose}"),
        format!("nic[0].address: 10.77.0.50 is assigned to {whose}"),
        "nic[1].mac: 52:54:00:00:00:77 is reserved by a [[reservation]] for 10.77.0.20".to_owned(),
        "nic[1].address: 10.77.0.20 is reserved for NIC 52:54:00:00:00:77 by a [[reservation]]"
            .to_owned(),
        format!("nic[2].mac: {} is a NIC of node {}", node.mac, node.id()),
        "nic[3].address: 10.77.0.255 is the network or broadcast address of br0".to_owned(),
    ] {
        assert!(why.contains(&part), "{part}\n{why}");
    }
    assert!(!why.contains("nic[2].address"), "the node may have the address that it has: {why}");
    let why = refused(&rig, small(2, &named("02:00:00:00:00:02", "10.77.0.100")), None).await;
    let lessee = format!("10.77.0.100 is leased to NIC {} of node {} until ", node.mac, node.id());
    assert!(why.contains(&lessee), "{why}");

    // What nobody wrote makes way.
    let wanted = small(3, ON_BR0);
    let prefix = "02:4d:45".parse().unwrap();
    let own = meshd_config::vm::derived_mac(&prefix, wanted.spec.uuid, 0, 0);
    create(&rig, small(4, &format!("[[nic]]\nbridge = \"mesh-nat0\"\nmac = \"{own}\"")), None)
        .await
        .unwrap();
    let other = create(&rig, wanted, None).await.unwrap().spec().nics[0].mac;
    assert!(other != own && other.0.starts_with(&[0x02, 0x4d, 0x45]), "{other}");
}

#[tokio::test]
async fn private_network_address_is_unique_per_node_and_shown() {
    let world = site();
    let rig = Rig::new(&world);
    let one = host(&rig, 1).await;
    let two = host(&rig, 2).await;
    let nat = "[[nic]]\nbridge = \"mesh-nat0\"\naddress = \"172.30.0.9\"";
    let first = create(&rig, small(1, nat), Some(one.id())).await.unwrap();
    let why = refused(&rig, small(2, nat), Some(one.id())).await;
    assert!(why.contains("address_taken"), "{why}");
    let second = create(&rig, small(2, nat), None).await.unwrap();
    assert_eq!(second.node(), Some(two.id()), "a node is taken where it is free");
    assert!(refused(&rig, small(3, nat), None).await.contains("address_taken"));

    let third =
        create(&rig, small(3, "[[nic]]\nbridge = \"mesh-nat0\""), Some(one.id())).await.unwrap();
    let shown = |vm: &Vm| {
        let mut nics: Vec<Nic> = vm.nics().collect();
        rig.central.vms.fill_addresses(vm.uuid(), vm.node(), &mut nics);
        nics[0].address
    };
    assert_eq!((shown(&third), shown(&first)), (None, Some([172, 30, 0, 9].into())));
    let mac: MacAddr = third.spec().nics[0].mac;
    let plain = VmReport::new(third.uuid(), third.name().clone(), ReportedVmState::Running);
    let report = VmReport { addresses: [(mac, Ipv4Addr::new(172, 30, 0, 77))].into(), ..plain };
    assert!(one.say(vms_report(VmUpdate::All { vms: vec![report] })).await);
    assert_eq!(shown(&third), Some([172, 30, 0, 77].into()));
}

/// Approves a unit with addresses.
async fn approve(rig: &Rig, unit: &str, nic: (&str, Option<Ipv4Addr>)) -> Result<(), SlotError> {
    let slots = rig.central.vms.slots();
    let id =
        slots.into_iter().map(|slot| slot.id).find(|id| id.unit.as_str() == unit).expect("a slot");
    let nic = SlotNic { mac: nic.0.parse().unwrap(), address: nic.1 };
    let parts = SlotParts { nic: Some(nic), ..SlotParts::default() };
    rig.central.vms.approve_slot(id, parts, &ordered(Verb::SlotApprove)).await.map(drop)
}

#[tokio::test]
async fn slot_addresses_are_assigned_only_to_the_slot_holder() {
    let world = site();
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let slotted =
        |number, more: &str| small(number, &format!("units = 1\n[[nic]]\nslot = true\n{more}"));
    let lacking = refused(&rig, slotted(1, "bridge = \"br0\""), None).await;
    assert!(lacking.contains("slot_without_nic"), "{lacking}");
    let own = "02:00:00:00:00:aa";
    for (mac, address, why) in [
        ("52:54:00:00:00:77", None, "reserved by a [[reservation]]"),
        ("01:00:00:00:00:01", None, "not a valid NIC address"),
        (own, Some(ip(20)), "10.77.0.20 is"),
        (own, Some(ip(110)), "DHCP leases to any machine"),
        (own, Some(Ipv4Addr::UNSPECIFIED), "not a valid host address"),
    ] {
        let message = code(&approve(&rig, UNIT, (mac, address)).await.expect_err("not its own"));
        assert!(message.contains(why), "{why}: {message}");
    }
    approve(&rig, UNIT, (own, Some(ip(211)))).await.unwrap();
    approve(&rig, UNIT, (own, Some(ip(211)))).await.expect("again: they are its own");

    // Nobody else gets them, neither by name nor from a pool, while nobody has the slot.
    let taken =
        refused(&rig, small(2, &format!("[[nic]]\nbridge = \"mesh-nat0\"\nmac = \"{own}\"")), None)
            .await;
    assert!(taken.contains("assigned to slot"), "{taken}");
    let taken =
        refused(&rig, small(2, &format!("{ON_BR0}\naddress = \"10.77.0.211\"")), None).await;
    assert!(taken.contains("10.77.0.211 is assigned to slot"), "{taken}");
    for number in 10..14 {
        let vm = create(&rig, small(number, ON_BR0), None).await.expect("the pools have four more");
        assert!(!addresses(&vm).contains(&ip(211)));
    }
    refused(&rig, small(14, ON_BR0), None).await;

    let vm = create(&rig, slotted(1, "bridge = \"br0\""), None).await.unwrap();
    let nic = vm.nics().next().unwrap();
    assert_eq!((nic.mac.to_string().as_str(), nic.address), (own, Some(ip(211))));
    let vm_nic =
        vm_nics(&rig).into_iter().find(|vm_nic| vm_nic.vm == vm.uuid()).expect("DHCP knows it");
    assert_eq!((vm_nic.mac, vm_nic.address), (nic.mac, nic.address));
    rig.central.vms.delete_vm(vm.uuid(), None, &ordered(Verb::VmDelete)).await.unwrap();
    released(&node, &vm).await;
    assert!(!vm_nics(&rig).iter().any(|vm_nic| vm_nic.mac == nic.mac));

    // On its node's private network the slot's address would be nobody's.
    let vm = create(&rig, slotted(3, "bridge = \"mesh-nat0\""), None).await.unwrap();
    assert_eq!(
        (vm.spec().nics[0].mac.to_string().as_str(), vm.spec().nics[0].address),
        (own, None)
    );
}

#[tokio::test]
async fn vm_that_lost_its_slot_has_no_slot_address() {
    let world = site();
    let rig = Rig::new(&world);
    let mut node = host(&rig, 1).await;
    approve(&rig, UNIT, ("02:00:00:00:00:aa", Some(ip(211)))).await.unwrap();
    let requested = small(1, "units = 1\n[[nic]]\nslot = true\nbridge = \"br0\"");
    let vm = create(&rig, requested, None).await.unwrap();
    node.power_off().await;
    rig.clock.turn(SILENT);
    rig.central.nodes.fence(node.id(), &ordered(Verb::Fence)).await.unwrap();
    let lost = record(&rig, &vm).expect("on record");
    assert!(lost.placement.is_none() && lost.spec().nics[0].address.is_none());
    assert!(vm_nics(&rig).is_empty(), "a card without a slot is nobody's");
}

#[tokio::test]
async fn slot_nic_conflict_is_checked_again_at_assignment() {
    let world = site();
    let rig = Rig::new(&world);
    let node = host(&rig, 1).await;
    let mut late = Machine::new(&rig, 2);
    let mac = late.mac.to_string();
    approve(&rig, UNIT, (&mac, Some(ip(30)))).await.unwrap();
    late.boot(Stage::Online).await;
    let requested = || small(1, "units = 1\n[[nic]]\nslot = true\nbridge = \"br0\"");
    let why = refused(&rig, requested(), None).await;
    assert!(why.contains("nic[0].slot: ") && why.contains("a NIC of node"), "{why}");
    let why = code(&approve(&rig, UNIT, (&mac, Some(ip(30)))).await.expect_err("it is another's"));
    assert!(why.contains("a NIC of node"), "{why}");
    approve(&rig, UNIT, ("02:00:00:00:00:aa", Some(ip(31)))).await.unwrap();

    // What a program writes there is not looked at.
    let mut forged = requested();
    (forged.spec.nics[0].mac, forged.spec.nics[0].address) =
        ("52:54:00:00:00:77".parse().unwrap(), Some(ip(20)));
    let vm = create(&rig, forged, None).await.expect("the slot has its own");
    assert_eq!(addresses(&vm), [ip(31)]);

    // The node is given up, and its guest may run on: nobody gets the addresses.
    let by = meshd_model::fleet::AuditContext { forced: true, ..ordered(Verb::Remove) };
    rig.central.nodes.remove(node.id(), &by).await.unwrap();
    assert!(
        record(&rig, &vm).is_some_and(|vm| vm.placement.is_none() && addresses(&vm) == [ip(31)])
    );
    let taken = refused(&rig, small(2, &format!("{ON_BR0}\naddress = \"10.77.0.31\"")), None).await;
    assert!(taken.contains("assigned to the VM"), "{taken}");
}
