//! Detects whether the machine of a node is present on the wire.

use crate::boot::BootService;
use meshd_model::fleet::Node;
use meshd_types::failpoint;
use std::net::{IpAddr, Ipv4Addr};

impl BootService {
    /// True if the machine of this node is present: its link was alive within the last moments, or
    /// its own NIC answers for its address. A link that was lost by a restart of meshd or a short
    /// interruption counts as live.
    pub(super) async fn is_present(&self, node: &Node, requester: Ipv4Addr) -> bool {
        let is_recently_linked = node.phase.has_link()
            && self.links.silence(node.id) <= self.env.site().agent.offline_after;
        if is_recently_linked && failpoint::defends("boot-recent-link") {
            return true;
        }
        match node.address {
            // A requester would answer for its own address.
            Some(IpAddr::V4(address)) if address != requester && node.phase.is_admitted() => {
                failpoint::defends("boot-arp-probe")
                    && self.env.lan.holders(address).await.contains(&node.mac)
            }
            _ => false,
        }
    }
}
