//! PCI functions, physical network interfaces, and GPUs as the drivers of the host describe them:
//! `amdgpu` in sysfs, `nvidia` in procfs. No driver describes a GPU of a VM.

use super::{Tree, addresses, function_of};
use meshd_proto::{GpuFacts, MAX_DEVICES, NicFacts, PciFacts, SriovFacts};

/// Maximum number of characters of a model.
const MAX_MODEL: usize = 64;

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
            function: function_of(tree, &file("device")),
            addresses: addresses.get(&name).cloned().unwrap_or_default(),
            name,
        }
    };
    physical.take(MAX_DEVICES).map(nic).collect()
}

/// Returns the GPUs among these functions that a driver has described.
pub fn gpus(tree: &Tree, functions: &[PciFacts]) -> Vec<GpuFacts> {
    functions.iter().filter_map(|function| gpu(tree, function)).collect()
}

fn gpu(tree: &Tree, function: &PciFacts) -> Option<GpuFacts> {
    let address = function.address.clone();
    let (model, memory) = match function.driver.as_deref()? {
        "amdgpu" => {
            let file = |name: &str| format!("/sys/bus/pci/devices/{address}/{name}");
            // Only cards of servers have a name.
            (tree.text(&file("product_name")), tree.number(&file("mem_info_vram_total")))
        }
        "nvidia" => {
            let text = tree.text(&format!("/proc/driver/nvidia/gpus/{address}/information"))?;
            (text.lines().find_map(|line| line.strip_prefix("Model:")).map(str::to_owned), None)
        }
        _ => return None,
    };
    let model = model.unwrap_or_default();
    let model: String = model.trim().chars().filter(|c| !c.is_control()).take(MAX_MODEL).collect();
    let is_known = !model.is_empty() || memory.is_some();
    is_known.then_some(GpuFacts { function: address, model, memory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    #[test]
    fn drivers_describe_gpus_and_vfio_none() {
        let fake = FakeMachine::new(
            "",
            &[
                ("0000:01:00.0", "1002:74a1", "1200", 1, "amdgpu", -1),
                ("0000:02:00.0", "10de:2330", "0302", 2, "nvidia", -1),
                ("0000:03:00.0", "10de:2330", "0302", 3, "vfio-pci", -1),
                ("0000:04:00.0", "10de:2330", "0302", 4, "nvidia", -1),
                ("0000:05:00.0", "1002:13c0", "0300", 5, "amdgpu", -1),
            ],
        );
        fake.file("sys/bus/pci/devices/0000:01:00.0/mem_info_vram_total", "206141652992\n");
        fake.file("sys/bus/pci/devices/0000:01:00.0/product_name", "AMD Instinct MI300X\n");
        fake.file("sys/bus/pci/devices/0000:05:00.0/mem_info_vram_total", "536870912\n");
        fake.file(
            "proc/driver/nvidia/gpus/0000:02:00.0/information",
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n",
        );
        let functions: Vec<_> = pci_functions(&fake.tree).collect();
        let found = gpus(&fake.tree, &functions);
        let gpu = |function: &str, model: &str, memory| GpuFacts {
            function: function.to_owned(),
            model: model.to_owned(),
            memory,
        };
        let expected = [
            gpu("0000:01:00.0", "AMD Instinct MI300X", Some(206_141_652_992)),
            gpu("0000:02:00.0", "NVIDIA H100 80GB HBM3", None),
            gpu("0000:05:00.0", "", Some(512 << 20)),
        ];
        assert_eq!(found, expected);
    }
}
