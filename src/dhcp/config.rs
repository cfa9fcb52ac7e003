//! Input of the engine: the networks to serve, reservations, and known NICs. Pure.

use crate::{boot_file::BootSources, nic_records::NicRecord};
use meshd_types::{DenyList, MacAddr};
pub use meshd_types::{DhcpMode, Link, Owner, Segment, Subnet};
use std::net::Ipv4Addr;

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The interfaces on which packets arrive.
    pub interfaces: Vec<Interface>,
    /// The networks to serve.
    pub segments: Vec<Segment>,
    /// Addresses that belong to one NIC or machine.
    pub reservations: Vec<Reservation>,
    /// NICs with a record.
    pub nics: Vec<NicRecord>,
    /// UUIDs that do not identify a machine.
    pub non_identifying_uuids: DenyList,
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

/// An address that is never leased to anyone but its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The NIC or node that gets the address.
    pub owner: Owner,
    /// An address of a segment's network, inside or outside of its range.
    pub address: Ipv4Addr,
    /// The NIC that may send in the name of the owner: the parent of a virtual interface.
    pub parent: Option<MacAddr>,
}
