//! Health checks: is this node fit for work? `mesh-agent doctor` prints them, and each connection sends them to the central node. Only a
//! failed check keeps a node from being online.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `clock` | the clock against the overlay and the central node |
//! | `images` | volumes of VMs against their digests |
//! | `kernel` | errors in the kernel log since the boot |
//! | `nat` | the private network of VMs |
//! | `network` | connections to the central node and beyond |
//! | `probe` | probes of the running system, which tests replace |
//! | `report` | runs all checks with a deadline each |
//! | `services` | services that started and no longer run |
//! | `store` | free space of the store of VMs |
//! | `virtualization` | KVM and the units of the profile |
//! | `workload_memory` | memory that VMs and tasks use |

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
mod workload_memory;

pub use self::{
    clock::Reference,
    probe::{Probe, SystemProbe},
    report::report,
};

use super::{
    facts,
    system::{self, Tree},
};
use meshd_proto::{AgentConfig, BootPart, CHECKS, Check, CheckRule, CheckStatus, UnitFacts};
use meshd_types::{DenyList, Timestamp};
use std::{fmt, path::Path};

/// Available memory below this is a warning, in KiB.
const TIGHT_KIB: u64 = 64 * 1024;

/// Service of the overlay that loads the KVM module of Intel or AMD.
const KVM_SERVICE: &str = "kvm-host";

/// Input of the checks.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// File system of the node.
    pub tree: &'a Tree,
    /// Folder of VMs.
    pub vms: &'a Path,
    /// Configuration of the overlay.
    pub config: &'a AgentConfig,
    /// Boot data of the overlay.
    pub boot: &'a BootPart,
    /// Units, just surveyed.
    pub units: &'a [UnitFacts],
    /// Clock of this node.
    pub now: Timestamp,
    /// Clock of the central node at the same moment, if a link reported it.
    pub central: Option<Timestamp>,
    /// Probes of the running system.
    pub probe: &'a dyn Probe,
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("config", self.config).field("now", &self.now).finish_non_exhaustive()
    }
}

type CheckFn = fn(&Context<'_>) -> Check;

/// All checks in their order. A new check is a function and a line here.
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

/// Runs all checks with the severities of the profile.
pub fn run(context: &Context<'_>) -> Vec<Check> {
    let policy = &context.config.checks;
    ALL.iter().map(|check| check(context)).map(|check| counted(policy.rule(&check.name), check)).collect()
}

/// Applies the profile's severity: skip, warn or fail.
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

/// A check without result is a warning, and nothing is approved on it (DR-12).
fn unproven(name: &str, detail: impl Into<String>, remediation: &str) -> Check {
    Check { unproven: true, ..verdict(name, CheckStatus::Warn, detail, remediation) }
}

/// Returns true if an overlay of the profile loads KVM.
fn runs_machines(config: &AgentConfig) -> bool {
    config.kvm || config.services.iter().any(|service| service == KVM_SERVICE)
}

/// Checks that the overlay was made for this machine.
fn identity(context: &Context<'_>) -> Check {
    const NAME: &str = "identity";
    let expected = context.config.node;
    let hardware = facts::hardware(context.tree);
    let remediation = "compare `mesh-agent id` with `meshd node show`; a second network card explains it";
    // The site decides which identity fields count; it may distrust UUIDs.
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

/// Checks available memory: a node that runs from memory stops without it.
fn memory(context: &Context<'_>) -> Check {
    const NAME: &str = "memory";
    let memory = system::memory(context.tree);
    if memory.total_kib == 0 {
        return verdict(NAME, CheckStatus::Warn, "/proc/meminfo is not readable", "is /proc mounted?");
    }
    let (available, total) = (memory.available_kib / 1024, memory.total_kib / 1024);
    // Memory of VMs and tasks is meant for them.
    let own = workload_memory::memory(context) >> 20;
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
