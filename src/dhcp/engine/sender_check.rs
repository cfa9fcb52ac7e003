//! Checks that a request comes from its client: by the Ethernet source, and by the switch port that
//! a relay reports.

use super::request_handling::RequestContext;
use crate::{
    nic_records::RelayPort,
    packet::{CLIENT_PORT, ClientKind, ClientLink, ClientMessage, Origin, PROXY_PORT, SERVER_PORT},
    warning::Warning,
};
use meshd_types::{MacAddr, failpoint};

/// Returns a warning if the Ethernet source is not the client itself. Behind a relay or router, the
/// source must be one of the configured addresses, if there are any.
pub(super) fn check_ethernet_source(
    request: &ClientMessage,
    origin: Origin,
    routed: bool,
    relay_macs: &[MacAddr],
) -> Option<Warning> {
    let sender = origin.ethernet_source?;
    // Without chaddr, a packet names no Ethernet NIC that it could impersonate.
    if request.link == ClientLink::Infiniband && !request.is_relayed() {
        return None;
    }
    let is_forged = if request.is_relayed() || routed {
        !relay_macs.is_empty()
            && !relay_macs.contains(&sender)
            && failpoint::defends("dhcp-relay-source")
    } else {
        sender != request.mac && failpoint::defends("dhcp-ethernet-source")
    };
    is_forged.then_some(Warning::Forged { mac: request.mac, sender, kind: request.kind })
}

/// True if a client or relay sent the packet from its port, which only root may use: an
/// unprivileged program on a node has the node's address and Ethernet source. Firmware also asks
/// the proxy port from that port. A relay may name another port (RFC 8357).
pub(super) fn has_privileged_port(request: &ClientMessage, origin: Origin) -> bool {
    let port = origin.source.port();
    if request.is_relayed() {
        return port == SERVER_PORT
            || request.relay.has_source_port
            || !failpoint::defends("dhcp-relay-source-port");
    }
    let is_client = port == CLIENT_PORT || (origin.local_port == PROXY_PORT && port == PROXY_PORT);
    is_client || !failpoint::defends("dhcp-client-port")
}

impl RequestContext<'_> {
    /// Returns a warning if the relay reports another port than the one that the node enrolled
    /// from: the node was moved, or another machine uses its MAC address.
    pub(super) fn relay_port_mismatch(&self) -> Option<Warning> {
        let mac = self.request.mac;
        let attachment = self.known.attachment(mac, self.request.client != ClientKind::Other)?;
        let seen = self.relay_port();
        if self.request.is_relayed() && attachment.is_local && failpoint::defends("dhcp-local-node")
        {
            return Some(Warning::RelayPortMismatch { mac, known: RelayPort::default(), seen });
        }
        let known =
            attachment.relay_port.clone().filter(|_| failpoint::defends("dhcp-relay-port"))?;
        let is_known = match &seen {
            Some(seen) => has_ids_of(seen, &known) && self.is_in_segment_of(&known),
            None if self.request.is_relayed() => false,
            // A switch may add the option too, but need not do so for a renewal by unicast.
            None => {
                attachment.is_local
                    || self.routed
                    || self.past_relay
                    || self.is_in_segment_of(&known)
            }
        };
        (!is_known).then_some(Warning::RelayPortMismatch { mac, known, seen })
    }

    /// Returns the port that the relay reports, with the relay of the segment.
    pub(super) fn relay_port(&self) -> Option<RelayPort> {
        let port = self.request.relay.port.clone()?;
        let mut relays = self.relays.iter().filter(|(_, segment)| **segment == self.segment_index);
        let relay = relays.next().map(|(relay, _)| *relay);
        Some(RelayPort { relay: relay.filter(|_| self.request.is_relayed()), ..port })
    }

    /// True if the request comes from the segment of a known port, or if that is unknown: IDs are
    /// unique at one relay alone.
    fn is_in_segment_of(&self, known: &RelayPort) -> bool {
        let segment = known.relay.and_then(|relay| self.relays.get(&relay));
        segment.is_none_or(|segment| *segment == self.segment_index)
            || !failpoint::defends("dhcp-relay-segment")
    }
}

fn has_ids_of(seen: &RelayPort, known: &RelayPort) -> bool {
    (&seen.circuit_id, &seen.remote_id) == (&known.circuit_id, &known.remote_id)
}
