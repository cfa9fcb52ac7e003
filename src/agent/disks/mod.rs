//! Whole disks: identity, location, content, and whether a disk may be assigned. Kernel names
//! change with each boot, so WWID or serial number identify a disk.
//!
//! | module | content |
//! | --- | --- |
//! | `content` | signatures and data on a disk |
//! | `exclusive_disk` | a block device opened with O_EXCL: size, wipe |
//! | `ownership` | which disks an owner has and how far they are used |
//! | `wipe` | checks that a disk is idle, and wipes it |
//!
//! Disks in use, unreadable disks and disks that the profile marks as data are never assigned.
//! Every other disk is a candidate; its content is reported. Each disk is read in its own thread
//! with a deadline.

mod content;
pub mod exclusive_disk;
pub mod ownership;
pub mod wipe;

use crate::system::{
    Tree,
    disk_use::{self, in_use},
    functions_of_disk, holders, source,
};
use meshd_proto::{DiskFacts, MAX_DEVICES};
use meshd_types::failpoint;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Unit of `/sys/block/*/size` in bytes, independent of the disk's sector size.
const SECTOR: u64 = 512;
/// Name prefixes of block devices that are not disks.
const NOT_DISKS: [&str; 9] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "mtdblock"];
/// Maximum number of reported signatures.
const MAX_SIGNATURES: usize = 16;

/// Returns true if a disk has the same identity and size as in an earlier survey.
pub fn is_unchanged(tree: &Tree, earlier: &DiskFacts) -> bool {
    let now = disk(tree, earlier.name.clone());
    now.identities().eq(earlier.identities()) && now.bytes == earlier.bytes
}

/// Returns the use of a disk or a partition: mount, swap, RAID, process. `None` if idle.
pub fn current_use(tree: &Tree, name: &str) -> Option<String> {
    let used = in_use(tree).into_iter().find(|(disk, _)| disk == name).map(|(_, user)| user);
    let nodes: BTreeSet<String> = disk_use::nodes(tree, name).collect();
    used.or_else(|| {
        holders::find(tree, &nodes)
            .into_iter()
            .next()
            .map(|(node, holder)| format!("{node} is open in {holder}"))
    })
}

/// Returns the whole disks by kernel name, each with the reason against its assignment. `data` are
/// identities that the profile marks as data.
pub fn survey(tree: &Tree, data: &[String]) -> Vec<DiskFacts> {
    let names = tree.list("/sys/block").into_iter().filter(|name| is_disk(name));
    let (mut disks, errors): (Vec<DiskFacts>, Vec<Option<String>>) =
        read_disks(tree, names.take(MAX_DEVICES)).into_iter().unzip();
    let used: BTreeMap<String, String> = in_use(tree).into_iter().collect();
    let nodes: BTreeSet<String> =
        disks.iter().flat_map(|disk| disk_use::nodes(tree, &disk.name)).collect();
    let open = holders::find(tree, &nodes);
    let duplicates = duplicates(&disks);
    for (disk, read_error) in disks.iter_mut().zip(errors) {
        let is_open =
            |node: String| open.get(&node).map(|holder| format!("{node} is open in {holder}"));
        let marked = || disk.identities().find(|name| data.iter().any(|marked| marked == name));
        let duplicate = || disk.identities().find(|name| duplicates.contains(*name));
        disk.blocked = (used.get(&disk.name).cloned())
            .or_else(|| disk_use::nodes(tree, &disk.name).find_map(is_open))
            .or_else(|| marked().map(|name| format!("the profile marks {name} as data")))
            .or_else(|| {
                duplicate().map(|name| format!("another disk has the same identity {name}"))
            })
            .or_else(|| disk.identity().is_none().then(|| "no WWN and no serial number".to_owned()))
            .or_else(|| (disk.bytes == 0).then(|| "no medium".to_owned()))
            .or_else(|| read_error.filter(|_| failpoint::defends("disk-unreadable")));
    }
    disks
}

/// Reads identity and content of each disk, with the error of an unreadable one.
fn read_disks(
    tree: &Tree,
    names: impl Iterator<Item = String>,
) -> Vec<(DiskFacts, Option<String>)> {
    let deadline = Instant::now() + source::DEADLINE;
    let start = |name: String| {
        let disk_name = name.clone();
        let content_name = name.clone();
        let facts =
            source::read(tree, &format!("facts of disk {name}"), move |tree| disk(tree, disk_name));
        let content = source::read(tree, &format!("content of disk {name}"), move |tree| {
            contents(tree, &content_name)
        });
        (name, facts, content)
    };
    // Start all reads before waiting for the first one.
    let reads: Vec<_> = names.map(start).collect();
    let finish = |(name, facts, content): (
        String,
        source::DeadlineRead<DiskFacts>,
        source::DeadlineRead<_>,
    )| {
        let (mut facts, facts_error) = match facts.wait_until(deadline) {
            Ok(facts) => (facts, None),
            Err(error) => (DiskFacts { name, ..DiskFacts::default() }, Some(error.to_string())),
        };
        let content: Result<Vec<String>, String> =
            content.wait_until(deadline).unwrap_or_else(|error| Err(error.to_string()));
        let content_error = content.map(|signatures| facts.signatures = signatures).err();
        (facts, facts_error.or(content_error))
    };
    reads.into_iter().map(finish).collect()
}

/// Reads the content of a disk and its partitions.
fn contents(tree: &Tree, name: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for node in disk_use::nodes(tree, name) {
        let part = node.trim_start_matches("/dev/");
        let content = if part == name {
            content::of_disk(tree, &node)?
        } else {
            content::of_partition(tree, &node)
        };
        found.extend(content.into_iter().map(|signature| format!("{signature} on {part}")));
    }
    found.truncate(MAX_SIGNATURES);
    Ok(found)
}

/// Returns the identities that several disks share.
fn duplicates(disks: &[DiskFacts]) -> BTreeSet<String> {
    let mut earlier = BTreeSet::new();
    // A disk may have the same WWID and serial number.
    let names = disks.iter().flat_map(|disk| disk.identities().collect::<BTreeSet<&str>>());
    names.filter(|name| !earlier.insert(*name)).map(str::to_owned).collect()
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
    let numa =
        |function: &String| tree.number(&format!("/sys/bus/pci/devices/{function}/numa_node"));
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
