//! Processes that have device nodes open, from the links in /proc, like lsof.

use super::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Arguments of blkid as the agent runs it: a process that has them only looks at a disk.
pub const PROBE: [&str; 3] = ["-p", "-o", "export"];
/// How deep the devices below a PCI function lie: a disk behind a USB hub takes ten folders.
const MAX_DEPTH: u32 = 12;
/// Maximum number of folders that are read below one function.
const MAX_FOLDERS: u32 = 4096;
/// This program: it opens disks and units only briefly.
const AGENT: &str = "mesh-agent";
/// Maximum number of reported holders of one device node.
const MAX_NAMED: usize = 3;

/// Device nodes of one function: `/dev/dri/card0`, `/dev/nvme0n1`, `/dev/infiniband/uverbs0`.
pub fn nodes(tree: &Tree, function: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = MAX_FOLDERS;
    walk(tree, &format!("/sys/bus/pci/devices/{function}"), MAX_DEPTH, &mut left, &mut found);
    // NVIDIA's driver makes device nodes that sysfs does not list.
    let information = tree.read(&format!("/proc/driver/nvidia/gpus/{function}/information")).unwrap_or_default();
    let minor = information.lines().find_map(|line| line.strip_prefix("Device Minor:"));
    found.extend(minor.map(|minor| format!("/dev/nvidia{}", minor.trim())));
    found
}

fn walk(tree: &Tree, folder: &str, depth: u32, left: &mut u32, found: &mut BTreeSet<String>) {
    if depth == 0 || *left == 0 {
        return;
    }
    *left -= 1;
    let uevent = tree.read(&format!("{folder}/uevent")).unwrap_or_default();
    found.extend(uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")).map(|name| format!("/dev/{name}")));
    for name in tree.folders(folder) {
        walk(tree, &format!("{folder}/{name}"), depth - 1, left, found);
    }
}

/// Processes that have these device nodes open, such as `qemu-system-x86 (4711)`, by device node.
pub fn of(tree: &Tree, wanted: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    let processes = tree.list("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    for process in if wanted.is_empty() { Vec::new() } else { processes.collect() } {
        if tree.text(&format!("/proc/{process}/comm")).as_deref() == Some(AGENT) {
            continue;
        }
        let line = tree.read(&format!("/proc/{process}/cmdline")).unwrap_or_default();
        if is_probe(&line) {
            continue;
        }
        for descriptor in tree.list(&format!("/proc/{process}/fd")) {
            let target = tree.target(&format!("/proc/{process}/fd/{descriptor}"));
            if let Some(node) = target.filter(|target| wanted.contains(target)) {
                found.entry(node).or_default().insert(process);
            }
        }
    }
    let name = |process: u32| {
        let name = tree.text(&format!("/proc/{process}/comm")).unwrap_or_else(|| "process".to_owned());
        format!("{name} ({process})")
    };
    let names =
        |processes: BTreeSet<u32>| processes.into_iter().take(MAX_NAMED).map(name).collect::<Vec<_>>().join(", ");
    found.into_iter().map(|(node, processes)| (node, names(processes))).collect()
}

/// True for the command line by which the agent probes a disk. Pure.
fn is_probe(cmdline: &str) -> bool {
    cmdline.contains(&PROBE.map(|argument| format!("\0{argument}")).concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_only_looks_holds_nothing() {
        assert!(is_probe("/opt/lib/ld.so\0--argv0\0blkid\0-p\0-o\0export\0/dev/sda\0"));
        assert!(!is_probe("qemu-system-x86_64\0-o\0/dev/sda\0") && !is_probe(""));
    }
}
