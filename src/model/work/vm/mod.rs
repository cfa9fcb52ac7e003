//! Records of VMs.
//!
//! | module | content |
//! | --- | --- |
//! | `record` | desired state, placement and last report |
//! | `placement` | chooses node and devices of a VM |
//! | `phase` | phase of a VM, derived from desired state and last report |
//! | `spec` | the specification for the node: the request, with the assigned parts |
//! | `cloud_init_user` | the user of a guest that takes the key of its node |
//! | `disks` | disks that a VM uses, used before, or leaves on a node |
//! | `assigned` | parts of a node that a placement assigns to a VM |
//! | `failover_policy` | restart, move or stop of a VM whose node is lost or refuses it |
//! | `nic_address` | addresses of NICs: scope of an IP address, addresses of slots |
//! | `reserved_nic` | NICs as the DHCP server knows them |

pub mod assigned;
pub mod cloud_init_user;
pub mod disks;
pub mod nic_address;
pub mod failover_policy;
pub mod phase;
pub mod placement;
pub mod record;
pub mod reserved_nic;
mod spec;
