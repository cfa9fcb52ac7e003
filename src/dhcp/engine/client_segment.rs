//! The segment of a client: by the interface, by the relay, or by the address of a renewal.

use super::Engine;
use crate::packet::{ClientMessage, ClientMessageType, Origin};
use meshd_types::failpoint;
use std::net::Ipv4Addr;

impl Engine {
    /// Returns the index of the client's segment.
    ///
    /// A relay on a direct segment is unknown: any machine there could claim to be one.
    pub(super) fn segment_of(&self, request: &ClientMessage, origin: Origin) -> Option<usize> {
        if request.is_relayed() {
            return match request.selected_network() {
                Some(network) => self
                    .relayed_segment(network)
                    .or_else(|| self.segment_without_network(request.giaddr)),
                None => self.relayed_segment(request.giaddr),
            };
        }
        // A renewal is sent by unicast, past the relay; its address determines the segment.
        let source = *origin.source.ip();
        let is_sender = request.ciaddr == source || request.kind == ClientMessageType::Inform;
        let routed = is_sender.then(|| self.segment_behind_relay(source)).flatten();
        routed.or(self.segment_of_interface.get(origin.interface_index).copied().flatten())
    }

    /// Returns the segment of a relay (RFC 2131, 4.3.1), or the one whose network contains this
    /// address.
    fn relayed_segment(&self, address: Ipv4Addr) -> Option<usize> {
        self.relays.get(&address).copied().or_else(|| self.segment_behind_relay(address))
    }

    /// Returns the segment of a relay if it leases no addresses: its network is unknown, so the
    /// relay's selection agrees with it.
    fn segment_without_network(&self, relay: Ipv4Addr) -> Option<usize> {
        let index = self.relays.get(&relay).copied()?;
        self.segments.get(index).is_some_and(|segment| segment.authority.is_none()).then_some(index)
    }

    /// Returns the address of a machine that poses as a relay: giaddr or the sender is on the
    /// network behind a relay, and is none of its relays. The router of that network forwards such
    /// a packet with its own Ethernet source, so `relay_macs` does not show it. Sites without
    /// `relay_macs` accept every relay.
    pub(super) fn machine_as_relay(
        &self,
        request: &ClientMessage,
        origin: Origin,
    ) -> Option<Ipv4Addr> {
        let is_checked = |index: usize| {
            self.segments.get(index).is_some_and(|segment| !segment.relay_macs.is_empty())
        };
        let is_machine = |address: &Ipv4Addr| {
            !self.relays.contains_key(address)
                && self.segment_behind_relay(*address).is_some_and(is_checked)
        };
        let senders = [request.giaddr, *origin.source.ip()];
        let found = senders.into_iter().find(is_machine);
        found.filter(|_| request.is_relayed() && failpoint::defends("dhcp-machine-as-relay"))
    }

    fn segment_behind_relay(&self, address: Ipv4Addr) -> Option<usize> {
        self.relays.values().copied().find(|index| self.is_on(*index, address))
    }

    fn is_on(&self, index: usize, address: Ipv4Addr) -> bool {
        self.segments.get(index).is_some_and(|segment| segment.is_on_network(address))
    }
}
