//! PCI functions, whole disks and physical network interfaces, each bounded by [`MAX_DEVICES`].

use super::{Tree, addresses};
use crate::wire::{DiskFacts, MAX_DEVICES, NicFacts, PciFacts, SriovFacts};

/// Bytes of one sector, as `/sys/block/*/size` counts, whatever the disk's own.
const SECTOR: u64 = 512;
/// Block devices that are no disk, by the beginning of their name.
const NOT_DISKS: [&str; 9] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "mtdblock"];

/// PCI functions, sorted by address.
pub fn pci(tree: &Tree) -> Vec<PciFacts> {
    functions(tree).take(MAX_DEVICES).collect()
}

/// All of them, beyond what is told to the central node: who gives functions away must see each one.
pub fn all_pci(tree: &Tree) -> Vec<PciFacts> {
    functions(tree).collect()
}

fn functions(tree: &Tree) -> impl Iterator<Item = PciFacts> {
    tree.list("/sys/bus/pci/devices").into_iter().map(|address| pci_function(tree, address))
}

fn pci_function(tree: &Tree, address: String) -> PciFacts {
    let file = |name: &str| format!("/sys/bus/pci/devices/{address}/{name}");
    PciFacts {
        vendor: tree.hex(&file("vendor"), 4).unwrap_or_default(),
        device: tree.hex(&file("device"), 4).unwrap_or_default(),
        class: tree.hex(&file("class"), 4).unwrap_or_default(),
        driver: tree.link(&file("driver")),
        iommu_group: tree.link(&file("iommu_group")).and_then(|group| group.parse().ok()),
        // -1 where the firmware says nothing.
        numa_node: tree.number(&file("numa_node")),
        sriov: tree
            .number(&file("sriov_totalvfs"))
            .map(|total| SriovFacts { total, enabled: tree.number(&file("sriov_numvfs")).unwrap_or(0) }),
        address,
    }
}

/// Whole disks, sorted by kernel name.
pub fn disks(tree: &Tree) -> Vec<DiskFacts> {
    let names = tree.list("/sys/block").into_iter().filter(|name| is_disk(name));
    names.take(MAX_DEVICES).map(|name| disk(tree, name)).collect()
}

fn is_disk(name: &str) -> bool {
    !NOT_DISKS.iter().any(|prefix| name.starts_with(prefix)) && !is_nvme_path(name)
}

/// With native multipath, `nvme0c1n1` is one path to the disk `nvme0n1`.
fn is_nvme_path(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("nvme") else { return false };
    rest.split_once('n').is_some_and(|(controller, _)| controller.contains('c'))
}

fn disk(tree: &Tree, name: String) -> DiskFacts {
    let file = |path: &str| format!("/sys/block/{name}/{path}");
    let first = |paths: [&str; 2]| paths.iter().find_map(|path| tree.text(&file(path)));
    let sectors: u64 = tree.number(&file("size")).unwrap_or(0);
    DiskFacts {
        wwid: first(["wwid", "device/wwid"]),
        serial: first(["device/serial", "serial"]),
        model: tree.text(&file("device/model")),
        bytes: sectors.saturating_mul(SECTOR),
        rotational: tree.number(&file("queue/rotational")) == Some(1u8),
        name,
    }
}

/// Network interfaces with a device behind them, sorted by name.
pub fn nics(tree: &Tree) -> Vec<NicFacts> {
    let owned = addresses::by_interface(tree);
    let names = tree.list("/sys/class/net").into_iter();
    let physical = names.filter(|name| tree.has(&format!("/sys/class/net/{name}/device")));
    let nic = |name: String| {
        let file = |path: &str| format!("/sys/class/net/{name}/{path}");
        // A bond gives all its interfaces one address and keeps their own ones here.
        let mac = tree.read(&file("bonding_slave/perm_hwaddr")).or_else(|| tree.read(&file("address")));
        NicFacts {
            mac: mac.and_then(|mac| mac.parse().ok()),
            carrier: tree.number(&file("carrier")) == Some(1u8),
            // -1 where unknown; 0 on some drivers without a link.
            speed_mbps: tree.number(&file("speed")).filter(|speed| *speed != 0),
            driver: tree.link(&file("device/driver")),
            addresses: owned.get(&name).cloned().unwrap_or_default(),
            name,
        }
    };
    physical.take(MAX_DEVICES).map(nic).collect()
}
