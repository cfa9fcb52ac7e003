//! What the DHCP service has to know of the machines behind network cards. The central node answers; tests put something small in its
//! place.

use crate::fleet::RelayPort;
use crate::id::{MacAddr, NodeId};
use crate::serve::central::Central;
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

    /// Returns the relay port that the card's node enrolled through, if a relay told it.
    fn relay_port(&self, mac: MacAddr) -> Option<RelayPort>;
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

    fn relay_port(&self, _: MacAddr) -> Option<RelayPort> {
        None
    }
}

impl Machines for Central {
    fn node_of(&self, mac: MacAddr) -> Option<NodeId> {
        self.node_of_mac(mac)
    }

    fn keeps_address(&self, mac: MacAddr) -> bool {
        self.is_approved_card(mac)
    }

    fn uses_address(&self, mac: MacAddr, address: Ipv4Addr) -> bool {
        Central::uses_address(self, mac, address)
    }

    fn relay_port(&self, mac: MacAddr) -> Option<RelayPort> {
        self.relay_port_of(mac)
    }
}
