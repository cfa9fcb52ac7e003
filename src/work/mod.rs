//! Step 2, work: what nodes are given to do, and what they have to give. Pure.
//!
//! ```text
//! slot   what of a node can be given away    place  which node takes it
//! vm     a virtual machine's record and life  job    a bare-metal task's record and life
//! ```
//! A node either holds virtual machines or is claimed by one job, never both.
