//! Describes nodes as candidates of placement: capacity, units, slots.

use crate::environment::records::open_end_order;
use meshd_config::{Site, SlotPolicy};
use meshd_model::{
    boot::effective_profile,
    fleet::Node,
    work::{
        Allocations, ApprovedSlot, CandidateNode, SlotId, VmSupport, slots_of_node,
        unassignable_units, unit_of,
    },
};
use meshd_proto::{CheckStatus, Facts, HugepageFacts, StoreKind, VOLUMES_CHECK, vm::SlotDisk};
use meshd_store::Model;
use meshd_types::NodeId;

/// The check of virtualisation.
const KVM_CHECK: &str = "kvm";

static NOTHING: Allocations = Allocations::none();
static UNKNOWN: std::sync::LazyLock<Facts> = std::sync::LazyLock::new(Facts::default);

/// All approved nodes, without their slots: [`add_slots`] adds them.
pub(crate) fn candidate_nodes<'a>(
    model: &'a Model,
    site: &'a Site,
) -> impl Iterator<Item = CandidateNode<'a>> + Clone {
    let nodes = model.all_nodes().filter(|node| node.phase.is_admitted());
    nodes.map(move |node| candidate(model, site, node))
}

fn candidate<'a>(model: &'a Model, site: &Site, node: &'a Node) -> CandidateNode<'a> {
    let facts = node.facts.as_ref().unwrap_or(&UNKNOWN);
    // `MemTotal` includes memory that the kernel reserves.
    let pool = match &facts.hosting {
        Some(hosting) => hosting.hugepages.iter().map(HugepageFacts::bytes).sum(),
        // Unknown: the profile's request counts.
        None => effective_profile(site, node).hugepages.map_or(0, |pages| pages.bytes()),
    };
    let total = facts.memory.total_kib.saturating_mul(1024);
    // Volumes and layers of a diskless node lie in its memory.
    let in_files =
        facts.store.filter(|store| store.kind == StoreKind::Memory).map_or(0, |store| store.used);
    CandidateNode {
        node: node.id,
        unready: (!node.phase.accepts_work())
            .then(|| node.phase.as_str())
            // A task has its nodes for itself (BM-5).
            .or_else(|| model.task_on(node.id).map(|_| "held_by_a_task"))
            // Its VMs would be lost.
            .or_else(|| open_end_order(model, node.id)),
        vm_support: vm_support(node),
        hosting: facts.hosting.as_deref(),
        threads: facts.cpu.threads,
        overcommit: site.vms.rules.cpu_overcommit,
        memory: total.saturating_sub(pool).saturating_sub(in_files),
        hugepages: pool.min(total),
        units: &facts.units,
        disks: &facts.disks,
        allocations: model.allocations(node.id).unwrap_or(&NOTHING),
        // Unproven checks matter only for nodes that could be chosen.
        closed: model.unavailable_units(node.id, site.slot_policy() == SlotPolicy::Auto),
        unassignable_units: Vec::new(),
        slots: Vec::new(),
    }
}

/// The approved slots of a node to which more than a unit belongs.
fn slots_of(model: &Model, node: NodeId) -> Vec<&ApprovedSlot> {
    if model.slots().is_empty() {
        return Vec::new();
    }
    let approved = slots_of_node(model.slots(), node).map(|(_, slot)| slot);
    approved
        .filter(|slot| slot.disk.is_some() || slot.fabric.is_some() || slot.nic.is_some())
        .collect()
}

/// The disks of a node that belong to slots.
pub(crate) fn slot_disks(model: &Model, node: NodeId) -> Vec<SlotDisk> {
    let disk = |slot: &ApprovedSlot| {
        Some(SlotDisk { unit: slot.id.unit.clone(), disk: slot.disk.clone()? })
    };
    slots_of(model, node).into_iter().filter_map(disk).collect()
}

/// Adds the units of a node that their slots block, and the parts of slots.
pub(crate) fn add_slots<'a>(model: &'a Model, site: &Site, candidate: &mut CandidateNode<'a>) {
    candidate.slots = slots_of(model, candidate.node);
    let Some((node, facts)) =
        model.node(candidate.node).and_then(|node| Some((node, node.facts.as_ref()?)))
    else {
        return;
    };
    // The check of volumes is unproven during a fetch, and does not concern units.
    let unproven = node.unproven_beside(VOLUMES_CHECK);
    let implied = site.slot_policy() == SlotPolicy::Auto && unproven.is_none();
    if facts.units.is_empty() || (implied && model.slots().is_empty()) {
        return;
    }
    let holds = |slot: &SlotId| {
        let unit = unit_of(slot, facts);
        let functions =
            unit.into_iter().flat_map(|unit| &unit.members).map(|member| member.address.as_str());
        candidate.allocations.unit(functions).is_some()
    };
    candidate.unassignable_units =
        unassignable_units(node.id, facts, model.slots(), holds, implied);
    if let Some(why) = unproven.filter(|_| site.slot_policy() == SlotPolicy::Auto) {
        candidate
            .unassignable_units
            .iter_mut()
            .for_each(|(_, reason)| *reason = format!("{reason}; {why}"));
    }
}

/// True if units of a node need no approval: the policy of the site is `auto`, and the node's
/// checks prove its report (DR-12). A disabled slot stays disabled.
pub(crate) fn is_approved_by_policy(site: &Site, node: Option<&Node>) -> bool {
    site.slot_policy() == SlotPolicy::Auto
        && node.is_some_and(|node| node.unproven_beside(VOLUMES_CHECK).is_none())
}

/// Returns the result of the checks of this boot for VMs.
fn vm_support(node: &Node) -> VmSupport {
    match node
        .valid_checks()
        .into_iter()
        .flatten()
        .find(|check| check.name == KVM_CHECK)
        .map(|check| check.status)
    {
        Some(CheckStatus::Pass) => VmSupport::Kvm,
        Some(CheckStatus::Warn | CheckStatus::Fail) => VmSupport::Emulated,
        Some(CheckStatus::Skip) | None => VmSupport::Nothing,
    }
}
