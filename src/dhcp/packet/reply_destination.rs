//! Where a reply is sent (RFC 2131, 4.1).

use super::{reply::ReplyContent, request::ClientMessage};
use meshd_types::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Port of servers (RFC 2131).
pub const SERVER_PORT: u16 = 67;
/// Port of clients (RFC 2131).
pub const CLIENT_PORT: u16 = 68;
/// Port of proxies (PXE specification 2.1, "boot server").
pub const PROXY_PORT: u16 = 4011;

/// Header flag of a client that accepts only broadcasts until it has an address.
const BROADCAST: u16 = 0x8000;

/// How a packet arrived.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Index into [`crate::Setup::interfaces`]; not the index of the kernel.
    pub interface_index: usize,
    /// The sender: a client or its relay.
    pub source: SocketAddrV4,
    /// The port of the server: 67 or [`PROXY_PORT`].
    pub local_port: u16,
    /// The Ethernet source address: of the client, a relay or a router. `None` if the interface has
    /// none.
    pub ethernet_source: Option<MacAddr>,
}

/// The receiver of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An IP address: of a relay, of a client, or broadcast.
    Ip(SocketAddrV4),
    /// An Ethernet frame: the client does not have the address yet, so ARP cannot resolve it. A
    /// broadcast works too.
    Frame {
        mac: MacAddr,
        /// The client's future address.
        address: Ipv4Addr,
    },
}

impl Destination {
    /// All clients of the segment.
    pub const BROADCAST: Destination =
        Destination::Ip(SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT));

    /// Returns the receiver of a reply. `routed`: the request came by unicast through a router,
    /// where no broadcast arrives.
    ///
    /// An address in the packet alone is no receiver: whoever answers ARP for it would get the
    /// reply. A client has an address if it sent the packet from there. All others are answered at
    /// chaddr.
    pub fn of(
        request: &ClientMessage,
        answer: ReplyContent,
        origin: Origin,
        routed: bool,
    ) -> Destination {
        let source = *origin.source.ip();
        let sent_from = |address: Ipv4Addr| !address.is_unspecified() && address == source;
        let at_source = Destination::Ip(SocketAddrV4::new(source, CLIENT_PORT));
        match answer {
            // Quirk::AsksProxyFromAnyPort
            ReplyContent::ProxyAck if !source.is_unspecified() => {
                return Destination::Ip(origin.source);
            }
            _ if request.is_relayed() => {
                // RFC 8357
                let port =
                    if request.relay.has_source_port { origin.source.port() } else { SERVER_PORT };
                return Destination::Ip(SocketAddrV4::new(request.giaddr, port));
            }
            _ if routed => return at_source,
            // The address of the client is wrong; it might not receive a unicast.
            ReplyContent::Nak(_) => return Destination::BROADCAST,
            // RFC 2131, 4.3.5: the client has an address, which older ones leave out of the header.
            ReplyContent::InformAck if !source.is_unspecified() => return at_source,
            ReplyContent::Ack(_) if sent_from(request.ciaddr) => return at_source,
            _ => {}
        }
        match answer {
            ReplyContent::Offer(address) | ReplyContent::Ack(address)
                if request.flags & BROADCAST == 0 && request.link.has_ethernet_frames() =>
            {
                Destination::Frame { mac: request.mac, address }
            }
            _ => Destination::BROADCAST,
        }
    }
}
