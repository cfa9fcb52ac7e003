//! Nodes as a placement sees them.

use super::vms::takes_work;
use crate::boot::effective_profile;
use crate::config::{EnrollPolicy, Site};
use crate::fleet::Node;
use crate::id::{NodeId, PciAddress};
use crate::store::Model;
use crate::wire::{CheckStatus, Facts};
use crate::work::{Held, Host, Runs, SlotId, barred, unit_of};

/// The check that says whether virtual machines run.
const KVM_CHECK: &str = "kvm";

static NOTHING: Held = Held::none();

/// All nodes that were let in.
pub(super) fn hosts<'a>(model: &'a Model, site: &'a Site) -> impl Iterator<Item = Host<'a>> + Clone {
    let nodes = model.all_nodes().filter(|node| node.phase.is_admitted());
    nodes.map(move |node| host(model, site, node))
}

/// One node.
pub(super) fn host<'a>(model: &'a Model, site: &Site, node: &'a Node) -> Host<'a> {
    static UNKNOWN: std::sync::LazyLock<Facts> = std::sync::LazyLock::new(Facts::default);
    let facts = node.facts.as_ref().unwrap_or(&UNKNOWN);
    // What the kernel sets aside is in `MemTotal` as well.
    let pool = effective_profile(site, node).hugepages.map_or(0, |pages| pages.bytes());
    let total = facts.memory.total_kib.saturating_mul(1024);
    Host {
        node: node.id,
        unready: (!takes_work(node.phase))
            .then(|| node.phase.as_str())
            // It is the task's alone (BM-5).
            .or_else(|| model.job_on(node.id).map(|_| "held_by_a_task")),
        runs: runs(node),
        threads: facts.cpu.threads,
        memory: total.saturating_sub(pool),
        hugepages: pool.min(total),
        units: &facts.units,
        disks: &facts.disks,
        pci: &facts.pci,
        held: model.held(node.id).unwrap_or(&NOTHING),
        barred: barred_of(model, site, node.id, facts),
    }
}

/// A site that lets machines in by itself takes their units as they are; else an operator approves each slot.
pub(super) fn implied(site: &Site) -> bool {
    site.enroll.policy == EnrollPolicy::Auto
}

fn barred_of(model: &Model, site: &Site, node: NodeId, facts: &Facts) -> Vec<(PciAddress, String)> {
    if facts.units.is_empty() || (implied(site) && model.slots().is_empty()) {
        return Vec::new();
    }
    let holds = |slot: &SlotId| {
        let unit = unit_of(slot, facts);
        let functions = unit.into_iter().flat_map(|unit| &unit.members).map(|member| member.address.as_str());
        model.held(node).is_some_and(|held| held.unit(functions).is_some())
    };
    barred(node, facts, model.slots(), holds, implied(site))
}

/// What its checks of this boot say of virtual machines.
fn runs(node: &Node) -> Runs {
    match node.valid_checks().into_iter().flatten().find(|check| check.name == KVM_CHECK).map(|check| check.status) {
        Some(CheckStatus::Pass) => Runs::Kvm,
        Some(CheckStatus::Warn | CheckStatus::Fail) => Runs::Emulated,
        Some(CheckStatus::Skip) | None => Runs::Nothing,
    }
}
