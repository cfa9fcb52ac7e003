//! Whether an address is its machine's at layer 2, and whether a machine is there.

use super::{Central, Neighbour, admit::has_link, alarm::Alarm};
use crate::fail;
use crate::fleet::{ConditionKind, Node, RelayPort};
use crate::id::MacAddr;
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

impl Central {
    /// Refuses a request whose address is on a local segment and belongs to none of these network cards there. The error says who has
    /// it. Addresses behind a router are not looked at: their frames are the router's.
    pub(super) fn check_neighbour(&self, from: Ipv4Addr, is_own: impl Fn(&MacAddr) -> bool) -> Result<(), String> {
        match self.lan.neighbour(from) {
            Neighbour::Routed => Ok(()),
            Neighbour::Machine(mac) if is_own(&mac) => Ok(()),
            Neighbour::Machine(mac) => Err(format!("{from} belongs to {mac} on the wire")),
            Neighbour::Unknown => Err(format!("nobody on the wire has {from}")),
        }
    }

    /// The same for the node that an agent says it is.
    pub(super) fn check_node_neighbour(&self, from: IpAddr, node: &Node) -> Result<(), String> {
        match from {
            IpAddr::V4(from) => {
                self.check_neighbour(from, |mac| *mac == node.mac || node.fingerprint.macs.contains(mac))
            }
            IpAddr::V6(_) => Ok(()),
        }
    }

    /// True if the machine of this node is there, whatever somebody else says: its link was heard a moment ago, or its own network
    /// card answers for its address. A link that was lost by a restart of this process or a blip is as good as a live one.
    pub(super) async fn is_present(&self, node: &Node) -> bool {
        let is_near = has_link(node.phase) && self.silence(node.id) <= self.site().agent.offline_after;
        if is_near && fail::defends("boot-recent-link") {
            return true;
        }
        match node.address {
            Some(IpAddr::V4(address)) if node.phase.is_admitted() && fail::defends("boot-arp-probe") => {
                self.lan.holders(address).await.contains(&node.mac)
            }
            _ => false,
        }
    }

    /// Somebody spoke DHCP in the name of a network card. `who` bounds how often it is recorded.
    pub async fn dhcp_alarm(&self, mac: MacAddr, kind: ConditionKind, who: &str, detail: String) {
        let (node, session) = self.store.read(|model| {
            (model.node_of_mac(mac).map(|node| node.id), model.newest_session(mac).map(|session| session.id))
        });
        self.alarm(Alarm { kind, node, session, cause: format!("DHCP by {who}"), detail }).await;
    }

    /// The network cards of approved nodes: their addresses are never given to others.
    pub fn approved_cards(&self) -> BTreeSet<MacAddr> {
        self.store.read(|model| {
            let approved = model.nodes().filter(|node| node.phase.is_admitted());
            approved.flat_map(|node| node.fingerprint.macs.iter().copied().chain([node.mac])).collect()
        })
    }

    /// Returns true if a network card is an approved node's.
    pub fn is_approved_card(&self, mac: MacAddr) -> bool {
        self.store.read(|model| model.node_of_mac(mac).is_some_and(|node| node.phase.is_admitted()))
    }

    /// Returns true while the machine of a network card boots from an address or has its link from there.
    pub fn uses_address(&self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let now = self.now();
        let (boots, node) = self.store.read(|model| {
            let session = model.newest_session(mac).filter(|session| session.address == Some(address));
            let node = model.node_of_mac(mac).filter(|node| node.address == Some(address.into()));
            (session.is_some_and(|session| session.holds_address(now)), node.map(|node| node.id))
        });
        boots || node.is_some_and(|node| self.link_state(node).since.is_some())
    }

    /// Returns the relay port that the node of a network card enrolled through.
    pub fn relay_port_of(&self, mac: MacAddr) -> Option<RelayPort> {
        self.store.read(|model| model.node_of_mac(mac).and_then(|node| node.relay_port.clone()))
    }
}
