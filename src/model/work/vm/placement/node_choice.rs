//! Chooses the node of a VM: filters the nodes, ranks the remaining nodes, and assigns units. A VM
//! never spans nodes.
//!
//! Devices are packed, so that nodes stay free for VMs that need all devices of a node. CPUs and
//! memory are spread.

use super::{
    candidate::{CandidateNode, PlacementFit, VmSupport, named_disks},
    capacity_filter, device_selector,
    explain::explain,
    feature_filter,
    reject_reason::NoPlacement,
    slot_resources,
};
use crate::work::AssignedParts;
use meshd_config::vm::VmRequest;
use meshd_proto::{UnitFacts, vm::MAX_VMS};
use meshd_types::NodeId;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

/// Rank of a node, the lowest wins: remaining free units, units on several NUMA nodes, utilization,
/// used memory.
type PlacementCost = (usize, bool, u64, u64);

/// Chooses a node. Devices are packed; CPUs and memory are spread. `candidates` have no slots;
/// `add_slots` adds the slots of the few that may rank better than the best node so far.
///
/// # Errors
/// No node takes the VM.
pub fn place<'a>(
    request: &VmRequest,
    required_node: Option<NodeId>,
    candidates: impl Iterator<Item = CandidateNode<'a>> + Clone,
    add_slots: impl Fn(&mut CandidateNode<'a>),
) -> Result<PlacementFit, NoPlacement> {
    let named =
        candidates.clone().filter(|host| required_node.is_none_or(|node| host.node == node));
    let bounded: Vec<(PlacementCost, CandidateNode<'a>)> =
        named.filter_map(|host| Some((bound(request, &host)?, host))).collect();
    let mut nearest: BinaryHeap<_> =
        bounded.iter().enumerate().map(|(at, (rank, _))| Reverse((*rank, at))).collect();
    let mut best: Option<(PlacementCost, PlacementFit)> = None;
    while let Some(Reverse((bound, at))) = nearest.pop() {
        if best.as_ref().is_some_and(|(rank, _)| *rank <= bound) {
            break;
        }
        let mut host = bounded[at].1.clone();
        add_slots(&mut host);
        if let Some((rank, fit)) = fit(request, &host)
            && best.as_ref().is_none_or(|(other, _)| rank < *other)
        {
            best = Some((rank, fit));
        }
    }
    best.map(|(_, fit)| fit).ok_or_else(|| {
        let completed = candidates.map(|mut host| {
            add_slots(&mut host);
            host
        });
        explain(request, required_node, completed)
    })
}

/// Returns the best possible rank of a node without looking at its units; `None` if the node
/// certainly does not take the VM.
fn bound(request: &VmRequest, host: &CandidateNode<'_>) -> Option<PlacementCost> {
    let spec = &request.spec;
    let runs = host.vm_support == VmSupport::Kvm
        || (host.vm_support == VmSupport::Emulated && spec.allow_tcg);
    if host.unready.is_some() || !runs || host.allocations.vms().len() >= MAX_VMS {
        return None;
    }
    let fill = capacity_filter::fill(request, host, spec.numa_node)?;
    let left = units_left(request, host)?;
    Some((left, false, fill.scarcest, u64::MAX - fill.free))
}

/// Returns the free units that remain after the placement; `None` if there are too few.
fn units_left(request: &VmRequest, host: &CandidateNode<'_>) -> Option<usize> {
    let free = host.units.len().saturating_sub(host.allocations.unit_count() + host.closed);
    if request.units.whole {
        (free == host.units.len()).then_some(0)
    } else {
        free.checked_sub(request.units.each.len())
    }
}

/// Tries a node without explaining a rejection, which is the common case.
fn fit(request: &VmRequest, host: &CandidateNode<'_>) -> Option<(PlacementCost, PlacementFit)> {
    let (spec, (left, ..)) = (&request.spec, bound(request, host)?);
    if host
        .hosting
        .is_some_and(|hosting| feature_filter::missing_features(spec, hosting).next().is_some())
    {
        return None;
    }
    if named_disks(request)
        .any(|disk| slot_resources::assignable_disk(host, disk.as_str()).is_err())
    {
        return None;
    }
    let assigned = choose_units_of_one_numa_node(request, host)?;
    let disks = device_selector::disk_units(request, &assigned, host)
        .map(|unit| slot_resources::slot_disk(host, unit).ok().cloned());
    let disks = disks.collect::<Option<Vec<_>>>()?;
    let nics = device_selector::nic_units(request, &assigned, host)
        .map(|unit| slot_resources::slot_nic(host, unit).ok());
    let nics = nics.collect::<Option<Vec<_>>>()?;
    let units = slot_resources::with_fabric(host, &assigned);
    let at = |unit: &UnitFacts| unit.numa_node.or(spec.numa_node);
    let mut numa_nodes = assigned.iter().map(|unit| at(unit)).collect::<Vec<_>>();
    numa_nodes.extend(spec.numa_node.map(Some));
    let numa_mismatch = numa_nodes.windows(2).any(|two| two[0] != two[1]);
    let near = numa_nodes
        .first()
        .copied()
        .flatten()
        .filter(|_| !numa_mismatch && spec.numa_node.is_none());
    let near = near.filter(|id| {
        !request.numa_anywhere && capacity_filter::surely_fits_numa(request, host, *id)
    });
    let fill = capacity_filter::fill(request, host, spec.numa_node.or(near))?;
    let units = units.iter().filter_map(|unit| device_selector::name(unit)).collect();
    let rank = (left, numa_mismatch, fill.scarcest, u64::MAX - fill.free);
    let assigned = AssignedParts { units, disks, nics, numa_node: near, numa_mismatch };
    Some((rank, PlacementFit { node: host.node, assigned }))
}

/// Assigns units to all selectors, on one NUMA node if possible.
fn choose_units_of_one_numa_node<'a>(
    request: &VmRequest,
    host: &CandidateNode<'a>,
) -> Option<Vec<&'a UnitFacts>> {
    let any = device_selector::assign(request, host.units, Some(host), request.spec.numa_node)?;
    let apart =
        |units: &[&UnitFacts]| units.windows(2).any(|two| two[0].numa_node != two[1].numa_node);
    if request.spec.numa_node.is_some() || request.units.whole || !apart(&any) {
        return Some(any);
    }
    let nodes: BTreeSet<u32> = host.units.iter().filter_map(|unit| unit.numa_node).collect();
    let mut near = nodes
        .into_iter()
        .filter_map(|id| device_selector::assign(request, host.units, Some(host), Some(id)));
    near.find(|units| !apart(units)).or(Some(any))
}

#[cfg(test)]
#[path = "tests/scheduler.rs"]
mod tests;
