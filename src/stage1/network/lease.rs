//! A DHCP lease.

use serde::Serialize;
use std::net::Ipv4Addr;

/// A lease, as the server granted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    pub address: Ipv4Addr,
    /// Length of the network prefix.
    pub prefix: u8,
    pub server: Ipv4Addr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<Ipv4Addr>,
    pub dns: Vec<Ipv4Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Duration in seconds.
    pub lease_s: u32,
}

/// Returns the prefix length of a netmask; `None` if its ones are not contiguous.
pub fn prefix_of(mask: Ipv4Addr) -> Option<u8> {
    let bits = u32::from(mask);
    let prefix = bits.leading_ones();
    let is_contiguous = bits.count_ones() == prefix;
    u8::try_from(prefix).ok().filter(|prefix| is_contiguous && *prefix > 0)
}
