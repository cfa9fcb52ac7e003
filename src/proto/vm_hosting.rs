//! A node's capabilities for virtual machines in its current boot, besides its units and disks.

use serde::{Deserialize, Serialize};

/// What of a node matters to a virtual machine wherever it is placed; absent from an older agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hosting {
    /// `qemu-system-x86_64` is there.
    pub qemu: bool,
    /// `qemu-img` is there: layers above images are made by it.
    pub qemu_img: bool,
    /// Firmware for UEFI is there.
    pub uefi: bool,
    /// Firmware for Secure Boot is there.
    pub secure_boot: bool,
    /// A TPM can be emulated.
    pub tpm: bool,
    /// Bridges, sorted by name.
    pub bridges: Vec<String>,
    /// NUMA nodes, sorted by number; empty where the machine tells of none.
    pub numa: Vec<NumaFacts>,
    /// Huge pages that the kernel has set aside, used or not, by NUMA node and size.
    pub hugepages: Vec<HugepageFacts>,
    /// Processor models that its QEMU knows; empty where that is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_models: Vec<String>,
}

/// A NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaFacts {
    pub id: u32,
    pub threads: u32,
    /// Its memory in KiB, that of huge pages too.
    pub memory_kib: u64,
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HugepageFacts {
    /// Where; absent where the machine tells of no NUMA nodes.
    pub numa_node: Option<u32>,
    /// Size of one, in KiB.
    pub page_kib: u64,
    /// How many there are.
    pub count: u64,
}

impl HugepageFacts {
    /// Bytes of one.
    pub fn page(&self) -> u64 {
        self.page_kib.saturating_mul(1024)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.page().saturating_mul(self.count)
    }
}
