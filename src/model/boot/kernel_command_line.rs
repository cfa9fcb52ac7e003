//! The kernel command line: the only place that forms it, and its validation.
//!
//! The words, in order: those of the loader, the overlay, those of the image kind, the defaults of
//! meshd and of the architecture, the consoles, those of the profile. The last two groups are part
//! of the generation ([`profile_args`]).

use super::boot_plan::{BootContents, BootPlan};
use crate::image_kind::OVERLAY_PATH;
use meshd_config::{Delivery, Profile, Site, arg_key, breaks_boot, is_own_arg};
use meshd_types::Architecture;

/// Seconds from a kernel panic to the next boot, as an argument; a profile cannot replace it, an
/// order for one boot can.
const PANIC: &str = "panic=10";

/// UDP port of the central node for kernel messages, as an argument that mesh-init and stage 1
/// read.
const NETCONSOLE: &str = "meshd.netconsole";

/// Returns the arguments of site and profile, which are part of the generation. An argument of the
/// profile replaces a default with the same key.
pub fn profile_args(site: &Site, profile: &Profile, architecture: Architecture) -> Vec<String> {
    let facts = architecture.facts();
    let mut defaults = vec![PANIC];
    if !profile.vfio.is_empty() {
        defaults.extend(facts.vfio_args);
    }
    defaults
        .retain(|default| profile.kernel_args.iter().all(|arg| arg_key(arg) != arg_key(default)));
    let mut args: Vec<String> = defaults.into_iter().map(str::to_owned).collect();
    let console = |console: &str| format!("console={console}");
    match &site.boot.consoles {
        Some(consoles) => args.extend(consoles.iter().map(|name| console(name))),
        None => args.extend(facts.consoles.iter().map(|name| console(name))),
    }
    // mesh-init or stage 1 gives it to the kernel, because only the node knows its interface.
    args.extend(site.boot.netconsole_port.map(|port| format!("{NETCONSOLE}={port}")));
    args.extend(profile.kernel_args.iter().cloned());
    args
}

/// Returns the complete command line. `loader_args` are the words that the loader adds. With
/// `delivery = "url"` the line contains the capability of the overlay.
pub(super) fn command_line(plan: &BootPlan, loader_args: &[String]) -> String {
    let overlay = match plan.public.delivery {
        Delivery::Initrd => OVERLAY_PATH,
        // The capability is exposed only to the script of this node.
        Delivery::Url => plan.secret.overlay.expose(),
    };
    let overlay = plan.public.kind.overlay_arg(overlay);
    let words = loader_args.iter().chain(&overlay).chain(&plan.public.args);
    words.map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns the kernel command line of a boot by kexec. The names of initrds are missing: only the
/// EFI stub reads them, and kexec does not run it.
pub fn kexec_command_line(plan: &BootPlan) -> String {
    command_line(plan, &[])
}

/// Checks the arguments of site and profile. The error names the argument and why it is refused.
pub(super) fn check_profile_args(contents: &BootContents) -> Result<(), String> {
    let name = &contents.profile;
    // An operator may change `panic` for one boot.
    let is_reserved = |arg: &str| is_own_arg(arg) && arg_key(arg) != arg_key(PANIC);
    if let Some(arg) = contents.args.iter().find(|arg| is_reserved(arg) || breaks_boot(arg)) {
        let key = arg_key(arg);
        return Err(format!(
            "profile {name} sets the kernel argument {key}, which the boot chain needs itself"
        ));
    }
    let guarded = contents.architecture.facts().guarded_args;
    let changes =
        |arg: &str| guarded.iter().any(|guard| arg_key(arg) == arg_key(guard) && arg != *guard);
    if let Some(arg) = contents.args.iter().find(|arg| changes(arg)) {
        return Err(format!(
            "profile {name} sets {arg}, with which devices pass the IOMMU by and reach all memory"
        ));
    }
    Ok(())
}

/// Checks the length of the complete command line in bytes, with what the loader puts before it.
pub(super) fn check_length(contents: &BootContents, length: usize) -> Result<(), String> {
    let limit = contents.architecture.facts().max_command_line;
    if length > limit {
        return Err(format!(
            "the kernel command line of profile {} is longer than {limit} bytes",
            contents.profile
        ));
    }
    Ok(())
}
