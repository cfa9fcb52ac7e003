//! Workloads: VMs and tasks.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `tasks` | tasks on two machines with the real MPICH |
//! | `vms` | VMs on this machine, with real QEMU |
//! | `workloads` | records, placement and reconciliation of VMs |

pub mod tasks;
pub mod vms;
pub mod workloads;
