//! What of this node matters to a virtual machine: its types, and how they are read. The reading is total; what cannot be
//! read is not there.

use super::{
    super::{
        disks,
        nat::{self, Subnet},
        system::{self, Tree},
        units,
    },
    argv::VHOST,
    confine,
    memory::{self, Memory},
    models::Models,
    room,
};
use meshd_proto::{
    Check, StoreKind, UnitFacts,
    vm::{SlotDisk, VmSpec, qcow2},
};
use meshd_types::{Digest, VfioSelector};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{File, OpenOptions},
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where a file of the bundle `qemu` lies on a node.
macro_rules! bundled {
    ($path:literal) => {
        concat!("/opt/bundles/qemu/", $path)
    };
}

/// Where programs of packages and of the bundle lie, the first that is there is taken.
const PROGRAM_FOLDERS: [&str; 6] = [bundled!("bin"), "/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];
/// UEFI as the bundle, Debian, Alpine and Arch install it: code, variables, whether it is built for Secure Boot, with keys enrolled.
const UEFI: [(&str, &str, bool); 8] = [
    (bundled!("share/qemu/OVMF_CODE_4M.fd"), bundled!("share/qemu/OVMF_VARS_4M.fd"), false),
    (bundled!("share/qemu/OVMF_CODE_4M.ms.fd"), bundled!("share/qemu/OVMF_VARS_4M.ms.fd"), true),
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd", false),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd", false),
    ("/usr/share/edk2/x64/OVMF_CODE.fd", "/usr/share/edk2/x64/OVMF_VARS.fd", false),
    ("/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd", true),
    ("/usr/share/OVMF/OVMF_CODE.secboot.fd", "/usr/share/OVMF/OVMF_VARS.ms.fd", true),
    ("/usr/share/edk2/x64/OVMF_CODE.secure.fd", "/usr/share/edk2/x64/OVMF_VARS.secure.fd", true),
];
/// Most processors of one NUMA node.
const MAX_CPUS: usize = 4096;

/// A node, as far as a virtual machine is concerned.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Programs that are there.
    pub programs: Programs,
    /// Models of processors that QEMU knows; `None` where it does not say.
    pub models: Option<Arc<BTreeSet<String>>>,
    /// `/dev/kvm` opens.
    pub kvm: bool,
    /// Why QEMU cannot be confined.
    pub unconfined: Option<String>,
    /// The kernel can serve network cards.
    pub vhost: bool,
    /// Hardware threads.
    pub threads: u32,
    /// Its memory.
    pub memory: Memory,
    /// Layers lie in that memory.
    pub layers_in_memory: bool,
    /// Huge pages, by NUMA node and size.
    pub hugepages: Vec<HugePool>,
    /// NUMA nodes.
    pub numa: Vec<NumaNode>,
    /// What the profile gives to virtual machines.
    pub units: Vec<UnitFacts>,
    /// Whole disks.
    pub disks: Vec<HostDisk>,
    /// Those that belong to slots, as the central node last said.
    pub slots: Vec<SlotDisk>,
    /// Bridges.
    pub bridges: BTreeSet<String>,
    /// The subnet of the private network, where there is one.
    pub private: Option<Subnet>,
    /// UEFI firmware that is installed.
    pub uefi: Vec<Uefi>,
    /// The files that the specification names by digest, as far as they are there.
    pub images: BTreeMap<Digest, Image>,
}

/// Programs by their place.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// `qemu-system-x86_64`.
    pub qemu: Option<PathBuf>,
    /// `qemu-img`.
    pub qemu_img: Option<PathBuf>,
    /// `swtpm`.
    pub swtpm: Option<PathBuf>,
    /// `ip`, of iproute2 or busybox.
    pub ip: Option<PathBuf>,
    /// The agent itself, which becomes the programs of machines.
    pub agent: Option<PathBuf>,
}

/// Huge pages of one size in one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePool {
    /// Where; `None` where the machine tells of no NUMA nodes.
    pub node: Option<u32>,
    /// Bytes of a page.
    pub page: u64,
    /// How many are free.
    pub free: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its processors.
    pub cpus: Vec<u32>,
}

/// A disk of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDisk {
    /// Its name of this boot.
    pub name: String,
    /// Its device of this boot.
    pub device: PathBuf,
    /// What it calls itself.
    pub wwid: Option<String>,
    /// What it calls itself.
    pub serial: Option<String>,
    /// Why it is not given away.
    pub in_use: Option<String>,
    /// What it holds.
    pub holds: Vec<String>,
}

/// UEFI's two flash chips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uefi {
    /// Code.
    pub code: PathBuf,
    /// Variables as they are at first.
    pub vars: PathBuf,
    /// Built for Secure Boot, with the usual keys enrolled.
    pub secure: bool,
}

