//! Resources of a slot in addition to its unit: disk, fabric device and NIC addresses. Only the VM
//! that has the slot receives them.

use super::{candidate::CandidateNode, reject_reason::RejectReason};
use crate::work::{ApprovedSlot, SlotNic};
use meshd_proto::{DiskFacts, DiskIdentity, UnitFacts, UnitState};

fn holds(unit: &UnitFacts, function: &str) -> bool {
    unit.members.iter().any(|member| member.address == function)
}

/// Returns true if the slot belongs to the unit.
pub(super) fn is_of(slot: &ApprovedSlot, unit: &UnitFacts) -> bool {
    holds(unit, slot.id.unit.as_str())
}

/// Returns the slot that owns a disk.
pub fn owner_of_disk<'h>(host: &CandidateNode<'h>, disk: &DiskFacts) -> Option<&'h ApprovedSlot> {
    let is_it = |slot: &ApprovedSlot| {
        slot.disk.as_ref().is_some_and(|own| disk.identities().any(|name| name == own.as_str()))
    };
    host.slots.iter().copied().find(|slot| is_it(slot))
}

/// Returns the slot whose fabric device is in this unit. The unit belongs to that slot.
pub fn owner_of_fabric<'h>(host: &CandidateNode<'h>, unit: &UnitFacts) -> Option<&'h ApprovedSlot> {
    let is_it = |slot: &ApprovedSlot| {
        !is_of(slot, unit) && slot.fabric.as_ref().is_some_and(|own| holds(unit, own))
    };
    host.slots.iter().copied().find(|slot| is_it(slot))
}

/// Returns the unit that contains the fabric device of another unit's slot.
fn fabric_unit<'a>(host: &CandidateNode<'a>, unit: &UnitFacts) -> Option<&'a UnitFacts> {
    let slot = host.slots.iter().find(|slot| is_of(slot, unit))?;
    let fabric = slot.fabric.as_ref()?;
    host.units.iter().find(|other| holds(other, fabric) && !is_of(slot, other))
}

/// Adds the fabric units of the assigned units, each once.
pub fn with_fabric<'a>(host: &CandidateNode<'a>, assigned: &[&'a UnitFacts]) -> Vec<&'a UnitFacts> {
    let mut all = assigned.to_vec();
    for unit in assigned {
        if let Some(more) = fabric_unit(host, unit)
            && !all.iter().any(|known| known.members == more.members)
        {
            all.push(more);
        }
    }
    all
}

/// Returns the disk if VMs may receive it. The error is the reason against the disk; slots are not
/// considered.
pub fn assignable_disk<'h>(
    host: &CandidateNode<'h>,
    identity: &str,
) -> Result<&'h DiskFacts, (RejectReason, String)> {
    let Some(disk) = DiskFacts::by_identity(host.disks, identity) else {
        return Err((RejectReason::DiskMissing, format!("disk {identity}")));
    };
    // Disks that the node uses or the profile marks as data are never assigned (ST-3, ST-4).
    if let Some(why) = &disk.blocked {
        return Err((RejectReason::DiskTaken, format!("disk {identity}: {why}")));
    }
    match host.allocations.disk(disk.identities()) {
        Some(owner) => {
            Err((RejectReason::DiskTaken, format!("disk {identity} belongs to VM {owner}")))
        }
        None => Ok(disk),
    }
}

/// Returns the disk of a unit's slot.
pub fn slot_disk<'h>(
    host: &CandidateNode<'h>,
    unit: &UnitFacts,
) -> Result<&'h DiskIdentity, (RejectReason, String)> {
    let slot = host.slots.iter().copied().find(|slot| is_of(slot, unit));
    let Some(disk) = slot.and_then(|slot| slot.disk.as_ref()) else {
        return Err((
            RejectReason::SlotWithoutDisk,
            format!("the slot of {} has no disk", unit.name()),
        ));
    };
    assignable_disk(host, disk.as_str()).map(|_| disk)
}

/// Returns the NIC addresses of a unit's slot.
pub fn slot_nic(
    host: &CandidateNode<'_>,
    unit: &UnitFacts,
) -> Result<SlotNic, (RejectReason, String)> {
    let slot = host.slots.iter().copied().find(|slot| is_of(slot, unit));
    let none = || {
        (RejectReason::SlotWithoutNic, format!("the slot of {} has no MAC address", unit.name()))
    };
    slot.and_then(|slot| slot.nic).ok_or_else(none)
}

/// Requested resources of a slot in addition to its unit.
#[derive(Clone, Copy)]
pub struct SlotResourceRequest {
    pub disk: bool,
    pub nic: bool,
}

/// Returns why a free unit cannot be assigned: a resource of its slot is not available.
pub fn unit_rejection(
    host: &CandidateNode<'_>,
    unit: &UnitFacts,
    requested: SlotResourceRequest,
) -> Option<(RejectReason, String)> {
    if let Some(slot) = owner_of_fabric(host, unit) {
        return Some((
            RejectReason::UnitTaken,
            format!("{} is the fabric device of slot {}", unit.name(), slot.id),
        ));
    }
    if let Some(fabric) = fabric_unit(host, unit) {
        let of = || format!("{}, the fabric device of {},", fabric.name(), unit.name());
        if host
            .allocations
            .unit(fabric.members.iter().map(|member| member.address.as_str()))
            .is_some()
        {
            return Some((RejectReason::UnitTaken, format!("{} belongs to another", of())));
        }
        if fabric.state != UnitState::Ready {
            return Some((
                RejectReason::UnitNotReady,
                format!("{} is {}", of(), fabric.state.as_str()),
            ));
        }
    }
    let disk = requested.disk.then(|| slot_disk(host, unit).err()).flatten();
    disk.or_else(|| requested.nic.then(|| slot_nic(host, unit).err()).flatten())
}
