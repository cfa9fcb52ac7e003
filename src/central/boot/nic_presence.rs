//! Maps NICs and addresses to nodes, and detects whether the machine of a node is present on the wire.

use crate::{boot::BootService, environment::alarms::Alarm, links::has_link};
use meshd_model::fleet::{ConditionKind, Node, RelayPort};
use meshd_types::{MacAddr, NodeId, failpoint};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

impl BootService {
    /// True if the machine of this node is present: its link was alive within the last moments, or its own NIC answers for its address.
    /// A link that was lost by a restart of meshd or a short interruption counts as live.
    pub(crate) async fn is_present(&self, node: &Node, requester: Ipv4Addr) -> bool {
        let is_recently_linked =
            has_link(node.phase) && self.links.silence(node.id) <= self.env.site().agent.offline_after;
        if is_recently_linked && failpoint::defends("boot-recent-link") {
            return true;
        }
        match node.address {
            // A requester would answer for its own address.
            Some(IpAddr::V4(address)) if address != requester && node.phase.is_admitted() => {
                failpoint::defends("boot-arp-probe") && self.env.lan.holders(address).await.contains(&node.mac)
            }
            _ => false,
        }
    }

    /// Records that another machine used the MAC address of a NIC in DHCP. `sender` is the key of the rate limit.
    pub async fn dhcp_alarm(&self, mac: MacAddr, kind: ConditionKind, sender: &str, detail: String) {
        let (node, session) = self.env.store.read(|model| {
            (model.node_of_mac(mac).map(|node| node.id), model.newest_session(mac).map(|session| session.id))
        });
        // Alarms about other machines must not exhaust the limit of this one.
        let target = node.map_or_else(|| "an unknown node".to_owned(), |node| node.to_string());
        self.env.alarm(Alarm { kind, node, session, cause: format!("DHCP by {sender} as {target}"), detail }).await;
    }

    /// The NICs of approved nodes: their addresses are never leased to others.
    pub fn approved_nics(&self) -> BTreeSet<MacAddr> {
        self.env.store.read(|model| {
            let approved = model.nodes().filter(|node| node.phase.is_admitted());
            approved.flat_map(|node| node.seen_nics().copied().chain([node.mac])).collect()
        })
    }

    /// True if the NIC belongs to an approved node.
    pub fn is_approved_nic(&self, mac: MacAddr) -> bool {
        self.env.store.read(|model| model.node_of_mac(mac).is_some_and(|node| node.phase.is_admitted()))
    }

    /// True while the machine of a NIC boots from an address or has its link from there.
    pub fn uses_address(&self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let now = self.env.now();
        let (boots, node) = self.env.store.read(|model| {
            let session = model.newest_session(mac).filter(|session| session.address == Some(address));
            let node = model.node_of_mac(mac).filter(|node| node.address == Some(address.into()));
            (session.is_some_and(|session| session.holds_address(now)), node.map(|node| node.id))
        });
        boots || node.is_some_and(|node| self.links.is_linked(node))
    }

    pub fn is_approved_node(&self, id: NodeId) -> bool {
        self.env.store.read(|model| model.current_node(id).is_some_and(|node| node.phase.is_admitted()))
    }

    /// Returns whether the node of a NIC enrolled on a local segment, and its relay port. Both are known for the boot NIC;
    /// other NICs are checked only when they boot.
    pub fn attachment_of(&self, mac: MacAddr, boots: bool) -> Option<(bool, Option<RelayPort>)> {
        self.env.store.read(|model| {
            let node = model.node_of_mac(mac).filter(|node| boots || node.mac == mac)?;
            (node.is_local || node.relay_port.is_some()).then(|| (node.is_local, node.relay_port.clone()))
        })
    }
}
