//! Checks that a placed VM may start on its node.

use crate::vms::{Vms, error::VmError, placement_candidates::is_approved_by_policy};
use meshd_config::Site;
use meshd_model::{
    fleet::{Node, Phase},
    work::{SlotId, SlotState, Vm, candidates, derive_slot, unit_of},
};
use meshd_proto::{CheckStatus, Facts, vm::VmSpec};
use meshd_store::Model;
use meshd_types::{NodeId, PciAddress, SystemUuid};

/// Returns why a node starts nothing now, with a hint; `None` if it may. Orders wait for the checks
/// after a new link.
fn out_of_service_reason(node: &Node) -> Option<(String, String)> {
    let failing = || {
        node.valid_checks().into_iter().flatten().find(|check| check.status == CheckStatus::Fail)
    };
    let id = node.id;
    match node.phase {
        phase if phase.accepts_work() => None,
        phase @ (Phase::Enrolling | Phase::Degraded) => failing().map(|check| {
            let why = format!("{phase}: check {} reports {}", check.name, check.detail);
            (why, format!("repair it; run meshd node doctor {id}"))
        }),
        phase @ (Phase::Draining | Phase::Maintenance) => {
            Some((phase.to_string(), format!("return it to service: meshd node resume {id}")))
        }
        phase => Some((phase.to_string(), format!("see meshd node show {id}"))),
    }
}

/// Returns whether a placed VM may start.
pub(crate) fn check_startable(model: &Model, site: &Site, vm: &Vm) -> Result<(), VmError> {
    let Some(node) = vm.node() else { return Ok(()) };
    let Some(node) = model.node(node) else { return Ok(()) };
    if let Some((why, hint)) = out_of_service_reason(node) {
        return Err(VmError::NotInService { name: vm.name().clone(), node: node.id, why, hint });
    }
    let Some(facts) = &node.facts else { return Ok(()) };
    for unit in &vm.assigned.units {
        let id = slot_with(node.id, unit, facts);
        let slot = derive_slot(
            id.clone(),
            facts,
            model.slots().get(&id),
            None,
            is_approved_by_policy(site, Some(node)),
        );
        if matches!(slot.state, SlotState::Disabled | SlotState::Failed) {
            let name = vm.name().clone();
            let state = slot.state;
            let why = slot.reason;
            return Err(VmError::SlotClosed { name, slot: id, state, why });
        }
    }
    Ok(())
}

/// The slot whose unit contains a PCI function.
fn slot_with(node: NodeId, function: &PciAddress, facts: &Facts) -> SlotId {
    let has = |id: &SlotId| {
        let mut members = unit_of(id, facts).into_iter().flat_map(|unit| &unit.members);
        members.any(|member| member.address == function.as_str())
    };
    candidates(node, facts).find(has).unwrap_or_else(|| SlotId { node, unit: function.clone() })
}

/// True if a node may run work: no check of this boot fails (DR-13, DR-16).
pub(crate) fn may_run(model: &Model, node: NodeId) -> bool {
    model.node(node).is_some_and(Node::passes)
}

impl Vms {
    /// Refuses to start a VM that another node reports: there are never two copies. A VM on record
    /// is where its record says, so only a node that the record does not exclude may claim it.
    /// Without a record, an operator may know better than the node (`forced`).
    pub(crate) fn check_not_elsewhere(
        &self,
        model: &Model,
        uuid: SystemUuid,
        forced: bool,
    ) -> Result<(), VmError> {
        let vm = model.vm(uuid);
        let nodes = self.reported.orphan_vms.nodes_with(uuid);
        let is_credible = |node: &NodeId| vm.map_or(!forced, |vm| vm.is_credible_claim(*node));
        nodes
            .into_iter()
            .find(is_credible)
            .map_or(Ok(()), |node| Err(VmError::Elsewhere { uuid, node }))
    }

    /// Refuses a specification that names a missing volume.
    pub(crate) fn check_files(&self, spec: &VmSpec) -> Result<(), VmError> {
        let volumes = self.volumes();
        match spec.files().find(|(_, digest)| !volumes.path(digest).is_file()) {
            Some((volume, digest)) => Err(VmError::NoVolume { volume: volume.clone(), digest }),
            None => Ok(()),
        }
    }
}
