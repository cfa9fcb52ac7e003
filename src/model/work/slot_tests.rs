//! State of a slot by approval, VM and reported facts.

use super::{
    super::{AssignedParts, Placement},
    *,
};
use meshd_config::vm::VmRequest;
use meshd_proto::{
    PciFacts,
    vm::{VmReport, VmSpec},
};
use meshd_types::{Basis, MacAddr, SystemUuid};

fn node() -> NodeId {
    Basis::Mac(MacAddr([2, 0, 0, 0, 0, 1])).node_id()
}

fn facts(units: &[(&str, &str, UnitState)]) -> Facts {
    let unit = |(address, device, state): &(&str, &str, UnitState)| UnitFacts {
        state: *state,
        selected: vec![(*address).to_owned()],
        members: vec![PciFacts {
            address: (*address).to_owned(),
            vendor: "10de".into(),
            device: (*device).to_owned(),
            ..PciFacts::default()
        }],
        ..UnitFacts::default()
    };
    Facts { units: units.iter().map(unit).collect(), ..Facts::default() }
}

fn id(unit: &str) -> SlotId {
    SlotId { node: node(), unit: unit.parse().expect("an address") }
}

fn approve(unit: &str, facts: &Facts, fabric: Option<&str>) -> ApprovedSlot {
    let functions = functions(unit_of(&id(unit), facts).expect("it is there"));
    let fabric = fabric.map(str::to_owned);
    ApprovedSlot {
        id: id(unit),
        functions,
        disk: None,
        fabric,
        nic: None,
        disabled: None,
        approved_at: Timestamp::EPOCH,
    }
}

const ONE: &str = "0000:41:00.0";
const TWO: &str = "0000:42:00.0";

#[test]
fn slot_state_follows_approval_and_device_changes() {
    let good = facts(&[(ONE, "2335", UnitState::Ready)]);
    let state = |facts: &Facts, approved: Option<&ApprovedSlot>, implied| {
        derive_slot(id(ONE), facts, approved, None, implied).state
    };
    assert_eq!(state(&good, None, false), SlotState::Candidate);
    assert_eq!(
        state(&good, None, true),
        SlotState::Available,
        "the site lets machines in by itself"
    );
    let mut approved = approve(ONE, &good, None);
    assert_eq!(state(&good, Some(&approved), false), SlotState::Available);
    assert_eq!(
        state(&facts(&[(ONE, "1234", UnitState::Ready)]), Some(&approved), false),
        SlotState::Failed
    );
    assert_eq!(state(&facts(&[]), Some(&approved), false), SlotState::Failed);
    assert_eq!(
        state(&facts(&[(ONE, "2335", UnitState::Wedged)]), Some(&approved), false),
        SlotState::Failed
    );
    assert_eq!(
        state(&facts(&[(ONE, "2335", UnitState::InUse)]), Some(&approved), false),
        SlotState::Cleanup
    );
    approved.disabled = Some("a fan is loud".to_owned());
    assert_eq!(state(&good, Some(&approved), true), SlotState::Disabled);
}

#[test]
fn slot_state_follows_state_of_its_vm() {
    let spec = VmSpec::unknown("a".parse().expect("a name"), SystemUuid([7; 16]));
    let mut vm = Vm::new(VmRequest::new(spec), None, Timestamp::EPOCH);
    vm.run();
    let placement = Placement { node: node(), since: Timestamp::EPOCH, session: None };
    vm.assign(
        placement,
        AssignedParts { units: vec![ONE.parse().expect("an address")], ..AssignedParts::default() },
    );
    let facts = facts(&[(ONE, "2335", UnitState::Ready)]);
    let state = |vm: &Vm| derive_slot(id(ONE), &facts, None, Some(vm), false).state;
    assert_eq!(state(&vm), SlotState::Reserved);
    for (reported, expected) in [
        (ReportedVmState::Starting, SlotState::Provisioning),
        (ReportedVmState::Running, SlotState::Active),
        (ReportedVmState::Waiting, SlotState::Active),
        (ReportedVmState::Failed, SlotState::Failed),
        (ReportedVmState::Stopped, SlotState::Reserved),
    ] {
        let uuid = vm.uuid();
        let name = vm.name().clone();
        vm.apply_report(VmReport::new(uuid, name, reported), Timestamp::EPOCH);
        assert_eq!(state(&vm), expected, "{reported:?}");
    }
    vm.desired_state = VmDesiredState::Release;
    assert_eq!(state(&vm), SlotState::Releasing);
    vm.obstacle = Some("QEMU does not end".to_owned());
    let blocked = derive_slot(id(ONE), &facts, None, Some(&vm), false);
    assert_eq!((blocked.state, blocked.reason.contains("QEMU")), (SlotState::CleanupBlocked, true));
    let mut approved = approve(ONE, &facts, None);
    approved.disabled = Some("a fan is loud".to_owned());
    let disabled = derive_slot(id(ONE), &facts, Some(&approved), Some(&vm), false);
    assert!(
        disabled.reason.ends_with("; disabled for other VMs: a fan is loud"),
        "{}",
        disabled.reason
    );
}

#[test]
fn slots_with_shared_fabric_device_are_assigned_one_at_a_time() {
    let facts = facts(&[(ONE, "2335", UnitState::Ready), (TWO, "2335", UnitState::Ready)]);
    let barred_with = |fabrics: [Option<&str>; 2], assigned: &str| {
        let slots = [(ONE, fabrics[0]), (TWO, fabrics[1])];
        let approved = slots.map(|(unit, fabric)| (id(unit), approve(unit, &facts, fabric))).into();
        let holds = |slot: &SlotId| slot.unit.as_str() == assigned;
        unassignable_units(node(), &facts, &approved, holds, false).len()
    };
    assert_eq!(barred_with([Some("mlx5_0"), Some("mlx5_0")], ONE), 1);
    assert_eq!(barred_with([Some("mlx5_0"), Some("mlx5_0")], ""), 0, "nobody has either");
    assert_eq!(barred_with([Some("mlx5_0"), Some("mlx5_1")], ONE), 0);
    assert_eq!(barred_with([None, None], ONE), 0);
    assert_eq!(
        unassignable_units(node(), &facts, &BTreeMap::new(), |_| false, false).len(),
        2,
        "nobody approved them"
    );
    assert_eq!(unassignable_units(node(), &facts, &BTreeMap::new(), |_| false, true), []);
}

#[test]
fn slot_id_round_trips_as_node_and_unit() {
    let text = format!("{}/{ONE}", node());
    assert_eq!(text.parse::<SlotId>().map(|id| id.to_string()), Ok(text));
    for text in ["", "/", "x/0000:41:00.0", "00000000/41:00.0"] {
        assert!(text.parse::<SlotId>().is_err(), "{text}");
    }
}

#[test]
fn slot_range_of_node_excludes_other_nodes() {
    let [before, own, after] = {
        let mut nodes = [1, 2, 3].map(|last| Basis::Mac(MacAddr([2, 0, 0, 0, 0, last])).node_id());
        nodes.sort_unstable();
        nodes
    };
    let slots = [before, own, after].into_iter().flat_map(|node| {
        [ONE, TWO, "0000:00:00.0", "ffff:ff:1f.7"]
            .map(|unit| (SlotId { node, unit: unit.parse().expect("one") }, ()))
    });
    let slots: BTreeMap<SlotId, ()> = slots.collect();
    let found: Vec<&SlotId> = slots_of_node(&slots, own).map(|(id, ())| id).collect();
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|id| id.node == own));
}
