//! Assigns a different unit of a node to each device selector of a VM, or none at all (bipartite matching).

use super::{
    allocations::Allocations,
    candidate::{CandidateNode, named},
    reject_reason::RejectReason,
    slot_resources::{self, SlotResourceRequest},
};
use crate::work::Approved;
use meshd_config::vm::{UnitWish, VmAsk};
use meshd_proto::{
    DiskFacts, UnitFacts, UnitKind, UnitState,
    vm::{DiskIdentity, RawDisk},
    whole_node,
};
use meshd_types::{PciAddress, PciName};

/// Maximum number of device selectors of a VM, and of units that are considered over all nodes.
pub const MOST: usize = 64;

/// The function that names a unit: the first that the profile selects.
pub fn name(unit: &UnitFacts) -> Option<PciAddress> {
    let first = unit.selected.first().or(unit.members.first().map(|member| &member.address));
    first.and_then(|address| address.parse().ok())
}

/// Returns true if a unit matches any selector.
pub fn helps(ask: &VmAsk, unit: &UnitFacts) -> bool {
    ask.units.each.iter().any(|desired_state| fulfils(unit, desired_state))
}

fn fulfils(unit: &UnitFacts, desired_state: &UnitWish) -> bool {
    match desired_state {
        UnitWish::Any => unit.kind == UnitKind::Device,
        UnitWish::Selected(selector) => unit.members.iter().any(|member| {
            selector.matches(PciName {
                address: &member.address,
                vendor: &member.vendor,
                device: &member.device,
                class: &member.class,
            })
        }),
    }
}

fn is_held(held: &Allocations, unit: &UnitFacts) -> bool {
    held.unit(unit.members.iter().map(|member| member.address.as_str())).is_some()
}

/// Why the slot of a unit cannot be assigned.
fn bar<'h>(host: &'h CandidateNode<'_>, unit: &UnitFacts) -> Option<&'h str> {
    let is = |address: &PciAddress| unit.members.iter().any(|member| member.address == address.as_str());
    host.barred.iter().find(|(address, _)| is(address)).map(|(_, why)| why.as_str())
}

/// Number of volumes that are the disk of a slot. The n-th belongs to the slot of the n-th selector.
fn slot_volumes(ask: &VmAsk) -> usize {
    let disks = ask.spec.volumes.iter().filter_map(|volume| volume.source.disk());
    disks.filter(|disk| matches!(disk, RawDisk::Slot(_))).count()
}

/// Number of NICs with the addresses of a slot, counted like volumes.
fn slot_nics(ask: &VmAsk) -> usize {
    ask.spec.nics.iter().filter(|nic| nic.slot).count()
}

/// Assigned units whose slots provide the requested disks.
pub fn disk_units<'a>(
    ask: &VmAsk,
    granted: &[&'a UnitFacts],
    host: &CandidateNode<'_>,
) -> impl Iterator<Item = &'a UnitFacts> {
    slot_units(ask, granted, Some(host)).take(slot_volumes(ask))
}

/// Assigned units whose slots provide the requested addresses.
pub fn nic_units<'a>(
    ask: &VmAsk,
    granted: &[&'a UnitFacts],
    host: &CandidateNode<'_>,
) -> impl Iterator<Item = &'a UnitFacts> {
    slot_units(ask, granted, Some(host)).take(slot_nics(ask))
}

fn slot_units<'a>(
    ask: &VmAsk,
    granted: &[&'a UnitFacts],
    host: Option<&CandidateNode<'_>>,
) -> impl Iterator<Item = &'a UnitFacts> {
    // On a whole node, switches and fabric units of other slots do not count.
    let with_another =
        move |unit: &UnitFacts| host.is_some_and(|host| slot_resources::owner_of_fabric(host, unit).is_some());
    let is_one = move |unit: &&UnitFacts| !ask.units.whole || (unit.kind == UnitKind::Device && !with_another(unit));
    granted.iter().copied().filter(is_one)
}

