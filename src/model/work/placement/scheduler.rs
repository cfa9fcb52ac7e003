//! Chooses the node of a VM: filters the nodes, ranks those that are left, and assigns units. A VM never spans nodes.
//!
//! Devices are packed, so that whole nodes stay free for VMs that need all of one. CPUs and memory are spread.

use super::{
    candidate::{CandidateNode, PlacementFit, VmSupport, named},
    capacity_filter, device_selector,
    explain::explain,
    feature_filter,
    reject_reason::NoPlacement,
    slot_resources,
};
use meshd_config::vm::VmAsk;
use meshd_proto::{UnitFacts, vm::MAX_VMS};
use meshd_types::NodeId;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

/// How good a node is: less is better. Units that it has left, whether they are far from each other, how full it is, memory that it has used.
type Rank = (usize, bool, u64, u64);

/// Chooses. Devices are packed, so that whole nodes stay free for those who want all of one; processors and memory are spread.
///
/// # Errors
/// Why nothing fits.
pub fn place<'a>(
    ask: &VmAsk,
    only: Option<NodeId>,
    hosts: impl Iterator<Item = CandidateNode<'a>> + Clone,
) -> Result<PlacementFit, NoPlacement> {
    place_by(ask, only, hosts, |_| {})
}

/// The same for many nodes: `hosts` are without what is dear to find out, their slots, and `complete` adds it to those few that are
/// looked at in full. A node is looked at only if it could be better than the best so far.
///
/// # Errors
/// Why nothing fits.
pub fn place_by<'a>(
    ask: &VmAsk,
    only: Option<NodeId>,
    hosts: impl Iterator<Item = CandidateNode<'a>> + Clone,
    complete: impl Fn(&mut CandidateNode<'a>),
) -> Result<PlacementFit, NoPlacement> {
    let named = hosts.clone().filter(|host| only.is_none_or(|only| host.node == only));
    let bounded: Vec<(Rank, CandidateNode<'a>)> = named.filter_map(|host| Some((bound(ask, &host)?, host))).collect();
    let mut nearest: BinaryHeap<_> = bounded.iter().enumerate().map(|(at, (rank, _))| Reverse((*rank, at))).collect();
    let mut best: Option<(Rank, PlacementFit)> = None;
    while let Some(Reverse((bound, at))) = nearest.pop() {
        if best.as_ref().is_some_and(|(rank, _)| *rank <= bound) {
            break;
        }
        let mut host = bounded[at].1.clone();
        complete(&mut host);
        if let Some((rank, fit)) = fit(ask, &host)
            && best.as_ref().is_none_or(|(other, _)| rank < *other)
        {
            best = Some((rank, fit));
        }
    }
    best.map(|(_, fit)| fit).ok_or_else(|| {
        explain(
            ask,
            only,
            hosts.map(|mut host| {
                complete(&mut host);
                host
            }),
        )
    })
}

/// The best that a node could be; `None` if it is certain without a look at its units that it does not take the machine.
fn bound(ask: &VmAsk, host: &CandidateNode<'_>) -> Option<Rank> {
    let spec = &ask.spec;
    let runs = host.runs == VmSupport::Kvm || (host.runs == VmSupport::Emulated && spec.allow_tcg);
    if host.unready.is_some() || !runs || host.held.vms().len() >= MAX_VMS {
        return None;
    }
    let fill = capacity_filter::fill(ask, host, spec.numa_node)?;
    let left = units_left(ask, host)?;
    Some((left, false, fill.scarcest, u64::MAX - fill.free))
}

/// Units that can still be given once the machine has its own; `None` if there are not so many.
fn units_left(ask: &VmAsk, host: &CandidateNode<'_>) -> Option<usize> {
    let free = host.units.len().saturating_sub(host.held.unit_count() + host.closed);
    if ask.units.whole { (free == host.units.len()).then_some(0) } else { free.checked_sub(ask.units.each.len()) }
}

/// Without a word of explanation: most nodes are looked at only to be passed by.
fn fit(ask: &VmAsk, host: &CandidateNode<'_>) -> Option<(Rank, PlacementFit)> {
    let (spec, (left, ..)) = (&ask.spec, bound(ask, host)?);
    if host.hosting.is_some_and(|hosting| feature_filter::lacks(spec, hosting).next().is_some()) {
        return None;
    }
    if named(ask).any(|disk| slot_resources::judge_disk(host, disk.as_str()).is_err()) {
        return None;
    }
    let granted = together(ask, host)?;
    let disks = device_selector::disk_units(ask, &granted, host)
        .map(|unit| slot_resources::slot_disk(host, unit).ok().cloned());
    let disks = disks.collect::<Option<Vec<_>>>()?;
    let cards = device_selector::card_units(ask, &granted, host).map(|unit| slot_resources::slot_card(host, unit).ok());
    let cards = cards.collect::<Option<Vec<_>>>()?;
    let units = slot_resources::with_fabric(host, &granted);
    let at = |unit: &UnitFacts| unit.numa_node.or(spec.numa_node);
    let mut places = granted.iter().map(|unit| at(unit)).collect::<Vec<_>>();
    places.extend(spec.numa_node.map(Some));
    let numa_mismatch = places.windows(2).any(|two| two[0] != two[1]);
    let near = places.first().copied().flatten().filter(|_| !numa_mismatch && spec.numa_node.is_none());
    let near = near.filter(|id| !ask.numa_anywhere && capacity_filter::surely_fits_numa(ask, host, *id));
    let fill = capacity_filter::fill(ask, host, spec.numa_node.or(near))?;
    let units = units.iter().filter_map(|unit| device_selector::name(unit)).collect();
    let rank = (left, numa_mismatch, fill.scarcest, u64::MAX - fill.free);
    Some((rank, PlacementFit { node: host.node, units, disks, cards, near, numa_mismatch }))
}

/// Units for all wishes, of one NUMA node if that can be.
fn together<'a>(ask: &VmAsk, host: &CandidateNode<'a>) -> Option<Vec<&'a UnitFacts>> {
    let any = device_selector::grant(ask, host.units, Some(host), ask.spec.numa_node)?;
    let apart = |units: &[&UnitFacts]| units.windows(2).any(|two| two[0].numa_node != two[1].numa_node);
    if ask.spec.numa_node.is_some() || ask.units.whole || !apart(&any) {
        return Some(any);
    }
    let nodes: BTreeSet<u32> = host.units.iter().filter_map(|unit| unit.numa_node).collect();
    let mut near = nodes.into_iter().filter_map(|id| device_selector::grant(ask, host.units, Some(host), Some(id)));
    near.find(|units| !apart(units)).or(Some(any))
}

#[cfg(test)]
#[path = "tests/scheduler.rs"]
mod tests;
