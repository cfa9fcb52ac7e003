//! The node: what mesh-agent does on a machine that has booted.
//!
//! ```text
//! overlay ─▶ files     agent.json, boot.json with the token of this boot, CA certificate
//!            keys      a key that never leaves the node, and its certificate, in tmpfs
//!            system    the node as its kernel shows it: sysfs and procfs
//!            facts     what the node reports of itself
//!            disks     whole disks, and which may be given away
//!            vfio      PCI devices that VMs can get
//!            slots     which disk and fabric device are nearest to each unit
//!            checks    is it fit for work?
//!            machine   what to do next: pure, no socket, no clock
//!            call      TLS, one POST, or a WebSocket to the central node; the agent only dials out
//!            vm        virtual machines, run by QEMU
//!            nat       their private network, where the profile has one
//!            job       programs on the metal, each in a control group
//!            driver    gives the machine events and does what it says
//! ```
//! Uses `meshd_types` and `meshd_proto`, and no other crate of meshd.

pub mod checks;
mod disks;
pub mod driver;
pub mod facts;
pub mod files;
pub mod job;
pub mod machine;
mod nat;
mod slots;
pub mod system;
pub mod vfio;
pub mod vm;

mod call;
#[cfg(test)]
mod fake;
mod keys;
mod tasks;

use meshd_types::Timestamp;
use std::sync::OnceLock;

static VERSION: OnceLock<String> = OnceLock::new();

/// Sets the build that [`version`] shows: the commit, and its time in Unix seconds. The program calls it first, because only the program
/// is built anew with each commit.
pub fn set_build(commit: &str, time: &str) {
    let time = Timestamp::from_millis(time.trim().parse::<i64>().unwrap_or(0).saturating_mul(1000));
    // The first call counts.
    let _ = VERSION.set(format!("{} ({commit}, {time})", env!("CARGO_PKG_VERSION")));
}

/// Returns `version (commit, build time)`, as facts and `mesh-agent --version` show it.
pub fn version() -> &'static str {
    VERSION.get_or_init(|| format!("{} (unknown build)", env!("CARGO_PKG_VERSION")))
}
