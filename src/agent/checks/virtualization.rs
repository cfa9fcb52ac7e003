//! Checks KVM and the units that the profile selects.

use super::{Context, NO_VMS, fail, kernel::find_line, pass, result, runs_vms, skip};
use crate::{system, vm};
use meshd_proto::{Check, CheckStatus, UnitState, units_ready};
use std::fs::OpenOptions;

/// Modules that device assignment needs, by their names in `/sys/module`.
const MODULES: [&str; 3] = ["vfio", "vfio_iommu_type1", "vfio_pci"];
/// Kernel arguments that disable an IOMMU.
const DISABLING_ARGUMENTS: [&str; 3] = ["intel_iommu=off", "amd_iommu=off", "iommu=off"];
/// ACPI tables that describe an IOMMU: Intel, AMD, ARM.
const TABLES: [&str; 3] = ["DMAR", "IVRS", "IORT"];
/// Maximum number of units in a detail.
const MAX_NAMED: usize = 8;

const SKIPPED: &str = "the profile assigns no devices to VMs";

/// Checks that `/dev/kvm` opens: without hardware support the device node exists nevertheless. A
/// host of VMs also needs QEMU.
pub fn kvm(context: &Context) -> Check {
    const NAME: &str = "kvm";
    let Context { tree, config, .. } = context;
    let is_host = runs_vms(config);
    if !is_host && config.vfio.is_empty() {
        return skip(NAME, NO_VMS);
    }
    let error = match OpenOptions::new().read(true).write(true).open(tree.path("/dev/kvm")) {
        Ok(_) => {
            let remedy = "install a QEMU that is built with seccomp: the bundle `qemu` has one";
            return match vm::check_sandbox(tree) {
                None if is_host => fail(
                    NAME,
                    "QEMU is not installed",
                    "add the bundle `qemu` or its packages to the profile",
                ),
                None | Some(Ok(())) => pass(NAME, "/dev/kvm opens"),
                // VMs never run unconfined.
                Some(Err(error)) => fail(NAME, error, remedy),
            };
        }
        Err(error) => error,
    };
    // Another overlay may load KVM if the profile only selects devices.
    let status = if is_host { CheckStatus::Fail } else { CheckStatus::Warn };
    let cpu = system::cpu(tree);
    let remedy = "enable Intel VT-x or AMD SVM in the firmware settings";
    let texts = ["kvm: disabled by bios", "vmx (outside txt) disabled by bios", "svm disabled"];
    if let Some(line) = find_line(tree, &texts) {
        return result(
            NAME,
            status,
            format!("virtualization is disabled by BIOS ({line})"),
            remedy,
        );
    }
    let arm = tree.read("/proc/cpuinfo").is_some_and(|text| text.contains("CPU implementer"));
    if cpu.virtualization.is_empty() && !arm {
        let detail = "the processor has neither vmx nor svm: disabled by BIOS, or unsupported";
        return result(NAME, status, detail, remedy);
    }
    let remedy =
        "load KVM: add the overlay `kvm-host`, or one with the module kvm_intel or kvm_amd";
    result(NAME, status, format!("cannot open /dev/kvm: {error}"), remedy)
}

/// Checks that the IOMMU is active, or reports the cause.
pub fn iommu(context: &Context) -> Check {
    const NAME: &str = "iommu";
    let Context { tree, config, .. } = context;
    if config.vfio.is_empty() {
        return skip(NAME, SKIPPED);
    }
    let groups = tree.list("/sys/kernel/iommu_groups").len();
    if groups > 0 {
        return pass(NAME, format!("active, {groups} IOMMU groups"));
    }
    let no_groups =
        |cause: String, remedy: &str| fail(NAME, format!("no IOMMU groups: {cause}"), remedy);
    let line = tree.read("/proc/cmdline").unwrap_or_default();
    let has = |arg: &&&str| line.split_ascii_whitespace().any(|word| word == **arg);
    if let Some(arg) = DISABLING_ARGUMENTS.iter().find(has) {
        let remedy = "remove the argument from kernel_args of the profile";
        return no_groups(format!("the kernel argument {arg} disables the IOMMU"), remedy);
    }
    // Without ACPI tables the kernel arguments have no effect, so check tables first.
    let folder = "/sys/firmware/acpi/tables";
    let table = TABLES.iter().find(|table| tree.has(&format!("{folder}/{table}")));
    let needs_argument =
        table.is_none_or(|table| *table == "DMAR") && system::cpu(tree).vendor == "GenuineIntel";
    if needs_argument && !has(&&"intel_iommu=on") {
        let remedy = "reboot the node: meshd adds the argument for profiles with vfio.devices";
        return no_groups("the kernel argument intel_iommu=on is missing".to_owned(), remedy);
    }
    let remedy = "enable Intel VT-d, AMD IOMMU or the SMMU in the firmware settings";
    let texts = [
        "dmar: disabled",
        "iommu disabled",
        "iommu: disabled",
        "amd-vi: disabled",
        "disabled by bios",
    ];
    let kernel_message =
        find_line(tree, &texts).map(|line| format!("; kernel log: {line}")).unwrap_or_default();
    let cause = match table {
        Some(table) => {
            format!("the firmware has the table {table}, but the kernel enabled no IOMMU")
        }
        None => "disabled by BIOS or unsupported: no table DMAR, IVRS or IORT".to_owned(),
    };
    no_groups(cause + &kernel_message, remedy)
}

/// Checks that the modules for device assignment are loaded.
pub fn vfio(context: &Context) -> Check {
    const NAME: &str = "vfio";
    let Context { tree, config, .. } = context;
    if config.vfio.is_empty() {
        return skip(NAME, SKIPPED);
    }
    let missing: Vec<&str> =
        MODULES.into_iter().filter(|module| !tree.has(&format!("/sys/module/{module}"))).collect();
    if missing.is_empty() {
        return pass(NAME, "modules loaded");
    }
    let detail = format!("modules not loaded: {}", missing.join(", "));
    fail(NAME, detail, "add the overlay `vfio` to the profile, and drivers/vfio to the image")
}

/// Checks that every unit is ready.
pub fn units(context: &Context) -> Check {
    const NAME: &str = "units";
    let Context { units, config, .. } = context;
    if config.vfio.is_empty() {
        return skip(NAME, SKIPPED);
    }
    let ready = units_ready(units);
    let usable = |state| matches!(state, UnitState::Ready | UnitState::InUse);
    let mut unusable = units.iter().filter(|unit| !usable(unit.state));
    let named: Vec<String> = unusable
        .by_ref()
        .take(MAX_NAMED)
        .map(|unit| format!("{} is {}: {}", unit.name(), unit.state.as_str(), unit.reason))
        .collect();
    if units.is_empty() {
        let selectors: Vec<String> = config.vfio.iter().map(ToString::to_string).collect();
        let detail = format!("{ready}; no device of this machine matches {}", selectors.join(", "));
        return fail(NAME, detail, "compare vfio.devices of the profile with `meshd node show`");
    }
    if named.is_empty() {
        return pass(NAME, ready);
    }
    let rest = unusable.count();
    let more = if rest > 0 { format!("; and {rest} more") } else { String::new() };
    let detail = format!("{ready}; {}{more}", named.join("; "));
    // One failed GPU of eight must not cost the other seven: only ready units are assigned.
    let any_usable = units.iter().any(|unit| usable(unit.state));
    let status = if any_usable { CheckStatus::Warn } else { CheckStatus::Fail };
    result(
        NAME,
        status,
        detail,
        "run `mesh-agent vfio bind` on the node; docs/overlays.md explains each state",
    )
}
