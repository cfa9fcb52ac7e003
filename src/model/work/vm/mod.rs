//! Records of VMs.
//!
//! | module | content |
//! | --- | --- |
//! | `record` | desired state, placement and last report |
//! | `placement` | chooses node and devices of a VM |
//! | `phase` | phase of a VM, derived from desired state and last report |
//! | `disks` | disks that a VM uses, used before, or leaves on a node |
//! | `numa_locality` | NUMA locality of a VM on its node |
//! | `failover_policy` | restart, move or stop of a VM whose node is lost or refuses it |
//! | `nic_address` | addresses of NICs: scope of an IP address, addresses of slots |
//! | `reserved_nic` | NICs as the DHCP server knows them |

pub mod disks;
pub mod nic_address;
pub mod numa_locality;
pub mod failover_policy;
pub mod phase;
pub mod placement;
pub mod record;
pub mod reserved_nic;
