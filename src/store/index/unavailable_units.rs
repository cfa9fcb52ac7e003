//! Counts units of a node that are neither allocated nor allocatable. Placement computes the count,
//! and the cache lasts until the node, its VMs or its slots change.

use crate::Model;
use meshd_model::{
    fleet::Node,
    work::{Allocations, SlotId, unassignable_units},
};
use meshd_proto::{UnitFacts, UnitKind, UnitState};
use meshd_types::NodeId;
use std::{collections::BTreeMap, sync::OnceLock};

/// By node: the count if units need approval, and the count if they do not.
#[derive(Default)]
pub(crate) struct UnavailableUnits(BTreeMap<NodeId, [OnceLock<usize>; 2]>);

impl UnavailableUnits {
    /// Resets the counts of a node with new facts.
    pub(crate) fn put(&mut self, node: &Node) {
        if node.facts.as_ref().is_some_and(|facts| !facts.units.is_empty()) {
            self.0.insert(node.id, Default::default());
        } else {
            self.0.remove(&node.id);
        }
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        self.0.remove(&node);
    }

    /// Resets the counts of a node with changed slots or VMs.
    pub(crate) fn reset(&mut self, node: NodeId) {
        if let Some(cached) = self.0.get_mut(&node) {
            *cached = Default::default();
        }
    }
}

impl Model {
    /// Number of units of a node that are not allocated and cannot be: not ready, or with an
    /// unavailable slot. With `implied`, slots need no approval.
    pub fn unavailable_units(&self, node: NodeId, implied: bool) -> usize {
        let Some(cached) = self.work.unavailable.0.get(&node) else { return 0 };
        *cached[usize::from(implied)].get_or_init(|| self.count_unavailable(node, implied))
    }

    fn count_unavailable(&self, node: NodeId, implied: bool) -> usize {
        static NOTHING: Allocations = Allocations::none();
        let Some(facts) = self.nodes.get(&node).and_then(|node| node.facts.as_ref()) else {
            return 0;
        };
        let allocations = self.allocations(node).unwrap_or(&NOTHING);
        let is_allocated = |unit: &UnitFacts| {
            allocations.unit(unit.members.iter().map(|member| member.address.as_str())).is_some()
        };
        let is_slot_allocated =
            |slot: &SlotId| allocations.unit([slot.unit.as_str()].into_iter()).is_some();
        let unassignable =
            unassignable_units(node, facts, self.slots(), is_slot_allocated, implied);
        let is_unavailable = |unit: &UnitFacts| {
            let is_unassignable = || {
                unassignable
                    .iter()
                    .any(|(slot, _)| unit.selected.iter().any(|own| own == slot.as_str()))
            };
            unit.state != UnitState::Ready || (unit.kind == UnitKind::Device && is_unassignable())
        };
        facts.units.iter().filter(|unit| !is_allocated(unit) && is_unavailable(unit)).count()
    }
}
