//! Step 2, work: what nodes are given to do, and what they have to give. Pure.
//!
//! ```text
//! slot   what of a node can be given away    place  which node takes it      wishes  which of its units
//! vm     a virtual machine's record and life  job    a bare-metal task's record and life    held  what is given away of a node
//! ```
//! A node either holds virtual machines or is claimed by one job, never both.

mod held;
pub mod job;
mod place;
mod slot;
mod vm;
mod wishes;

pub use held::Held;
pub use place::{Fit, Host, Lack, Lacking, MAX_TOLD, NODE_RESERVE, Runs, Unfit, Verdict, lacks, place};
pub use slot::{
    Approved, MAX_FABRIC, ParseSlotIdError, Slot, SlotId, SlotState, barred, candidates, functions, judge, of_node,
    unit_of,
};
pub use vm::{Place, Seen, Vm, VmLife, VmTold, VmWish};

#[cfg(test)]
mod sim_tests;
