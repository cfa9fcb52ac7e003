//! PCI functions and physical network interfaces.

use super::{Tree, addresses};
use meshd_proto::{MAX_DEVICES, NicFacts, PciFacts, SriovFacts};

/// Returns all PCI functions, sorted by address.
pub fn pci_functions(tree: &Tree) -> impl Iterator<Item = PciFacts> {
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
        // -1 if the firmware does not report the node.
        numa_node: tree.number(&file("numa_node")),
        sriov: tree.number(&file("sriov_totalvfs")).map(|total| SriovFacts {
            total,
            enabled: tree.number(&file("sriov_numvfs")).unwrap_or(0),
        }),
        address,
    }
}

/// Returns the physical network interfaces, sorted by name, at most [`MAX_DEVICES`].
pub fn nics(tree: &Tree) -> Vec<NicFacts> {
    let addresses = addresses::by_interface(tree);
    let names = tree.list("/sys/class/net").into_iter();
    let physical = names.filter(|name| tree.has(&format!("/sys/class/net/{name}/device")));
    let nic = |name: String| {
        let file = |path: &str| format!("/sys/class/net/{name}/{path}");
        // The interfaces of a bond share one address; this file has the permanent one.
        let mac =
            tree.read(&file("bonding_slave/perm_hwaddr")).or_else(|| tree.read(&file("address")));
        NicFacts {
            mac: mac.and_then(|mac| mac.parse().ok()),
            carrier: tree.number(&file("carrier")) == Some(1u8),
            // -1 if unknown; some drivers report 0 without a link.
            speed_mbps: tree.number(&file("speed")).filter(|speed| *speed != 0),
            driver: tree.link(&file("device/driver")),
            addresses: addresses.get(&name).cloned().unwrap_or_default(),
            name,
        }
    };
    physical.take(MAX_DEVICES).map(nic).collect()
}
