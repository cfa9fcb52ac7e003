//! The node: what mesh-agent does on a machine that has booted.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `files` | files of the overlay: agent.json, boot.json with the token of this boot, CA certificate |
//! | `link` | the connection to the central node: TLS, the node's key and certificate |
//! | `link_state` | the link state machine: enrolment, connection, heartbeats, retries; pure, no socket, no clock |
//! | `link_driver` | passes events to `link_state` and executes its actions |
//! | `system` | the kernel's view of the node: sysfs and procfs |
//! | `facts` | what the node reports about itself |
//! | `disks` | whole disks, and which of them are free |
//! | `vfio` | PCI devices that VMs can use |
//! | `checks` | the health checks of `mesh-agent doctor` |
//! | `vm` | virtual machines, run by QEMU |
//! | `nat` | the private network of VMs, if the profile has one |
//! | `task` | tasks: programs on bare metal, each in a control group |
//!
//! Uses `meshd_types` and `meshd_proto`, and no other crate of meshd.

pub mod checks;
mod disks;
pub mod link_driver;
pub mod facts;
pub mod files;
pub mod task;
mod link;
pub mod link_state;
mod nat;
pub mod system;
pub mod vfio;
pub mod vm;

#[cfg(test)]
mod fake;

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
