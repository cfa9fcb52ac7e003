//! mesh-agent, which runs on each node.
//!
//! | module | content |
//! | --- | --- |
//! | `link` | the connection to the central node: TLS, the node's key and certificate |
//! | `link_state` | the link state machine: enrolment, connection, heartbeats, retries; pure, no socket, no clock |
//! | `link_driver` | passes events to `link_state` and executes its actions |
//! | `system` | the kernel's view of the node: sysfs and procfs |
//! | `facts` | hardware and software of the node |
//! | `disks` | whole disks: use, content, owner, wiping |
//! | `vfio` | passthrough of PCI devices |
//! | `checks` | readiness checks |
//! | `vm` | VMs, run by QEMU |
//! | `networks` | the private network of VMs, firewalls of guests and users |
//! | `task` | tasks: programs on bare metal |
//! | `container` | containers, run by crun |
//!
//! Uses `meshd_types`, `meshd_proto`, `meshd_client` and `meshd_kexec`, and no other crate of meshd.

pub mod checks;
pub mod container;
mod disks;
pub mod link_driver;
pub mod facts;
pub mod task;
mod link;
pub mod link_state;
mod networks;
pub mod system;
pub mod vfio;
pub mod vm;

pub use link::warm_boot::start_loaded_kernel;

#[cfg(test)]
mod fake;

pub use link::files;

use meshd_types::Timestamp;
use std::sync::OnceLock;

static VERSION: OnceLock<String> = OnceLock::new();

/// Sets the commit and its time in Unix seconds for [`version`]. The program sets them, because
/// only the program is rebuilt for each commit.
pub fn set_build(commit: &str, time: &str) {
    let time = Timestamp::from_millis(time.trim().parse::<i64>().unwrap_or(0).saturating_mul(1000));
    let _ = VERSION.set(format!("{} ({commit}, {time})", env!("CARGO_PKG_VERSION")));
}

/// Returns `version (commit, build time)`, as facts and `mesh-agent --version` show it.
pub fn version() -> &'static str {
    VERSION.get_or_init(|| format!("{} (unknown build)", env!("CARGO_PKG_VERSION")))
}
