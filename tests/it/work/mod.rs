//! Workloads: virtual machines and tasks.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `tasks` | tasks on two machines with the real MPICH |
//! | `vms` | virtual machines on this machine, with real QEMU |
//! | `workloads` | records, placement and reconciliation of virtual machines |

pub mod tasks;
pub mod vms;
pub mod workloads;
