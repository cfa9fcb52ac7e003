//! The states of a VM.

use super::VolumeName;
use meshd_types::{MacAddr, SystemUuid, VmName};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Longest detail of a failure or refusal, in bytes.
pub const MAX_FAILURE_TEXT: usize = 1024;
/// Most lines of QEMU's log that go with a failure.
pub const MAX_FAILURE_LINES: usize = 20;

/// Where a virtual machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum VmState {
    /// QEMU is being started; the guest does not run yet.
    Starting,
    /// The guest runs.
    Running,
    /// QEMU holds the guest: the store is full, a disk fails, or the processor gave up on it. Nothing of it is lost yet.
    Paused,
    /// It was asked to end.
    Stopping,
    /// It ended by itself, and is started again after a delay.
    Waiting,
    /// It is off, as asked, or because the guest switched itself off.
    Stopped,
    /// It is off, and nobody wanted that.
    Failed,
}

impl VmState {
    /// All states.
    pub const ALL: [VmState; 7] = [
        VmState::Starting,
        VmState::Running,
        VmState::Paused,
        VmState::Stopping,
        VmState::Waiting,
        VmState::Stopped,
        VmState::Failed,
    ];

    /// The word of the wire, which is also shown.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// True while there is, or may be, a process of it.
    pub fn is_live(self) -> bool {
        matches!(self, VmState::Starting | VmState::Running | VmState::Paused | VmState::Stopping)
    }
}

/// What ended a virtual machine that nobody asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmFailureKind {
    /// The node cannot run it as it is now.
    Refused,
    /// Its files could not be made, or QEMU could not be run.
    Prepare,
    /// QEMU ended before the guest ran.
    NotStarted,
    /// QEMU did not answer in time.
    StartTimeout,
    /// QEMU ended while the guest ran.
    Crashed,
    /// The guest's kernel gave up.
    GuestPanic,
    /// It ended while no agent watched.
    EndedUnseen,
    /// QEMU holds the guest.
    Paused,
    /// QEMU does not end, not even when killed.
    Immortal,
}

/// Why a virtual machine has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmFailure {
    pub kind: VmFailureKind,
    /// In words, at most [`MAX_FAILURE_TEXT`] bytes.
    pub detail: String,
    /// The last of QEMU's own words, at most [`MAX_FAILURE_LINES`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

impl VmFailure {
    /// True if it was refused for what every other node would refuse it for, too.
    pub fn is_everywhere(&self) -> bool {
        use VmRefusalReason::{SpecInvalid, VolumeDiffers, VolumeMissing, VolumeUnfit};
        let says = |reason: VmRefusalReason| self.detail.contains(&format!("{}: ", reason.as_str()));
        self.kind == VmFailureKind::Refused
            && [SpecInvalid, VolumeDiffers, VolumeMissing, VolumeUnfit].into_iter().any(says)
    }
}

/// What a node tells of one of its virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmReport {
    pub uuid: SystemUuid,
    /// What people call it.
    pub name: VmName,
    pub state: VmState,
    /// Why it failed, or why it was started again last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<VmFailure>,
    /// How often it was started again in a row.
    #[serde(default)]
    pub restarts: u32,
    /// The number of the order by which it was started last; `None` from an older agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// How far the fetch of its volumes is, while they are fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetching: Option<VmFetching>,
    /// What the node gave to its cards in the node's private network.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<MacAddr, Ipv4Addr>,
    /// Disks of the node that are its own by now, by the volumes that they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disks: BTreeMap<VolumeName, DiskUse>,
    /// What each of those disks held when it became the machine's own; absent for one that was empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contents: BTreeMap<VolumeName, Vec<String>>,
}

impl VmReport {
    /// One of which no more than that is told.
    pub fn new(uuid: SystemUuid, name: VmName, state: VmState) -> Self {
        let (failure, restarts, start, fetching) = (None, 0, None, None);
        let (addresses, disks, contents) = Default::default();
        VmReport { uuid, name, state, failure, restarts, start, fetching, addresses, disks, contents }
    }
}

/// How far a disk of the node is a machine's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskUse {
    /// The write of its image has begun.
    Begun,
    /// Its image is on it, or the guest had it as it was. Nothing is written onto it any more but by the guest.
    Done,
}

/// How far the fetch of a machine's volumes is, or the write of them onto disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmFetching {
    /// Bytes that are on the node and checked.
    pub bytes: u64,
    /// Bytes of all volumes whose size is known so far.
    pub of: u64,
    /// Why the last piece did not come, while it is asked for again.
    #[serde(rename = "trouble", default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// They are here, and are being written onto disks of the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writing: bool,
}

/// What a node lacks for a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum VmRefusalReason {
    /// The specification cannot be run on any node.
    SpecInvalid,
    /// There is no QEMU.
    QemuMissing,
    /// `/dev/kvm` does not open, and the specification does not allow emulation.
    KvmMissing,
    /// QEMU does not know the processor's model.
    CpuUnknown,
    /// More processors than the node has threads.
    CpusExceeded,
    /// More memory than the node has left.
    MemoryExceeded,
    /// Fewer huge pages are free than it needs.
    HugepagesExceeded,
    /// There is no such NUMA node.
    NumaMissing,
    /// No unit has that function.
    UnitMissing,
    /// The unit cannot be given now.
    UnitNotReady,
    /// Another machine of this node has it, or shall have it.
    UnitTaken,
    /// A file that was named by its digest is not on the node.
    VolumeMissing,
    /// A file that is no image, or one that reaches for other files.
    VolumeUnfit,
    /// What was fetched is not what its digest names.
    VolumeDiffers,
    /// A file has no room on the node.
    StoreFull,
    /// No disk has that identity, or several have.
    DiskMissing,
    /// The node itself, or another machine, uses the disk.
    DiskInUse,
    /// The disk belongs to a slot that the machine does not have.
    DiskTaken,
    /// The disk holds something, and nobody said that it may go.
    DiskNotEmpty,
    /// The disk has less room than the image takes.
    DiskTooSmall,
    /// The image is not on the disk as it should be.
    DiskWriteFailed,
    /// The node's doctor says that no disk is to be written (DR-16).
    DoctorFails,
    /// There is no such bridge.
    BridgeMissing,
    /// The firmware that it asks for is not installed.
    FirmwareMissing,
    /// There is no TPM emulator.
    TpmMissing,
    /// Another machine of this node has that name.
    NameTaken,
    /// Another machine of this node has that MAC address.
    MacTaken,
    /// Another card has that address in the node's private network.
    AddressTaken,
    /// The node's private network does not hold that address.
    AddressUnfit,
}

impl VmRefusalReason {
    /// The word of the wire, which is also shown.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One reason why a node cannot run a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRefusal {
    pub reason: VmRefusalReason,
    /// In words.
    pub detail: String,
}
