//! Where the time of a boot goes: its steps, compared with other boots, and what costs the time.
//!
//! | module | content |
//! | --- | --- |
//! | `step` | steps of a boot with their durations |
//! | `path` | one boot with the order and the failed attempts before it |
//! | `baseline` | medians of other boots |
//! | `kind` | kinds of delays |
//! | `delays` | what costs time in a boot |
//! | `settings` | what to change against a delay |

mod baseline;
mod delays;
mod kind;
mod path;
mod settings;
mod step;

pub use baseline::Baseline;
pub use delays::{BootComparison, BootDelay};
pub use kind::DelayKind;
pub use path::{BootOrder, BootPath};
pub use step::{BootStep, BootStepTime, stage_times};

#[cfg(test)]
mod tests;
