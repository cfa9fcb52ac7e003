//! Input of the engine: what it asks about the machine behind a NIC.

use meshd_types::{MacAddr, NodeId};
use std::net::Ipv4Addr;

/// The known machines, by their NICs.
pub trait Machines {
    /// Returns the machine that was seen with this NIC, by the ID that reservations use.
    fn node_of(&self, mac: MacAddr) -> Option<NodeId>;

    /// Returns true if the NIC belongs to an approved machine: its address is never leased to another one, even after its lease.
    fn keeps_address(&self, mac: MacAddr) -> bool;

    /// Returns true while the machine boots or runs with this address: no release or decline takes it away.
    fn uses_address(&self, mac: MacAddr, address: Ipv4Addr) -> bool;

    /// Returns true for an approved machine.
    fn is_approved(&self, node: NodeId) -> bool;

    /// Returns where the NIC was attached when its machine was approved; `None` if unknown. `boots`: firmware or iPXE asks. The operating
    /// system may use NICs that the machine does not boot from.
    fn attachment(&self, mac: MacAddr, boots: bool) -> Option<Attachment>;
}

/// Where a NIC is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// On a direct segment, without a relay.
    pub is_local: bool,
    /// The port that the relay reported, if any.
    pub relay_port: Option<RelayPort>,
}

/// The port of a client at its relay: sub-options 1 and 2 of option 82 (RFC 3046) in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayPort {
    /// Agent circuit ID.
    pub circuit_id: Option<String>,
    /// Agent remote ID.
    pub remote_id: Option<String>,
}

/// No machine is known.
pub struct NoMachines;

impl Machines for NoMachines {
    fn node_of(&self, _: MacAddr) -> Option<NodeId> {
        None
    }

    fn keeps_address(&self, _: MacAddr) -> bool {
        false
    }

    fn uses_address(&self, _: MacAddr, _: Ipv4Addr) -> bool {
        false
    }

    fn is_approved(&self, _: NodeId) -> bool {
        false
    }

    fn attachment(&self, _: MacAddr, _: bool) -> Option<Attachment> {
        None
    }
}
