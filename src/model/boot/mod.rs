//! Decides what a machine boots, or why it does not boot, from site, image, node and request.
//!
//! | module | content |
//! | --- | --- |
//! | `request` | the query of `GET /boot/script` |
//! | `profile_choice` | the profile that a node boots |
//! | `decide` | kernel, initrds and overlay of a node, as a plan |
//! | `boot_plan` | the plan: a public part, and a secret part for one boot |
//! | `kernel_command_line` | forms and checks the kernel command line |
//! | `refusal` | the reason why a machine does not boot now |
//! | `loader` | renders a plan or a refusal for a loader |
//! | `endpoint` | the address of the boot API |
//! | `failure` | the query of `GET /boot/failed` |
//! | `boot_queue` | limits how many machines load at once |
//! | `warm_boot` | whether a node may start its next boot without its firmware |
//!
//! All functions are pure: equal inputs give equal scripts, byte for byte. A refusal is also a
//! script: it shows the reason on the machine's console, waits and retries.

mod boot_plan;
mod boot_queue;
mod decide;
mod endpoint;
mod failure;
mod kernel_command_line;
mod loader;
mod profile_choice;
mod refusal;
mod request;
mod warm_boot;
#[cfg(test)]
mod tests;

pub use boot_plan::{BootContents, BootPlan, BootSecret, PlannedPart, PublicPlan};
pub use boot_queue::{Admission, BootQueue, QueueAnswer};
pub use decide::{PlanRequest, decide};
pub use endpoint::Endpoint;
pub use failure::BootFailure;
pub use kernel_command_line::{kexec_command_line, profile_args};
pub use loader::Loader;
pub use profile_choice::{NoProfile, choose, effective_profile};
pub use refusal::Refusal;
pub use request::{QueryError, ScriptRequest};
pub use warm_boot::{ColdBootReason, check_warm_boot};
