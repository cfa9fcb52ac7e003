//! The model of the central node: node life cycles, boot sessions, boot decisions, VM placement.
//! Pure: time, randomness and I/O are arguments.
//!
//! | module | content |
//! | --- | --- |
//! | [`fleet`] | nodes, phases, conditions, boot sessions, generations, events, the audit log |
//! | [`work`] | VMs, slots and tasks: placement and life cycles |
//! | [`image_kind`] | kinds of images: parts, and the kernel arguments that they need |
//! | [`boot`] | boot of a machine: request, decision, script |
//! | [`operations`] | orders of operators to nodes, as records |
//! | [`rollouts`] | planned changes of many nodes, as records |
//! | [`bisections`] | searches for the first bad generation of a profile, as records |
//! | [`series`] | time series: samples of minutes and hours, bounded |
//! | [`activities`] | unfinished requests of nodes, VMs, slots and tasks |

/// Implements `as_str` of an enum that derives `strum::IntoStaticStr`.
macro_rules! as_str {
    ($type:ty) => {
        impl $type {
            /// Returns the word that is stored and shown.
            pub fn as_str(self) -> &'static str {
                self.into()
            }
        }
    };
}

pub mod activities;
pub mod bisections;
pub mod boot;
pub mod fleet;
pub mod image_kind;
pub mod operations;
pub mod rollouts;
pub mod series;
pub mod work;
