//! The section of VMs: the desired state of one VM, and the report of a node on all. Both are
//! repeated after each welcome.

use super::{VmReport, VmSpec, VolumeName};
use crate::disk::{DiskIdentity, DiskUse};
use meshd_types::{PciAddress, SystemUuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of VMs of one node.
pub const MAX_VMS: usize = 256;

/// An entry of the section `vms`: the desired state of one VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmEntry {
    pub uuid: SystemUuid,
    pub desired_state: VmTarget,
}

/// A disk that belongs to a slot. Only the VM that has the unit of the slot may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotDisk {
    /// One function of the slot's unit.
    pub unit: PciAddress,
    pub disk: DiskIdentity,
}

/// The desired state of a VM on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum VmTarget {
    /// Run. A VM that is off or failed starts if `start` differs from the number of the last
    /// executed start order. A VM that runs or waits for a restart is not touched.
    Run {
        spec: Box<VmSpec>,
        /// Number of start and restart orders. A VM that runs under an older number restarts.
        start: u32,
        /// Grace period of a restart in seconds.
        grace_s: u32,
        /// Disks of the node that belong to slots.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        slots: Vec<SlotDisk>,
        /// Disk uses that the node reported; the node loses them at a boot.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        disks: BTreeMap<VolumeName, DiskUse>,
    },
    /// Off. The node does not delete the VM's data.
    Stop {
        /// Grace period in seconds.
        grace_s: u32,
    },
    /// Remove the VM and its data from the node. The answer is [`VmUpdate::Released`], also if the
    /// node does not have the VM.
    Release {
        /// Disks that the VM had. They take precedence over records of the node, which a boot
        /// deletes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        disks: Vec<ReleasedDisk>,
    },
}

/// A disk that a VM releases. The node assigns it again only when nothing uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasedDisk {
    pub disk: DiskIdentity,
    /// Wipe the disk before another VM gets it.
    #[serde(default)]
    pub wipe: bool,
    /// The VM has used the disk. An unused disk is not wiped.
    #[serde(default)]
    pub used: bool,
}

/// A report of a node on its VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "update", rename_all = "snake_case")]
pub enum VmUpdate {
    /// All VMs, at most [`MAX_VMS`]: after each welcome and after each change.
    All {
        /// By UUID.
        vms: Vec<VmReport>,
    },
    /// The node has no data of the VM any more.
    Released { uuid: SystemUuid },
    /// The release failed; the central node must repeat the order.
    ReleaseBlocked { uuid: SystemUuid, reason: String },
}
