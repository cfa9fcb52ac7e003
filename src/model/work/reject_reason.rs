//! Why a node does not take a virtual machine, in words that stay the same. Pure.

use meshd_types::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a node lacks, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// It is not the one that was named.
    NotNamed,
    /// Its profile runs no virtual machines.
    RunsNoVms,
    /// `/dev/kvm` does not open, and emulation is not allowed.
    KvmMissing,
    /// More processors than it has threads.
    CpusExceeded,
    /// More memory than it has.
    MemoryExceeded,
    /// More huge pages than it has.
    HugepagesExceeded,
    /// There is no such NUMA node.
    NumaMissing,
    /// Its QEMU does not know the processor model.
    CpuUnknown,
    /// It has no QEMU.
    QemuMissing,
    /// It has no firmware of that kind.
    FirmwareMissing,
    /// It can emulate no TPM.
    TpmMissing,
    /// It has no such bridge.
    BridgeMissing,
    /// It has too few units of that kind.
    UnitMissing,
    /// It has no disk of that identity, or several.
    DiskMissing,
    /// It takes no work now.
    NotReady,
    /// It has as many virtual machines as a node may have.
    Full,
    /// Others have its processors.
    CpusTaken,
    /// Others have its memory.
    MemoryTaken,
    /// Others have its huge pages.
    HugepagesTaken,
    /// Others have its units.
    UnitTaken,
    /// Its units cannot be given now.
    UnitNotReady,
    /// The slots of its units are not approved, disabled, or share a fabric device with one that is taken.
    SlotClosed,
    /// The slots of its units have no disk, and that of a slot is asked for.
    SlotWithoutDisk,
    /// The slots of its units have no MAC address, and that of a slot is asked for.
    SlotWithoutCard,
    /// Another has the disk, a slot, or the node itself.
    DiskTaken,
}

impl RejectReason {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            RejectReason::NotNamed => "not_named",
            RejectReason::RunsNoVms => "runs_no_vms",
            RejectReason::KvmMissing => "kvm_missing",
            RejectReason::CpusExceeded => "cpus_exceeded",
            RejectReason::MemoryExceeded => "memory_exceeded",
            RejectReason::HugepagesExceeded => "hugepages_exceeded",
            RejectReason::NumaMissing => "numa_missing",
            RejectReason::CpuUnknown => "cpu_unknown",
            RejectReason::QemuMissing => "qemu_missing",
            RejectReason::FirmwareMissing => "firmware_missing",
            RejectReason::TpmMissing => "tpm_missing",
            RejectReason::BridgeMissing => "bridge_missing",
            RejectReason::UnitMissing => "unit_missing",
            RejectReason::DiskMissing => "disk_missing",
            RejectReason::NotReady => "not_ready",
            RejectReason::Full => "full",
            RejectReason::CpusTaken => "cpus_taken",
            RejectReason::MemoryTaken => "memory_taken",
            RejectReason::HugepagesTaken => "hugepages_taken",
            RejectReason::UnitTaken => "unit_taken",
            RejectReason::UnitNotReady => "unit_not_ready",
            RejectReason::SlotClosed => "slot_closed",
            RejectReason::SlotWithoutDisk => "slot_without_disk",
            RejectReason::SlotWithoutCard => "slot_without_card",
            RejectReason::DiskTaken => "disk_taken",
        }
    }

    /// True if it will not pass by itself, nor by others going.
    pub fn is_lasting(self) -> bool {
        self < RejectReason::NotReady
    }
}

/// One thing that a node lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// What.
    pub lack: RejectReason,
    /// In words.
    pub detail: String,
}

/// Why no node takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not even all nodes together have it.
    None,
    /// Together they have it, no single one does.
    NoSingleNode,
    /// A node has it, and is not ready, or others use it now.
    NotReady,
}

impl Verdict {
    /// The word that is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::None => "none",
            Verdict::NoSingleNode => "no_single_node",
            Verdict::NotReady => "not_ready",
        }
    }
}

/// Nothing fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// In one word.
    pub verdict: Verdict,
    /// The nearest nodes, at most [`super::MAX_TOLD`], with everything that each lacks.
    pub nearest: Vec<(NodeId, Vec<Lacking>)>,
    /// How many nodes were looked at.
    pub nodes: usize,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.verdict {
            _ if self.nodes == 0 => "no node is known",
            Verdict::None => "no node has it, nor all together",
            Verdict::NoSingleNode => "all nodes together have it, but no single one",
            Verdict::NotReady => "a node has it, but cannot give it now",
        })?;
        for (node, lacks) in &self.nearest {
            let words = lacks.iter().map(|lacking| format!("{} ({})", lacking.lack.as_str(), lacking.detail));
            write!(f, ", {node}: {}", words.collect::<Vec<_>>().join(" and "))?;
        }
        Ok(())
    }
}
