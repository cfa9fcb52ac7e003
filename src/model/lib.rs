//! The model of the central node: node life cycles, boot sessions, boot decisions, VM placement. Pure: time, randomness and I/O are
//! arguments.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`fleet`] | nodes, phases, conditions, boot sessions, generations, events, the audit log |
//! | [`work`] | VMs, slots and tasks: placement and life cycles |
//! | [`boot`] | boot of a machine: request, decision, script |
//! | [`operations`] | unfinished requests |

pub mod boot;
pub mod fleet;
pub mod operations;
pub mod work;
