//! Reasons why a node, or every node, does not take a VM. The words are part of the API. Pure.

use meshd_types::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Reason why a node does not take a VM. Permanent reasons are ordered before
/// [`RejectReason::NotReady`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RejectReason {
    /// Another node was named.
    NotNamed,
    /// The profile of the node runs no VMs.
    RunsNoVms,
    /// `/dev/kvm` does not open, and emulation is not allowed.
    KvmMissing,
    /// More CPUs than the node has threads.
    CpusExceeded,
    /// More memory than the node has.
    MemoryExceeded,
    /// More huge pages than the node has.
    HugepagesExceeded,
    /// The node has no such NUMA node.
    NumaMissing,
    /// QEMU of the node does not know the CPU model.
    CpuUnknown,
    /// QEMU is not installed.
    QemuMissing,
    /// No firmware of that kind is installed.
    FirmwareMissing,
    /// No TPM emulator is installed.
    TpmMissing,
    /// The node has no such bridge.
    BridgeMissing,
    /// The node has too few units of that kind.
    UnitMissing,
    /// No disk has that identity, or several have it.
    DiskMissing,
    /// The node takes no work now.
    NotReady,
    /// The node has the maximum number of VMs.
    Full,
    /// Other VMs have the CPUs.
    CpusTaken,
    /// Other VMs have the memory.
    MemoryTaken,
    /// Other VMs have the huge pages.
    HugepagesTaken,
    /// Other VMs have the units.
    UnitTaken,
    /// The units cannot be assigned now.
    UnitNotReady,
    /// The slots of the units are not approved, disabled, or share a fabric device with a taken
    /// slot.
    SlotClosed,
    /// The slots of the units have no disk.
    SlotWithoutDisk,
    /// The slots of the units have no MAC address.
    SlotWithoutNic,
    /// A VM, a slot or the node itself has the disk.
    DiskTaken,
}

as_str!(RejectReason);

impl RejectReason {
    /// Returns true if the reason remains even after other VMs leave and the node becomes ready.
    pub fn is_lasting(self) -> bool {
        self < RejectReason::NotReady
    }
}

/// One reason against a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: RejectReason,
    /// Details with names and numbers.
    pub detail: String,
}

/// The verdict over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Verdict {
    /// All nodes together do not have the resources.
    None,
    /// All nodes together have the resources, but no single node.
    NoSingleNode,
    /// A node has the resources, but it is not ready, or other VMs use the resources.
    NotReady,
}

as_str!(Verdict);

/// No node takes the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPlacement {
    pub verdict: Verdict,
    /// The nodes with the fewest reasons, at most [`crate::work::MAX_EXPLAINED`], each with all its
    /// reasons.
    pub nearest: Vec<(NodeId, Vec<Rejection>)>,
    /// Number of nodes that were considered.
    pub nodes: usize,
    /// Number of nodes with each reason, the most frequent first.
    pub counts: Vec<(RejectReason, usize)>,
}

impl fmt::Display for NoPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no node is known");
        }
        let meaning = match self.verdict {
            Verdict::None => "all nodes together lack the resources",
            Verdict::NoSingleNode => {
                "all nodes together have the resources, but no single node has them"
            }
            Verdict::NotReady => "a node has the resources, but is not ready, or others use them",
        };
        write!(f, "{}: {meaning}", self.verdict.as_str())?;
        if self.nodes > self.nearest.len() && !self.counts.is_empty() {
            let counts =
                self.counts.iter().map(|(reason, count)| format!("{} on {count}", reason.as_str()));
            write!(f, " ({} nodes: {})", self.nodes, counts.collect::<Vec<_>>().join(", "))?;
        }
        // Equal machines have equal reasons, which are written once.
        let mut explained: Vec<(String, Vec<String>)> = Vec::new();
        for (node, rejections) in &self.nearest {
            let words = rejections
                .iter()
                .map(|Rejection { reason, detail }| format!("{} ({detail})", reason.as_str()));
            let words = words.collect::<Vec<_>>().join(", ");
            match explained.iter_mut().find(|(known, _)| *known == words) {
                Some((_, nodes)) => nodes.push(node.to_string()),
                None => explained.push((words, vec![node.to_string()])),
            }
        }
        for (words, nodes) in explained {
            write!(f, ". {}: {words}", nodes.join(" "))?;
        }
        Ok(())
    }
}