/// Returns true if the unit of a slot is free and matches a selector.
pub fn may_have(ask: &VmAsk, host: &CandidateNode<'_>, slot: &Approved) -> bool {
    let unit = host.units.iter().find(|unit| unit.members.iter().any(|own| own.address == slot.id.unit.as_str()));
    unit.is_some_and(|unit| is_free(host, unit) && (ask.units.whole || helps(ask, unit)))
}

fn is_free(host: &CandidateNode<'_>, unit: &UnitFacts) -> bool {
    unit.state == UnitState::Ready && !is_held(host.held, unit) && bar(host, unit).is_none()
}

/// Assigns a unit to each selector, or returns `None`. With `now`, only units that are free now. Units of the NUMA node `near` come first.
pub fn grant<'a>(
    ask: &VmAsk,
    units: &'a [UnitFacts],
    now: Option<&CandidateNode<'_>>,
    near: Option<u32>,
) -> Option<Vec<&'a UnitFacts>> {
    if ask.units.whole {
        let open = |host: &CandidateNode<'_>| {
            host.held.unit_count() == 0 && host.barred.is_empty() && whole_node(units).is_ok()
        };
        let all: Vec<&UnitFacts> = units.iter().collect();
        let parts = slot_units(ask, &all, now).count() >= slot_volumes(ask).max(slot_nics(ask));
        return (parts && !units.is_empty() && now.is_none_or(open)).then_some(all);
    }
    let needed = now.map_or_else(Vec::new, |host| needed(ask, host));
    if ask.units.each.is_empty() {
        return (needed.is_empty() && slot_volumes(ask) == 0 && slot_nics(ask) == 0).then(Vec::new);
    }
    let mut free: Vec<&UnitFacts> = units.iter().filter(|unit| now.is_none_or(|host| is_free(host, unit))).collect();
    free.sort_by_key(|unit| near.is_some() && unit.numa_node != near);
    let of = |slot: &Approved| {
        free.iter().position(|unit| unit.members.iter().any(|member| member.address == slot.id.unit.as_str()))
    };
    let needed = needed.into_iter().map(of).collect::<Option<Vec<usize>>>()?;
    let (disks, nics) = (slot_volumes(ask), slot_nics(ask));
    let wanted = |desired_state: usize| SlotResourceRequest { disk: desired_state < disks, nic: desired_state < nics };
    let fits = |desired_state: usize, unit: usize| {
        // A named disk cannot also be the disk of a slot.
        let twice = desired_state < disks && needed.contains(&unit);
        !twice
            && fulfils(free[unit], &ask.units.each[desired_state])
            && now.is_none_or(|host| slot_resources::against(host, free[unit], wanted(desired_state)).is_none())
    };
    let found = BipartiteMatching::new(ask.units.each.len(), free.len(), fits).all(&needed)?;
    Some(found.into_iter().map(|unit| free[unit]).collect())
}

/// Slots whose units must be assigned, because their disks are requested by name.
fn needed<'h>(ask: &VmAsk, host: &CandidateNode<'h>) -> Vec<&'h Approved> {
    let owner =
        |disk: &DiskIdentity| slot_resources::owner_of_disk(host, DiskFacts::called(host.disks, disk.as_str())?);
    named(ask).filter_map(owner).collect()
}

/// Matches selectors with units by augmenting paths: a selector with alternatives gives way to one without.
struct BipartiteMatching<F> {
    fits: F,
    unit_of: Vec<Option<usize>>,
    desired_state_of: Vec<Option<usize>>,
}

impl<F: Fn(usize, usize) -> bool> BipartiteMatching<F> {
    fn new(wishes: usize, units: usize, fits: F) -> Self {
        BipartiteMatching { fits, unit_of: vec![None; wishes], desired_state_of: vec![None; units] }
    }

    /// Returns a unit for each selector, all `needed` units among them.
    fn all(mut self, needed: &[usize]) -> Option<Vec<usize>> {
        for unit in needed {
            let mut tried = vec![false; self.unit_of.len()];
            if self.desired_state_of[*unit].is_none() && !self.find_desired_state(*unit, &mut tried) {
                return None;
            }
        }
        for desired_state in 0..self.unit_of.len() {
            let mut tried = vec![false; self.desired_state_of.len()];
            if self.unit_of[desired_state].is_none() && !self.find_unit(desired_state, &mut tried) {
                return None;
            }
        }
        self.unit_of.into_iter().collect()
    }

