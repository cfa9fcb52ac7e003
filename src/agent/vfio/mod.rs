//! Passthrough of PCI devices. A unit is a whole IOMMU group that the profile selects.
//!
//! | module | content |
//! | --- | --- |
//! | `iommu_units` | groups selected PCI functions into units: IOMMU groups without their bridges |
//! | `host_dependency` | functions that the node needs: boot NIC, routes, disks, consoles |
//! | `unit_state` | the state of each unit, with the cause |
//! | `group_probe` | tests whether a VFIO container accepts a group (/dev/vfio/N) |
//! | `driver_bind` | binds units to vfio-pci |
//!
//! A unit is ready only if a VFIO container accepts its group. The bound driver alone proves
//! nothing.

mod driver_bind;
mod group_probe;
mod host_dependency;
mod iommu_units;
mod unit_state;

pub use driver_bind::{BindResult, bind};
pub use group_probe::{KernelOps, LinuxKernel, ProbeError};
pub(super) use {group_probe::lock_groups, host_dependency::needed_functions};

use crate::system::{Tree, pci_functions};
use meshd_proto::{MAX_UNITS, PciFacts, UnitFacts, UnitState};
use meshd_types::VfioSelector;
use std::collections::BTreeSet;

/// Units that `vfio bind` found in this boot, to detect functions that vanish from the bus.
const RECORD: &str = "/run/mesh-vfio/units.json";

/// Returns every unit with its state, by IOMMU group. Empty if the profile selects nothing.
pub fn survey(tree: &Tree, selectors: &[VfioSelector], kernel: &dyn KernelOps) -> Vec<UnitFacts> {
    if selectors.is_empty() {
        return Vec::new();
    }
    let functions: Vec<PciFacts> = pci_functions(tree).collect();
    let mut units = iommu_units::units(&functions, selectors);
    add_lost(&mut units, &functions, &read_record(tree));
    add_missing(&mut units, &functions, selectors);
    units.truncate(MAX_UNITS);
    unit_state::determine(tree, &mut units, kernel);
    units
}

fn read_record(tree: &Tree) -> Vec<UnitFacts> {
    tree.read(RECORD).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Adds units that vanished in this boot.
fn add_lost(units: &mut Vec<UnitFacts>, functions: &[PciFacts], recorded: &[UnitFacts]) {
    let present: BTreeSet<&str> =
        functions.iter().map(|function| function.address.as_str()).collect();
    for old in recorded {
        let addresses = old.members.iter().map(|member| member.address.as_str());
        let lost: Vec<&str> = addresses.filter(|address| !present.contains(address)).collect();
        if lost.is_empty() {
            continue;
        }
        let reason = format!(
            "{} vanished from the bus after the boot; cold power cycle the machine",
            lost.join(" ")
        );
        let is_same = |unit: &&mut UnitFacts| {
            unit.group == old.group
                && unit
                    .members
                    .iter()
                    .any(|member| old.members.iter().any(|m| m.address == member.address))
        };
        match units.iter_mut().find(is_same) {
            Some(unit) => (unit.state, unit.reason) = (UnitState::Missing, reason),
            None => units.push(UnitFacts { state: UnitState::Missing, reason, ..old.clone() }),
        }
    }
}

/// Adds functions that the profile names by address and that do not exist.
fn add_missing(units: &mut Vec<UnitFacts>, functions: &[PciFacts], selectors: &[VfioSelector]) {
    for selector in selectors {
        let VfioSelector::Address(address) = selector else { continue };
        let known = functions.iter().any(|function| function.address == *address)
            || units
                .iter()
                .any(|unit| unit.members.iter().any(|member| member.address == *address));
        if !known {
            let reason = format!("the profile selects {address}, which does not exist");
            let selected = vec![address.clone()];
            units.push(UnitFacts {
                state: UnitState::Missing,
                reason,
                selected,
                ..UnitFacts::default()
            });
        }
    }
}

#[cfg(test)]
mod tests;
