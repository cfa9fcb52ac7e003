//! Many nodes: the one that is chosen is the best of all, few are looked at in full, and a slot that is closed is never given.

use crate::work::*;
use meshd_config::vm::{UnitSelector, VmRequest};
use meshd_proto::{PciFacts, UnitFacts, UnitState, vm::VmSpec};
use meshd_types::{Basis, MacAddr, NodeId, PciAddress, SystemUuid, Timestamp};
use proptest::prelude::*;
use std::{cell::Cell, collections::BTreeSet};

const GIB: u64 = 1 << 30;

fn id(number: u16) -> NodeId {
    let [high, low] = number.to_be_bytes();
    Basis::Mac(MacAddr([2, 0, 0, 0, high, low])).node_id()
}

struct Node {
    id: NodeId,
    units: Vec<UnitFacts>,
    /// Those whose slot is closed.
    closed: Vec<PciAddress>,
    held: Allocations,
}

impl Node {
    fn new(number: u16, units: u8, closed: impl Fn(u8) -> bool) -> Self {
        let address = |unit: u8| format!("0000:{unit:02x}:00.0");
        let unit = |unit: u8| {
            let members = vec![PciFacts { address: address(unit), ..PciFacts::default() }];
            let numa_node = Some(u32::from(unit % 2));
            UnitFacts {
                state: UnitState::Ready,
                selected: vec![address(unit)],
                members,
                numa_node,
                ..UnitFacts::default()
            }
        };
        let closed = (0..units).filter(|unit| closed(*unit)).map(|unit| address(unit).parse().expect("an address"));
        Node {
            id: id(number),
            closed: closed.collect(),
            units: (0..units).map(unit).collect(),
            held: Allocations::default(),
        }
    }

    /// As it is found quickly.
    fn host(&self) -> CandidateNode<'_> {
        CandidateNode {
            node: self.id,
            unready: None,
            runs: VmSupport::Kvm,
            hosting: None,
            threads: 64,
            overcommit: 4,
            memory: 64 * GIB,
            hugepages: 0,
            units: &self.units,
            disks: &[],
            pci: &[],
            allocations: &self.held,
            closed: self.closed.iter().filter(|unit| self.held.unit([unit.as_str()].into_iter()).is_none()).count(),
            unassignable_units: Vec::new(),
            slots: Vec::new(),
        }
    }

    fn complete(&self, host: &mut CandidateNode<'_>) {
        host.unassignable_units =
            self.closed.iter().map(|unit| (unit.clone(), "its slot is candidate".to_owned())).collect();
    }
}

fn request(number: u16, units: usize) -> VmRequest {
    let [high, low] = number.to_be_bytes();
    let uuid = SystemUuid([8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, high, low]);
    let mut request = VmRequest::new(VmSpec::unknown(format!("vm-{number}").parse().expect("a name"), uuid));
    (request.spec.vcpus, request.spec.memory) = (2, "1G".parse().expect("a size"));
    request.units.each = vec![UnitSelector::Any; units];
    request
}

/// Places a machine, and says how many nodes were looked at in full.
fn place_one(rack: &mut [Node], request: VmRequest) -> (Option<PlacementFit>, usize) {
    let looked = Cell::new(0);
    let complete = |host: &mut CandidateNode<'_>| {
        looked.set(looked.get() + 1);
        rack.iter().find(|node| node.id == host.node).expect("it is of the rack").complete(host);
    };
    let fit = place_by(&request, None, rack.iter().map(Node::host), complete).ok();
    let looked = looked.get();
    if let Some(fit) = &fit {
        let mut vm = Vm::new(request, None, Timestamp::EPOCH);
        vm.assign(Placement { node: fit.node, since: Timestamp::EPOCH, session: None }, fit.units.clone(), Vec::new());
        rack.iter_mut().find(|node| node.id == fit.node).expect("it is of the rack").held.add(&vm);
    }
    (fit, looked)
}

#[test]
fn open_slots_are_assigned_once_with_few_complete_candidates() {
    const NODES: u16 = 50;
    // Of every third node half of the slots are closed.
    let mut rack: Vec<Node> = (0..NODES).map(|node| Node::new(node, 8, |unit| node % 3 == 0 && unit < 4)).collect();
    let open: usize = rack.iter().map(|node| node.units.len() - node.closed.len()).sum();
    let (mut given, mut looked) = (BTreeSet::new(), 0);
    for number in 0..u16::try_from(open).expect("few") {
        let (fit, more) = place_one(&mut rack, request(number, 1));
        let fit = fit.expect("one is left");
        looked += more;
        let node = rack.iter().find(|node| node.id == fit.node).expect("it is of the rack");
        for unit in fit.units {
            assert!(!node.closed.contains(&unit), "{unit} of {} is closed", fit.node);
            assert!(given.insert((fit.node, unit)), "given twice");
        }
    }
    assert_eq!(given.len(), open);
    assert!(looked < open * 3, "{looked} looks for {open} placements");
    let (none, _) = place_one(&mut rack, request(9999, 1));
    assert_eq!(none, None, "what is left is closed");
}

proptest! {
    #[test]
    fn placement_with_few_complete_candidates_is_optimal(
        nodes in prop::collection::vec((0..4u8, 0..4u8), 1..8),
        wishes in prop::collection::vec(0..4usize, 1..16),
    ) {
        let mut rack: Vec<Node> = nodes.iter().enumerate().map(|(at, (units, closed))| {
            Node::new(u16::try_from(at).expect("few"), *units, |unit| unit < *closed)
        }).collect();
        for (number, units) in wishes.into_iter().enumerate() {
            let request = request(u16::try_from(number).expect("few"), units);
            // Each node alone: what it would give, and how many units it would have left.
            let alone: Vec<_> = rack.iter().filter_map(|node| {
                let mut host = node.host();
                node.complete(&mut host);
                let fit = place(&request, None, [host].into_iter()).ok()?;
                let closed = node.host().closed;
                let left = node.units.len() - node.held.unit_count() - closed - fit.units.len();
                Some(((left, fit.numa_mismatch), fit))
            }).collect();
            let best = alone.iter().map(|(rank, _)| *rank).min();
            let (fit, _) = place_one(&mut rack, request);
            let chosen = fit.map(|fit| alone.iter().find(|(_, other)| other.node == fit.node).map(|(rank, _)| *rank));
            prop_assert_eq!(chosen, best.map(Some));
        }
    }
}
