//! Step N, the node: what mesh-agent does on a machine that has booted.
//!
//! ```text
//! overlay ─▶ files     agent.json, boot.json with the token of this boot, CA certificate
//!            keys      a key that never leaves the node, and its certificate, in tmpfs
//!            facts     what this machine is: sysfs and procfs, nothing else
//!            disks     whole disks, and which may be given away
//!            units     what it can give to virtual machines
//!            slots     which disk and fabric device are nearest to each unit
//!            checks    is it fit for work?
//!            machine   what to do next: pure, no socket, no clock
//!            call      TLS, one POST, or a WebSocket to the central node; the agent only dials out
//!            vm        virtual machines, run by QEMU
//!            nat       their private network, where the profile has one
//!            job       programs on the metal, each in a control group
//!            driver    gives the machine events and does what it says
//! ```
//! Uses the vocabulary and the wire, and nothing else of this crate.

pub mod checks;
mod disks;
pub mod driver;
pub mod facts;
pub mod files;
pub mod job;
pub mod machine;
mod nat;
mod slots;
pub mod units;
pub mod vm;

mod call;
#[cfg(test)]
mod fake;
mod keys;
mod tasks;

use crate::id::Timestamp;
use std::sync::LazyLock;

/// `version (commit, build time)`, as facts and `mesh-agent --version` show it.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let built: i64 = env!("MESHD_BUILD_TIME").trim().parse().unwrap_or(0);
        let built = Timestamp::from_millis(built.saturating_mul(1000));
        format!("{} ({}, {built})", env!("CARGO_PKG_VERSION"), env!("MESHD_COMMIT"))
    });
    &VERSION
}
