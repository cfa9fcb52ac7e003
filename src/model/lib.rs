//! What the central node knows and decides: nodes and their lives, boot sessions, boot decisions, placement. Pure: time, randomness and
//! I/O are arguments.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`fleet`] | nodes, phases, conditions, boot sessions, generations, events, the audit log |
//! | [`work`] | virtual machines, slots and tasks: placement and their lives |
//! | [`boot`] | what a machine boots: request, decision, script |
//! | [`operations`] | requests that are not finished yet |

pub mod boot;
pub mod fleet;
pub mod operations;
pub mod work;
