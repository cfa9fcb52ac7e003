//! A DHCP lease: which address a MAC address holds.

use meshd_types::{MacAddr, SystemUuid, Timestamp};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// Kept by MAC address, whatever client identifier firmware, iPXE and Linux send: one machine, one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// MAC address of the client.
    pub mac: MacAddr,
    /// Which address; no two leases share one.
    pub address: Ipv4Addr,
    /// Until when; kept afterwards as long as the address is not needed, so that a machine gets its old one back.
    pub expires_at: Timestamp,
    /// The virtual machine whose NIC that is: the lease goes with its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<SystemUuid>,
}
