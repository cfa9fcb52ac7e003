//! Is there room for what virtual machines write?

use super::{Context, runs_machines, unproven, verdict};
use crate::{
    agent::facts::Tree,
    wire::{Check, CheckStatus},
};

/// Where virtual machines and the images that they stand on are kept.
pub const STORE: &str = "/var/lib/machines";
/// Bytes of a GB, as disks are sold.
const GB: u64 = 1_000_000_000;
/// Less free than this is a warning, in GB; this and the next for a store that is on a disk.
const WARN_GB: u64 = 50;
/// Less free than this is a failure, in GB.
const FAIL_GB: u64 = 20;
/// File systems that are memory: how large they are is for the profile to say, or for nobody.
const MEMORY: [&str; 4] = ["tmpfs", "ramfs", "rootfs", "overlay"];

/// The store of virtual machines has room.
pub fn store(context: &Context<'_>) -> Check {
    const NAME: &str = "store";
    const REMEDY: &str = "release virtual machines that are not needed, or mount a larger disk there";
    if !runs_machines(context.config) {
        return verdict(NAME, CheckStatus::Skip, "the profile runs no virtual machines", "");
    }
    let kind = file_system(context.tree, STORE);
    let Some(free) = context.probe.free(STORE) else {
        return unproven(NAME, format!("how much is free in {STORE} cannot be told"), "is it mounted?");
    };
    let of_disk = |gb: u64| (!MEMORY.contains(&kind.as_str())).then_some(gb);
    let thresholds = &context.config.checks.thresholds;
    let (warn, fail) = (thresholds.store_warn_gb.or(of_disk(WARN_GB)), thresholds.store_fail_gb.or(of_disk(FAIL_GB)));
    let detail = format!("{}.{} GB free in {STORE} ({kind})", free / GB, free % GB / (GB / 10));
    let below = |least: Option<u64>| least.filter(|gb| free < gb.saturating_mul(GB));
    if let Some(least) = below(fail) {
        return verdict(NAME, CheckStatus::Fail, format!("{detail}; at least {least} GB are wanted"), REMEDY);
    }
    if let Some(least) = below(warn) {
        return verdict(NAME, CheckStatus::Warn, format!("{detail}; {least} GB would be well"), REMEDY);
    }
    verdict(NAME, CheckStatus::Pass, detail, "")
}

/// The type of the file system that a path is on: the mount with the longest matching place, the last one of several.
fn file_system(tree: &Tree, path: &str) -> String {
    let mounts = tree.read("/proc/self/mountinfo").unwrap_or_default();
    let holds = |place: &str| {
        place == "/" || path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mount = |line: &'_ str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let kind = fields.iter().position(|field| *field == "-").and_then(|at| fields.get(at + 1))?;
        let place = fields.get(4).filter(|place| holds(place))?;
        Some((place.len(), (*kind).to_owned()))
    };
    let best = mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length);
    best.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind)
}
