//! Determines the state of each unit. The first that applies: missing, wedged, shared with host, held by a process, conflict, unbound,
//! ready.

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
pub fn all(tree: &Tree, units: &mut [UnitFacts], system: &dyn KernelOps) {
    let needs = host_dependency::needs(tree);
    let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for unit in units.iter() {
        for member in &unit.members {
            nodes.insert(member.address.clone(), holders::nodes(tree, &member.address));
        }
    }
    let groups = units.iter().filter_map(|unit| unit.group).map(|group| format!("/dev/vfio/{group}"));
    let wanted: BTreeSet<String> = nodes.values().flatten().cloned().chain(groups).collect();
    let judge = StateRules { tree, needs, nodes, held: holders::of(tree, &wanted), system };
    for unit in units.iter_mut().filter(|unit| unit.reason.is_empty()) {
        (unit.state, unit.reason) = judge.unit(unit).unwrap_or((UnitState::Ready, String::new()));
    }
}

type Verdict = Option<(UnitState, String)>;

struct StateRules<'a> {
    tree: &'a Tree,
    /// Functions that the node needs.
    needs: BTreeMap<String, String>,
    /// Device nodes by function.
    nodes: BTreeMap<String, BTreeSet<String>>,
    /// Holders by device node.
    held: BTreeMap<String, String>,
    system: &'a dyn KernelOps,
}

impl StateRules<'_> {
    /// Returns `None` for a ready unit.
    fn unit(&self, unit: &UnitFacts) -> Verdict {
        let first = |judge: &dyn Fn(&PciFacts) -> Verdict| unit.members.iter().find_map(judge);
        let all_bound = unit.members.iter().all(|member| member.driver.as_deref() == Some(DRIVER));
        first(&|member| self.wedged(member))
            .or_else(|| first(&|member| self.shared(member)))
            .or_else(|| self.held(unit, all_bound))
            .or_else(|| first(&|member| self.claimed(member)))
            .or_else(|| without_group(unit))
            .or_else(|| first(&unbound))
            .or_else(|| self.refused(unit.group?))
    }

    fn wedged(&self, member: &PciFacts) -> Verdict {
        let header = self.tree.bytes(&format!("/sys/bus/pci/devices/{}/config", member.address), HEADER)?;
        let gone = !header.is_empty() && header.iter().all(|byte| *byte == 0xff);
        let reason = || format!("{} answers nothing but ones; cold power cycle the machine", member.address);
        gone.then(|| (UnitState::Wedged, reason()))
    }

    fn shared(&self, member: &PciFacts) -> Verdict {
        let why = self.needs.get(&member.address)?;
        Some((UnitState::SharedWithHost, format!("{} {why}", member.address)))
    }

    fn held(&self, unit: &UnitFacts, all_bound: bool) -> Verdict {
        if let Some(holder) = unit.group.and_then(|group| self.held.get(&format!("/dev/vfio/{group}"))) {
            let state = if all_bound { UnitState::InUse } else { UnitState::Busy };
            return Some((state, format!("held by {holder}")));
        }
        let nodes = unit.members.iter().filter_map(|member| self.nodes.get(&member.address)).flatten();
        let (node, holder) = nodes.into_iter().find_map(|node| Some((node, self.held.get(node)?)))?;
        // QEMU with iommufd opens /dev/vfio/devices/vfioN.
        let state = if all_bound && node.starts_with("/dev/vfio/") { UnitState::InUse } else { UnitState::Busy };
        Some((state, format!("{node} is held by {holder}")))
    }

    fn claimed(&self, member: &PciFacts) -> Verdict {
        let address = &member.address;
        let claim = self.tree.text(&format!("/sys/bus/pci/devices/{address}/driver_override"));
        if let Some(claim) = claim.filter(|claim| claim != "(null)" && claim != DRIVER) {
            return Some((UnitState::Conflict, format!("driver_override of {address} claims it for {claim}")));
        }
        let functions = member.sriov.map_or(0, |sriov| sriov.enabled);
        let reason = || format!("{address} has {functions} virtual functions switched on, which would go with it");
        (functions > 0).then(|| (UnitState::Conflict, reason()))
    }

    fn refused(&self, group: u32) -> Verdict {
        let state = |refusal| match refusal {
            ProbeError::Busy => (UnitState::InUse, format!("/dev/vfio/{group} is open somewhere else")),
            ProbeError::Given => (UnitState::InUse, "it is being given to a virtual machine".to_owned()),
            ProbeError::NotViable => {
                (UnitState::Conflict, "another driver than vfio-pci holds a function of the group".to_owned())
            }
            ProbeError::Failed(reason) => {
                (UnitState::Unbound, format!("bound, and the kernel does not give it: {reason}"))
            }
        };
        self.system.take(group).err().map(state)
    }
}

fn without_group(unit: &UnitFacts) -> Verdict {
    let reason = || "it is in no IOMMU group: the IOMMU is off".to_owned();
    unit.group.is_none().then(|| (UnitState::Unbound, reason()))
}

fn unbound(member: &PciFacts) -> Verdict {
    let reason = match member.driver.as_deref() {
        Some(DRIVER) => return None,
        Some(driver) => format!("{} is bound to {driver}", member.address),
        None => format!("{} has no driver", member.address),
    };
    Some((UnitState::Unbound, reason))
}
