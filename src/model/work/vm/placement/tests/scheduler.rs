//! Choice of node and units, and the reasons when no node takes the VM.

use super::{
    super::fixtures::{GIB, candidate, choose_node, node_id},
    *,
};
use crate::work::{
    Allocations, ApprovedSlot, AssignedParts, Placement, SlotId, SlotNic, Verdict, Vm,
};
use meshd_proto::{DiskFacts, PciFacts, UnitKind, UnitState};
use meshd_types::{SystemUuid, Timestamp};

fn node(number: u8) -> NodeId {
    node_id(number.into())
}

fn request(number: u8, memory: &str, units: &[&str]) -> VmRequest {
    let uuid = SystemUuid([9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, number]);
    let text =
        format!(r#"{{"name": "vm-{number}", "uuid": "{uuid}", "vcpus": 2, "memory": "{memory}"}}"#);
    let mut request = VmRequest::new(serde_json::from_str(&text).expect("a specification"));
    request.units.each =
        units.iter().map(|selector| selector.parse().expect("a selector")).collect();
    request
}

fn unit(address: &str, device: &str, kind: UnitKind, state: UnitState) -> UnitFacts {
    let function = |last: &str, class: &str| PciFacts {
        address: format!("{address}.{last}"),
        vendor: "10de".into(),
        device: device.into(),
        class: class.into(),
        ..PciFacts::default()
    };
    let members = vec![function("0", "0302"), function("1", "0403")];
    UnitFacts {
        kind,
        state,
        selected: vec![format!("{address}.0")],
        members,
        ..UnitFacts::default()
    }
}

fn gpu(address: &str) -> UnitFacts {
    unit(address, "2335", UnitKind::Device, UnitState::Ready)
}

fn host<'a>(number: u8, units: &'a [UnitFacts], allocations: &'a Allocations) -> CandidateNode<'a> {
    let threads = 8;
    let memory = 16 * GIB;
    let hugepages = 4 * GIB;
    CandidateNode { threads, memory, hugepages, ..candidate(node(number), units, allocations) }
}

/// Returns the allocations after these requests were placed.
fn holding(requests: &[(VmRequest, &[&str])]) -> Allocations {
    let mut allocations = Allocations::default();
    for (request, units) in requests {
        let mut vm = Vm::new(request.clone(), None, Timestamp::EPOCH);
        let units = units.iter().map(|unit| unit.parse().expect("an address")).collect();
        vm.assign(
            Placement { node: node(1), since: Timestamp::EPOCH, session: None },
            AssignedParts { units, ..AssignedParts::default() },
        );
        allocations.add(&vm);
    }
    allocations
}

fn words(unfit: &NoPlacement) -> (Verdict, Vec<&'static str>) {
    let rejections = unfit
        .nearest
        .iter()
        .flat_map(|(_, rejections)| rejections)
        .map(|rejection| rejection.reason.as_str());
    (unfit.verdict, rejections.collect())
}

#[test]
fn broad_device_selector_yields_to_specific_one() {
    let units = [gpu("0000:01:00"), unit("0000:02:00", "1234", UnitKind::Device, UnitState::Ready)];
    let none = Allocations::default();
    for selectors in
        [["any", "device:10de:2335"], ["device:10de:2335", "any"], ["vendor:10de", "0000:01:00.1"]]
    {
        let fit =
            choose_node(&request(1, "1G", &selectors), None, [host(1, &units, &none)].into_iter())
                .expect("both are there");
        assert_eq!(fit.assigned.units.len(), 2);
        assert_ne!(fit.assigned.units[0], fit.assigned.units[1], "{selectors:?}");
    }
    let third = choose_node(
        &request(1, "1G", &["any", "any", "any"]),
        None,
        [host(1, &units, &none)].into_iter(),
    );
    assert_eq!(words(&third.expect_err("two are no three")), (Verdict::None, vec!["unit_missing"]));
}

#[test]
fn whole_node_request_needs_every_unit_and_switch_free_and_ready() {
    let switch = unit("0000:09:00", "22a3", UnitKind::Switch, UnitState::Ready);
    let mut units = vec![gpu("0000:01:00"), gpu("0000:02:00"), switch];
    let none = Allocations::default();
    let one = holding(&[(request(7, "1G", &["any"]), &["0000:02:00.0"])]);
    let mut whole = request(1, "1G", &[]);
    whole.units.whole = true;
    let fit =
        choose_node(&whole, None, [host(1, &units, &none)].into_iter()).expect("all are ready");
    assert_eq!(fit.assigned.units.len(), 3, "the switch too");
    let taken =
        choose_node(&whole, None, [host(1, &units, &one)].into_iter()).expect_err("one is taken");
    assert_eq!(words(&taken), (Verdict::NotReady, vec!["unit_taken"]));
    units[2].state = UnitState::Wedged;
    let wedged = choose_node(&whole, None, [host(1, &units, &none)].into_iter())
        .expect_err("a switch counts");
    assert_eq!(words(&wedged), (Verdict::NotReady, vec!["unit_not_ready"]));
    let any =
        choose_node(&request(2, "1G", &["any"]), None, [host(1, &units[2..], &none)].into_iter());
    assert_eq!(words(&any.expect_err("a switch alone is no unit")).1, ["unit_missing"]);
}

#[test]
fn verdict_is_none_no_single_node_or_not_ready() {
    let one = [gpu("0000:01:00")];
    let none = Allocations::default();
    let two = request(1, "1G", &["any", "any"]);
    let hosts = [host(1, &one, &none), host(2, &one, &none)];
    let apart = choose_node(&two, None, hosts.clone().into_iter()).expect_err("one each");
    assert_eq!(apart.verdict, Verdict::NoSingleNode);
    let many = choose_node(&request(1, "64G", &[]), None, hosts.clone().into_iter())
        .expect_err("32 together");
    assert_eq!(many.verdict, Verdict::None);
    let much =
        choose_node(&request(1, "20G", &[]), None, hosts.clone().into_iter()).expect_err("16 each");
    assert_eq!(words(&much), (Verdict::NoSingleNode, vec!["memory_exceeded"; 2]));
    let mut away = hosts[0].clone();
    away.unready = Some("offline");
    let one = request(1, "1G", &["any"]);
    let gone = choose_node(&one, None, [away].into_iter()).expect_err("it is away");
    assert_eq!(words(&gone), (Verdict::NotReady, vec!["not_ready"]));
    assert!(gone.to_string().contains("offline"), "{gone}");
    let empty = choose_node(&one, None, std::iter::empty()).expect_err("there is none");
    assert_eq!((empty.verdict, empty.to_string().as_str()), (Verdict::None, "no node is known"));
}

#[test]
fn node_without_kvm_is_rejected_unless_vm_allows_emulation() {
    let none = Allocations::default();
    let emulated = CandidateNode { vm_support: VmSupport::Emulated, ..host(1, &[], &none) };
    let mut request = request(1, "1G", &[]);
    let refused = choose_node(&request, None, [emulated.clone()].into_iter()).expect_err("no KVM");
    assert_eq!(words(&refused), (Verdict::None, vec!["kvm_missing"]));
    request.spec.allow_tcg = true;
    assert!(choose_node(&request, None, [emulated.clone()].into_iter()).is_ok());
    let nothing = CandidateNode { vm_support: VmSupport::Nothing, ..emulated };
    assert_eq!(
        words(&choose_node(&request, None, [nothing].into_iter()).expect_err("not its job")).1,
        ["runs_no_vms"]
    );
}

#[test]
fn request_above_node_capacity_is_rejected_with_reason() {
    let allocations = holding(&[(request(7, "15G", &[]), &[])]);
    let none = Allocations::default();
    let of = |request: &VmRequest, allocations: &Allocations| match choose_node(
        request,
        None,
        [host(1, &[], allocations)].into_iter(),
    ) {
        Ok(_) => Vec::new(),
        Err(unfit) => words(&unfit).1,
    };
    assert_eq!(
        of(&request(1, "1G", &[]), &allocations),
        ["memory_taken"],
        "256 MiB stay with the node"
    );
    assert_eq!(of(&request(1, "16G", &[]), &none), ["memory_exceeded"]);
    let mut huge = request(1, "4G", &[]);
    huge.spec.hugepages = true;
    assert_eq!(of(&huge, &allocations), Vec::<&str>::new(), "another pool");
    huge.spec.memory = "5G".parse().expect("a size");
    assert_eq!(of(&huge, &none), ["hugepages_exceeded"]);
    let mut wide = request(1, "1G", &[]);
    (wide.spec.vcpus, wide.spec.numa_node) = (9, Some(1));
    assert_eq!(of(&wide, &none), ["cpus_exceeded", "numa_missing"]);
    let mut raw = request(1, "1G", &[]);
    let text = r#"{"name": "data", "format": "raw", "disk": "eui.1234"}"#;
    raw.spec.volumes = vec![serde_json::from_str(text).expect("a volume")];
    assert_eq!(of(&raw, &none), ["disk_missing"]);
    let disks = [DiskFacts {
        wwid: Some("eui.1234".into()),
        serial: Some("SN-9".into()),
        ..DiskFacts::default()
    }];
    let with = |allocations: &Allocations| {
        let host = CandidateNode { disks: &disks, ..host(1, &[], allocations) };
        choose_node(&raw, None, [host].into_iter()).map(|_| ()).map_err(|unfit| words(&unfit).1)
    };
    assert_eq!(with(&none), Ok(()));
    let mut other = raw.clone();
    other.spec.volumes =
        vec![serde_json::from_str(&text.replace("eui.1234", "SN-9")).expect("a volume")];
    assert_eq!(
        with(&holding(&[(other, &[])])),
        Err(vec!["disk_taken"]),
        "the same disk by its other name"
    );
}

#[test]
fn placement_packs_devices_spreads_memory_and_respects_named_node() {
    let few = [gpu("0000:01:00")];
    let many = [gpu("0000:01:00"), gpu("0000:02:00")];
    let none = Allocations::default();
    let some = holding(&[(request(7, "4G", &[]), &[])]);
    let hosts =
        [host(1, &many, &none), host(2, &few, &none), host(3, &[], &some), host(4, &[], &none)];
    let on = |request: &VmRequest, only| {
        choose_node(request, only, hosts.clone().into_iter()).map(|fit| fit.node)
    };
    assert_eq!(on(&request(1, "1G", &["any"]), None), Ok(node(2)), "the other stays whole");
    assert_eq!(
        on(&request(1, "1G", &[]), None),
        Ok(node(4)),
        "most memory is left there, and no unit is blocked"
    );
    assert_eq!(on(&request(1, "1G", &[]), Some(node(1))), Ok(node(1)));
    let unfit = on(&request(1, "1G", &["any"]), Some(node(3))).expect_err("it has none");
    assert_eq!(unfit.nearest.len(), 1, "only the reasons against the named node");
    assert_eq!(words(&unfit).1, ["unit_missing"]);
}

#[test]
fn refusal_by_many_equal_nodes_has_one_line_for_each_reason() {
    let taken: Vec<UnitFacts> = (1..=40)
        .map(|bus| unit(&format!("0000:{bus:02x}:00"), "2335", UnitKind::Device, UnitState::Wedged))
        .collect();
    let none = Allocations::default();
    let hosts =
        (1..=200).map(|number| host(number, if number <= 150 { &taken } else { &[] }, &none));
    let unfit =
        choose_node(&request(1, "1G", &["any"; 8]), None, hosts).expect_err("no unit is ready");
    let text = unfit.to_string();
    assert!(text.contains("(200 nodes: unit_not_ready on 150, unit_missing on 50)"), "{text}");
    assert!(text.contains("8 x any; ") && text.contains(" and 37 more is wedged"), "{text}");
    assert_eq!(text.matches("unit_not_ready (").count(), 1, "{text}");
    assert!(text.len() < 450, "{text}");
}

/// A slot with a disk or a fabric device.
fn slot(number: u8, unit: &str, disk: Option<&str>, fabric: Option<&str>) -> ApprovedSlot {
    let id = SlotId { node: node(number), unit: unit.parse().expect("an address") };
    let disk = disk.map(|disk| disk.parse().expect("an identity"));
    let fabric = fabric.map(str::to_owned);
    ApprovedSlot {
        id,
        functions: Default::default(),
        disk,
        fabric,
        nic: None,
        disabled: None,
        approved_at: Timestamp::EPOCH,
    }
}

fn raw(request: &mut VmRequest, disks: &[&str]) {
    let volume = |(number, disk): (usize, &&str)| {
        let volume = format!(r#"{{"name": "d{number}", "format": "raw", "disk": "{disk}"}}"#);
        serde_json::from_str(&volume).expect("a volume")
    };
    request.spec.volumes = disks.iter().enumerate().map(volume).collect();
}

fn disks(names: &[&str]) -> Vec<DiskFacts> {
    let disk = |name: &&str| DiskFacts { wwid: Some((*name).to_owned()), ..DiskFacts::default() };
    names.iter().map(disk).collect()
}

#[test]
fn named_disk_selects_unit_of_its_slot_and_slot_disk_follows_unit() {
    let units = [gpu("0000:01:00"), unit("0000:02:00", "1234", UnitKind::Device, UnitState::Ready)];
    let slots = [
        slot(1, "0000:01:00.0", Some("disk-one"), None),
        slot(1, "0000:02:00.1", Some("disk-two"), None),
    ];
    let none = Allocations::default();
    let disks = disks(&["disk-one", "disk-two", "disk-three"]);
    let host =
        || CandidateNode { disks: &disks, slots: slots.iter().collect(), ..host(1, &units, &none) };
    let wants = |selectors: &[&str], disks: &[&str]| {
        let mut request = request(1, "1G", selectors);
        raw(&mut request, disks);
        choose_node(&request, None, [host()].into_iter()).map(|fit| {
            let units: Vec<String> = fit.assigned.units.iter().map(ToString::to_string).collect();
            (
                units.join(" "),
                fit.assigned.disks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            )
        })
    };
    let got = |units: &str, disks: &str| Ok((units.to_owned(), disks.to_owned()));
    assert_eq!(
        wants(&["any"], &["disk-two"]),
        got("0000:02:00.0", ""),
        "the unit of that disk, though another is first"
    );
    assert_eq!(wants(&["any"], &["slot"]), got("0000:01:00.0", "disk-one"));
    assert_eq!(
        wants(&["device:10de:1234", "any"], &["slot", "slot"]),
        got("0000:02:00.0 0000:01:00.0", "disk-two disk-one")
    );
    assert_eq!(
        wants(&["any", "any"], &["slot", "disk-one"]),
        got("0000:02:00.0 0000:01:00.0", "disk-two")
    );
    assert_eq!(wants(&[], &["disk-three"]), got("", ""), "no slot has it");
    for (selectors, named) in [
        (&[][..], "disk-one"),
        (&["device:10de:1234"], "disk-one"),
        (&["0000:01:00.0"], "disk-two"),
    ] {
        let unfit = wants(selectors, &[named]).expect_err("its slot is not had");
        assert!(
            unfit.to_string().contains(&format!("disk_taken (disk {named} belongs to slot")),
            "{unfit}"
        );
    }
}

#[test]
fn slot_without_free_disk_is_rejected_for_slot_disk_request() {
    let units = [gpu("0000:01:00")];
    let none = Allocations::default();
    let mut wants = request(1, "1G", &["any"]);
    raw(&mut wants, &["slot"]);
    let why = |slots: &[ApprovedSlot], disks: &[DiskFacts], allocations: &Allocations| {
        let host =
            CandidateNode { disks, slots: slots.iter().collect(), ..host(1, &units, allocations) };
        words(&choose_node(&wants, None, [host].into_iter()).expect_err("no such slot")).1
    };
    let there = disks(&["disk-one"]);
    assert_eq!(why(&[], &there, &none), ["slot_without_disk"]);
    assert_eq!(
        why(&[slot(1, "0000:01:00.0", None, Some("ib0"))], &there, &none),
        ["slot_without_disk"]
    );
    let own = [slot(1, "0000:01:00.0", Some("disk-one"), None)];
    assert_eq!(why(&own, &[], &none), ["disk_missing"]);
    let mut used = there.clone();
    used[0].blocked = Some("disk sda is mounted on /".into());
    assert_eq!(why(&own, &used, &none), ["disk_taken"]);
    let mut other = request(7, "1G", &[]);
    raw(&mut other, &["disk-one"]);
    assert_eq!(why(&own, &there, &holding(&[(other, &[])])), ["disk_taken"]);
    let mut whole = wants.clone();
    (whole.units.whole, whole.units.each) = (true, Vec::new());
    let host = |slots| CandidateNode { disks: &there, slots, ..host(1, &units, &none) };
    assert_eq!(
        choose_node(&whole, None, [host(own.iter().collect())].into_iter())
            .map(|fit| fit.assigned.disks.len()),
        Ok(1)
    );
    let unfit =
        choose_node(&whole, None, [host(Vec::new())].into_iter()).expect_err("its slot has none");
    assert_eq!(words(&unfit).1, ["slot_without_disk"]);
}

#[test]
fn fabric_device_unit_is_assigned_with_its_slot_only() {
    let mut units = [gpu("0000:01:00"), gpu("0000:02:00"), gpu("0000:09:00")];
    let slots = [
        slot(1, "0000:01:00.0", None, Some("0000:09:00.1")),
        slot(1, "0000:02:00.0", None, Some("mlx5_0")),
    ];
    let none = Allocations::default();
    let on = |units: &[UnitFacts], allocations: &Allocations, selectors: &[&str]| {
        let host = CandidateNode { slots: slots.iter().collect(), ..host(1, units, allocations) };
        let fit = choose_node(&request(1, "1G", selectors), None, [host].into_iter());
        fit.map(|fit| fit.assigned.units.iter().map(ToString::to_string).collect::<Vec<_>>())
            .map_err(|unfit| words(&unfit).1)
    };
    assert_eq!(
        on(&units, &none, &["0000:01:00.0"]),
        Ok(vec!["0000:01:00.0".into(), "0000:09:00.0".into()])
    );
    assert_eq!(
        on(&units, &none, &["0000:02:00.0"]),
        Ok(vec!["0000:02:00.0".into()]),
        "a name is only a name"
    );
    assert_eq!(
        on(&units, &none, &["any", "any", "any"]),
        Err(vec!["unit_taken"]),
        "the third is no slot of its own"
    );
    let other = holding(&[(request(7, "1G", &["any"]), &["0000:09:00.0"])]);
    assert_eq!(on(&units, &other, &["0000:01:00.0"]), Err(vec!["unit_taken"]));
    units[2].state = UnitState::Wedged;
    assert_eq!(on(&units, &none, &["0000:01:00.0"]), Err(vec!["unit_not_ready"]));
    assert_eq!(
        on(&units, &none, &["any"]),
        Ok(vec!["0000:02:00.0".into()]),
        "whose fabric device works"
    );
}

#[test]
fn nic_of_whole_node_vm_has_address_of_its_slot() {
    // The fabric device comes first, and is no slot of its own.
    let units = [gpu("0000:01:00"), gpu("0000:02:00")];
    let mac = "52:54:00:12:34:56".parse().expect("a MAC");
    let own = ApprovedSlot {
        nic: Some(SlotNic { mac, address: None }),
        ..slot(1, "0000:02:00.0", None, Some("0000:01:00.1"))
    };
    let none = Allocations::default();
    let mut whole = request(1, "1G", &[]);
    (whole.units.whole, whole.spec.nics) = (
        true,
        vec![serde_json::from_str(r#"{"mac": "52:54:00:00:00:01", "slot": true}"#).expect("a NIC")],
    );
    let on = |slot: &ApprovedSlot| {
        let host = CandidateNode { slots: vec![slot], ..host(1, &units, &none) };
        choose_node(&whole, None, [host].into_iter())
            .map(|fit| fit.assigned.nics)
            .map_err(|unfit| words(&unfit).1)
    };
    assert_eq!(on(&own), Ok(vec![SlotNic { mac, address: None }]));
    assert_eq!(on(&ApprovedSlot { nic: None, ..own.clone() }), Err(vec!["slot_without_nic"]));
}
