//! Checks the free space of the store of VMs.

use super::{Context, runs_machines, unproven, verdict};
use crate::vm::Space;
use meshd_proto::{Check, CheckStatus, StoreKind};

/// Bytes of a GB, as disks are sold.
const GB: u64 = 1_000_000_000;
/// Less free than this is a warning, in GB; this and the next for a store that is on a disk.
const WARN_GB: u64 = 50;
/// Less free than this is a failure, in GB.
const FAIL_GB: u64 = 20;

/// The store of virtual machines has room.
pub fn store(context: &Context<'_>) -> Check {
    const NAME: &str = "store";
    const REMEDY: &str = "release virtual machines that are not needed, or mount a larger disk there";
    if !runs_machines(context.config) {
        return verdict(NAME, CheckStatus::Skip, "the profile runs no virtual machines", "");
    }
    let place = context.vms.display();
    let Some(Space { kind, free, .. }) = context.probe.space(context.vms) else {
        return unproven(NAME, format!("how much is free in {place} cannot be told"), "is it mounted?");
    };
    // How large memory is is for the profile to say, or for nobody.
    let of_disk = |gb: u64| (kind == StoreKind::Disk).then_some(gb);
    let thresholds = &context.config.checks.thresholds;
    let (warn, fail) = (thresholds.store_warn_gb.or(of_disk(WARN_GB)), thresholds.store_fail_gb.or(of_disk(FAIL_GB)));
    let kind = if kind == StoreKind::Memory { "memory" } else { "disk" };
    let detail = format!("{}.{} GB free in {place} ({kind})", free / GB, free % GB / (GB / 10));
    let below = |least: Option<u64>| least.filter(|gb| free < gb.saturating_mul(GB));
    if let Some(least) = below(fail) {
        return verdict(NAME, CheckStatus::Fail, format!("{detail}; at least {least} GB are wanted"), REMEDY);
    }
    if let Some(least) = below(warn) {
        return verdict(NAME, CheckStatus::Warn, format!("{detail}; {least} GB would be well"), REMEDY);
    }
    verdict(NAME, CheckStatus::Pass, detail, "")
}
