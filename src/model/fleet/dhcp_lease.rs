//! DHCP leases.

use meshd_types::{MacAddr, SystemUuid, Timestamp};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// A DHCP lease. The key is the MAC address: firmware, iPXE and Linux send different client
/// identifiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub mac: MacAddr,
    /// Leased address, unique among leases.
    pub address: Ipv4Addr,
    /// Expiry. An expired lease stays until its address is needed, so that a machine receives its
    /// old address again.
    pub expires_at: Timestamp,
    /// VM that owns the NIC. The lease is deleted with the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<SystemUuid>,
}
