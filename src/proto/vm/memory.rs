//! Memory that VMs take from their node. Placement and agent use the same computation (ADR 28).

use super::VmSpec;

/// Memory that a node reserves for kernel and agent, in bytes.
pub const NODE_RESERVE: u64 = 256 << 20;
/// Expected growth of an overlay file in memory, in bytes.
pub const LAYER_MARGIN: u64 = 1 << 30;
/// Overhead of QEMU beyond guest memory, in bytes: program, threads, devices.
const QEMU: u64 = 64 << 20;
/// Page tables of KVM and IOMMU take 8 bytes each for each 4 KiB of guest memory: one part in 256.
const TABLES: u64 = 256;

impl VmSpec {
    /// Returns true if the VM shares CPUs with other VMs. A VM with a NUMA node, units or huge
    /// pages has dedicated CPUs.
    pub fn shares_processors(&self) -> bool {
        self.numa_node.is_none() && self.units.is_empty() && !self.hugepages
    }

    /// Returns the maximum memory of the VM on its node in bytes, without volumes and huge pages.
    pub fn node_memory(&self) -> u64 {
        let memory = self.memory.bytes();
        let own = QEMU.saturating_add(memory / TABLES);
        if self.hugepages { own } else { own.saturating_add(memory) }
    }
}

/// Returns the expected growth in bytes of an overlay file of `used` bytes for a disk of `size`
/// bytes. In memory, this much is reserved.
pub fn layer_growth(size: u64, used: u64) -> u64 {
    size.saturating_sub(used).min(LAYER_MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_memory_includes_overhead_and_excludes_hugepages() {
        let spec = |more: &str| -> VmSpec {
            let text = format!(
                r#"{{"name": "a", "uuid": "11223344-5566-7788-99aa-bbccddeeff00", "vcpus": 1, "memory": "64G"{more}}}"#
            );
            serde_json::from_str(&text).expect("a specification")
        };
        let beside = (64 << 20) + (256 << 20);
        assert_eq!(spec("").node_memory(), (64 << 30) + beside);
        assert_eq!(spec(r#", "hugepages": true"#).node_memory(), beside);
    }

    #[test]
    fn layer_growth_is_bounded_by_margin_and_disk_size() {
        assert_eq!(layer_growth(100 << 30, 0), LAYER_MARGIN);
        assert_eq!(layer_growth(1 << 20, 0), 1 << 20);
        assert_eq!(layer_growth(1 << 20, 2 << 20), 0);
    }
}
