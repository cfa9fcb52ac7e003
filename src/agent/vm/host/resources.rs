//! The resources of this node that a VM may need, read from sysfs, procfs and the disks. Unreadable
//! resources are absent.

use super::{
    capacity,
    config::HostConfig,
    installed::{self, Programs, Uefi},
    memory::{self, Memory},
    seccomp_support,
};
use crate::{
    disks, files, networks,
    system::{self, Tree},
    vfio,
};
use meshd_proto::{
    DiskFacts, Subnet, UnitFacts,
    vm::{SlotDisk, VmSpec, qcow2},
};
use meshd_types::Digest;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::OpenOptions,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Timeout of a survey: a device that hangs must not block other VMs.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(30);
/// The kernel's vhost-net device.
pub const VHOST: &str = "/dev/vhost-net";
/// Maximum number of CPUs in a NUMA node.
const MAX_CPUS: usize = 4096;

#[derive(Clone, Debug, Default)]
pub struct HostResources {
    pub programs: Programs,
    /// CPU models of QEMU; `None` if QEMU does not list them.
    pub models: Option<Arc<BTreeSet<String>>>,
    pub kvm: bool,
    /// Why QEMU cannot be confined.
    pub unconfined: Option<String>,
    pub vhost: bool,
    pub threads: u32,
    pub memory: Memory,
    /// True if the store of layers is in memory.
    pub layers_in_memory: bool,
    /// Free huge pages, by NUMA node and size.
    pub hugepages: Vec<HugePool>,
    pub numa: Vec<NumaNode>,
    /// Units that the profile selects.
    pub units: Vec<UnitFacts>,
    /// Folder of device nodes.
    pub dev: PathBuf,
    pub disks: Vec<DiskFacts>,
    /// Disks that belong to slots, from the last order.
    pub slots: Vec<SlotDisk>,
    pub bridges: BTreeSet<String>,
    /// Subnet of the private network, if it is enabled.
    pub private: Option<Subnet>,
    pub uefi: Vec<Uefi>,
    /// Fetched volumes of the specification.
    pub images: BTreeMap<Digest, ImageFile>,
}

/// Huge pages of one size in one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePool {
    /// NUMA node; `None` if the kernel shows none.
    pub node: Option<u32>,
    /// Page size in bytes.
    pub page: u64,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    pub id: u32,
    pub cpus: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    pub path: PathBuf,
    /// First bytes, at most [`qcow2::HEADER`].
    pub header: Vec<u8>,
}

/// Reads the resources of the node in a blocking thread. A node that cannot be read within
/// [`SURVEY_TIMEOUT`] has no resources.
pub async fn survey(config: &Arc<HostConfig>, spec: &VmSpec) -> HostResources {
    let config = config.clone();
    let spec = spec.clone();
    let task = tokio::task::spawn_blocking(move || read(&config, &spec));
    let result =
        tokio::time::timeout(SURVEY_TIMEOUT, task).await.map_err(|elapsed| elapsed.to_string());
    result.and_then(|joined| joined.map_err(|error| error.to_string())).unwrap_or_else(|error| {
        tracing::error!(error, "cannot read the resources of the node");
        HostResources::default()
    })
}

/// Reads the resources that one specification needs.
fn read(config: &HostConfig, spec: &VmSpec) -> HostResources {
    let tree = Tree::new(&config.root);
    let programs = Programs::find(&tree);
    HostResources {
        models: programs.qemu.as_ref().and_then(|qemu| config.models.get(qemu)),
        kvm: OpenOptions::new().read(true).write(true).open(tree.path("/dev/kvm")).is_ok(),
        unconfined: programs.qemu.as_ref().and_then(|qemu| seccomp_support::check(qemu).err()),
        vhost: tree.has(VHOST),
        threads: system::cpu(&tree).threads,
        programs,
        memory: memory::read(&tree, &config.vms_dir),
        layers_in_memory: capacity::is_in_memory(&config.vms_dir),
        hugepages: hugepages(&tree, "free_hugepages"),
        numa: numa(&tree),
        units: if spec.units.is_empty() {
            Vec::new()
        } else {
            vfio::survey(&tree, &config.vfio, &vfio::LinuxKernel(&tree))
        },
        dev: tree.path("/dev"),
        disks: disks::survey(&tree, &config.data_disks),
        slots: Vec::new(),
        bridges: bridges(&tree),
        private: networks::private_network(&tree)
            .and_then(|spec| networks::choose_subnet(&tree, &spec)),
        uefi: installed::uefi(&tree),
        images: images(&config.volumes_dir, spec),
    }
}

