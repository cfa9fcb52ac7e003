//! Whole disks: identities, location, content, and whether a disk may be assigned. Kernel names change with each boot, so a disk is named
//! by its WWID or serial number. `content` determines what a disk holds.
//!
//! The boot disk, disks in use, unreadable disks and disks that the profile marks as data are never assigned. Every other disk is a
//! candidate; its content is reported. Each disk is read in its own thread with a deadline, so a disk that hangs blocks only itself.

mod content;

use crate::system::{
    Tree,
    disk_use::{self, in_use},
    functions_of_disk, holders, source,
};
use meshd_proto::{DiskFacts, MAX_DEVICES};
use meshd_types::fail;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Sector size of `/sys/block/*/size`, whatever the disk's own.
const SECTOR: u64 = 512;
/// Name prefixes of block devices that are no disks.
const NOT_DISKS: [&str; 9] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "mtdblock"];
/// Maximum number of reported signatures.
const MAX_SIGNATURES: usize = 16;

/// Returns true if a disk has the same identity and size as in an earlier survey.
pub fn is_still(tree: &Tree, seen: &DiskFacts) -> bool {
    let now = disk(tree, seen.name.clone());
    now.names().eq(seen.names()) && now.bytes == seen.bytes
}

/// Returns the user of a disk or a part of it: mounts, swap, RAID, processes. `None` if idle.
pub fn busy(tree: &Tree, name: &str) -> Option<String> {
    let used = in_use(tree).into_iter().find(|(disk, _)| disk == name).map(|(_, why)| why);
    let nodes: BTreeSet<String> = disk_use::nodes(tree, name).collect();
    used.or_else(|| {
        holders::of(tree, &nodes).into_iter().next().map(|(node, holder)| format!("{node} is open in {holder}"))
    })
}

/// Returns the whole disks by kernel name, each with the reason against its assignment. `data` are identities that the profile marks as
/// data.
pub fn survey(tree: &Tree, data: &[String]) -> Vec<DiskFacts> {
    let names = tree.list("/sys/block").into_iter().filter(|name| is_disk(name));
    let (mut disks, mut unknown) = (Vec::new(), BTreeMap::new());
    for (found, content) in look(tree, names.take(MAX_DEVICES)) {
        if let Err(why) = content {
            unknown.insert(found.name.clone(), why);
        }
        disks.push(found);
    }
    let used: BTreeMap<String, String> = in_use(tree).into_iter().collect();
    let nodes: BTreeSet<String> = disks.iter().flat_map(|disk| disk_use::nodes(tree, &disk.name)).collect();
    let open = holders::of(tree, &nodes);
    let twins = twins(&disks);
    for disk in &mut disks {
        let open = disk_use::nodes(tree, &disk.name).find_map(|node| {
            let holder = open.get(&node)?;
            Some(format!("{node} is open in {holder}"))
        });
        let unknown = unknown.get(&disk.name).cloned();
        let seen = DiskUse { data, twins: &twins, used: used.get(&disk.name).cloned(), open, unknown };
        disk.blocked = judge(disk, seen);
    }
    disks
}

/// Reads identity and content of each disk, or why the content is unknown. Waits no longer than one source may take.
fn look(tree: &Tree, names: impl Iterator<Item = String>) -> Vec<(DiskFacts, Result<(), String>)> {
    let deadline = Instant::now() + source::DEADLINE;
    let reads: Vec<_> = names
        .map(|name| {
            let (own, of) = (name.clone(), name.clone());
            let facts = source::read(tree, &format!("facts of disk {name}"), move |tree| disk(tree, own));
            let content = source::read(tree, &format!("content of disk {name}"), move |tree| contents(tree, &of));
            (name, facts, content)
        })
        .collect();
    let look = |(name, facts, content): (String, source::DeadlineRead<DiskFacts>, source::DeadlineRead<_>)| {
        let unnamed = DiskFacts { name, ..DiskFacts::default() };
        let (mut facts, silent) = match facts.by(deadline) {
            Ok(facts) => (facts, None),
            Err(late) => (unnamed, Some(late.to_string())),
        };
        let content: Result<Vec<String>, String> = content.by(deadline).unwrap_or_else(|late| Err(late.to_string()));
        let known = content.map(|signatures| facts.signatures = signatures);
        (facts, silent.map_or(known, Err))
    };
    reads.into_iter().map(look).collect()
}

/// Reads the content of a disk and its partitions.
fn contents(tree: &Tree, name: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for node in disk_use::nodes(tree, name) {
        let of = node.trim_start_matches("/dev/");
        let held = if of == name { content::of_disk(tree, &node)? } else { content::of_partition(tree, &node) };
        found.extend(held.into_iter().map(|what| format!("{what} on {of}")));
    }
    found.truncate(MAX_SIGNATURES);
    Ok(found)
}

/// Findings about a disk.
struct DiskUse<'a> {
    data: &'a [String],
    /// Identities that several disks share.
    twins: &'a BTreeSet<String>,
    used: Option<String>,
    open: Option<String>,
    /// Why the content is unknown.
    unknown: Option<String>,
}

/// Returns why a disk must not be assigned; `None` for a candidate. Pure.
fn judge(disk: &DiskFacts, seen: DiskUse<'_>) -> Option<String> {
    let marked = || disk.names().find(|name| seen.data.iter().any(|marked| marked == name));
    let twin = || disk.names().find(|name| seen.twins.contains(*name));
    seen.used
        .or(seen.open)
        .or_else(|| marked().map(|name| format!("the profile marks {name} as data")))
        .or_else(|| twin().map(|name| format!("another disk is called {name}, too")))
        .or_else(|| disk.identity().is_none().then(|| "it has neither WWN nor serial number".to_owned()))
        .or_else(|| (disk.bytes == 0).then(|| "it has no medium".to_owned()))
        .or_else(|| seen.unknown.filter(|_| fail::defends("disk-unreadable")))
}

fn twins(disks: &[DiskFacts]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    // A disk with equal WWID and serial number is not its own twin.
    let names = disks.iter().flat_map(|disk| disk.names().collect::<BTreeSet<&str>>());
    names.filter(|name| !seen.insert(*name)).map(str::to_owned).collect()
}

fn is_disk(name: &str) -> bool {
    !NOT_DISKS.iter().any(|prefix| name.starts_with(prefix)) && !is_nvme_path(name)
}

/// With native NVMe multipath, `nvme0c1n1` is one path to `nvme0n1`.
fn is_nvme_path(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("nvme") else { return false };
    rest.split_once('n').is_some_and(|(controller, _)| controller.contains('c'))
}

fn disk(tree: &Tree, name: String) -> DiskFacts {
    let file = |path: &str| format!("/sys/block/{name}/{path}");
    let first = |paths: [&str; 2]| paths.iter().find_map(|path| tree.text(&file(path)));
    let sectors: u64 = tree.number(&file("size")).unwrap_or(0);
    let function = functions_of_disk(tree, &name).into_iter().next();
    let numa = |function: &String| tree.number(&format!("/sys/bus/pci/devices/{function}/numa_node"));
    DiskFacts {
        wwid: first(["wwid", "device/wwid"]),
        serial: first(["device/serial", "serial"]),
        model: tree.text(&file("device/model")),
        bytes: sectors.saturating_mul(SECTOR),
        rotational: tree.number(&file("queue/rotational")) == Some(1u8),
        numa_node: function.as_ref().and_then(numa),
        function,
        signatures: Vec::new(),
        blocked: None,
        name,
    }
}

#[cfg(test)]
mod tests;
