//! The network of stage 1: the NIC that the machine boots from, its lease and its addresses.
//!
//! | module | content |
//! | --- | --- |
//! | `nic` | finds the NIC by its MAC address; explains why there is none |
//! | `lease` | a DHCP lease |
//! | `options` | options of a DHCP packet: pure |
//! | `dhcp_client` | DHCP client without I/O: pure |
//! | `dhcp_socket` | runs the client on a NIC |
//! | `links` | rtnetlink: sets the NIC up, adds address and route |
//! | `netconsole` | kernel messages by UDP: parameters of the module; pure |
//! | `handover` | files that let the network of the OS keep the lease |

mod nic;
mod lease;
mod options;
mod dhcp_client;
mod dhcp_socket;
mod links;
mod netconsole;
mod handover;

pub use dhcp_client::{DhcpClient, DhcpStep};
pub use dhcp_socket::{AcquireError, acquire};
pub use handover::write_handover;
pub use lease::Lease;
pub use links::{add_address, add_default_route, set_mtu, set_up};
pub use netconsole::netconsole_parameters;
pub use nic::{explain_missing_nic, has_carrier, interface_of};
