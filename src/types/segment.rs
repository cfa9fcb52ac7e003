//! Networks on which machines boot: segments of site.toml, which the DHCP engine serves.

use crate::{MacAddr, NodeId};
use std::{fmt, net::Ipv4Addr, time::Duration};

/// A network of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub link: Link,
    /// Server address for clients of the segment; `None` means the address of the interface.
    pub address: Option<Ipv4Addr>,
    /// The role of the server.
    pub mode: DhcpMode,
    /// The subnet whose addresses are leased, in authoritative mode.
    pub subnet: Option<Subnet>,
    /// Ethernet addresses of the relay; with an empty list, any address may relay.
    pub relay_macs: Vec<MacAddr>,
    /// Further addresses of relays on the segment, besides the one of the link.
    pub redundant_relays: Vec<Ipv4Addr>,
}

impl Segment {
    /// Returns the name of the segment: its interface, or `relay-<address>`.
    pub fn name(&self) -> String {
        self.link.to_string()
    }

    /// Returns the interface of a segment that is not behind a relay.
    pub fn interface(&self) -> Option<&str> {
        match &self.link {
            Link::Interface(interface) => Some(interface),
            Link::Relay(_) => None,
        }
    }
}

/// The link over which packets of a segment arrive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// Directly, on this interface. Boot services listen on it and nowhere else.
    Interface(String),
    /// Through the relay with this address (giaddr). The packets arrive on the interface of another
    /// segment.
    Relay(Ipv4Addr),
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Interface(interface) => f.write_str(interface),
            Link::Relay(relay) => write!(f, "relay-{relay}"),
        }
    }
}

/// The role of the server on a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpMode {
    /// meshd leases addresses.
    Authoritative,
    /// Another server leases addresses; meshd adds boot information.
    Proxy,
    /// meshd does not answer DHCP.
    Off,
}

impl DhcpMode {
    /// Returns the word of site.toml.
    pub fn as_str(self) -> &'static str {
        match self {
            DhcpMode::Authoritative => "authoritative",
            DhcpMode::Proxy => "proxy",
            DhcpMode::Off => "off",
        }
    }
}

/// A subnet with one pool of addresses to lease, and the options of its leases. The terms are those
/// of Kea.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// First address of the pool.
    pub first: Ipv4Addr,
    /// Last address of the pool.
    pub last: Ipv4Addr,
    /// Length of the network prefix, 8 to 30.
    pub prefix_len: u8,
    /// Lease time.
    pub lease: Duration,
    /// Option 3.
    pub router: Option<Ipv4Addr>,
    /// Option 6.
    pub dns: Vec<Ipv4Addr>,
    /// Option 42.
    pub ntp: Vec<Ipv4Addr>,
    /// Option 15.
    pub domain: Option<String>,
}

impl Subnet {
    /// Returns the netmask as a number.
    pub fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix_len.min(32))).unwrap_or(0)
    }

    /// Returns the network address.
    pub fn network(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.first) & self.mask())
    }

    /// Returns the broadcast address.
    pub fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.first) | !self.mask())
    }

    /// Returns true for an address of the subnet.
    pub fn is_on_network(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask() == u32::from(self.network())
    }

    /// Returns true for an address of the pool.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&address)
    }
}

/// The owner of a reserved address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// One NIC.
    Mac(MacAddr),
    /// One machine: its first NIC that requests an address receives the reserved address.
    Node(NodeId),
}
