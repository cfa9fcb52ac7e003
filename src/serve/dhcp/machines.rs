//! What the DHCP service has to know of the machines behind network cards. The central node answers; tests put something small in its
//! place.

use crate::serve::central::Central;
use meshd_model::fleet::RelayPort;
use meshd_types::{MacAddr, NodeId};
use std::net::Ipv4Addr;

/// The machines of a site, by their network cards.
pub trait Machines {
    /// Returns the node that was seen with this card, by the ID that reservations know it as.
    fn node_of(&self, mac: MacAddr) -> Option<NodeId>;

    /// Returns true if the card is an approved node's: its address is never given to another machine, even after its lease.
    fn keeps_address(&self, mac: MacAddr) -> bool;

    /// Returns true while the card's machine boots from this address or has its link from there: nothing that is sent in its name
    /// takes the address away.
    fn uses_address(&self, mac: MacAddr, address: Ipv4Addr) -> bool;

    /// Returns true for an approved node.
    fn is_approved(&self, node: NodeId) -> bool;

    /// Returns where the card's node was attached when it enrolled; `None` if that is not known, or says nothing of this card: the
    /// operating system of a node may use cards that it does not boot from.
    fn attachment(&self, mac: MacAddr, boots: bool) -> Option<Attachment>;
}

/// Where a node is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// On a local segment: no relay passes its packets on.
    pub is_local: bool,
    /// The port that the relay told, if it told one.
    pub relay_port: Option<RelayPort>,
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

impl Machines for Central {
    fn node_of(&self, mac: MacAddr) -> Option<NodeId> {
        self.boot.node_of_mac(mac)
    }

    fn keeps_address(&self, mac: MacAddr) -> bool {
        self.boot.is_approved_card(mac)
    }

    fn uses_address(&self, mac: MacAddr, address: Ipv4Addr) -> bool {
        self.boot.uses_address(mac, address)
    }

    fn is_approved(&self, node: NodeId) -> bool {
        self.boot.is_approved_node(node)
    }

    fn attachment(&self, mac: MacAddr, boots: bool) -> Option<Attachment> {
        let (is_local, relay_port) = self.boot.attachment_of(mac, boots)?;
        Some(Attachment { is_local, relay_port })
    }
}
