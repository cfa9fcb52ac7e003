//! VM messages of the link: the desired state of one VM, and the whole state of all. Both are repeated after every
//! welcome.

use super::{DiskIdentity, DiskUse, VmReport, VmSpec, VolumeName};
use meshd_types::{PciAddress, SystemUuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most virtual machines of one node.
pub const MAX_VMS: usize = 256;

/// What the central node wants of one virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmOrder {
    pub uuid: SystemUuid,
    pub want: VmWant,
}

/// A disk of a node that belongs to a slot: who has its unit may have it, and nobody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotDisk {
    /// One function of the slot's unit.
    pub unit: PciAddress,
    /// Its WWID or serial number.
    pub disk: DiskIdentity,
}

/// How a virtual machine shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "want", rename_all = "snake_case")]
pub enum VmWant {
    /// It shall run. One that runs, or waits for its restart, is left alone; one that is off or failed is started if `start` is another
    /// number than that of the order by which it was started last.
    Run {
        spec: Box<VmSpec>,
        /// Counts the operator's starts and restarts of it; a machine that runs by an older number is stopped and started again.
        start: u32,
        /// Seconds that a restart leaves the guest to end by itself.
        grace_s: u32,
        /// Disks of the node that belong to slots.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        slots: Vec<SlotDisk>,
        /// What the node told of its disks, which a boot makes it forget.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        disks: BTreeMap<VolumeName, DiskUse>,
    },
    /// It shall be off; what it wrote stays.
    Stop {
        /// Seconds that the guest has to end by itself.
        grace_s: u32,
    },
    /// It shall be gone with everything it has on the node; answered by [`VmUpdate::Released`], also where it is not there.
    Release {
        /// Disks of the node that it had. They hold before what the node itself knows of it, which a boot makes it forget.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        disks: Vec<LeftDisk>,
    },
}

/// A disk that a machine leaves. It is idle before it is anybody else's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftDisk {
    /// Its WWID or serial number.
    pub disk: DiskIdentity,
    /// What the machine left on it goes first.
    #[serde(default)]
    pub wipe: bool,
    /// It is known that the machine had it. What a machine never had is not wiped.
    #[serde(default)]
    pub used: bool,
}

/// What a node tells of its virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub enum VmUpdate {
    /// All of them, at most [`MAX_VMS`]: after each welcome, and whenever one has changed.
    All {
        /// By UUID.
        vms: Vec<VmReport>,
    },
    /// Nothing of it is on this node any more.
    Released { uuid: SystemUuid },
    /// Something of it stays; the order is to be given again.
    ReleaseBlocked {
        uuid: SystemUuid,
        /// What, and why.
        reason: String,
    },
}
