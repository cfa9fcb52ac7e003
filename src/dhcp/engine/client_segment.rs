//! The segment of a client: by the interface, by the relay's address (giaddr, RFC 2131 section 4.3.1), or by the address of a renewal.

use super::Engine;
use crate::packet::{ClientMessage, Origin};
use std::net::Ipv4Addr;

impl Engine {
    /// Returns the index of the client's segment.
    pub(super) fn segment_of(&self, request: &ClientMessage, origin: Origin) -> Option<usize> {
        let direct = self.segment_of_interface.get(origin.interface_index).copied().flatten();
        match request.network() {
            // A relay on a direct segment is unknown: any machine there could claim to be one.
            Some(network) => self.relays.get(&network).copied().or_else(|| self.behind_relay(network)),
            // A renewal is sent by unicast, past the relay; its address determines the segment.
            None => {
                let routed = request.ciaddr == *origin.source.ip() && !request.ciaddr.is_unspecified();
                routed.then(|| self.behind_relay(request.ciaddr)).flatten().or(direct)
            }
        }
    }

    fn behind_relay(&self, address: Ipv4Addr) -> Option<usize> {
        self.relays.values().copied().find(|index| self.is_on(*index, address))
    }

    fn is_on(&self, index: usize, address: Ipv4Addr) -> bool {
        self.segments.get(index).is_some_and(|segment| segment.is_on_network(address))
    }
}
