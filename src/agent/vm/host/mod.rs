//! Resources of this node for VMs.
//!
//! | module | content |
//! | --- | --- |
//! | `config` | folders of the agent, and devices that the profile assigns to VMs |
//! | `resources` | resources for one specification: CPUs, NUMA nodes, huge pages, disks, bridges, images |
//! | `installed` | QEMU, helper programs, UEFI firmware |
//! | `cpu_models` | CPU models of the installed QEMU |
//! | `seccomp_support` | whether the installed QEMU has a seccomp sandbox |
//! | `memory` | memory that is free for VMs and their files |
//! | `capacity` | free space of the store |
//! | `facts` | facts for placement by the central node |

pub mod capacity;
pub mod config;
pub mod cpu_models;
pub mod facts;
pub mod installed;
pub mod memory;
pub mod resources;
pub mod seccomp_support;
