//! Where an answer goes (RFC 2131, 4.1).

use super::{reply::Answer, request::Request};
use meshd_types::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Ports of RFC 2131.
pub const SERVER_PORT: u16 = 67;
/// Where clients listen.
pub const CLIENT_PORT: u16 = 68;
/// Where a proxy is asked directly (PXE specification 2.1, "boot server").
pub const PROXY_PORT: u16 = 4011;

/// The flag of a client that takes only broadcasts until it has an address.
const BROADCAST: u16 = 0x8000;

/// Where a packet came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The interface that it came in on: its place in [`super::Setup::interfaces`].
    pub via: usize,
    /// Who sent it: a client, or its relay.
    pub source: SocketAddrV4,
    /// Our port that it came to: 67 or [`PROXY_PORT`].
    pub local_port: u16,
    /// The Ethernet address that sent the frame: the client's own, or that of a relay or router. `None` where frames have none.
    pub hardware: Option<MacAddr>,
}

/// How a client is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// By IP: a relay, a client with an address, or everybody.
    Ip(SocketAddrV4),
    /// By its card: it has not got the address yet, so nobody could resolve it. Where frames cannot be sent, a broadcast does.
    Frame {
        /// Its card.
        mac: MacAddr,
        /// The address that it will have.
        address: Ipv4Addr,
    },
}

impl Destination {
    /// Everybody on the segment.
    pub const BROADCAST: Destination = Destination::Ip(SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT));

    /// The way of an answer. `routed`: the client asked by unicast from behind a router, where no broadcast reaches it.
    pub fn of(request: &Request, answer: Answer, origin: Origin, routed: bool) -> Destination {
        let has_address = !request.ciaddr.is_unspecified();
        match answer {
            // Quirk::AsksProxyFromAnyPort
            Answer::ProxyAck if !origin.source.ip().is_unspecified() => return Destination::Ip(origin.source),
            _ if request.is_relayed() => return Destination::Ip(SocketAddrV4::new(request.giaddr, SERVER_PORT)),
            // What the client has is wrong: it may not even hear a unicast.
            Answer::Nak(_) if !routed => return Destination::BROADCAST,
            _ if has_address => return Destination::Ip(SocketAddrV4::new(request.ciaddr, CLIENT_PORT)),
            _ => {}
        }
        match answer {
            Answer::Offer(address) | Answer::Ack(address) if request.flags & BROADCAST == 0 => {
                Destination::Frame { mac: request.mac, address }
            }
            _ => Destination::BROADCAST,
        }
    }
}
