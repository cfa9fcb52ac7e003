//! Memory that VMs take from their node. Placement and agent use the same computation (ADR 28).

use super::VmSpec;

/// Memory that a node keeps for itself, in bytes: its kernel and its agent.
pub const NODE_RESERVE: u64 = 256 << 20;
/// How much more a layer in memory may come to hold, as it is counted ahead, in bytes.
pub const LAYER_MARGIN: u64 = 1 << 30;
/// What QEMU takes beside the guest's memory, in bytes: the program, its threads, its devices.
const QEMU: u64 = 64 << 20;
/// And one part in so many of the guest's memory: page tables of KVM and of the IOMMU have 8 bytes for each 4 KiB, each.
const TABLES: u64 = 256;

impl VmSpec {
    /// Returns whether it shares the node's processors with other machines. One that is bound to a NUMA node, has units or huge pages has
    /// its processors for itself.
    pub fn shares_processors(&self) -> bool {
        self.numa_node.is_none() && self.units.is_empty() && !self.hugepages
    }

    /// Bytes of the node's ordinary memory that it may come to take, without its volumes. Huge pages are not ordinary memory.
    pub fn node_memory(&self) -> u64 {
        let memory = self.memory.bytes();
        let own = QEMU.saturating_add(memory / TABLES);
        if self.hugepages { own } else { own.saturating_add(memory) }
    }
}

/// Bytes by which a layer that holds `held` and whose disk has `size` is expected to grow. Where it lies in memory, that much is kept for it.
pub fn layer_growth(size: u64, held: u64) -> u64 {
    size.saturating_sub(held).min(LAYER_MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_takes_more_than_its_guest_sees_and_with_huge_pages_only_that() {
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
    fn layer_is_counted_ahead_by_a_margin_and_never_beyond_its_disk() {
        assert_eq!(layer_growth(100 << 30, 0), LAYER_MARGIN);
        assert_eq!(layer_growth(1 << 20, 0), 1 << 20);
        assert_eq!(layer_growth(1 << 20, 2 << 20), 0);
    }
}
