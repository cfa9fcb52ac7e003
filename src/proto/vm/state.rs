//! State and failure of a VM, as its node reports them.

use super::VolumeName;
use crate::disk::DiskUse;
use meshd_types::{MacAddr, SystemUuid, VmName};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};
use strum::{IntoStaticStr, VariantArray};

/// Maximum length of the detail of a failure or refusal, in bytes.
pub const MAX_FAILURE_TEXT: usize = 1024;
/// Maximum number of lines of QEMU's log in a failure.
pub const MAX_FAILURE_LINES: usize = 20;

/// The state of the QEMU process of a VM, as the agent reports it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ReportedVmState {
    /// QEMU is being started; the guest does not run yet.
    Starting,
    /// The guest runs.
    Running,
    /// QEMU paused the guest: the store is full, a disk fails, or a CPU error occurred. No guest
    /// data is lost yet.
    Paused,
    /// A stop was ordered and the guest has not ended yet.
    Stopping,
    /// The guest ended without an order and restarts after a delay.
    Waiting,
    /// Off, by order or because the guest shut down.
    Stopped,
    /// Off unexpectedly.
    Failed,
}

impl ReportedVmState {
    /// All states.
    pub const ALL: &'static [ReportedVmState] = Self::VARIANTS;

    /// Returns true while a QEMU process exists or may exist.
    pub fn is_live(self) -> bool {
        use ReportedVmState::{Paused, Running, Starting, Stopping};
        matches!(self, Starting | Running | Paused | Stopping)
    }
}

serialised_name!(ReportedVmState);

/// The cause of an unexpected end of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum VmFailureKind {
    /// The node cannot run the VM; see [`VmRefusalReason`].
    Refused,
    /// Files of the VM could not be created, or QEMU could not be executed.
    Prepare,
    /// QEMU ended before the guest ran.
    NotStarted,
    /// QEMU did not answer in time.
    StartTimeout,
    /// QEMU ended while the guest ran.
    Crashed,
    /// The guest kernel panicked.
    GuestPanic,
    /// QEMU ended while no agent supervised it.
    EndedUnseen,
    /// QEMU paused the guest.
    Paused,
    /// QEMU survives SIGKILL.
    Immortal,
}

/// An unexpected end of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct VmFailure {
    pub kind: VmFailureKind,
    /// Reasons of a refusal; empty for other kinds.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reasons: BTreeSet<VmRefusalReason>,
    /// At most 1024 bytes.
    pub detail: String,
    /// Last lines of the QEMU log, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

impl VmFailure {
    /// Makes a failure without reasons and log lines.
    pub fn new(kind: VmFailureKind, detail: String) -> Self {
        VmFailure { kind, reasons: BTreeSet::new(), detail, log: Vec::new() }
    }

    /// Returns true for a refusal that every other node would repeat.
    pub fn is_same_on_every_node(&self) -> bool {
        self.reasons.iter().any(|reason| reason.is_same_on_every_node())
    }
}

/// The report of a node on one of its VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmReport {
    pub uuid: SystemUuid,
    pub name: VmName,
    pub state: ReportedVmState,
    /// Cause of the failure or of the last restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<VmFailure>,
    /// Automatic restarts in a row.
    #[serde(default)]
    pub restarts: u32,
    /// Number of the last executed start order; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// Progress while volumes are downloaded or written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetching: Option<VmFetching>,
    /// Addresses of its NICs in the private network of the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<MacAddr, Ipv4Addr>,
    /// Whether the guest has answered since its start; `None` if it is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Disks of the node that the VM owns, by volume.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disks: BTreeMap<VolumeName, DiskUse>,
    /// Signatures found on each of these disks before the VM got it; absent for an empty disk.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contents: BTreeMap<VolumeName, Vec<String>>,
}

impl VmReport {
    /// Makes a report without details.
    pub fn new(uuid: SystemUuid, name: VmName, state: ReportedVmState) -> Self {
        VmReport {
            uuid,
            name,
            state,
            failure: None,
            restarts: 0,
            start: None,
            fetching: None,
            addresses: BTreeMap::new(),
            ready: None,
            disks: BTreeMap::new(),
            contents: BTreeMap::new(),
        }
    }
}

/// Progress of downloading volumes of a VM or of writing them onto disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct VmFetching {
    /// Bytes that the node has verified.
    pub bytes: u64,
    /// Total bytes of all volumes with a known size.
    pub total: u64,
    /// Why the last request failed, while it is retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// The download is complete; the node writes to its disks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writing: bool,
}

/// The reason why a node cannot run a VM.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum VmRefusalReason {
    /// The specification is invalid on every node.
    SpecInvalid,
    /// QEMU is not installed.
    QemuMissing,
    /// `/dev/kvm` does not open, and the specification does not allow emulation.
    KvmMissing,
    /// QEMU does not know the CPU model.
    CpuUnknown,
    /// More CPUs than the node has threads.
    CpusExceeded,
    /// More memory than the node has free.
    MemoryExceeded,
    /// More huge pages than the node has free.
    HugepagesExceeded,
    /// The NUMA node does not exist.
    NumaMissing,
    /// No unit has this PCI function.
    UnitMissing,
    /// The unit cannot be assigned now.
    UnitNotReady,
    /// Another VM of this node has, or is to get, the unit.
    UnitTaken,
    /// A file with this digest is not on the node.
    VolumeMissing,
    /// The file is not an image, or it refers to other files.
    VolumeUnfit,
    /// The content does not have the requested digest.
    VolumeDiffers,
    /// The store of the node has no space for a file.
    StoreFull,
    /// No disk has this identity, or several have it.
    DiskMissing,
    /// The node itself or another VM uses the disk.
    DiskInUse,
    /// The disk belongs to a slot that the VM does not have.
    DiskTaken,
    /// The disk has content, and `overwrite` and `adopt` are not set.
    DiskNotEmpty,
    /// The disk is smaller than the image.
    DiskTooSmall,
    /// Reading back the written image found a difference.
    DiskWriteFailed,
    /// A failed readiness check forbids writing to disks (DR-16).
    DoctorFails,
    /// The bridge does not exist.
    BridgeMissing,
    /// The firmware is not installed.
    FirmwareMissing,
    /// The TPM emulator is not installed.
    TpmMissing,
    /// Another VM of this node has the name.
    NameTaken,
    /// Another VM of this node has the MAC address.
    MacTaken,
    /// Another NIC has the address in the private network.
    AddressTaken,
    /// The address is outside the private network.
    AddressUnfit,
}

serialised_name!(VmRefusalReason);

impl VmRefusalReason {
    fn is_same_on_every_node(self) -> bool {
        use VmRefusalReason::{SpecInvalid, VolumeDiffers, VolumeMissing, VolumeUnfit};
        matches!(self, SpecInvalid | VolumeDiffers | VolumeMissing | VolumeUnfit)
    }
}

/// A reason why a node cannot run a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRefusal {
    pub reason: VmRefusalReason,
    pub detail: String,
}
