//! Checks IPv4 addresses against the Ethernet addresses on the wire.

use crate::environment::{Environment, sources::Neighbour};
use meshd_config::Segment;
use meshd_model::fleet::Node;
use meshd_types::{MacAddr, failpoint};
use std::net::{IpAddr, Ipv4Addr};

impl Environment {
    /// Refuses a request whose address is on a local segment and belongs to none of these NICs. The error names the holder.
    /// Addresses behind a router are not checked: their frames come from the router.
    pub(crate) async fn check_neighbour(
        &self,
        from: Ipv4Addr,
        is_own: impl Fn(&MacAddr) -> bool + Send,
    ) -> Result<(), String> {
        match self.lan.neighbour(from) {
            Neighbour::Routed => self.check_router(from),
            Neighbour::Machine(mac) if is_own(&mac) => Ok(()),
            Neighbour::Machine(mac) => Err(format!("{from} belongs to {mac} on the wire")),
            // A full neighbour table drops present neighbours, so ARP is used.
            Neighbour::Unknown => {
                let holders = self.lan.holders(from).await;
                let is_own_alone = !holders.is_empty() && holders.iter().all(is_own);
                is_own_alone.then_some(()).ok_or_else(|| format!("nobody on the wire has {from}"))
            }
        }
    }

    /// Checks the router of an address behind a relay against `relay_mac`: a machine that claims the router's address by ARP has another
    /// Ethernet address.
    fn check_router(&self, from: Ipv4Addr) -> Result<(), String> {
        let site = self.site();
        let is_on = |segment: &&Segment| segment.subnet.as_ref().is_some_and(|subnet| subnet.is_on_network(from));
        let macs = site.segments.iter().find(is_on).map(|segment| segment.relay_macs.as_slice()).unwrap_or_default();
        if macs.is_empty() || !failpoint::defends("router-neighbour") {
            return Ok(());
        }
        match self.lan.router_to(from) {
            Some(mac) if macs.contains(&mac) => Ok(()),
            Some(mac) => Err(format!("the router to {from} is {mac} on the wire, which is not in relay_mac")),
            None => Err(format!("no router on the wire leads to {from}")),
        }
    }

    /// Checks the address of an agent against the NICs of its node.
    pub(crate) async fn check_node_neighbour(&self, from: IpAddr, node: &Node) -> Result<(), String> {
        match from {
            IpAddr::V4(from) => {
                self.check_neighbour(from, |mac| *mac == node.mac || node.fingerprint.macs.contains(mac)).await
            }
            IpAddr::V6(_) => Ok(()),
        }
    }
}
