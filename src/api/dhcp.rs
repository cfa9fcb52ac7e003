//! Networks that boot machines, and the addresses that are leased there.

use meshd_types::{MacAddr, NodeId, SystemUuid, Timestamp};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use utoipa::ToSchema;

/// One segment of the site, as DHCP serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentView {
    /// Its interface, or `relay-<address>`.
    pub name: String,
    /// `authoritative`, `proxy` or `off`.
    pub mode: String,
    /// The address of meshd there; absent if it is that of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Ipv4Addr>,
    /// First and last address of its range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub range: Option<[Ipv4Addr; 2]>,
    /// Addresses of its range.
    pub size: u32,
    /// Addresses with a lease that has not expired.
    pub leased: u32,
    /// Addresses that were offered within the last minute.
    pub offered: u32,
    /// Addresses that are held back, because a client found them in use.
    pub declined: u32,
    /// DHCP and PXE servers of others, the newest last.
    pub other_servers: Vec<OtherServerView>,
}

/// A DHCP or PXE server that is not this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OtherServerView {
    /// Its server identifier (RFC 2132, option 54).
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    /// It leases no addresses: it answers PXE clients only.
    pub proxy: bool,
    /// When it was last heard.
    #[schema(value_type = String)]
    pub last: Timestamp,
}

/// One lease. A MAC address has one, whatever client identifiers its firmware and its system send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    #[schema(value_type = String)]
    pub mac: MacAddr,
    /// `active` or `expired`. An expired one is kept until its address is needed, so that a machine gets its old address back.
    pub state: String,
    #[schema(value_type = String)]
    pub expires_at: Timestamp,
    /// The node that has this NIC.
    #[schema(value_type = Option<String>)]
    pub node: Option<NodeId>,
    /// The name of the node.
    pub name: Option<String>,
    /// The virtual machine that has this NIC.
    #[schema(value_type = Option<String>)]
    pub vm: Option<SystemUuid>,
}
