//! Readiness checks. `mesh-agent doctor` prints their results, and the link sends them to the
//! central node. A failed check makes the node `degraded`.
//!
//! | module | content |
//! | --- | --- |
//! | `clock` | the clock, compared with the overlay and the central node |
//! | `firewall` | the firewalls of VM and task users |
//! | `kernel` | errors in the kernel log since the boot |
//! | `nat` | the private network of VMs |
//! | `network` | connections to the central node and beyond |
//! | `probe` | probes of the running system, which tests replace |
//! | `report` | runs all checks with a deadline each |
//! | `services` | services that are not started or crashed |
//! | `virtualization` | KVM and the units of the profile |
//! | `vm_store_space` | free space of the VM store |
//! | `vm_volumes` | completeness of volumes |
//! | `workload_memory` | memory that VMs and tasks use |

mod clock;
mod firewall;
mod kernel;
mod nat;
mod network;
mod probe;
mod report;
mod services;
mod virtualization;
mod vm_store_space;
mod vm_volumes;
mod workload_memory;

pub use self::{clock::CentralClock, report::report};

use self::probe::Probe;
use super::{
    facts,
    system::{self, Tree},
};
use meshd_proto::{
    AgentConfig, BootPart, CHECKS, Check, CheckPolicy, CheckRule, CheckStatus, UnitFacts,
    stage1::{ROOT_REPORT_FILE, RootReport, TETHER_PROCESS},
};
use meshd_types::{DenyList, Timestamp};
use std::path::PathBuf;

/// Available memory below this is a warning, in KiB.
const WARN_KIB: u64 = 64 * 1024;

/// Service and unit of the overlay that loads the KVM module of Intel or AMD.
const KVM_SERVICE: &str = "kvm-host";
const KVM_UNIT: &str = "kvm-host.service";
const NO_VMS: &str = "the profile runs no VMs";

/// Input of the checks.
struct Context {
    tree: Tree,
    /// Folder of VMs.
    vms: PathBuf,
    config: AgentConfig,
    boot: BootPart,
    units: Vec<UnitFacts>,
    /// Time of this node.
    now: Timestamp,
    /// Time of the central node at the same moment, if a link reported it.
    central: Option<Timestamp>,
    probe: Box<dyn Probe>,
}

type CheckFn = fn(&Context) -> Check;

/// All checks in their order. A new check is a function and a line here.
const ALL: [CheckFn; CHECKS.len()] = [
    services::services,
    identity,
    clock::clock,
    memory,
    network::network,
    nat::nat,
    firewall::firewall,
    virtualization::kvm,
    virtualization::iommu,
    virtualization::vfio,
    virtualization::units,
    vm_store_space::free_space,
    vm_volumes::volumes,
];

/// Applies the profile's severity: skip, warn or fail.
fn apply_rule(policy: &CheckPolicy, check: Check) -> Check {
    match (policy.rule(&check.name), check.status) {
        (CheckRule::Off, CheckStatus::Warn | CheckStatus::Fail) => {
            skip(&check.name, format!("disabled by the profile; result: {}", check.detail))
        }
        (CheckRule::Warn, CheckStatus::Fail) => Check { status: CheckStatus::Warn, ..check },
        _ => check,
    }
}

fn result(name: &str, status: CheckStatus, detail: impl Into<String>, remediation: &str) -> Check {
    Check {
        name: name.into(),
        status,
        detail: detail.into(),
        remediation: remediation.into(),
        unproven: false,
    }
}

fn pass(name: &str, detail: impl Into<String>) -> Check {
    result(name, CheckStatus::Pass, detail, "")
}

fn skip(name: &str, detail: impl Into<String>) -> Check {
    result(name, CheckStatus::Skip, detail, "")
}

fn warn(name: &str, detail: impl Into<String>, remediation: &str) -> Check {
    result(name, CheckStatus::Warn, detail, remediation)
}

fn fail(name: &str, detail: impl Into<String>, remediation: &str) -> Check {
    result(name, CheckStatus::Fail, detail, remediation)
}

/// Returns the warning of a check without result: it cannot approve anything (DR-12).
fn unproven(name: &str, detail: impl Into<String>, remediation: &str) -> Check {
    Check { unproven: true, ..warn(name, detail, remediation) }
}

/// Returns true if an overlay of the profile loads KVM.
fn runs_vms(config: &AgentConfig) -> bool {
    config.kvm
        || config.services.iter().any(|service| service == KVM_SERVICE)
        || config.units.iter().any(|unit| unit == KVM_UNIT)
}

/// Checks that the overlay was made for this machine.
fn identity(context: &Context) -> Check {
    const NAME: &str = "identity";
    let expected = context.config.node;
    let hardware = facts::hardware(&context.tree);
    let remediation =
        "compare `mesh-agent id` with `meshd node show`; an added NIC may be the cause";
    // The site decides which identity fields count; it may distrust UUIDs.
    let matching = hardware.bases().find(|basis| basis.node_id() == expected);
    match matching.or_else(|| hardware.basis(&DenyList::new())) {
        Some(basis) if basis.node_id() == expected => pass(NAME, basis.to_string()),
        Some(basis) => {
            let detail = format!(
                "the overlay is for {expected}, this machine is {} ({basis})",
                basis.node_id()
            );
            warn(NAME, detail, remediation)
        }
        None => warn(NAME, "this machine has no identifying hardware data", remediation),
    }
}

/// Checks available memory: the root file system of a node is in memory.
fn memory(context: &Context) -> Check {
    const NAME: &str = "memory";
    let memory = system::memory(&context.tree);
    if memory.total_kib == 0 {
        return warn(NAME, "/proc/meminfo is not readable", "mount /proc");
    }
    let available = memory.available_kib / 1024;
    let total = memory.total_kib / 1024;
    let workload = workload_memory::memory(context) >> 20;
    let used =
        if workload > 0 { format!(", {workload} MiB used by workloads") } else { String::new() };
    let root = root_memory(context);
    let detail = format!("{available} of {total} MiB available{used}{root}");
    if let Some(minimum) = context
        .config
        .checks
        .thresholds
        .memory_mib
        .filter(|minimum| available + workload < *minimum)
    {
        let detail = format!("{detail}; the profile requires {minimum}");
        return fail(NAME, detail, "add memory, or lower thresholds.memory_mib of the profile");
    }
    if memory.available_kib < WARN_KIB {
        return warn(NAME, detail, "look for large files in tmpfs: `du -xsh /*`");
    }
    pass(NAME, detail)
}

/// The memory of the root and of its writable layer, if stage 1 booted this node.
fn root_memory(context: &Context) -> String {
    let tree = &context.tree;
    let report = tree.read(ROOT_REPORT_FILE).unwrap_or_default();
    let Ok(report) = serde_json::from_str::<RootReport>(&report) else { return String::new() };
    let size = report.size >> 20;
    let Some(process) = report.process else { return format!(", {size} MiB used by the root") };
    let command = tree.read(&format!("/proc/{process}/cmdline")).unwrap_or_default();
    let status = tree.read(&format!("/proc/{process}/status")).unwrap_or_default();
    // If it ended, its number may belong to another process.
    let is_it = command.split('\0').next() == Some(TETHER_PROCESS);
    let status = if is_it { status } else { String::new() };
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = kib.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    match kib {
        Some(kib) => {
            format!(", {} MiB used by the tethered root of {size} MiB", kib.div_ceil(1024))
        }
        None => format!(", the process {process} of the tethered root is lost"),
    }
}

#[cfg(test)]
mod tests;