/// Reads the huge pages of each NUMA node, or of the node as a whole if the kernel shows no NUMA
/// nodes. `counter` is the sysfs file with the number of pages.
pub fn hugepages(tree: &Tree, counter: &str) -> Vec<HugePool> {
    let pools = |folder: String, node: Option<u32>| {
        let pool = |name: String| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = tree.number(&format!("{folder}/{name}/{counter}"))?;
            Some(HugePool { node, page: kib.checked_mul(1024)?, count })
        };
        tree.list(&folder).into_iter().filter_map(pool).collect::<Vec<_>>()
    };
    let nodes = node_numbers(tree).into_iter();
    let by_node: Vec<HugePool> = nodes
        .flat_map(|id| pools(format!("/sys/devices/system/node/node{id}/hugepages"), Some(id)))
        .collect();
    if by_node.is_empty() { pools("/sys/kernel/mm/hugepages".to_owned(), None) } else { by_node }
}

fn node_numbers(tree: &Tree) -> Vec<u32> {
    let names = tree.list("/sys/devices/system/node");
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

pub fn numa(tree: &Tree) -> Vec<NumaNode> {
    let cpus = |id: u32| {
        tree.read(&format!("/sys/devices/system/node/node{id}/cpulist")).unwrap_or_default()
    };
    node_numbers(tree)
        .into_iter()
        .map(|id| NumaNode { id, cpus: parse_cpu_list(&cpus(id)) })
        .collect()
}

/// Parses a CPU list of sysfs: `0-3,8,10-11`.
pub fn parse_cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>())
        else {
            continue;
        };
        cpus.extend((first..=last).take(MAX_CPUS));
    }
    cpus.truncate(MAX_CPUS);
    cpus
}

pub fn bridges(tree: &Tree) -> BTreeSet<String> {
    let names = tree.list("/sys/class/net").into_iter();
    names.filter(|name| tree.has(&format!("/sys/class/net/{name}/bridge"))).collect()
}

fn images(folder: &Path, spec: &VmSpec) -> BTreeMap<Digest, ImageFile> {
    let read = |digest: Digest| {
        let path = folder.join(digest.to_string());
        Some((
            digest,
            ImageFile { header: files::read_beginning(&path, qcow2::HEADER).ok()?, path },
        ))
    };
    spec.files().filter_map(|(_, digest)| read(digest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    #[test]
    fn cpu_list_is_parsed_and_invalid_parts_are_skipped() {
        assert_eq!(parse_cpu_list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(parse_cpu_list("").is_empty());
        assert_eq!(parse_cpu_list("a-b,3-1,4294967295"), [u32::MAX]);
        assert_eq!(parse_cpu_list("0-4294967295").len(), MAX_CPUS);
    }

    #[test]
    fn bridges_huge_pages_and_numa_nodes_are_read() {
        let fake = FakeMachine::new("", &[]);
        fake.folder("sys/class/net/br0/bridge");
        fake.folder("sys/class/net/eth0");
        fake.file("sys/devices/system/node/node1/cpulist", "4-7\n");
        fake.file(
            "sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages",
            "512\n",
        );
        let tree = &fake.tree;
        assert_eq!(bridges(tree), BTreeSet::from(["br0".to_owned()]));
        assert_eq!(numa(tree), [NumaNode { id: 1, cpus: vec![4, 5, 6, 7] }]);
        assert_eq!(
            hugepages(tree, "free_hugepages"),
            [HugePool { node: Some(1), page: 2 << 20, count: 512 }]
        );
    }
}
