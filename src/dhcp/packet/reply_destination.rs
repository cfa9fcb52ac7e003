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
    /// The Ethernet source address: of the client, a relay or a router. `None` if the interface has none.
    pub ethernet_source: Option<MacAddr>,
}

/// The receiver of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An IP address: of a relay, of a client, or broadcast.
    Ip(SocketAddrV4),
    /// An Ethernet frame: the client does not have the address yet, so ARP cannot resolve it. A broadcast works too.
    Frame {
        mac: MacAddr,
        /// The client's future address.
        address: Ipv4Addr,
    },
}

impl Destination {
    /// All clients of the segment.
    pub const BROADCAST: Destination = Destination::Ip(SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT));

    /// Returns the receiver of a reply. `routed`: the request came by unicast through a router, where no broadcast arrives.
    pub fn of(request: &ClientMessage, answer: ReplyContent, origin: Origin, routed: bool) -> Destination {
        let has_address = !request.ciaddr.is_unspecified();
        match answer {
            // Quirk::AsksProxyFromAnyPort
            ReplyContent::ProxyAck if !origin.source.ip().is_unspecified() => return Destination::Ip(origin.source),
            _ if request.is_relayed() => return Destination::Ip(SocketAddrV4::new(request.giaddr, SERVER_PORT)),
            // The address of the client is wrong; it might not receive a unicast.
            ReplyContent::Nak(_) if !routed => return Destination::BROADCAST,
            _ if has_address => return Destination::Ip(SocketAddrV4::new(request.ciaddr, CLIENT_PORT)),
            _ => {}
        }
        match answer {
            ReplyContent::Offer(address) | ReplyContent::Ack(address) if request.flags & BROADCAST == 0 => {
                Destination::Frame { mac: request.mac, address }
            }
            _ => Destination::BROADCAST,
        }
    }
}
