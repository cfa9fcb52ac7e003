//! Checks whether this node is fit for work. `mesh-agent doctor` prints them, and each connection sends them to the central node. Only a
//! failed check keeps a node from being online.

mod clock;
mod images;
mod kernel;
mod nat;
mod network;
mod probe;
mod report;
mod services;
mod store;
mod virtualization;
mod work;

pub use self::{
    clock::Reference,
    probe::{Linux, Probe},
    report::report,
};

use super::{
    facts,
    system::{self, Tree},
};
use meshd_proto::{AgentConfig, BootPart, CHECKS, Check, CheckRule, CheckStatus, UnitFacts};
use meshd_types::{DenyList, Timestamp};
use std::{fmt, path::Path};

/// Below this much available memory a node is called tight, in KiB.
const TIGHT_KIB: u64 = 64 * 1024;

/// The service of an overlay that loads KVM by itself, because it finds out whose: Intel's or AMD's.
const KVM_SERVICE: &str = "kvm-host";

/// What a check may look at.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The node's file system.
    pub tree: &'a Tree,
    /// Where virtual machines and the images that they stand on are kept.
    pub vms: &'a Path,
    /// What the overlay says.
    pub config: &'a AgentConfig,
    /// What the overlay says of this boot.
    pub boot: &'a BootPart,
    /// What can be given to virtual machines, just surveyed.
    pub units: &'a [UnitFacts],
    /// This node's clock.
    pub now: Timestamp,
    /// The central node's clock at the same moment, where a link told it.
    pub central: Option<Timestamp>,
    /// What can be tried.
    pub probe: &'a dyn Probe,
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("config", self.config).field("now", &self.now).finish_non_exhaustive()
    }
}

type CheckFn = fn(&Context<'_>) -> Check;

/// Every check, in the order in which it runs. A new one is a function and a line here.
const ALL: [CheckFn; CHECKS.len()] = [
    services::services,
    identity,
    clock::clock,
    memory,
    network::network,
    nat::nat,
    virtualization::kvm,
    virtualization::iommu,
    virtualization::vfio,
    virtualization::units,
    store::store,
    images::images,
];

/// Runs every check; each counts as the profile says.
pub fn run(context: &Context<'_>) -> Vec<Check> {
    let policy = &context.config.checks;
    ALL.iter().map(|check| check(context)).map(|check| counted(policy.rule(&check.name), check)).collect()
}

/// A check as it counts: a profile may switch it off, or take its failure as a warning.
fn counted(rule: CheckRule, check: Check) -> Check {
    match (rule, check.status) {
        (CheckRule::Off, CheckStatus::Warn | CheckStatus::Fail) => {
            let detail = format!("switched off by the profile; it says: {}", check.detail);
            verdict(&check.name, CheckStatus::Skip, detail, "")
        }
        (CheckRule::Warn, CheckStatus::Fail) => Check { status: CheckStatus::Warn, ..check },
        _ => check,
    }
}

fn verdict(name: &str, status: CheckStatus, detail: impl Into<String>, remediation: &str) -> Check {
    Check { name: name.into(), status, detail: detail.into(), remediation: remediation.into(), unproven: false }
}

/// It could not be found out: a warning, on which nothing is approved (DR-12).
fn unproven(name: &str, detail: impl Into<String>, remediation: &str) -> Check {
    Check { unproven: true, ..verdict(name, CheckStatus::Warn, detail, remediation) }
}

/// The profile promises virtual machines: an overlay of it loads KVM.
fn runs_machines(config: &AgentConfig) -> bool {
    config.kvm || config.services.iter().any(|service| service == KVM_SERVICE)
}

/// This machine is the one that the overlay was made for.
fn identity(context: &Context<'_>) -> Check {
    const NAME: &str = "identity";
    let expected = context.config.node;
    let hardware = facts::hardware(context.tree);
    let remediation = "compare `mesh-agent id` with `meshd node show`; a second network card explains it";
    // Which part of its identity counts is for the site to say: it may list the UUID as untrustworthy.
    let own = hardware.bases().find(|basis| basis.node_id() == expected);
    let basis = own.or_else(|| hardware.basis(&DenyList::new()));
    match basis {
        Some(basis) if basis.node_id() == expected => verdict(NAME, CheckStatus::Pass, basis.to_string(), ""),
        Some(basis) => {
            let detail = format!("the overlay says {expected}, this machine says {} ({basis})", basis.node_id());
            verdict(NAME, CheckStatus::Warn, detail, remediation)
        }
        None => verdict(NAME, CheckStatus::Warn, "this machine shows nothing that identifies it", remediation),
    }
}

/// The node runs from memory: when that is used up, it stops.
fn memory(context: &Context<'_>) -> Check {
    const NAME: &str = "memory";
    let memory = system::memory(context.tree);
    if memory.total_kib == 0 {
        return verdict(NAME, CheckStatus::Warn, "/proc/meminfo is not readable", "is /proc mounted?");
    }
    let (available, total) = (memory.available_kib / 1024, memory.total_kib / 1024);
    // What its own work takes it has for that.
    let own = work::memory(context) >> 20;
    let work = if own > 0 { format!(", {own} MiB more taken by its work") } else { String::new() };
    let detail = format!("{available} of {total} MiB available{work}");
    if let Some(least) = context.config.checks.thresholds.memory_mib.filter(|least| available + own < *least) {
        let detail = format!("{detail}; the profile wants {least}");
        return verdict(
            NAME,
            CheckStatus::Fail,
            detail,
            "give it more memory, or lower thresholds.memory_mib of its profile",
        );
    }
    if memory.available_kib < TIGHT_KIB {
        return verdict(NAME, CheckStatus::Warn, detail, "look for large files in tmpfs: `du -xsh /*`");
    }
    verdict(NAME, CheckStatus::Pass, detail, "")
}

#[cfg(test)]
mod tests;
