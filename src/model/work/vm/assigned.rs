//! Parts of a node that a placement assigns to a VM. The request of the VM stays as it was ordered.

use super::nic_address::SlotNic;
use meshd_proto::DiskIdentity;
use meshd_types::PciAddress;
use serde::{Deserialize, Serialize};

/// Devices, addresses and NUMA node that a placement assigned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AssignedParts {
    /// First function of each unit; units that belong to a slot come last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<PciAddress>,
    /// Disks of slots, in the order of the volumes that use one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskIdentity>,
    /// Addresses of slots, in the order of the NICs that use them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<SlotNic>,
    /// NUMA node of all units, to which the VM is bound because its request names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Units and CPUs are on several NUMA nodes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub numa_mismatch: bool,
}

impl AssignedParts {
    pub(super) fn is_empty(&self) -> bool {
        *self == AssignedParts::default()
    }
}
