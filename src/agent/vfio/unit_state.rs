//! Determines the state of each unit, by the first match of: missing, wedged, shared with host, in
//! use or busy, conflict, unbound, ready.

use super::{
    group_probe::{KernelOps, ProbeError},
    host_dependency,
};
use crate::system::{Tree, holders};
use meshd_proto::{PciFacts, UnitFacts, UnitState};
use std::collections::{BTreeMap, BTreeSet};

/// The driver of assignable units.
pub const DRIVER: &str = "vfio-pci";
/// Bytes of the configuration space header.
const HEADER: u64 = 64;

/// Determines the states of units that have none yet.
pub fn determine(tree: &Tree, units: &mut [UnitFacts], kernel: &dyn KernelOps) {
    let needed = host_dependency::needed_functions(tree);
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for unit in units.iter() {
        for member in &unit.members {
            nodes.insert(member.address.clone(), holders::nodes(tree, &member.address));
        }
    }
    let groups =
        units.iter().filter_map(|unit| unit.group).map(|group| format!("/dev/vfio/{group}"));
    let all_nodes: BTreeSet<String> = nodes.values().flatten().cloned().chain(groups).collect();
    let rules =
        StateRules { tree, needed, nodes, holders: holders::find(tree, &all_nodes), kernel };
    for unit in units.iter_mut().filter(|unit| unit.reason.is_empty()) {
        (unit.state, unit.reason) = rules.unit(unit).unwrap_or((UnitState::Ready, String::new()));
    }
}

type StateReason = Option<(UnitState, String)>;

struct StateRules<'a> {
    tree: &'a Tree,
    /// Functions that the node needs.
    needed: BTreeMap<String, String>,
    /// Device nodes by function.
    nodes: BTreeMap<String, BTreeSet<String>>,
    /// Holders by device node.
    holders: BTreeMap<String, String>,
    kernel: &'a dyn KernelOps,
}

impl StateRules<'_> {
    /// Returns `None` for a ready unit.
    fn unit(&self, unit: &UnitFacts) -> StateReason {
        let first = |rule: &dyn Fn(&PciFacts) -> StateReason| unit.members.iter().find_map(rule);
        let all_bound = unit.members.iter().all(|member| member.driver.as_deref() == Some(DRIVER));
        first(&|member| self.wedged(member))
            .or_else(|| first(&|member| self.shared(member)))
            .or_else(|| self.in_use(unit, all_bound))
            .or_else(|| first(&|member| self.claimed(member)))
            .or_else(|| without_group(unit))
            .or_else(|| first(&unbound_reason))
            .or_else(|| self.not_accepted(unit.group?))
    }

    fn wedged(&self, member: &PciFacts) -> StateReason {
        let header =
            self.tree.bytes(&format!("/sys/bus/pci/devices/{}/config", member.address), HEADER)?;
        let gone = !header.is_empty() && header.iter().all(|byte| *byte == 0xff);
        let reason =
            || format!("{} returns only ones; cold power cycle the machine", member.address);
        gone.then(|| (UnitState::Wedged, reason()))
    }

    fn shared(&self, member: &PciFacts) -> StateReason {
        let reason = self.needed.get(&member.address)?;
        Some((UnitState::SharedWithHost, format!("{} {reason}", member.address)))
    }

    fn in_use(&self, unit: &UnitFacts, all_bound: bool) -> StateReason {
        if let Some(holder) =
            unit.group.and_then(|group| self.holders.get(&format!("/dev/vfio/{group}")))
        {
            let state = if all_bound { UnitState::InUse } else { UnitState::Busy };
            return Some((state, format!("open in {holder}")));
        }
        let nodes =
            unit.members.iter().filter_map(|member| self.nodes.get(&member.address)).flatten();
        let (node, holder) =
            nodes.into_iter().find_map(|node| Some((node, self.holders.get(node)?)))?;
        // QEMU with iommufd opens /dev/vfio/devices/vfioN.
        let state = if all_bound && node.starts_with("/dev/vfio/") {
            UnitState::InUse
        } else {
            UnitState::Busy
        };
        Some((state, format!("{node} is open in {holder}")))
    }

    fn claimed(&self, member: &PciFacts) -> StateReason {
        let address = &member.address;
        let claim = self.tree.text(&format!("/sys/bus/pci/devices/{address}/driver_override"));
        if let Some(claim) = claim.filter(|claim| claim != "(null)" && claim != DRIVER) {
            return Some((
                UnitState::Conflict,
                format!("driver_override of {address} selects {claim}"),
            ));
        }
        let functions = member.sriov.map_or(0, |sriov| sriov.enabled);
        let reason =
            || format!("{address} has {functions} virtual functions enabled; disable them first");
        (functions > 0).then(|| (UnitState::Conflict, reason()))
    }

    fn not_accepted(&self, group: u32) -> StateReason {
        let state = |error| match error {
            ProbeError::Busy => {
                (UnitState::InUse, format!("/dev/vfio/{group} is open in another process"))
            }
            ProbeError::Starting => (UnitState::InUse, "a VM is starting with the unit".to_owned()),
            ProbeError::NotViable => (
                UnitState::Conflict,
                "a function of the group is bound to another driver than vfio-pci".to_owned(),
            ),
            ProbeError::Failed(reason) => {
                (UnitState::Unbound, format!("bound, but VFIO does not accept the group: {reason}"))
            }
        };
        self.kernel.probe(group).err().map(state)
    }
}

fn without_group(unit: &UnitFacts) -> StateReason {
    let reason = || "no IOMMU group: the IOMMU is off".to_owned();
    unit.group.is_none().then(|| (UnitState::Unbound, reason()))
}

fn unbound_reason(member: &PciFacts) -> StateReason {
    let reason = match member.driver.as_deref() {
        Some(DRIVER) => return None,
        Some(driver) => format!("{} is bound to {driver}", member.address),
        None => format!("{} has no driver", member.address),
    };
    Some((UnitState::Unbound, reason))
}
