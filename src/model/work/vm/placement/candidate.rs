//! A node as the scheduler sees it, and the result of a placement.

use super::allocations::Allocations;
use crate::work::{ApprovedSlot, AssignedParts};
use meshd_config::vm::VmRequest;
use meshd_proto::{DiskFacts, DiskIdentity, Hosting, UnitFacts, vm::RawDisk};
use meshd_types::{NodeId, PciAddress};

/// VM support of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VmSupport {
    /// The profile runs no VMs.
    Nothing,
    /// The node has no KVM.
    Emulated,
    /// `/dev/kvm` opens.
    Kvm,
}

/// A node as the scheduler sees it.
#[derive(Clone, Debug)]
pub struct CandidateNode<'a> {
    pub node: NodeId,
    /// Reason why the node takes no work now; `None` if it does.
    pub unready: Option<&'a str>,
    /// Support for VMs: none, emulation or KVM.
    pub vm_support: VmSupport,
    /// Features reported in this boot; `None` if unknown.
    pub hosting: Option<&'a Hosting>,
    /// Hardware threads.
    pub threads: u32,
    /// vCPUs of VMs that share threads, per thread.
    pub overcommit: u32,
    /// Memory without huge pages, in bytes.
    pub memory: u64,
    /// Memory in huge pages, in bytes.
    pub hugepages: u64,
    pub units: &'a [UnitFacts],
    /// Whole disks.
    pub disks: &'a [DiskFacts],
    /// Resources that VMs hold.
    pub allocations: &'a Allocations,
    /// Minimum number of free units that cannot be assigned.
    pub closed: usize,
    /// Units whose slot cannot be assigned, by first function, with the reason.
    pub unassignable_units: Vec<(PciAddress, String)>,
    /// Approved slots with a disk, fabric device or NIC addresses.
    pub slots: Vec<&'a ApprovedSlot>,
}

/// The result of a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementFit {
    pub node: NodeId,
    /// Parts of the node for the VM.
    pub assigned: AssignedParts,
}

/// Returns the disks that the specification names.
pub fn named_disks(request: &VmRequest) -> impl Iterator<Item = &DiskIdentity> {
    request.spec.volumes.iter().filter_map(|volume| match volume.source.disk()? {
        RawDisk::Named(disk) => Some(disk),
        RawDisk::Slot(_) => None,
    })
}
