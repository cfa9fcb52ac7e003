//! Binds addresses to the machines that boot or have their link from there, and judges segments of
//! other machines.

use crate::{
    boot::BootService,
    environment::{
        alarms::Alarm,
        lan_client::{ForeignSegment, LanClient},
    },
};
use meshd_model::fleet::{ConditionKind, Node, Phase, Stage};
use meshd_types::{MacAddr, NodeId, failpoint};
use std::net::{IpAddr, Ipv4Addr};

impl BootService {
    /// Binds an address to the NIC of a boot session or link. A NIC that still uses the address
    /// keeps it: the second claimant must wait until the boot or the link of the first one is over.
    pub(crate) fn pin(&self, address: Ipv4Addr, mac: MacAddr) {
        let bound =
            self.env.lan.pinned(address).map(|(bound, _)| bound).filter(|bound| *bound != mac);
        if bound.is_none_or(|bound| !self.uses_pin(address, bound)) {
            self.bind(address, mac);
        }
    }

    /// Binds an address that meshd leased to a machine that boots: no other machine has it, not
    /// even one whose link comes from there.
    pub(crate) fn pin_lease(&self, address: Ipv4Addr, mac: MacAddr) {
        match failpoint::defends("leased-address") {
            true => self.bind(address, mac),
            false => self.pin(address, mac),
        }
    }

    /// Binds the address of a new link to the NIC that opened it. Raises an alarm instead if the
    /// address is leased to another node, or if another machine answers for it: that machine would
    /// get no answer. Takes a second if meshd did not lease the address.
    pub async fn pin_link(&self, node: NodeId, client: &LanClient) {
        let (IpAddr::V4(address), Some(mac)) = (client.address, client.local_mac()) else { return };
        match self.other_lessee(address, mac, node).filter(|_| failpoint::defends("leased-address"))
        {
            Some((other, owner)) => {
                let detail = format!(
                    "{mac} has the link of {node} from {address}, which is leased to {owner}"
                );
                self.wire_alarm(Some(other), mac, detail).await;
            }
            None => match self
                .other_holder(address, mac)
                .await
                .filter(|_| failpoint::defends("link-address"))
            {
                Some(other) => {
                    let detail = format!(
                        "{mac} has the link of {node} from {address}, the address of {other}"
                    );
                    self.wire_alarm(Some(node), mac, detail).await;
                }
                None => self.bind(address, mac),
            },
        }
    }

    fn bind(&self, address: Ipv4Addr, mac: MacAddr) {
        if !self.is_infrastructure(address) && failpoint::defends("address-pin") {
            self.env.lan.pin(address, mac);
        }
    }

    /// Returns the other node and its NIC to which an address is leased.
    fn other_lessee(
        &self,
        address: Ipv4Addr,
        mac: MacAddr,
        node: NodeId,
    ) -> Option<(NodeId, MacAddr)> {
        self.env.store.read(|model| {
            let owner = model.lease(address)?.mac;
            let other = model.node_of_mac(owner)?.id;
            (owner != mac && other != node).then_some((other, owner))
        })
    }

    /// Removes the bindings of boots and links that are over.
    pub(crate) fn review_pins(&self) {
        self.env.lan.retain_pins(&|address, mac| self.uses_pin(address, mac));
    }

    /// True while a machine boots from an address, may still ask for its script there, or has its
    /// link from there.
    fn uses_pin(&self, address: Ipv4Addr, mac: MacAddr) -> bool {
        let now = self.env.now();
        let (boots, node) = self.env.store.read(|model| {
            let session =
                model.newest_session(mac).filter(|session| session.address == Some(address));
            let node = model.node_of_mac(mac).filter(|node| node.address == Some(address.into()));
            let is_held =
                model.node_of_mac(mac).is_some_and(|node| node.phase == Phase::Quarantined);
            let boots =
                session.is_some_and(|session| session.is_fresh(now) || session.holds_address(now));
            (boots && !is_held, node.map(|node| node.id))
        });
        boots || node.is_some_and(|node| self.links.is_linked(node))
    }

    /// Judges the segments and datagrams that came from another machine than their connection, for
    /// ever.
    pub(crate) async fn watch_foreign_segments(&self) {
        loop {
            let segment = self.env.lan.foreign_segment().await;
            self.judge(segment).await;
        }
    }

    /// Ends the connection and raises one alarm for it, except for another NIC of the same running
    /// node, as a bond uses one.
    async fn judge(&self, segment: ForeignSegment) {
        let ForeignSegment { address, source, expected, is_routed, fate } = segment;
        let node = self.owner(address, expected.filter(|_| !is_routed));
        if let Some(node) = node.as_ref().filter(|node| has_nic(node, source))
            && self.runs(node)
        {
            return self.env.lan.pin(address, source);
        }
        if !failpoint::defends("foreign-segment") {
            return;
        }
        fate.end();
        if fate.claim_alarm(node.as_ref().map(|node| node.id)) {
            let owner =
                expected.map_or_else(|| "another machine".to_owned(), |mac| mac.to_string());
            let detail = match is_routed {
                true => format!("{source} sent a packet from {address}, which is behind {owner}"),
                false => format!("{source} sent a packet from {address}, the address of {owner}"),
            };
            self.wire_alarm(node.map(|node| node.id), source, detail).await;
        }
    }

    /// True if a node has its overlay: then its operating system may use another NIC of its own.
    fn runs(&self, node: &Node) -> bool {
        let has_overlay = |boot| {
            self.env.store.read(|model| model.session(boot)?.reached(Stage::Overlay)).is_some()
        };
        self.links.is_linked(node.id) || node.boot.is_some_and(has_overlay)
    }

    async fn wire_alarm(&self, node: Option<NodeId>, source: MacAddr, detail: String) {
        let session = node.and_then(|node| self.env.store.read(|model| model.node(node)?.boot));
        let kind = ConditionKind::BootImpersonated;
        let cause = format!("segment from {source}");
        self.env.alarm(Alarm { kind, node, session, cause, detail }).await;
    }

    /// Returns the node of an address or of a NIC.
    fn owner(&self, address: Ipv4Addr, mac: Option<MacAddr>) -> Option<Node> {
        self.env.store.read(|model| {
            let by_session =
                || model.session_at(address).and_then(|session| model.node(session.node?));
            mac.and_then(|mac| model.node_of_mac(mac)).or_else(by_session).cloned()
        })
    }
}

/// True if the agent of a node reported this NIC, or the node booted with it.
fn has_nic(node: &Node, mac: MacAddr) -> bool {
    node.mac == mac || node.fingerprint.macs.contains(&mac)
}
