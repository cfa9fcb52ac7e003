//! Kernel arguments that a role may order for one boot.
//!
//! An arbitrary argument may give root on the node: `ssh_key=`, `init=` and `apkovl=` do, and so
//! does the removal of a security setting. An operator therefore has a list, and an admin may set
//! all.

use meshd_config::Edit;
use meshd_trust::Role;
use meshd_types::failpoint;

/// Names of arguments that an operator may add or remove: diagnostics, and workarounds for faulty
/// hardware.
const OPERATOR_ARGS: [&str; 33] = [
    "acpi",
    "acpi_osi",
    "amd_iommu",
    "amd_pstate",
    "clocksource",
    "console",
    "cpuidle.off",
    "debug",
    "default_hugepagesz",
    "earlycon",
    "earlyprintk",
    "hpet",
    "hugepages",
    "hugepagesz",
    "ignore_loglevel",
    "initcall_debug",
    "intel_idle.max_cstate",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "log_buf_len",
    "loglevel",
    "maxcpus",
    "nmi_watchdog",
    "nomodeset",
    "nosmt",
    "panic",
    "pci",
    "pcie_aspm",
    "processor.max_cstate",
    "quiet",
    "reboot",
    "tsc",
];

/// The first argument that the role may not order.
pub(crate) fn first_forbidden_arg(role: Role, args: &[String]) -> Option<&str> {
    if role >= Role::Admin || !failpoint::defends("boot-once-arguments") {
        return None;
    }
    let allowed = |arg: &String| {
        let (Ok(Edit::Add(plain)) | Ok(Edit::Remove(plain))) = arg.parse::<Edit<String>>();
        OPERATOR_ARGS.contains(&plain.split('=').next().unwrap_or_default())
    };
    args.iter().find(|arg| !allowed(arg)).map(String::as_str)
}

/// The allowed names, for a hint.
pub(crate) fn operator_args() -> String {
    OPERATOR_ARGS.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_argument_that_grants_root_needs_admin_role() {
        let list = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        for arg in [
            "ssh_key=http://evil/key",
            "init=/bin/sh",
            "rdinit=/bin/sh",
            "single",
            "apkovl=http://evil/x",
            "alpine_repo=http://evil/",
            "modules=x",
            "-lockdown=integrity",
            "mitigations=off",
            "quiet2",
            "console.x=1",
            "=quiet",
        ] {
            assert_eq!(first_forbidden_arg(Role::Operator, &list(&["quiet", arg])), Some(arg));
            assert_eq!(first_forbidden_arg(Role::Admin, &list(&[arg])), None);
        }
        assert_eq!(
            first_forbidden_arg(
                Role::Operator,
                &list(&["-quiet", "console=ttyS0,115200", "debug", "pci=nomsi"])
            ),
            None
        );
    }

    #[test]
    fn operator_argument_list_is_sorted_and_unique() {
        assert!(OPERATOR_ARGS.is_sorted_by(|a, b| a < b));
    }
}
