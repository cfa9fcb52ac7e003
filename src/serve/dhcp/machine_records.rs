//! Looks up the machine of a NIC in the central node's records, for the DHCP engine.

use super::convert::known_relay_port;
use meshd_central::Central;
use meshd_dhcp::{Attachment, Machines};
use meshd_types::{MacAddr, NodeId};
use std::net::Ipv4Addr;

/// The central node's records of machines.
pub(super) struct Records<'a>(pub(super) &'a Central);

impl Machines for Records<'_> {
    fn node_of(&self, mac: MacAddr) -> Option<NodeId> {
        self.0.boot.node_of_mac(mac)
    }

    fn keeps_address(&self, mac: MacAddr) -> bool {
        self.0.boot.is_approved_nic(mac)
    }

    fn uses_address(&self, mac: MacAddr, address: Ipv4Addr) -> bool {
        self.0.boot.uses_address(mac, address)
    }

    fn is_approved(&self, node: NodeId) -> bool {
        self.0.boot.is_approved_node(node)
    }

    fn attachment(&self, mac: MacAddr, boots: bool) -> Option<Attachment> {
        let (is_local, relay_port) = self.0.boot.attachment_of(mac, boots)?;
        Some(Attachment { is_local, relay_port: relay_port.map(known_relay_port) })
    }
}