    fn find_unit(&mut self, desired_state: usize, tried: &mut [bool]) -> bool {
        for unit in 0..self.desired_state_of.len() {
            if tried[unit] || !(self.fits)(desired_state, unit) {
                continue;
            }
            tried[unit] = true;
            if self.desired_state_of[unit].is_none_or(|other| self.find_unit(other, tried)) {
                (self.desired_state_of[unit], self.unit_of[desired_state]) = (Some(desired_state), Some(unit));
                return true;
            }
        }
        false
    }

    fn find_desired_state(&mut self, unit: usize, tried: &mut [bool]) -> bool {
        for desired_state in 0..self.unit_of.len() {
            if tried[desired_state] || !(self.fits)(desired_state, unit) {
                continue;
            }
            tried[desired_state] = true;
            if self.unit_of[desired_state].is_none_or(|other| self.find_desired_state(other, tried)) {
                (self.desired_state_of[unit], self.unit_of[desired_state]) = (Some(desired_state), Some(unit));
                return true;
            }
        }
        false
    }
}

/// The most specific reason why the units of a node do not suffice.
pub fn lack(ask: &VmAsk, host: &CandidateNode<'_>) -> Option<(RejectReason, String)> {
    if let Some(granted) = grant(ask, host.units, Some(host), None) {
        let disk = disk_units(ask, &granted, host).find_map(|unit| slot_resources::slot_disk(host, unit).err());
        return disk
            .or_else(|| nic_units(ask, &granted, host).find_map(|unit| slot_resources::slot_nic(host, unit).err()));
    }
    let wished = if ask.units.whole {
        "all units of it".to_owned()
    } else {
        let words: Vec<String> = ask.units.each.iter().map(ToString::to_string).collect();
        words.join(" ")
    };
    if grant(ask, host.units, None, None).is_none() {
        return Some((RejectReason::UnitMissing, format!("{wished}, and it has {} units", host.units.len())));
    }
    let of_interest = |unit: &&UnitFacts| ask.units.whole || helps(ask, unit);
    // Units that are free but not assignable give the most specific reason.
    let wanted = SlotResourceRequest { disk: slot_volumes(ask) > 0, nic: slot_nics(ask) > 0 };
    let free = host.units.iter().filter(|unit| !ask.units.whole && helps(ask, unit) && is_free(host, unit));
    let parts: Vec<(RejectReason, String)> =
        free.filter_map(|unit| slot_resources::against(host, unit, wanted)).collect();
    if let Some((lack, _)) = parts.first() {
        let words: Vec<&str> = parts.iter().map(|(_, detail)| detail.as_str()).collect();
        return Some((*lack, format!("{wished}; {}", words.join(", "))));
    }
    let taken: Vec<String> =
        host.units.iter().filter(of_interest).filter(|unit| is_held(host.held, unit)).map(UnitFacts::name).collect();
    if !taken.is_empty() {
        return Some((RejectReason::UnitTaken, format!("{wished}; others have {}", taken.join(", "))));
    }
    let closed = host.units.iter().filter(of_interest).filter_map(|unit| Some((unit, bar(host, unit)?)));
    let closed: Vec<String> = closed.map(|(unit, why)| format!("{}: {why}", unit.name())).collect();
    if !closed.is_empty() && host.units.iter().filter(of_interest).all(|unit| unit.state == UnitState::Ready) {
        return Some((RejectReason::SlotClosed, format!("{wished}; {}", closed.join(", "))));
    }
    let unready = host.units.iter().filter(of_interest).filter(|unit| unit.state != UnitState::Ready);
    let unready: Vec<String> = unready.map(|unit| format!("{} is {}", unit.name(), unit.state.as_str())).collect();
    let why = if unready.is_empty() { "not all of them at once".to_owned() } else { unready.join(", ") };
    Some((RejectReason::UnitNotReady, format!("{wished}; {why}")))
}
