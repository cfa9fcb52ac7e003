//! Workloads: VMs, tasks and containers.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `containers` | containers on three machines with the real crun |
//! | `tasks` | tasks on two machines with the real MPICH |
//! | `vms` | VMs on this machine, with real QEMU |
//! | `workloads` | records, placement and reconciliation of VMs |

pub mod containers;
pub mod tasks;
pub mod vms;
pub mod workloads;
