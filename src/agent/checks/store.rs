//! Checks the free space of the store of VMs.

use super::{Context, runs_machines, unproven, verdict};
use crate::vm::Space;
use meshd_proto::{Check, CheckStatus, StoreKind};

/// Bytes of a GB, as disks are sold.
const GB: u64 = 1_000_000_000;
/// Free GB of a store on a disk below which is a warning.
const WARN_GB: u64 = 50;
/// Free GB of a store on a disk below which is a failure.
const FAIL_GB: u64 = 20;

/// Checks the free space of the store of virtual machines.
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
    // A store in memory has a threshold only if the profile sets one.
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
