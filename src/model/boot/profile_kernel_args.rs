//! Kernel arguments of site and profile, and their validation. `plan` and `script` add the arguments of the boot chain.

use super::{Refusal, ipxe_quote, plan::BootContents};
use meshd_config::{Profile, Site, arg_key, breaks_boot};
use meshd_types::Arch;

/// Maximum length of the command line on x86 (COMMAND_LINE_SIZE, 2048, without the final NUL). The kernel silently truncates the rest.
const MAX_COMMAND_LINE: usize = 2047;

/// Arguments that the boot chain sets.
const RESERVED: [&str; 8] = ["initrd", "apkovl", "alpine_repo", "modloop", "ip", "BOOTIF", "init", "rdinit"];

/// Returns the arguments of site and profile, which are part of the generation. An argument of the profile replaces a default with the
/// same key.
pub fn kernel_args(site: &Site, profile: &Profile, arch: Arch) -> Vec<String> {
    let mut defaults = vec!["panic=10"];
    if !profile.vfio.is_empty() {
        defaults.extend(iommu_args(arch));
    }
    defaults.retain(|default| profile.kernel_args.iter().all(|arg| arg_key(arg) != arg_key(default)));
    let mut args: Vec<String> = defaults.into_iter().map(str::to_owned).collect();
    args.extend(site.boot.consoles.iter().map(|console| format!("console={console}")));
    args.extend(profile.kernel_args.iter().cloned());
    args
}

/// Returns the arguments that VFIO needs on an architecture.
fn iommu_args(arch: Arch) -> &'static [&'static str] {
    match arch {
        // Both arguments are always set: AMD's IOMMU is on by default and ignores `intel_iommu`.
        Arch::X86_64 => &["intel_iommu=on", "iommu=pt"],
        // The argument is explicit, because a kernel may be built to bypass the SMMU by default.
        Arch::Aarch64 => &[ARM_TRANSLATED],
        Arch::Riscv64 => &[],
    }
}

/// Devices on ARM use the SMMU; with `=1` they could access all memory.
const ARM_TRANSLATED: &str = "iommu.passthrough=0";

pub(super) fn check_args(what: &BootContents, chain: &[String]) -> Result<(), Refusal> {
    let refuse = |detail: String| Err(Refusal::RenderFailed { detail });
    let name = &what.profile;
    if let Some(arg) = what.args.iter().find(|arg| RESERVED.contains(&arg_key(arg)) || breaks_boot(arg)) {
        let key = arg_key(arg);
        return refuse(format!("profile {name} sets the kernel argument {key}, which the boot chain needs itself"));
    }
    if let Some(arg) = chain.iter().chain(&what.args).find(|arg| ipxe_quote::ipxe_word(arg).is_none()) {
        return refuse(format!("the kernel argument {arg} of profile {name} cannot be written into an iPXE script"));
    }
    let passthrough = |arg: &&String| arg_key(arg) == arg_key(ARM_TRANSLATED) && *arg != ARM_TRANSLATED;
    if let (Arch::Aarch64, Some(arg)) = (what.parts.arch, what.args.iter().find(passthrough)) {
        return refuse(format!("profile {name} sets {arg}, with which devices pass the SMMU by and reach all memory"));
    }
    // `initrd=` and `apkovl=` are added later: 48 bytes, or about 100 if the overlay is delivered by URL.
    let length = chain.iter().chain(&what.args).map(|arg| arg.len() + 1).sum::<usize>() + 160;
    if length > MAX_COMMAND_LINE {
        return refuse(format!("the kernel command line of profile {name} is longer than {MAX_COMMAND_LINE} bytes"));
    }
    Ok(())
}