/// A file that is named by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where it lies.
    pub path: PathBuf,
    /// Its first bytes, up to [`qcow2::HEADER`].
    pub header: Vec<u8>,
}

/// Where the node keeps what is read here.
#[derive(Clone, Debug)]
pub struct Places {
    /// Root of the file system.
    pub root: PathBuf,
    /// Folder of machines; each has one of its own in it.
    pub machines: PathBuf,
    /// Folder of volumes; each file is named by its digest.
    pub images: PathBuf,
    /// What the profile gives to virtual machines.
    pub vfio: Vec<VfioSelector>,
    /// Disks that the profile marks as data, by what they call themselves.
    pub data_disks: Vec<String>,
    /// What QEMU said of itself.
    pub models: Models,
    /// Asked before a disk is written.
    pub doctor: Doctor,
}

/// Runs the node's checks. Blocks.
#[derive(Clone)]
pub struct Doctor(Arc<dyn Fn() -> Vec<Check> + Send + Sync>);

impl Doctor {
    /// One that runs these checks each time.
    pub fn new(run: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Self {
        Doctor(Arc::new(run))
    }

    /// What the checks say now.
    pub fn checks(&self) -> Vec<Check> {
        (self.0)()
    }
}

impl fmt::Debug for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doctor")
    }
}

/// Reads it all, for one specification.
pub fn survey(places: &Places, spec: &VmSpec) -> Host {
    let tree = Tree::new(&places.root);
    let programs = programs(places);
    Host {
        models: programs.qemu.as_ref().and_then(|qemu| places.models.of(qemu)),
        kvm: OpenOptions::new().read(true).write(true).open(tree.path("/dev/kvm")).is_ok(),
        unconfined: programs.qemu.as_ref().and_then(|qemu| confine::sandboxes(qemu).err()),
        vhost: tree.has(VHOST),
        threads: system::cpu(&tree).threads,
        programs,
        memory: memory::read(&tree, &places.machines),
        layers_in_memory: room::space(&places.machines).is_ok_and(|space| space.kind == StoreKind::Memory),
        hugepages: hugepages(&tree),
        numa: numa(&tree),
        units: if spec.units.is_empty() {
            Vec::new()
        } else {
            units::survey(&tree, &places.vfio, &units::Linux(&tree))
        },
        disks: host_disks(&tree, &places.data_disks),
        slots: Vec::new(),
        bridges: bridges(&tree),
        private: nat::settings(&tree).and_then(|settings| nat::choose(&tree, &settings)),
        uefi: uefi(&tree),
        images: images(&places.images, spec),
    }
}

/// Programs that are there.
pub fn programs(places: &Places) -> Programs {
    let tree = Tree::new(&places.root);
    let find = |name: &str| program(&tree, name);
    Programs {
        qemu: find("qemu-system-x86_64"),
        qemu_img: find("qemu-img"),
        swtpm: find("swtpm"),
        ip: find("ip"),
        agent: find("mesh-agent"),
    }
}

/// The place of one program.
pub fn program(tree: &Tree, name: &str) -> Option<PathBuf> {
    let mut places = PROGRAM_FOLDERS.iter().map(|folder| tree.path(&format!("{folder}/{name}")));
    places.find(|place| place.is_file())
}

fn hugepages(tree: &Tree) -> Vec<HugePool> {
    let pools = |folder: String, node: Option<u32>| {
        let pool = |name: String| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let free = tree.number(&format!("{folder}/{name}/free_hugepages"))?;
            Some(HugePool { node, page: kib.checked_mul(1024)?, free })
        };
        tree.list(&folder).into_iter().filter_map(pool).collect::<Vec<_>>()
    };
    let nodes = node_numbers(tree).into_iter();
    let by_node: Vec<HugePool> =
        nodes.flat_map(|id| pools(format!("/sys/devices/system/node/node{id}/hugepages"), Some(id))).collect();
    if by_node.is_empty() { pools("/sys/kernel/mm/hugepages".to_owned(), None) } else { by_node }
}

pub(super) fn node_numbers(tree: &Tree) -> Vec<u32> {
    let names = tree.list("/sys/devices/system/node");
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

pub(super) fn numa(tree: &Tree) -> Vec<NumaNode> {
    let cpus = |id: u32| tree.read(&format!("/sys/devices/system/node/node{id}/cpulist")).unwrap_or_default();
    node_numbers(tree).into_iter().map(|id| NumaNode { id, cpus: cpu_list(&cpus(id)) }).collect()
}

/// `0-3,8,10-11`, as sysfs writes lists of processors.
pub(super) fn cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else { continue };
        cpus.extend((first..=last).take(MAX_CPUS));
    }
    cpus.truncate(MAX_CPUS);
    cpus
}

