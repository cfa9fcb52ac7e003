//! Network interfaces of VMs. `crate::networks` has the private network and the packet filter.
//!
//! | module | content |
//! | --- | --- |
//! | `tap_ports` | TAP devices: made before QEMU starts, filtered, attached to bridges, removed |
//! | `nic_addresses` | addresses that the private network assigned to NICs; pure |

pub mod nic_addresses;
pub mod tap_ports;
