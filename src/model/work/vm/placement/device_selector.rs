//! Assigns a different unit of a node to each device selector of a VM, or none at all (bipartite
//! matching).

use super::{
    allocations::Allocations,
    candidate::{CandidateNode, named_disks},
    reject_reason::RejectReason,
    slot_resources::{self, SlotResourceRequest},
};
use crate::work::ApprovedSlot;
use meshd_config::vm::{UnitSelector, VmRequest};
use meshd_proto::{
    DiskFacts, DiskIdentity, UnitFacts, UnitKind, UnitState, vm::RawDisk, whole_node,
};
use meshd_types::{PciAddress, PciName};
use std::collections::BTreeMap;

/// Maximum number of device selectors of a VM, and of units that are considered over all nodes.
pub const MAX_SELECTORS: usize = 64;

/// Maximum number of names in one reason.
const MAX_NAMED: usize = 3;

/// Returns the function that names a unit: the first that the profile selects.
pub fn name(unit: &UnitFacts) -> Option<PciAddress> {
    let first = unit.selected.first().or(unit.members.first().map(|member| &member.address));
    first.and_then(|address| address.parse().ok())
}

/// Returns true if a unit matches any selector.
pub fn matches_any(request: &VmRequest, unit: &UnitFacts) -> bool {
    request.units.each.iter().any(|selector| matches(unit, selector))
}

fn matches(unit: &UnitFacts, selector: &UnitSelector) -> bool {
    match selector {
        UnitSelector::Any => unit.kind == UnitKind::Device,
        UnitSelector::Selected(selector) => unit.members.iter().any(|member| {
            selector.matches(PciName {
                address: &member.address,
                vendor: &member.vendor,
                device: &member.device,
                class: &member.class,
            })
        }),
    }
}

fn is_allocated(allocations: &Allocations, unit: &UnitFacts) -> bool {
    allocations.unit(unit.members.iter().map(|member| member.address.as_str())).is_some()
}

/// Returns the reason why the slot of a unit cannot be assigned.
fn slot_obstacle<'h>(host: &'h CandidateNode<'_>, unit: &UnitFacts) -> Option<&'h str> {
    let is =
        |address: &PciAddress| unit.members.iter().any(|member| member.address == address.as_str());
    host.unassignable_units.iter().find(|(address, _)| is(address)).map(|(_, why)| why.as_str())
}

/// Returns the number of volumes that use the disk of a slot. The n-th volume belongs to the slot
/// of the n-th selector.
fn slot_volumes(request: &VmRequest) -> usize {
    let disks = request.spec.volumes.iter().filter_map(|volume| volume.source.disk());
    disks.filter(|disk| matches!(disk, RawDisk::Slot(_))).count()
}

/// Returns the number of NICs that use the addresses of a slot. The n-th NIC belongs to the slot of
/// the n-th selector.
fn slot_nics(request: &VmRequest) -> usize {
    request.spec.nics.iter().filter(|nic| nic.slot).count()
}

/// Returns the assigned units whose slots provide the requested disks.
pub fn disk_units<'a>(
    request: &VmRequest,
    assigned: &[&'a UnitFacts],
    host: &CandidateNode<'_>,
) -> impl Iterator<Item = &'a UnitFacts> {
    slot_units(request, assigned, Some(host)).take(slot_volumes(request))
}

/// Returns the assigned units whose slots provide the requested addresses.
pub fn nic_units<'a>(
    request: &VmRequest,
    assigned: &[&'a UnitFacts],
    host: &CandidateNode<'_>,
) -> impl Iterator<Item = &'a UnitFacts> {
    slot_units(request, assigned, Some(host)).take(slot_nics(request))
}

fn slot_units<'a>(
    request: &VmRequest,
    assigned: &[&'a UnitFacts],
    host: Option<&CandidateNode<'_>>,
) -> impl Iterator<Item = &'a UnitFacts> {
    // Ignore switches and fabric units of other slots when a VM takes a whole node.
    let with_another = move |unit: &UnitFacts| {
        host.is_some_and(|host| slot_resources::owner_of_fabric(host, unit).is_some())
    };
    let is_one = move |unit: &&UnitFacts| {
        !request.units.whole || (unit.kind == UnitKind::Device && !with_another(unit))
    };
    assigned.iter().copied().filter(is_one)
}

