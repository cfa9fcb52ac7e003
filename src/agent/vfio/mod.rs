//! Passthrough of PCI devices: units are whole IOMMU groups that the profile selects, each with its state. Read from sysfs and procfs.
//!
//! | module | content |
//! | --- | --- |
//! | `iommu_group` | PCI functions and selectors ─▶ units: IOMMU groups without their bridges |
//! | `host_dependency` | functions that the node itself needs: boot NIC, routes, disks, consoles |
//! | `unit_state` | the state of each unit, with the cause |
//! | `group_probe` | whether a VFIO container accepts a group (/dev/vfio/N) |
//! | `driver_bind` | binds units to vfio-pci |
//!
//! A unit is ready only if the kernel lets a VFIO container have its group. Name and driver prove nothing.

mod driver_bind;
mod group_probe;
mod host_dependency;
mod iommu_group;
mod unit_state;

pub use driver_bind::{Bound, bind};
pub use group_probe::{KernelOps, LinuxKernel, ProbeError};
pub(super) use {group_probe::hold, host_dependency::needs as needed_functions};

use crate::system::{Tree, all_pci};
use meshd_proto::{MAX_UNITS, PciFacts, UnitFacts, UnitState};
use meshd_types::VfioSelector;
use std::collections::BTreeSet;

/// Units that `vfio bind` found in this boot; a function that is missing now has fallen off the bus.
const RECORD: &str = "/run/mesh-vfio/units.json";

/// Returns every unit with its state, by IOMMU group. Empty if the profile selects nothing.
pub fn survey(tree: &Tree, selectors: &[VfioSelector], system: &dyn KernelOps) -> Vec<UnitFacts> {
    if selectors.is_empty() {
        return Vec::new();
    }
    let functions = all_pci(tree);
    let mut units = iommu_group::units(&functions, selectors);
    lost(&mut units, &functions, &recorded(tree));
    named(&mut units, &functions, selectors);
    units.truncate(MAX_UNITS);
    unit_state::all(tree, &mut units, system);
    units
}

fn recorded(tree: &Tree) -> Vec<UnitFacts> {
    tree.read(RECORD).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Adds units that vanished in this boot.
fn lost(units: &mut Vec<UnitFacts>, functions: &[PciFacts], recorded: &[UnitFacts]) {
    let there: BTreeSet<&str> = functions.iter().map(|function| function.address.as_str()).collect();
    for old in recorded {
        let gone = |member: &&PciFacts| !there.contains(member.address.as_str());
        let gone: Vec<&str> = old.members.iter().filter(gone).map(|member| member.address.as_str()).collect();
        if gone.is_empty() {
            continue;
        }
        let reason =
            format!("{} has vanished from the bus since the start; cold power cycle the machine", gone.join(" "));
        let same = |unit: &&mut UnitFacts| {
            unit.group == old.group
                && unit.members.iter().any(|member| old.members.iter().any(|m| m.address == member.address))
        };
        match units.iter_mut().find(same) {
            Some(unit) => (unit.state, unit.reason) = (UnitState::Missing, reason),
            None => units.push(UnitFacts { state: UnitState::Missing, reason, ..old.clone() }),
        }
    }
}

/// Adds functions that the profile names by address and that do not exist.
fn named(units: &mut Vec<UnitFacts>, functions: &[PciFacts], selectors: &[VfioSelector]) {
    for selector in selectors {
        let VfioSelector::Address(address) = selector else { continue };
        let known = functions.iter().any(|function| function.address == *address)
            || units.iter().any(|unit| unit.members.iter().any(|member| member.address == *address));
        if !known {
            let reason = format!("the profile names {address}, and there is no such function");
            let selected = vec![address.clone()];
            units.push(UnitFacts { state: UnitState::Missing, reason, selected, ..UnitFacts::default() });
        }
    }
}

#[cfg(test)]
mod tests;
