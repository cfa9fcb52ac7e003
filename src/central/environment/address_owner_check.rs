//! Checks clients against the Ethernet addresses on the wire.

use crate::environment::{
    Environment,
    lan_client::{LanClient, SegmentSources},
    sources::Neighbour,
};
use meshd_config::Segment;
use meshd_model::fleet::Node;
use meshd_types::{MacAddr, failpoint};
use std::net::{IpAddr, Ipv4Addr};

impl Environment {
    /// Refuses a request whose client is on a local segment and has none of these NICs. The error
    /// names the client's NIC. The client is identified by the Ethernet source of every segment of
    /// its connection. The neighbour table, which follows every ARP packet, decides only for a
    /// connection that is not observed. A client behind a router is checked by the router's
    /// Ethernet address.
    pub(crate) async fn check_neighbour(
        &self,
        client: &LanClient,
        is_own: impl Fn(&MacAddr) -> bool + Send,
    ) -> Result<(), String> {
        let IpAddr::V4(from) = client.address else { return Ok(()) };
        if let Some(sources) = client.sources().filter(|_| failpoint::defends("connection-source"))
        {
            return self.check_sources(from, &sources, is_own);
        }
        match self.lan.neighbour(from) {
            Neighbour::Routed => self.check_router(from),
            Neighbour::Machine(mac) if is_own(&mac) => Ok(()),
            Neighbour::Machine(mac) => Err(format!("{from} belongs to {mac} on the wire")),
            // A full neighbour table drops present neighbours, so ARP is used.
            Neighbour::Unknown => {
                let holders = self.lan.holders(from).await;
                let is_own_alone = !holders.is_empty() && holders.iter().all(is_own);
                is_own_alone
                    .then_some(())
                    .ok_or_else(|| format!("no machine on the wire has {from}"))
            }
        }
    }

    /// Checks the Ethernet sources of a connection. If frames were lost, only an address that the
    /// kernel binds to its machine is accepted. A connection without a seen frame is refused even
    /// then: a switch floods the answers to a silent machine, and fragments are of no connection.
    fn check_sources(
        &self,
        from: Ipv4Addr,
        sources: &SegmentSources,
        is_own: impl Fn(&MacAddr) -> bool,
    ) -> Result<(), String> {
        let routers = if sources.is_routed { self.routers_to(from) } else { Vec::new() };
        if sources.is_routed && routers.is_empty() {
            return Ok(());
        }
        let is_expected =
            |mac: &MacAddr| if sources.is_routed { routers.contains(mac) } else { is_own(mac) };
        if let Some(foreign) = sources.macs.iter().find(|mac| !is_expected(mac)) {
            return Err(match sources.is_routed {
                true => format!(
                    "the router to {from} is {foreign} on the wire, which is not in relay_mac"
                ),
                false => format!("{from} belongs to {foreign} on the wire"),
            });
        }
        let pinned = self.lan.pinned(from).filter(|_| !sources.is_routed);
        if let Some((other, _)) = pinned.filter(|(mac, _)| !is_own(mac)) {
            return Err(format!("{from} is bound to {other}, so the answer would go there"));
        }
        let is_seen = !sources.macs.is_empty() || !failpoint::defends("connection-frames");
        let is_known = sources.is_complete || pinned.is_some_and(|(_, is_enforced)| is_enforced);
        (is_seen && is_known)
            .then_some(())
            .ok_or_else(|| format!("frames of the connection from {from} were lost or not seen"))
    }

    /// Returns the Ethernet addresses of the routers to an address behind a relay, according to the
    /// site.
    fn routers_to(&self, from: Ipv4Addr) -> Vec<MacAddr> {
        let site = self.site();
        let is_on = |segment: &&Segment| {
            segment.subnet.as_ref().is_some_and(|subnet| subnet.is_on_network(from))
        };
        let segment =
            site.segments.iter().find(is_on).filter(|_| failpoint::defends("router-neighbour"));
        segment.map(|segment| segment.relay_macs.clone()).unwrap_or_default()
    }

    /// Checks the router of an address behind a relay against `relay_mac`: a machine that claims
    /// the router's address by ARP has another Ethernet address.
    fn check_router(&self, from: Ipv4Addr) -> Result<(), String> {
        let macs = self.routers_to(from);
        if macs.is_empty() {
            return Ok(());
        }
        match self.lan.router_to(from) {
            Some(mac) if macs.contains(&mac) => Ok(()),
            Some(mac) => {
                Err(format!("the router to {from} is {mac} on the wire, which is not in relay_mac"))
            }
            None => Err(format!("no router on the wire leads to {from}")),
        }
    }

    /// Checks the client of an agent against the NICs of its node.
    pub(crate) async fn check_node_neighbour(
        &self,
        client: &LanClient,
        node: &Node,
    ) -> Result<(), String> {
        self.check_neighbour(client, |mac| *mac == node.mac || node.fingerprint.macs.contains(mac))
            .await
    }
}
