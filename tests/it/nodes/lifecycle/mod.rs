//! A node's life by an operator's word and by time: let in by rules, drained, held, forgotten,
//! found silent. Logic with a clock that is turned by hand, then the real daemon with the real
//! agent.

mod reconnect;
mod orders;
mod rules;
mod silence;
mod commands;
mod hook_crashes;
mod inventory;
pub mod warm_boot;
