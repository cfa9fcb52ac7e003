//! Users of a disk and its partitions: mounts, swap, RAID, LVM, device mapper.

use super::Tree;
use std::collections::BTreeMap;

/// Returns the disks that are mounted, used as swap, or part of RAID, LVM or a mapping, each with
/// the use.
pub fn in_use(tree: &Tree) -> Vec<(String, String)> {
    let used = used_nodes(tree);
    let disk_use = |disk: String| {
        let part_use = |(name, folder): (String, String)| {
            let number = tree.read(&format!("{folder}/dev")).unwrap_or_default();
            let direct = used.get(&number).or_else(|| used.get(&format!("/dev/{name}"))).cloned();
            let holder = || tree.list(&format!("{folder}/holders")).into_iter().next();
            let user = direct.or_else(|| holder().map(|holder| format!("is part of {holder}")))?;
            Some(format!("disk {name} {user}"))
        };
        let user = parts(tree, &disk).into_iter().find_map(part_use)?;
        Some((disk, user))
    };
    tree.list("/sys/block").into_iter().filter_map(disk_use).collect()
}

/// Returns the device nodes of a disk and its partitions.
pub fn nodes(tree: &Tree, disk: &str) -> impl Iterator<Item = String> + use<> {
    parts(tree, disk).into_iter().map(|(name, _)| format!("/dev/{name}"))
}

/// Returns a disk and its partitions, each with its sysfs folder.
fn parts(tree: &Tree, disk: &str) -> Vec<(String, String)> {
    let folder = format!("/sys/block/{disk}");
    let parts = tree
        .list(&folder)
        .into_iter()
        .filter(|name| tree.has(&format!("{folder}/{name}/partition")));
    let parts: Vec<(String, String)> =
        parts.map(|name| (name.clone(), format!("{folder}/{name}"))).collect();
    [(disk.to_owned(), folder)].into_iter().chain(parts).collect()
}

/// Returns the block devices that are mounted, used as swap, or behind a loop device, by number and
/// by name: some file systems have another device number.
fn used_nodes(tree: &Tree) -> BTreeMap<String, String> {
    let mut used = BTreeMap::new();
    let mounts = tree.read("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(number), Some(mount_point)) = (fields.get(2), fields.get(4)) else { continue };
        let user = format!("is mounted on {mount_point}");
        used.insert((*number).to_owned(), user.clone());
        let source = fields.iter().skip_while(|field| **field != "-").nth(2);
        if let Some(source) = source.filter(|source| source.starts_with("/dev/")) {
            used.insert((*source).to_owned(), user);
        }
    }
    let swaps = tree.read("/proc/swaps").unwrap_or_default();
    for node in swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next()) {
        used.insert(node.to_owned(), "is used as swap".to_owned());
    }
    // The kernel uses the backing file, so no process has it open.
    for name in tree.list("/sys/block").into_iter().filter(|name| name.starts_with("loop")) {
        if let Some(file) = tree.text(&format!("/sys/block/{name}/loop/backing_file")) {
            used.entry(file).or_insert_with(|| format!("is behind {name}"));
        }
    }
    used
}
