//! Processes that have device nodes open, from the links in /proc, as lsof reads them.

use super::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Arguments with which the agent runs blkid. A process with these arguments only probes a disk.
pub const BLKID_ARGUMENTS: [&str; 3] = ["-p", "-o", "export"];
/// Arguments with which the agent runs nvidia-smi. A process with these arguments holds no GPU.
pub const GPU_QUERY_ARGUMENTS: [&str; 2] =
    ["--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits"];
/// Maximum depth of the folders below a PCI function: a disk behind a USB hub is ten folders deep.
const MAX_DEPTH: u32 = 12;
/// Maximum number of folders below one function.
const MAX_FOLDERS: u32 = 4096;
/// Name of the agent, which opens disks and units only briefly.
const AGENT: &str = "mesh-agent";
/// Maximum number of reported holders of one device node.
const MAX_NAMED: usize = 3;

/// Returns the device nodes of one function: `/dev/dri/card0`, `/dev/nvme0n1`,
/// `/dev/infiniband/uverbs0`.
pub fn nodes(tree: &Tree, function: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut remaining = MAX_FOLDERS;
    walk(tree, &format!("/sys/bus/pci/devices/{function}"), MAX_DEPTH, &mut remaining, &mut found);
    // NVIDIA's driver makes device nodes that sysfs does not list.
    let information =
        tree.read(&format!("/proc/driver/nvidia/gpus/{function}/information")).unwrap_or_default();
    let minor = information.lines().find_map(|line| line.strip_prefix("Device Minor:"));
    found.extend(minor.map(|minor| format!("/dev/nvidia{}", minor.trim())));
    found
}

fn walk(tree: &Tree, folder: &str, depth: u32, remaining: &mut u32, found: &mut BTreeSet<String>) {
    if depth == 0 || *remaining == 0 {
        return;
    }
    *remaining -= 1;
    let uevent = tree.read(&format!("{folder}/uevent")).unwrap_or_default();
    found.extend(
        uevent
            .lines()
            .find_map(|line| line.strip_prefix("DEVNAME="))
            .map(|name| format!("/dev/{name}")),
    );
    for name in tree.folders(folder) {
        walk(tree, &format!("{folder}/{name}"), depth - 1, remaining, found);
    }
}

/// Returns the processes that have these device nodes open, such as `qemu-system-x86 (4711)`, by
/// device node.
pub fn find(tree: &Tree, nodes: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    if nodes.is_empty() {
        return BTreeMap::new();
    }
    for process in tree.processes() {
        if tree.text(&format!("/proc/{process}/comm")).as_deref() == Some(AGENT) {
            continue;
        }
        let line = tree.read(&format!("/proc/{process}/cmdline")).unwrap_or_default();
        if is_probe(&line) {
            continue;
        }
        for descriptor in tree.list(&format!("/proc/{process}/fd")) {
            let target = tree.target(&format!("/proc/{process}/fd/{descriptor}"));
            if let Some(node) = target.filter(|target| nodes.contains(target)) {
                found.entry(node).or_default().insert(process);
            }
        }
    }
    let name = |process: u32| {
        let name =
            tree.text(&format!("/proc/{process}/comm")).unwrap_or_else(|| "process".to_owned());
        format!("{name} ({process})")
    };
    let names = |processes: BTreeSet<u32>| {
        processes.into_iter().take(MAX_NAMED).map(name).collect::<Vec<_>>().join(", ")
    };
    found.into_iter().map(|(node, processes)| (node, names(processes))).collect()
}

/// Returns true for the command line of the agent's blkid or nvidia-smi. Pure.
fn is_probe(cmdline: &str) -> bool {
    let has = |arguments: &[&str]| {
        let joined: String = arguments.iter().map(|argument| format!("\0{argument}")).collect();
        cmdline.contains(&joined)
    };
    has(&BLKID_ARGUMENTS) || has(&GPU_QUERY_ARGUMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_of_the_agent_is_no_holder() {
        assert!(is_probe("/opt/lib/ld.so\0--argv0\0blkid\0-p\0-o\0export\0/dev/sda\0"));
        let query = GPU_QUERY_ARGUMENTS.join("\0");
        assert!(is_probe(&format!("/usr/bin/nvidia-smi\0{query}\0")));
        assert!(!is_probe("/usr/bin/nvidia-smi\0--loop=1\0"));
        assert!(!is_probe("qemu-system-x86_64\0-o\0/dev/sda\0") && !is_probe(""));
    }
}