/// Returns true if the unit of a slot is free and matches a selector.
pub fn may_have(request: &VmRequest, host: &CandidateNode<'_>, slot: &ApprovedSlot) -> bool {
    let unit = host.units.iter().find(|unit| slot_resources::is_of(slot, unit));
    unit.is_some_and(|unit| {
        is_free(host, unit) && (request.units.whole || matches_any(request, unit))
    })
}

fn is_free(host: &CandidateNode<'_>, unit: &UnitFacts) -> bool {
    unit.state == UnitState::Ready
        && !is_allocated(host.allocations, unit)
        && slot_obstacle(host, unit).is_none()
}

/// Assigns a unit to each selector, or returns `None`. `now` restricts the choice to free units.
/// Units of NUMA node `near` are preferred.
pub fn assign<'a>(
    request: &VmRequest,
    units: &'a [UnitFacts],
    now: Option<&CandidateNode<'_>>,
    near: Option<u32>,
) -> Option<Vec<&'a UnitFacts>> {
    if request.units.whole {
        let open = |host: &CandidateNode<'_>| {
            host.allocations.unit_count() == 0
                && host.unassignable_units.is_empty()
                && whole_node(units).is_ok()
        };
        let all: Vec<&UnitFacts> = units.iter().collect();
        let parts =
            slot_units(request, &all, now).count() >= slot_volumes(request).max(slot_nics(request));
        return (parts && !units.is_empty() && now.is_none_or(open)).then_some(all);
    }
    let needed = now.map_or_else(Vec::new, |host| required_slots(request, host));
    if request.units.each.is_empty() {
        return (needed.is_empty() && slot_volumes(request) == 0 && slot_nics(request) == 0)
            .then(Vec::new);
    }
    let mut free: Vec<&UnitFacts> =
        units.iter().filter(|unit| now.is_none_or(|host| is_free(host, unit))).collect();
    free.sort_by_key(|unit| near.is_some() && unit.numa_node != near);
    let of = |slot: &ApprovedSlot| free.iter().position(|unit| slot_resources::is_of(slot, unit));
    let needed = needed.into_iter().map(of).collect::<Option<Vec<usize>>>()?;
    let disks = slot_volumes(request);
    let nics = slot_nics(request);
    let requested_parts =
        |selector: usize| SlotResourceRequest { disk: selector < disks, nic: selector < nics };
    let fits = |selector: usize, unit: usize| {
        // A named disk cannot also be the disk of a slot.
        let twice = selector < disks && needed.contains(&unit);
        !twice
            && matches(free[unit], &request.units.each[selector])
            && now.is_none_or(|host| {
                slot_resources::unit_rejection(host, free[unit], requested_parts(selector))
                    .is_none()
            })
    };
    let found = BipartiteMatching::new(request.units.each.len(), free.len(), fits).all(&needed)?;
    Some(found.into_iter().map(|unit| free[unit]).collect())
}

/// Returns the slots whose units must be assigned, because their disks are requested by name.
fn required_slots<'h>(request: &VmRequest, host: &CandidateNode<'h>) -> Vec<&'h ApprovedSlot> {
    let owner = |disk: &DiskIdentity| {
        slot_resources::owner_of_disk(host, DiskFacts::by_identity(host.disks, disk.as_str())?)
    };
    named_disks(request).filter_map(owner).collect()
}

/// Matches selectors with units by augmenting paths: a selector with alternatives yields its unit
/// to a selector without.
struct BipartiteMatching<F> {
    fits: F,
    unit_of: Vec<Option<usize>>,
    selector_of: Vec<Option<usize>>,
}

impl<F: Fn(usize, usize) -> bool> BipartiteMatching<F> {
    fn new(selectors: usize, units: usize, fits: F) -> Self {
        BipartiteMatching { fits, unit_of: vec![None; selectors], selector_of: vec![None; units] }
    }

    /// Returns a unit for each selector, all `needed` units among them.
    fn all(mut self, needed: &[usize]) -> Option<Vec<usize>> {
        for unit in needed {
            let mut tried = vec![false; self.unit_of.len()];
            if self.selector_of[*unit].is_none() && !self.find_selector(*unit, &mut tried) {
                return None;
            }
        }
        for selector in 0..self.unit_of.len() {
            let mut tried = vec![false; self.selector_of.len()];
            if self.unit_of[selector].is_none() && !self.find_unit(selector, &mut tried) {
                return None;
            }
        }
        self.unit_of.into_iter().collect()
    }

