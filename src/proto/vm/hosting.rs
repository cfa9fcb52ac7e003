//! A node's capabilities for VMs in its current boot, besides its units and disks.

use serde::{Deserialize, Serialize};

/// Capabilities of a node for VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Hosting {
    /// QEMU for the architecture of the node is installed.
    pub qemu: bool,
    /// `qemu-img` is installed; it creates layers of volumes.
    pub qemu_img: bool,
    /// UEFI firmware is installed.
    pub uefi: bool,
    /// Firmware for Secure Boot is installed.
    pub secure_boot: bool,
    /// A TPM emulator is installed.
    pub tpm: bool,
    /// Bridges, sorted by name.
    pub bridges: Vec<String>,
    /// NUMA nodes, sorted by number; empty without NUMA.
    pub numa: Vec<NumaFacts>,
    /// Reserved huge pages, used or not, by NUMA node and size.
    pub hugepages: Vec<HugepageFacts>,
    /// CPU models of QEMU; empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_models: Vec<String>,
}

/// A NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NumaFacts {
    pub id: u32,
    pub threads: u32,
    /// Memory in KiB, including huge pages.
    pub memory_kib: u64,
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HugepageFacts {
    /// Absent without NUMA.
    pub numa_node: Option<u32>,
    pub page_kib: u64,
    pub count: u64,
}

impl HugepageFacts {
    /// Returns the size of one page in bytes.
    pub fn page(&self) -> u64 {
        self.page_kib.saturating_mul(1024)
    }

    /// Returns the size of all pages in bytes.
    pub fn bytes(&self) -> u64 {
        self.page().saturating_mul(self.count)
    }
}
