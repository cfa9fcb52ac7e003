//! Groups PCI functions into units: an IOMMU group without its bridges. Pure.

use meshd_proto::{MAX_MEMBERS, PciFacts, UnitFacts, UnitKind, UnitState};
use meshd_types::{PciName, VfioSelector};
use std::collections::BTreeMap;

/// Bridge classes: host, ISA, PCI, semi-transparent PCI. Their drivers do no DMA for others, so the
/// kernel permits them in an assigned group. An NVSwitch has class 0680 and is a device.
const BRIDGES: [&str; 4] = ["0600", "0601", "0604", "0609"];
/// Vendor and class of an NVSwitch.
const SWITCH: (&str, &str) = ("10de", "0680");

/// Without an IOMMU the functions of a slot form a unit, which is reported but cannot be assigned.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum GroupKey<'a> {
    Group(u32),
    Slot(&'a str),
}

/// Returns the units of the selected functions. `functions` are sorted by address.
pub fn units(functions: &[PciFacts], selectors: &[VfioSelector]) -> Vec<UnitFacts> {
    let mut groups: BTreeMap<GroupKey<'_>, Vec<&PciFacts>> = BTreeMap::new();
    for function in functions.iter().filter(|function| !BRIDGES.contains(&function.class.as_str()))
    {
        let slot = function.address.split('.').next().unwrap_or_default();
        let key = function.iommu_group.map_or(GroupKey::Slot(slot), GroupKey::Group);
        groups.entry(key).or_default().push(function);
    }
    groups.into_values().filter_map(|members| unit(&members, selectors)).collect()
}

/// Returns `None` if no function is selected.
fn unit(members: &[&PciFacts], selectors: &[VfioSelector]) -> Option<UnitFacts> {
    let is_selected = |function: &&&PciFacts| {
        let PciFacts { address, vendor, device, class, .. } = *function;
        selectors
            .iter()
            .any(|selector| selector.matches(PciName { address, vendor, device, class }))
    };
    let selected: Vec<&PciFacts> = members.iter().filter(is_selected).copied().collect();
    let first = selected.first()?;
    // Unlisted functions are not checked: the node may need one of them.
    let too_large = members.len() > MAX_MEMBERS;
    let reason =
        || format!("the IOMMU group has {} functions; the maximum is {MAX_MEMBERS}", members.len());
    let switches = selected
        .iter()
        .all(|function| (function.vendor.as_str(), function.class.as_str()) == SWITCH);
    Some(UnitFacts {
        group: first.iommu_group,
        kind: if switches { UnitKind::Switch } else { UnitKind::Device },
        numa_node: first.numa_node,
        selected: selected
            .iter()
            .take(MAX_MEMBERS)
            .map(|function| function.address.clone())
            .collect(),
        members: members.iter().take(MAX_MEMBERS).map(|function| (*function).clone()).collect(),
        state: if too_large { UnitState::Conflict } else { UnitState::default() },
        reason: if too_large { reason() } else { String::new() },
    })
}