    fn find_unit(&mut self, selector: usize, tried: &mut [bool]) -> bool {
        for unit in 0..self.selector_of.len() {
            if tried[unit] || !(self.fits)(selector, unit) {
                continue;
            }
            tried[unit] = true;
            if self.selector_of[unit].is_none_or(|other| self.find_unit(other, tried)) {
                (self.selector_of[unit], self.unit_of[selector]) = (Some(selector), Some(unit));
                return true;
            }
        }
        false
    }

    fn find_selector(&mut self, unit: usize, tried: &mut [bool]) -> bool {
        for selector in 0..self.unit_of.len() {
            if tried[selector] || !(self.fits)(selector, unit) {
                continue;
            }
            tried[selector] = true;
            if self.unit_of[selector].is_none_or(|other| self.find_selector(other, tried)) {
                (self.selector_of[unit], self.unit_of[selector]) = (Some(selector), Some(unit));
                return true;
            }
        }
        false
    }
}

/// Returns the most specific reason why the units of a node do not suffice.
pub fn rejection(request: &VmRequest, host: &CandidateNode<'_>) -> Option<(RejectReason, String)> {
    if let Some(assigned) = assign(request, host.units, Some(host), None) {
        let disk = disk_units(request, &assigned, host)
            .find_map(|unit| slot_resources::slot_disk(host, unit).err());
        return disk.or_else(|| {
            nic_units(request, &assigned, host)
                .find_map(|unit| slot_resources::slot_nic(host, unit).err())
        });
    }
    let requested = if request.units.whole {
        "all units of it".to_owned()
    } else {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        request
            .units
            .each
            .iter()
            .for_each(|selector| *counts.entry(selector.to_string()).or_default() += 1);
        let word = |(word, count)| if count == 1 { word } else { format!("{count} x {word}") };
        counts.into_iter().map(word).collect::<Vec<_>>().join(" ")
    };
    if assign(request, host.units, None, None).is_none() {
        return Some((
            RejectReason::UnitMissing,
            format!("{requested}, and it has {} units", host.units.len()),
        ));
    }
    let is_candidate = |unit: &&UnitFacts| request.units.whole || matches_any(request, unit);
    // Units that are free but not assignable give the most specific reason.
    let requested_parts =
        SlotResourceRequest { disk: slot_volumes(request) > 0, nic: slot_nics(request) > 0 };
    let free = host
        .units
        .iter()
        .filter(|unit| !request.units.whole && matches_any(request, unit) && is_free(host, unit));
    let parts: Vec<(RejectReason, String)> = free
        .filter_map(|unit| slot_resources::unit_rejection(host, unit, requested_parts))
        .collect();
    if let Some((reason, _)) = parts.first() {
        let words: Vec<String> = parts.iter().map(|(_, detail)| detail.clone()).collect();
        return Some((*reason, format!("{requested}; {}", list_names(&words))));
    }
    let taken =
        host.units.iter().filter(is_candidate).filter(|unit| is_allocated(host.allocations, unit));
    let taken: Vec<String> = taken.map(UnitFacts::name).collect();
    if !taken.is_empty() {
        return Some((
            RejectReason::UnitTaken,
            format!("{requested}; others have {}", list_names(&taken)),
        ));
    }
    let closed = host
        .units
        .iter()
        .filter(is_candidate)
        .filter_map(|unit| Some((unit, slot_obstacle(host, unit)?)));
    let closed: Vec<(String, String)> =
        closed.map(|(unit, why)| (format!(": {why}"), unit.name())).collect();
    if !closed.is_empty()
        && host.units.iter().filter(is_candidate).all(|unit| unit.state == UnitState::Ready)
    {
        return Some((RejectReason::SlotClosed, format!("{requested}; {}", group_reasons(closed))));
    }
    let unready =
        host.units.iter().filter(is_candidate).filter(|unit| unit.state != UnitState::Ready);
    let unready: Vec<(String, String)> =
        unready.map(|unit| (format!(" is {}", unit.state.as_str()), unit.name())).collect();
    let why = if unready.is_empty() {
        "not all of them at once".to_owned()
    } else {
        group_reasons(unready)
    };
    Some((RejectReason::UnitNotReady, format!("{requested}; {why}")))
}

/// Returns the first names, and the number of the others.
fn list_names(names: &[String]) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    let first = names.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

/// Returns one clause for each reason, with the units that it concerns.
fn group_reasons(reasons: Vec<(String, String)>) -> String {
    let mut units: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (reason, unit) in reasons {
        units.entry(reason).or_default().push(unit);
    }
    units
        .iter()
        .map(|(reason, units)| format!("{}{reason}", list_names(units)))
        .collect::<Vec<_>>()
        .join(", ")
}
