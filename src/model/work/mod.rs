//! Step 2, work: what nodes are given to do, and what they have to give. Pure.
//!
//! ```text
//! slot   what of a node can be given away    place  which node takes it      wishes  which of its units
//! room   its processors and memory, also by NUMA node    means  its programs, firmware, bridges    lack  why it does not
//! parts  what goes with a slot
//! vm     a virtual machine's record, in one word by `vm_life`; `vm_lost` when its node loses or refuses it    card   its network cards
//! job    a bare-metal task's record and life    held  what is given away of a node    locality  near what it is on it
//! ```
//! A node either holds virtual machines or is claimed by one job, never both.

mod reserved_nic;
mod allocations;
mod reject_reason;
mod locality;
mod means;
pub mod job;
mod parts;
mod place;
mod capacity;
mod slot;
mod vm;
mod vm_disks;
mod vm_life;
mod vm_lost;
mod wishes;

pub use allocations::Allocations;
pub use locality::Locality;
pub use place::{Fit, Host, MAX_TOLD, VmSupport, lacks, place, place_by};
pub use reject_reason::{Lacking, RejectReason, Unfit, Verdict};
pub use reserved_nic::{CardNews, ReservedNic, SlotCard, fill_slot_cards, private_address, site_address};
pub use slot::{
    Approved, MAX_FABRIC, Near, ParseSlotIdError, Pick, Slot, SlotId, SlotState, barred, candidates, functions, judge,
    of_node, unit_of,
};
pub use vm::{Begun, NodeReport, Placement, Vm, VmTold, VmWish};
pub use vm_life::VmLife;
pub use vm_lost::MAX_REFUSED;

#[cfg(test)]
mod many_tests;
#[cfg(test)]
mod sim_tests;
