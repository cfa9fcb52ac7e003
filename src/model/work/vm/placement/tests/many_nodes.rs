//! With many nodes, the chosen node has the lowest cost, few nodes are completed, and closed slots
//! are never assigned.

use super::fixtures::{candidate, choose_node, node_id, request, unit};
use crate::work::*;
use meshd_config::vm::VmRequest;
use meshd_proto::UnitFacts;
use meshd_types::{NodeId, PciAddress, Timestamp};
use proptest::prelude::*;
use std::{cell::Cell, collections::BTreeSet};

struct Node {
    id: NodeId,
    units: Vec<UnitFacts>,
    /// Units whose slot is closed.
    closed: Vec<PciAddress>,
    allocations: Allocations,
}

impl Node {
    fn new(number: u16, units: u8, closed: impl Fn(u8) -> bool) -> Self {
        let address = |unit: u8| format!("0000:{unit:02x}:00.0").parse().expect("an address");
        let closed = (0..units).filter(|unit| closed(*unit)).map(address).collect();
        let units = (0..units).map(|bus| unit(bus, Some(u32::from(bus % 2)))).collect();
        Node { id: node_id(number), closed, units, allocations: Allocations::default() }
    }

    /// Returns the candidate without its slots.
    fn host(&self) -> CandidateNode<'_> {
        let is_free =
            |unit: &&PciAddress| self.allocations.unit([unit.as_str()].into_iter()).is_none();
        let closed = self.closed.iter().filter(is_free).count();
        CandidateNode { closed, ..candidate(self.id, &self.units, &self.allocations) }
    }

    fn complete(&self, host: &mut CandidateNode<'_>) {
        host.unassignable_units = self
            .closed
            .iter()
            .map(|unit| (unit.clone(), "its slot is candidate".to_owned()))
            .collect();
    }
}

/// Places a VM. Returns the result and the number of completed candidates.
fn place_one(rack: &mut [Node], request: VmRequest) -> (Option<PlacementFit>, usize) {
    let completed = Cell::new(0);
    let complete = |host: &mut CandidateNode<'_>| {
        completed.set(completed.get() + 1);
        rack.iter().find(|node| node.id == host.node).expect("a node of the rack").complete(host);
    };
    let fit = place(&request, None, rack.iter().map(Node::host), complete).ok();
    let completed = completed.get();
    if let Some(fit) = &fit {
        let mut vm = Vm::new(request, None, Timestamp::EPOCH);
        vm.assign(
            Placement { node: fit.node, since: Timestamp::EPOCH, session: None },
            fit.assigned.clone(),
        );
        rack.iter_mut()
            .find(|node| node.id == fit.node)
            .expect("a node of the rack")
            .allocations
            .add(&vm);
    }
    (fit, completed)
}

#[test]
fn open_slots_are_assigned_once_with_few_complete_candidates() {
    const NODES: u16 = 50;
    // Of every third node half of the slots are closed.
    let mut rack: Vec<Node> =
        (0..NODES).map(|node| Node::new(node, 8, |unit| node % 3 == 0 && unit < 4)).collect();
    let open: usize = rack.iter().map(|node| node.units.len() - node.closed.len()).sum();
    let mut assigned = BTreeSet::new();
    let mut completed = 0;
    for number in 0..u16::try_from(open).expect("few") {
        let (fit, more) = place_one(&mut rack, request(number, 1));
        let fit = fit.expect("one is left");
        completed += more;
        let node = rack.iter().find(|node| node.id == fit.node).expect("a node of the rack");
        for unit in fit.assigned.units {
            assert!(!node.closed.contains(&unit), "{unit} of {} is closed", fit.node);
            assert!(assigned.insert((fit.node, unit)), "assigned twice");
        }
    }
    assert_eq!(assigned.len(), open);
    assert!(completed < open * 3, "{completed} candidates completed for {open} placements");
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
                let fit = choose_node(&request, None, [host].into_iter()).ok()?;
                let closed = node.host().closed;
                let left = node.units.len() - node.allocations.unit_count() - closed - fit.assigned.units.len();
                Some(((left, fit.assigned.numa_mismatch), fit))
            }).collect();
            let best = alone.iter().map(|(rank, _)| *rank).min();
            let (fit, _) = place_one(&mut rack, request);
            let chosen = fit.map(|fit| alone.iter().find(|(_, other)| other.node == fit.node).map(|(rank, _)| *rank));
            prop_assert_eq!(chosen, best.map(Some));
        }
    }
}
