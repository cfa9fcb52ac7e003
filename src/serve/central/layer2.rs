//! Whether an address is its machine's at layer 2, and whether a machine is there.

use super::{Central, Neighbour, alarm::Alarm, node_admission::has_link};
use meshd_config::Segment;
use meshd_model::fleet::{ConditionKind, Node, RelayPort};
use meshd_types::{MacAddr, NodeId, fail};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

impl Central {
    /// Refuses a request whose address is on a local segment and belongs to none of these network cards there. The error says who has
    /// it. Addresses behind a router are not looked at: their frames are the router's.
    pub(super) async fn check_neighbour(
        &self,
        from: Ipv4Addr,
        is_own: impl Fn(&MacAddr) -> bool + Send,
    ) -> Result<(), String> {
        match self.lan.neighbour(from) {
            Neighbour::Routed => self.check_router(from),
            Neighbour::Machine(mac) if is_own(&mac) => Ok(()),
            Neighbour::Machine(mac) => Err(format!("{from} belongs to {mac} on the wire")),
            // A full table forgets neighbours that are there: the wire itself is asked.
            Neighbour::Unknown => {
                let holders = self.lan.holders(from).await;
                let is_own_alone = !holders.is_empty() && holders.iter().all(is_own);
                is_own_alone.then_some(()).ok_or_else(|| format!("nobody on the wire has {from}"))
            }
        }
    }

    /// Behind a relay whose Ethernet addresses the site names, the router to the address has one of them: whoever claims the router's
    /// address by ARP has another.
    fn check_router(&self, from: Ipv4Addr) -> Result<(), String> {
        let site = self.site();
        let is_on = |segment: &&Segment| segment.pool.as_ref().is_some_and(|pool| pool.is_on_network(from));
        let macs = site.segments.iter().find(is_on).map(|segment| segment.relay_macs.as_slice()).unwrap_or_default();
        if macs.is_empty() || !fail::defends("router-neighbour") {
            return Ok(());
        }
        match self.lan.router_to(from) {
            Some(mac) if macs.contains(&mac) => Ok(()),
            Some(mac) => Err(format!("the router to {from} is {mac} on the wire, which is not in relay_mac")),
            None => Err(format!("no router on the wire leads to {from}")),
        }
    }

    /// The same for the node that an agent says it is.
    pub(super) async fn check_node_neighbour(&self, from: IpAddr, node: &Node) -> Result<(), String> {
        match from {
            IpAddr::V4(from) => {
                self.check_neighbour(from, |mac| *mac == node.mac || node.fingerprint.macs.contains(mac)).await
            }
            IpAddr::V6(_) => Ok(()),
        }
    }

    /// True if the machine of this node is there, whatever somebody else says: its link was heard a moment ago, or its own network
    /// card answers for its address. A link that was lost by a restart of this process or a blip is as good as a live one.
    pub(super) async fn is_present(&self, node: &Node, asker: Ipv4Addr) -> bool {
        let is_near = has_link(node.phase) && self.silence(node.id) <= self.site().agent.offline_after;
        if is_near && fail::defends("boot-recent-link") {
            return true;
        }
        match node.address {
            // For its own address whoever asks would answer.
            Some(IpAddr::V4(address)) if address != asker && node.phase.is_admitted() => {
                fail::defends("boot-arp-probe") && self.lan.holders(address).await.contains(&node.mac)
            }
            _ => false,
        }
    }

    /// Somebody spoke DHCP in the name of a network card. `who` bounds how often it is recorded.
    pub async fn dhcp_alarm(&self, mac: MacAddr, kind: ConditionKind, who: &str, detail: String) {
        let (node, session) = self.store.read(|model| {
            (model.node_of_mac(mac).map(|node| node.id), model.newest_session(mac).map(|session| session.id))
        });
        // Alarms of other machines must not use up those of this one.
        let of = node.map_or_else(|| "nobody".to_owned(), |node| node.to_string());
        self.alarm(Alarm { kind, node, session, cause: format!("DHCP by {who} as {of}"), detail }).await;
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

    /// Returns true for an approved node.
    pub fn is_approved_node(&self, id: NodeId) -> bool {
        self.store.read(|model| model.standing_for(id).is_some_and(|node| node.phase.is_admitted()))
    }

    /// Returns whether the node of a network card enrolled on a local segment, and its relay port. What is known is of the card that
    /// the node boots from; other cards count where they boot.
    pub fn attachment_of(&self, mac: MacAddr, boots: bool) -> Option<(bool, Option<RelayPort>)> {
        self.store.read(|model| {
            let node = model.node_of_mac(mac).filter(|node| boots || node.mac == mac)?;
            (node.is_local || node.relay_port.is_some()).then(|| (node.is_local, node.relay_port.clone()))
        })
    }
}
