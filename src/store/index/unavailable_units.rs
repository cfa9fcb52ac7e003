//! Counts units of a node that are neither allocated nor allocatable. Placement computes the count, and the cache lasts
//! until the node, its VMs or its slots change.

use crate::Model;
use meshd_model::{
    fleet::Node,
    work::{Allocations, SlotId, unassignable_units},
};
use meshd_proto::{UnitFacts, UnitKind, UnitState};
use meshd_types::NodeId;
use std::{collections::BTreeMap, sync::OnceLock};

/// By node; where units have to be approved, and where they have not.
#[derive(Default)]
pub(crate) struct UnavailableUnits(BTreeMap<NodeId, [OnceLock<usize>; 2]>);

impl UnavailableUnits {
    /// A node is new, or tells of itself anew.
    pub(crate) fn put(&mut self, node: &Node) {
        if node.facts.as_ref().is_some_and(|facts| !facts.units.is_empty()) {
            self.0.insert(node.id, Default::default());
        } else {
            self.0.remove(&node.id);
        }
    }

    /// A node is gone.
    pub(crate) fn remove(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// Its slots, or what machines have of it, are others.
    pub(crate) fn forget(&mut self, node: NodeId) {
        if let Some(known) = self.0.get_mut(&node) {
            *known = Default::default();
        }
    }
}

impl Model {
    /// Units of a node that no machine has, and that cannot be given now: they are not ready, or their slot is closed. `implied` says that
    /// slots need no approval.
    pub fn closed_units(&self, node: NodeId, implied: bool) -> usize {
        let Some(known) = self.work.closed.0.get(&node) else { return 0 };
        *known[usize::from(implied)].get_or_init(|| self.count_closed(node, implied))
    }

    fn count_closed(&self, node: NodeId, implied: bool) -> usize {
        static NOTHING: Allocations = Allocations::none();
        let Some(facts) = self.nodes.get(&node).and_then(|node| node.facts.as_ref()) else { return 0 };
        let held = self.held(node).unwrap_or(&NOTHING);
        let is_held = |unit: &UnitFacts| held.unit(unit.members.iter().map(|member| member.address.as_str())).is_some();
        let holds = |slot: &SlotId| held.unit([slot.unit.as_str()].into_iter()).is_some();
        let unassignable_units = unassignable_units(node, facts, self.slots(), holds, implied);
        let is_closed = |unit: &UnitFacts| {
            let is_barred =
                || unassignable_units.iter().any(|(slot, _)| unit.selected.iter().any(|own| own == slot.as_str()));
            unit.state != UnitState::Ready || (unit.kind == UnitKind::Device && is_barred())
        };
        facts.units.iter().filter(|unit| !is_held(unit) && is_closed(unit)).count()
    }
}
