//! Network interfaces of VMs, and logins over them. `crate::networks` has the private network and
//! the packet filter.
//!
//! | module | content |
//! | --- | --- |
//! | `tap_ports` | TAP devices: made before QEMU starts, filtered, attached to bridges, removed |
//! | `guest_login` | logins of administrators at guests, by SSH |
//! | `nic_addresses` | addresses that the private network assigned to NICs; pure |

pub mod guest_login;
pub mod nic_addresses;
pub mod tap_ports;
