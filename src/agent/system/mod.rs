//! The node as its kernel shows it: sysfs and procfs below a root, each slow read with a deadline.
//! No external program.
//!
//! | module | content |
//! | --- | --- |
//! | [`tree`] | a file system below a root: total, with limits |
//! | [`source`] | reads with a deadline, one thread each |
//! | [`machine`], [`devices`], [`addresses`], [`routes`] | processors, memory, PCI functions, NICs, GPUs, addresses, routes |
//! | [`cgroup2`] | the hierarchy of control groups |
//! | [`user_ids`] | user IDs of VMs and tasks |
//! | [`isolation`], [`keyrings`], [`limits`] | namespaces, kernel keys and resource limits of their programs |
//! | [`pci`], [`holders`], [`disk_use`] | the PCI function of a device; processes that have it open; users of a disk |

pub mod addresses;
pub mod cgroup2;
pub mod devices;
pub mod disk_use;
pub mod holders;
pub mod isolation;
pub mod keyrings;
pub mod limits;
pub mod machine;
mod routes;
mod pci;
pub mod source;
mod tree;
pub mod user_ids;

pub use addresses::{by_interface, local_addresses};
pub use devices::{gpus, nics, pci_functions};
pub use machine::{cpu, kernel_boot_id, memory, memory_field, process_age, uptime};
pub use pci::{function_of, functions_of_disk, pci_path};
pub use routes::{Route, routes};
pub use tree::{Tree, is_file_name};
