//! DHCP: a machine asks for an address and is told what to boot.
//!
//! In the order in which a packet passes: [`request`] reads it, [`engine`] decides, with [`leases`] for the address and
//! [`bootfile`] for the program, [`reply`] writes the answer. All of that is pure. [`socket`] binds and [`run`] drives.

mod bootfile;
mod engine;
mod leases;
mod reply;
mod request;
mod run;
mod socket;

#[cfg(test)]
mod tests;

pub use bootfile::{BootFile, NoLoader, Sources, loader_names};
pub use engine::{Effect, Engine, Note, Origin, PROXY_PORT};
pub use leases::{DECLINED_HOLD, LeaseChange, OFFER_HOLD};
pub use run::run;
pub use socket::{Bound, bind};
