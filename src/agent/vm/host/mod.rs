//! Resources of this node for VMs.
//!
//! | module | content |
//! | --- | --- |
//! | `config` | folders of the agent, and what the profile assigns to VMs |
//! | `resources` | what the node has for one specification: CPUs, NUMA nodes, huge pages, disks, bridges, images |
//! | `installed` | QEMU, helper programs, UEFI firmware |
//! | `cpu_models` | CPU models of the installed QEMU |
//! | `seccomp_support` | whether the installed QEMU has a seccomp sandbox |
//! | `memory` | memory that is left for VMs and their files |
//! | `capacity` | space that is left in the store |
//! | `facts` | the part that is reported to the central node for placement |

pub mod capacity;
pub mod config;
pub mod cpu_models;
pub mod facts;
pub mod installed;
pub mod memory;
pub mod resources;
pub mod seccomp_support;
