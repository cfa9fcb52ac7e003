//! Makes each VM on this node match the desired state that the central node sends. QEMU runs
//! directly, without libvirt.
//!
//! | module | content |
//! | --- | --- |
//! | [`manager`] | desired state ─▶ commands to supervisors ─▶ reports |
//! | `process` | one VM: state machine, supervisor, QEMU's process and control socket |
//! | `spec` | specification and resources ─▶ plan ─▶ QEMU's arguments; pure |
//! | `disks` | images, disk writes and wipes, cloud-init seed |
//! | `net` | TAP devices of NICs and their filters, logins at guests |
//! | `console` | serial console: log, input, connection to the central node |
//! | `host` | resources of this node: programs, firmware, CPUs, memory, disk space |
//! | [`confine`] | unprivileged user, control group and device rights of each VM |
//! | `failure` | failures and refusals in reports; pure |
//! | `fixtures` | specifications for unit tests |
//! | `reservations` | resources of the node that are reserved for VMs |
//! | `lock_helpers` | helpers for mutexes and watch channels |
//! | `vm_paths` | files of one VM |
//! | `helper_program` | runs a helper program to its end |
//!
//! QEMU outlives the agent: a restarted agent finds the process and takes it over.

pub mod confine;
mod console;
mod disks;
mod failure;
#[cfg(test)]
mod fixtures;
mod host;
pub mod manager;
mod net;
mod process;
mod reservations;
mod spec;
mod lock_helpers;
mod helper_program;
mod vm_paths;

pub use console::console_log::{
    Console, ConsoleEvent, ConsoleReader, ConsoleSubscription, ConsoleWriter,
    SCROLLBACK as CONSOLE_SCROLLBACK,
};
pub(super) use disks::volume_fetch::Volumes;
pub(super) use host::{
    capacity::{Space, space, store},
    memory::{resident, used_memory},
    seccomp_support::check_installed as check_sandbox,
};
pub use host::{
    config::{CheckRunner, HostConfig},
    cpu_models::CpuModels,
    facts::hosting,
};
pub use manager::{
    VmManager,
    vms::{ReleaseError, StartError, Vms},
};
pub use net::guest_login::{ALIVE_INTERVAL as GUEST_ALIVE_INTERVAL, GuestAccess, LoginFault};
pub use process::qemu_process::WatchedProcess;

use std::path::{Path, PathBuf};

/// Default folder of VMs and volumes on a node.
pub const FOLDER: &str = "/var/lib/machines";

/// Returns the folder of volumes inside the folder of VMs. Each volume is named by its digest.
pub fn volumes(vms_dir: &Path) -> PathBuf {
    vms_dir.join("volumes")
}
