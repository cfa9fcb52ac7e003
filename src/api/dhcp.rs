//! Networks that boot machines, and their leases.

use meshd_types::{MacAddr, NodeId, SystemUuid, Timestamp};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use utoipa::ToSchema;

/// A segment of the site and its DHCP state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentView {
    /// Name of the interface, or `relay-<address>` for a segment behind a relay.
    pub name: String,
    /// `authoritative`, `proxy` or `off`.
    pub mode: String,
    /// IPv4 address of meshd on the segment; absent if meshd uses the address of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    /// First and last address of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub range: Option<[Ipv4Addr; 2]>,
    /// Number of addresses in the pool.
    pub size: u32,
    /// Number of addresses with an unexpired lease.
    pub leased: u32,
    /// Number of addresses offered within the last minute.
    pub offered: u32,
    /// Number of addresses that are blocked because a client found them in use (DHCPDECLINE).
    pub declined: u32,
    /// Other DHCP and PXE servers on the segment, newest last.
    pub other_servers: Vec<OtherServerView>,
}

/// Another DHCP or PXE server on a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OtherServerView {
    /// Server identifier of the server (RFC 2132, option 54).
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    /// True if the server leases no addresses and answers PXE clients only.
    pub proxy: bool,
    /// Time of the last message from the server.
    pub last: Timestamp,
}

/// A lease. A MAC address has one lease, even if firmware and operating system send different
/// client identifiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    pub mac: MacAddr,
    /// `active` or `expired`. meshd keeps an expired lease until it needs the address, so that a
    /// machine gets the same address again.
    pub state: String,
    pub expires_at: Timestamp,
    /// ID of the node with this NIC.
    pub node: Option<NodeId>,
    /// Name of the node with this NIC.
    pub name: Option<String>,
    /// UUID of the VM with this NIC.
    pub vm: Option<SystemUuid>,
    /// The machine of a BMC, or what a BMC without a machine says of itself.
    pub bmc: Option<String>,
}
