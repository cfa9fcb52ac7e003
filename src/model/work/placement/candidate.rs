//! A node as the scheduler sees it, and the result of a placement.

use super::allocations::Allocations;
use crate::work::{Approved, SlotCard};
use meshd_config::vm::VmAsk;
use meshd_proto::{
    DiskFacts, Hosting, PciFacts, UnitFacts,
    vm::{DiskIdentity, RawDisk},
};
use meshd_types::{NodeId, PciAddress};

/// How a node runs virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VmSupport {
    /// Its profile runs none.
    Nothing,
    /// It has no KVM.
    Emulated,
    /// `/dev/kvm` opens.
    Kvm,
}

/// A node, as far as it matters to a placement.
#[derive(Clone, Debug)]
pub struct CandidateNode<'a> {
    /// Node ID.
    pub node: NodeId,
    /// Why it takes no work now; `None` when it does.
    pub unready: Option<&'a str>,
    /// Whether virtual machines run on it.
    pub runs: VmSupport,
    /// What it has to run them, as it told in this boot; `None` where its agent does not tell.
    pub hosting: Option<&'a Hosting>,
    /// Hardware threads.
    pub threads: u32,
    /// Virtual processors of machines that share threads, to one thread.
    pub overcommit: u32,
    /// Memory without that of huge pages, in bytes.
    pub memory: u64,
    /// Memory of huge pages, in bytes.
    pub hugepages: u64,
    /// What can be given away.
    pub units: &'a [UnitFacts],
    /// Whole disks.
    pub disks: &'a [DiskFacts],
    /// All its functions, which say which NUMA nodes there are.
    pub pci: &'a [PciFacts],
    /// What is given away.
    pub held: &'a Allocations,
    /// Units that are not given away and still cannot be given: so many at least.
    pub closed: usize,
    /// Units whose slot cannot be given, by their first function, with the reason.
    pub barred: Vec<(PciAddress, String)>,
    /// Its approved slots to which a disk, a fabric device or addresses belongs.
    pub slots: Vec<&'a Approved>,
}

/// A node that takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementFit {
    /// Node ID.
    pub node: NodeId,
    /// One function of each unit that it gets; those that go with a slot come last.
    pub units: Vec<PciAddress>,
    /// For each volume that is the disk of a slot, which disk that is.
    pub disks: Vec<DiskIdentity>,
    /// For each card that has the addresses of a slot, which these are.
    pub cards: Vec<SlotCard>,
    /// The NUMA node that it is bound to because its units are there.
    pub near: Option<u32>,
    /// Units that are far from each other, or from the processors that were asked for.
    pub numa_mismatch: bool,
}

/// Disks that are asked for by their own names.
pub fn named(ask: &VmAsk) -> impl Iterator<Item = &DiskIdentity> {
    ask.spec.volumes.iter().filter_map(|volume| match volume.source.disk()? {
        RawDisk::Named(disk) => Some(disk),
        RawDisk::Slot(_) => None,
    })
}
