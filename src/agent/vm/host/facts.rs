//! Facts for placement by the central node: only what does not depend on the current VMs.

use super::{
    cpu_models::CpuModels,
    installed::{self, Programs},
    resources,
};
use crate::system::Tree;
use meshd_proto::{Hosting, HugepageFacts, NumaFacts};
use std::sync::LazyLock;

/// What each QEMU said of the processors that it knows.
static MODELS: LazyLock<CpuModels> = LazyLock::new(CpuModels::default);

/// Most bridges that are told.
const MAX_BRIDGES: usize = 64;

/// Reads it; what cannot be read is not there. Only where `models` are wanted too, QEMU is asked for them; once, but it may take its time.
pub fn hosting(tree: &Tree, models: bool) -> Hosting {
    let programs = Programs::find(tree);
    let uefi = installed::uefi(tree);
    let known = programs.qemu.as_ref().filter(|_| models).and_then(|qemu| MODELS.of(qemu));
    Hosting {
        qemu: programs.qemu.is_some(),
        qemu_img: programs.qemu_img.is_some(),
        uefi: uefi.iter().any(|firmware| !firmware.secure),
        secure_boot: uefi.iter().any(|firmware| firmware.secure),
        tpm: programs.swtpm.is_some(),
        bridges: resources::bridges(tree).into_iter().take(MAX_BRIDGES).collect(),
        numa: numa(tree),
        hugepages: hugepages(tree),
        cpu_models: known.into_iter().flat_map(|known| known.iter().cloned().collect::<Vec<_>>()).collect(),
    }
}

fn numa(tree: &Tree) -> Vec<NumaFacts> {
    let memory = |id: u32| {
        let text = tree.read(&format!("/sys/devices/system/node/node{id}/meminfo")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.split_once("MemTotal:"));
        line.and_then(|(_, rest)| rest.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
    };
    let facts = |node: resources::NumaNode| NumaFacts {
        id: node.id,
        threads: u32::try_from(node.cpus.len()).unwrap_or(u32::MAX),
        memory_kib: memory(node.id),
    };
    resources::numa(tree).into_iter().map(facts).collect()
}

/// Those of each NUMA node; of the machine where it tells of no nodes.
fn hugepages(tree: &Tree) -> Vec<HugepageFacts> {
    let pools = |folder: String, numa_node: Option<u32>| {
        let pool = |name: String| {
            let page_kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = tree.number(&format!("{folder}/{name}/nr_hugepages"))?;
            (count > 0).then_some(HugepageFacts { numa_node, page_kib, count })
        };
        tree.list(&folder).into_iter().filter_map(pool).collect::<Vec<_>>()
    };
    let nodes = resources::node_numbers(tree);
    if nodes.is_empty() {
        return pools("/sys/kernel/mm/hugepages".to_owned(), None);
    }
    let of = |id: u32| pools(format!("/sys/devices/system/node/node{id}/hugepages"), Some(id));
    nodes.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_node_tells_its_programs_firmware_bridges_and_what_each_numa_node_has() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let tree = Tree::new(dir.path());
        assert_eq!(hosting(&tree, false), Hosting::default(), "an empty machine has nothing");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7\n");
        let pool = |numa_node, page_kib, count| HugepageFacts { numa_node, page_kib, count };
        assert_eq!(hosting(&tree, false).hugepages, [pool(None, 2048, 7)], "one that tells of no NUMA nodes");
        for (node, cpus, kib) in [(0, "0-3,8-11", 33_000_000), (1, "4-7", 32_000_000)] {
            let folder = format!("sys/devices/system/node/node{node}");
            write(&format!("{folder}/cpulist"), &format!("{cpus}\n"));
            let meminfo = format!("Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        1 kB\n");
            write(&format!("{folder}/meminfo"), &meminfo);
            write(&format!("{folder}/hugepages/hugepages-1048576kB/nr_hugepages"), &format!("{}\n", node * 4));
            write(&format!("{folder}/hugepages/hugepages-2048kB/nr_hugepages"), "512\n");
        }
        write("usr/bin/qemu-system-x86_64", "");
        write("usr/bin/swtpm", "");
        for part in ["CODE", "VARS"] {
            write(&format!("usr/share/OVMF/OVMF_{part}_4M.ms.fd"), "");
        }
        write("sys/class/net/mesh-nat0/bridge/stp_state", "0\n");
        let told = hosting(&tree, false);
        assert!(told.qemu && !told.qemu_img && told.tpm && told.secure_boot && !told.uefi);
        assert_eq!(told.bridges, ["mesh-nat0"]);
        let numa: Vec<_> = told.numa.iter().map(|node| (node.id, node.threads, node.memory_kib)).collect();
        assert_eq!(numa, [(0, 8, 33_000_000), (1, 4, 32_000_000)]);
        assert_eq!(told.hugepages, [pool(Some(0), 2048, 512), pool(Some(1), 1_048_576, 4), pool(Some(1), 2048, 512)]);
    }
}
