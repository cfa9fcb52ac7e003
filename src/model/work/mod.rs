//! Workloads of nodes, and the resources that nodes offer. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `vm` | records of VMs, and the placement of a VM on a node with its devices |
//! | `slot` | assignable devices of a node, with their disks, fabric devices and NIC addresses |
//! | [`container`] | containers: record, life cycle, and the placement of replicas |
//! | [`task`] | tasks on bare metal: record and life cycle |
//!
//! A node either holds VMs and replicas of containers, or is claimed by one task, never both.

pub mod container;
pub mod task;
mod slot;
mod vm;

pub use slot::{
    ApprovedSlot, DeviceChoice, MAX_FABRIC, NearestDevices, Slot, SlotId, SlotState, candidates,
    derive_slot, functions, slots_of_node, unassignable_units, unit_of,
};
pub use vm::placement::{
    allocations::Allocations,
    candidate::{CandidateNode, PlacementFit, VmSupport},
    explain::{MAX_EXPLAINED, rejections},
    node_choice::place,
    reject_reason::{NoPlacement, RejectReason, Rejection, Verdict},
};
pub use vm::{
    assigned::AssignedParts,
    cloud_init_user::cloud_init_user,
    failover_policy::MAX_REFUSED,
    nic_address::{SlotNic, private_address, site_address},
    phase::VmPhase,
    record::{LastReport, Placement, StartOrders, Vm, VmChange, VmDesiredState},
    reserved_nic::ReservedNic,
};

#[cfg(test)]
mod sim_tests;
