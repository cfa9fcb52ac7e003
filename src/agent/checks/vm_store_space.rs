//! Checks the free space of the store of VMs.

use super::{Context, NO_VMS, fail, pass, runs_vms, skip, unproven, warn};
use crate::vm::Space;
use meshd_proto::{Check, StoreKind};

/// Bytes of a GB, the unit of disk sizes.
const GB: u64 = 1_000_000_000;
/// Fewer free GB on a disk are a warning.
const WARN_GB: u64 = 50;
/// Fewer free GB on a disk are a failure.
const FAIL_GB: u64 = 20;

pub fn free_space(context: &Context) -> Check {
    const NAME: &str = "store";
    const REMEDY: &str = "release VMs, or mount a larger disk";
    if !runs_vms(&context.config) {
        return skip(NAME, NO_VMS);
    }
    let path = context.vms.display();
    let Some(Space { kind, free, .. }) = context.probe.space(&context.vms) else {
        return unproven(
            NAME,
            format!("cannot read the free space of {path}"),
            "mount the file system",
        );
    };
    // A store in memory has a threshold only if the profile sets one.
    let of_disk = |gb: u64| (kind == StoreKind::Disk).then_some(gb);
    let thresholds = &context.config.checks.thresholds;
    let kind = if kind == StoreKind::Memory { "memory" } else { "disk" };
    let detail = format!("{}.{} GB free in {path} ({kind})", free / GB, free % GB / (GB / 10));
    let below = |minimum: Option<u64>| minimum.filter(|gb| free < gb.saturating_mul(GB));
    if let Some(minimum) = below(thresholds.store_fail_gb.or(of_disk(FAIL_GB))) {
        return fail(NAME, format!("{detail}; the minimum is {minimum} GB"), REMEDY);
    }
    if let Some(minimum) = below(thresholds.store_warn_gb.or(of_disk(WARN_GB))) {
        return warn(NAME, format!("{detail}; {minimum} GB are recommended"), REMEDY);
    }
    pass(NAME, detail)
}
