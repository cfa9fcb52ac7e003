//! Input of the engine: the networks to serve, reservations, and NICs of virtual machines. Pure.

use crate::boot_file::BootSources;
use meshd_types::{DenyList, MacAddr, NodeId, SystemUuid, VmName};
use std::{net::Ipv4Addr, time::Duration};

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The interfaces on which packets arrive.
    pub interfaces: Vec<Interface>,
    /// The networks to serve.
    pub segments: Vec<Segment>,
    /// Addresses that belong to one NIC or machine.
    pub reservations: Vec<Reservation>,
    /// NICs of virtual machines.
    pub nics: Vec<ReservedNic>,
    /// UUIDs that do not identify a machine.
    pub deny: DenyList,
    /// The boot files that can be served.
    pub sources: BootSources,
}

/// A network interface on which packets arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's name of the interface.
    pub name: String,
    /// The server address for clients of this interface.
    pub address: Ipv4Addr,
}

/// A network of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// How its packets arrive.
    pub link: Link,
    /// The server address for its clients; `None` means that of the interface.
    pub address: Option<Ipv4Addr>,
    /// The role of the server.
    pub mode: DhcpMode,
    /// The addresses to lease, in authoritative mode.
    pub pool: Option<Pool>,
    /// Ethernet addresses of the relay; with an empty list, any address may relay.
    pub relay_macs: Vec<MacAddr>,
}

impl Segment {
    /// Returns the name of the segment: its interface, or `relay-<address>`.
    pub fn name(&self) -> String {
        match &self.link {
            Link::Interface(interface) => interface.clone(),
            Link::Relay(relay) => format!("relay-{relay}"),
        }
    }

    /// Returns the interface of a segment that is not behind a relay.
    pub fn interface(&self) -> Option<&str> {
        match &self.link {
            Link::Interface(interface) => Some(interface),
            Link::Relay(_) => None,
        }
    }
}

/// How packets of a segment arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Directly, on this interface.
    Interface(String),
    /// Through the relay with this address (giaddr).
    Relay(Ipv4Addr),
}

/// The role of the server on a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpMode {
    /// It leases addresses.
    Authoritative,
    /// Another server leases addresses; this one adds boot information.
    Proxy,
    /// It does not answer.
    Off,
}

/// Addresses to lease, and the options of their leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// First address, inclusive.
    pub first: Ipv4Addr,
    /// Last address, inclusive.
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

impl Pool {
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

    /// Returns true for an address of the pool's network.
    pub fn is_on_network(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask() == u32::from(self.network())
    }

    /// Returns true for an address between the first and the last one.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (self.first..=self.last).contains(&address)
    }
}

/// An address that is never leased to anyone but its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Who gets the address.
    pub owner: Owner,
    /// An address of a segment's network, inside or outside of its range.
    pub address: Ipv4Addr,
}

/// The owner of a reserved address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// One NIC.
    Mac(MacAddr),
    /// One machine, with whichever of its NICs asks first.
    Node(NodeId),
}

/// A NIC of a virtual machine. It gets an address but no boot file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedNic {
    /// The virtual machine.
    pub vm: SystemUuid,
    /// Its name, which becomes the host name.
    pub name: VmName,
    pub mac: MacAddr,
    pub address: Option<Ipv4Addr>,
}

/// A change of the NICs of virtual machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicChanges {
    /// The complete list of NICs.
    All(Vec<ReservedNic>),
    /// Changed NICs; `None`: the NIC was removed.
    Changed(Vec<(MacAddr, Option<ReservedNic>)>),
}
