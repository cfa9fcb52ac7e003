//! Units: what this machine can give to virtual machines, read from sysfs and procfs, symlinks followed, without lspci.
//!
//! ```text
//! group    PCI functions and the profile's selectors ─▶ units: IOMMU groups, whole but for bridges
//! host     what the node itself stands on: boot NIC, routes, disks in use, consoles
//! holders  which processes hold which device nodes
//! judge    each unit's state, with the reason
//! take     /dev/vfio/N: does a container take the group?
//! bind     gives units to vfio-pci, and nothing that the node or a process needs
//! ```
//! A unit's name and driver prove nothing: it is ready when the kernel lets a container have its group.

mod bind;
mod group;
mod host;
mod judge;
mod take;

pub use bind::{Bound, bind};
pub(super) use host::needs as needed_functions;
pub(super) use take::hold;
pub use take::{Linux, Refusal, System};

use crate::system::{Tree, all_pci};
use meshd_proto::{MAX_UNITS, PciFacts, UnitFacts, UnitState};
use meshd_types::VfioSelector;
use std::collections::BTreeSet;

/// The units of this boot as `vfio bind` found them: what is not there any more has fallen off the bus.
const RECORD: &str = "/run/mesh-vfio/units.json";

/// Every unit with its state, those of the lowest IOMMU group first; nothing where the profile selects nothing.
pub fn survey(tree: &Tree, selectors: &[VfioSelector], system: &dyn System) -> Vec<UnitFacts> {
    if selectors.is_empty() {
        return Vec::new();
    }
    let functions = all_pci(tree);
    let mut units = group::units(&functions, selectors);
    lost(&mut units, &functions, &recorded(tree));
    named(&mut units, &functions, selectors);
    units.truncate(MAX_UNITS);
    judge::all(tree, &mut units, system);
    units
}

fn recorded(tree: &Tree) -> Vec<UnitFacts> {
    tree.read(RECORD).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Brings back what was there earlier in this boot and is not any more.
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

/// A function that the profile names by its address must be there.
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
