//! Whether a virtual machine may run now where it is, or at all: what an order to start it is measured by, and when a node is told of it.

use super::{Central, VmError, lock, placement_view::implied, vm_reports, vms::takes_work};
use meshd_config::Site;
use meshd_model::{
    fleet::{Node, Phase},
    work::{SlotId, SlotState, Vm, candidates, judge, unit_of},
};
use meshd_proto::{
    CheckStatus, Facts,
    vm::{VmReport, VmSpec},
};
use meshd_store::Model;
use meshd_types::{NodeId, PciAddress, SystemUuid};
use std::collections::{BTreeMap, BTreeSet};

/// Why a node does not start anything now, and what to do; `None` where it may. Between its link and its checks the order waits.
fn not_in_service(node: &Node) -> Option<(String, String)> {
    let failing = || node.valid_checks().into_iter().flatten().find(|check| check.status == CheckStatus::Fail);
    let id = node.id;
    match node.phase {
        phase if takes_work(phase) => None,
        phase @ (Phase::Enrolling | Phase::Degraded) => failing().map(|check| {
            let why = format!("{phase}: check {} says {}", check.name, check.detail);
            (why, format!("repair it; meshd node doctor {id} says whether it is"))
        }),
        phase @ (Phase::Draining | Phase::Maintenance) => {
            Some((phase.to_string(), format!("take it back: meshd node resume {id}")))
        }
        phase => Some((phase.to_string(), format!("see meshd node show {id}"))),
    }
}

/// Whether one that has a node may be started there.
pub(super) fn startable(model: &Model, site: &Site, vm: &Vm) -> Result<(), VmError> {
    let Some(node) = vm.node() else { return Ok(()) };
    let Some(node) = model.node(node) else { return Ok(()) };
    if let Some((why, hint)) = not_in_service(node) {
        return Err(VmError::NotInService { name: vm.name().clone(), node: node.id, why, hint });
    }
    let Some(facts) = &node.facts else { return Ok(()) };
    for unit in &vm.ask.spec.units {
        let id = slot_with(node.id, unit, facts);
        let slot = judge(id.clone(), facts, model.slots().get(&id), None, implied(site, Some(node)));
        if matches!(slot.state, SlotState::Disabled | SlotState::Failed) {
            let (name, state, why) = (vm.name().clone(), slot.state, slot.reason);
            return Err(VmError::SlotClosed { name, slot: id, state, why });
        }
    }
    Ok(())
}

/// The slot whose unit has a function.
fn slot_with(node: NodeId, function: &PciAddress, facts: &Facts) -> SlotId {
    let has = |id: &SlotId| {
        let mut members = unit_of(id, facts).into_iter().flat_map(|unit| &unit.members);
        members.any(|member| member.address == function.as_str())
    };
    candidates(node, facts).find(has).unwrap_or_else(|| SlotId { node, unit: function.clone() })
}

/// True if a node may be told to run something: nothing fails that was looked at in this boot (DR-13, DR-16).
pub(super) fn may_be_told(model: &Model, node: NodeId) -> bool {
    model.node(node).is_some_and(Node::passes)
}

impl Central {
    /// Nodes that tell of work which is not on record there: what they have left is not known, and a task would not be alone.
    pub(super) fn odd_nodes(&self) -> BTreeSet<NodeId> {
        let mut odd = self.strange_jobs.nodes();
        odd.extend(self.strangers.nodes());
        odd
    }

    /// What a node told of such work counts no more: an operator says that it runs no more.
    pub(super) fn forget_strange(&self, node: NodeId) {
        self.strangers.are(node, BTreeMap::new());
        self.strange_jobs.are(node, BTreeSet::new());
    }

    /// Never two copies: one that a node tells of is not started on another.
    pub(super) fn not_elsewhere(&self, uuid: SystemUuid) -> Result<(), VmError> {
        match self.strangers.with(uuid) {
            Some(node) => Err(VmError::Elsewhere { uuid, node }),
            None => Ok(()),
        }
    }

    /// Every file that it names is here, to be given to its node.
    pub(super) fn has_files(&self, spec: &VmSpec) -> Result<(), VmError> {
        let volumes = self.volumes();
        match spec.files().find(|(_, digest)| !volumes.path(digest).is_file()) {
            Some((volume, digest)) => Err(VmError::NoVolume { volume: volume.clone(), digest }),
            None => Ok(()),
        }
    }
}

impl vm_reports::OrphanVms {
    fn nodes(&self) -> BTreeSet<NodeId> {
        lock(&self.0).keys().copied().collect()
    }

    fn with(&self, uuid: SystemUuid) -> Option<NodeId> {
        lock(&self.0).iter().find(|(_, vms)| vms.contains_key(&uuid)).map(|(node, _)| *node)
    }

    /// What a node has now.
    pub(super) fn are(&self, node: NodeId, vms: BTreeMap<SystemUuid, VmReport>) {
        let mut all = lock(&self.0);
        if vms.is_empty() { drop(all.remove(&node)) } else { drop(all.insert(node, vms)) }
    }
}