fn host_disks(tree: &Tree, data: &[String]) -> Vec<HostDisk> {
    let disk = |disk: meshd_proto::DiskFacts| HostDisk {
        device: tree.path(&format!("/dev/{}", disk.name)),
        name: disk.name,
        wwid: disk.wwid,
        serial: disk.serial,
        in_use: disk.blocked,
        holds: disk.signatures,
    };
    disks::survey(tree, data).into_iter().map(disk).collect()
}

pub(super) fn bridges(tree: &Tree) -> BTreeSet<String> {
    let names = tree.list("/sys/class/net").into_iter();
    names.filter(|name| tree.has(&format!("/sys/class/net/{name}/bridge"))).collect()
}

pub(super) fn uefi(tree: &Tree) -> Vec<Uefi> {
    let there = |(code, vars, secure): &(&str, &str, bool)| {
        let (code, vars) = (tree.path(code), tree.path(vars));
        (code.is_file() && vars.is_file()).then_some(Uefi { code, vars, secure: *secure })
    };
    UEFI.iter().filter_map(there).collect()
}

fn images(folder: &Path, spec: &VmSpec) -> BTreeMap<Digest, Image> {
    let read = |digest: Digest| {
        let path = folder.join(digest.to_string());
        let mut header = Vec::new();
        File::open(&path).ok()?.take(qcow2::HEADER).read_to_end(&mut header).ok()?;
        Some((digest, Image { path, header }))
    };
    spec.files().filter_map(|(_, digest)| read(digest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(root: &Path) -> Places {
        Places {
            root: root.to_owned(),
            machines: root.to_owned(),
            images: root.to_owned(),
            vfio: Vec::new(),
            data_disks: Vec::new(),
            models: Models::default(),
            doctor: Doctor::new(Vec::new),
        }
    }

    #[test]
    fn a_list_of_processors_is_read_and_junk_gives_none() {
        assert_eq!(cpu_list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(cpu_list("").is_empty());
        assert_eq!(cpu_list("a-b,3-1,4294967295"), [u32::MAX]);
        assert_eq!(cpu_list("0-4294967295").len(), MAX_CPUS);
    }

    /// The recipe of the bundle, and what mounts it.
    #[test]
    fn the_bundle_brings_every_program_and_firmware_to_where_it_is_looked_for() {
        let recipe = include_str!("../../../images/bundles/qemu/bundle.toml");
        let mounts = include_str!("../../../overlays/agent/rootfs/sbin/mesh-init");
        assert!(mounts.contains("/opt/bundles/"), "bundles are mounted somewhere else");
        let dir = tempfile::tempdir().expect("a folder");
        for line in recipe.lines() {
            let (target, key) = match (line.strip_prefix("to = "), line.strip_prefix("path = ")) {
                (Some(to), None) => (to.trim_matches('"').to_owned(), "file"),
                (None, Some(path)) => {
                    (format!("bin/{}", path.trim_matches('"').rsplit('/').next().expect("a name")), "program")
                }
                _ => continue,
            };
            let place = dir.path().join("opt/bundles/qemu").join(&target);
            std::fs::create_dir_all(place.parent().expect("a folder")).expect("made");
            std::fs::write(place, key).expect("written");
        }
        let tree = Tree::new(dir.path());
        let found: Vec<bool> = uefi(&tree).iter().map(|uefi| uefi.secure).collect();
        assert_eq!(found, [false, true], "plain, and for Secure Boot");
        let programs = programs(&places(dir.path()));
        assert!(programs.qemu.is_some() && programs.qemu_img.is_some() && programs.swtpm.is_some(), "{programs:?}");
    }

    #[test]
    fn a_tree_that_shows_bridges_huge_pages_and_nodes_is_seen() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("sys/class/net/br0/bridge/x", "");
        write("sys/class/net/eth0/mtu", "1500");
        write("sys/devices/system/node/node1/cpulist", "4-7\n");
        write("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "512\n");
        write("opt/bundles/qemu/bin/qemu-img", "");
        let tree = Tree::new(dir.path());
        assert_eq!(bridges(&tree), BTreeSet::from(["br0".to_owned()]));
        assert_eq!(numa(&tree), [NumaNode { id: 1, cpus: vec![4, 5, 6, 7] }]);
        assert_eq!(hugepages(&tree), [HugePool { node: Some(1), page: 2 << 20, free: 512 }]);
        let programs = programs(&places(dir.path()));
        assert!(programs.qemu.is_none() && programs.qemu_img.is_some());
    }
}
