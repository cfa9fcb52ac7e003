//! Facts for placement by the central node. They do not depend on the current VMs.

use super::{
    cpu_models::CpuModels,
    installed::{self, Programs},
    resources,
};
use crate::system::Tree;
use meshd_proto::{Hosting, HugepageFacts, NumaFacts};
use std::sync::LazyLock;

static MODELS: LazyLock<CpuModels> = LazyLock::new(CpuModels::default);

/// Maximum number of reported bridges.
const MAX_BRIDGES: usize = 64;

/// Reads the facts; unreadable facts are absent. CPU models are read from QEMU, which may be slow,
/// only if `with_models` is set.
pub fn hosting(tree: &Tree, with_models: bool) -> Hosting {
    let programs = Programs::find(tree);
    let uefi = installed::uefi(tree);
    let models = programs.qemu.as_ref().filter(|_| with_models).and_then(|qemu| MODELS.get(qemu));
    Hosting {
        qemu: programs.qemu.is_some(),
        qemu_img: programs.qemu_img.is_some(),
        uefi: uefi.iter().any(|firmware| !firmware.secure),
        secure_boot: uefi.iter().any(|firmware| firmware.secure),
        tpm: programs.swtpm.is_some(),
        bridges: resources::bridges(tree).into_iter().take(MAX_BRIDGES).collect(),
        numa: numa(tree),
        hugepages: hugepages(tree),
        cpu_models: models.map(|models| models.iter().cloned().collect()).unwrap_or_default(),
    }
}

fn numa(tree: &Tree) -> Vec<NumaFacts> {
    let memory = |id: u32| {
        let text =
            tree.read(&format!("/sys/devices/system/node/node{id}/meminfo")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.split_once("MemTotal:"));
        line.and_then(|(_, rest)| rest.trim().trim_end_matches("kB").trim().parse().ok())
            .unwrap_or(0)
    };
    let facts = |node: resources::NumaNode| NumaFacts {
        id: node.id,
        threads: u32::try_from(node.cpus.len()).unwrap_or(u32::MAX),
        memory_kib: memory(node.id),
    };
    resources::numa(tree).into_iter().map(facts).collect()
}

fn hugepages(tree: &Tree) -> Vec<HugepageFacts> {
    let pools =
        resources::hugepages(tree, "nr_hugepages").into_iter().filter(|pool| pool.count > 0);
    let facts = |pool: resources::HugePool| HugepageFacts {
        numa_node: pool.node,
        page_kib: pool.page / 1024,
        count: pool.count,
    };
    pools.map(facts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    #[test]
    fn facts_have_programs_firmware_bridges_and_numa_nodes() {
        let fake = FakeMachine::new("", &[]);
        let (tree, write) = (fake.tree.clone(), |path: &str, text: &str| fake.file(path, text));
        assert_eq!(hosting(&tree, false), Hosting::default(), "an empty file system");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7\n");
        let pool = |numa_node, page_kib, count| HugepageFacts { numa_node, page_kib, count };
        assert_eq!(
            hosting(&tree, false).hugepages,
            [pool(None, 2048, 7)],
            "a kernel without NUMA nodes"
        );
        for (node, cpus, kib) in [(0, "0-3,8-11", 33_000_000), (1, "4-7", 32_000_000)] {
            let folder = format!("sys/devices/system/node/node{node}");
            write(&format!("{folder}/cpulist"), &format!("{cpus}\n"));
            let meminfo =
                format!("Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        1 kB\n");
            write(&format!("{folder}/meminfo"), &meminfo);
            write(
                &format!("{folder}/hugepages/hugepages-1048576kB/nr_hugepages"),
                &format!("{}\n", node * 4),
            );
            write(&format!("{folder}/hugepages/hugepages-2048kB/nr_hugepages"), "512\n");
        }
        write("usr/bin/qemu-system-x86_64", "");
        write("usr/bin/swtpm", "");
        for part in ["CODE", "VARS"] {
            write(&format!("usr/share/OVMF/OVMF_{part}_4M.ms.fd"), "");
        }
        write("sys/class/net/mesh-nat0/bridge/stp_state", "0\n");
        let facts = hosting(&tree, false);
        assert!(facts.qemu && !facts.qemu_img && facts.tpm && facts.secure_boot && !facts.uefi);
        assert_eq!(facts.bridges, ["mesh-nat0"]);
        let numa: Vec<_> =
            facts.numa.iter().map(|node| (node.id, node.threads, node.memory_kib)).collect();
        assert_eq!(numa, [(0, 8, 33_000_000), (1, 4, 32_000_000)]);
        assert_eq!(
            facts.hugepages,
            [pool(Some(0), 2048, 512), pool(Some(1), 1_048_576, 4), pool(Some(1), 2048, 512)]
        );
    }
}
