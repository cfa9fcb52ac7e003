//! DHCP server of the private network (RFC 2131): one fixed address for each MAC address; unknown MAC addresses get no answer. Pure.

use meshd_types::MacAddr;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

/// Maximum packet size that is read, in bytes.
pub const MAX_PACKET: usize = 1500;
pub const CLIENT_PORT: u16 = 68;
pub const SERVER_PORT: u16 = 67;
/// Lease time in seconds. A VM keeps its address as long as it exists.
const LEASE_S: u32 = 3600;
/// Sizes of the fixed part and the magic cookie, and the offset of the options.
const FIXED: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const OPTIONS: usize = FIXED + COOKIE.len();
/// Minimum size of a BOOTP packet: some clients drop smaller ones.
const MIN_PACKET: usize = 300;

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
const INFORM: u8 = 8;

/// Configuration and reservations of the server.
#[derive(Clone, Debug)]
pub struct DhcpScope {
    /// Address of the node: router and server.
    pub gateway: Ipv4Addr,
    pub mask: Ipv4Addr,
    pub dns: Vec<Ipv4Addr>,
    /// Address by MAC address.
    pub reserved: BTreeMap<MacAddr, Ipv4Addr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub bytes: Vec<u8>,
    /// A client without address receives only broadcasts.
    pub destination: SocketAddrV4,
}

struct Request<'a> {
    packet: &'a [u8],
    mac: MacAddr,
    kind: u8,
    ciaddr: Ipv4Addr,
    /// Option 50.
    requested_address: Option<Ipv4Addr>,
    /// Option 54.
    server_id: Option<Ipv4Addr>,
}

/// Builds the reply to a request; `None` for any other packet.
pub fn reply(packet: &[u8], scope: &DhcpScope) -> Option<Reply> {
    let request = parse(packet)?;
    let address = *scope.reserved.get(&request.mac)?;
    let kind = match request.kind {
        DISCOVER => OFFER,
        REQUEST if request.server_id.is_some_and(|server| server != scope.gateway) => return None,
        REQUEST => {
            let requested = request.requested_address.unwrap_or(request.ciaddr);
            if requested == address { ACK } else { NAK }
        }
        INFORM => ACK,
        _ => return None,
    };
    Some(build_reply(&request, kind, address, scope))
}

/// Builds a DHCPDISCOVER.
pub fn discover(mac: MacAddr) -> Vec<u8> {
    let mut bytes = vec![0; OPTIONS];
    bytes[..4].copy_from_slice(&[1, 1, 6, 0]);
    bytes[4..8].copy_from_slice(&mac.0[2..]);
    bytes[28..34].copy_from_slice(&mac.0);
    bytes[FIXED..OPTIONS].copy_from_slice(&COOKIE);
    bytes.extend_from_slice(&[53, 1, DISCOVER, 255]);
    bytes.resize(MIN_PACKET, 0);
    bytes
}

/// Returns true for the reply to [`discover`].
pub fn is_offer(packet: &[u8], mac: MacAddr) -> bool {
    let is_ours = packet.first() == Some(&2) && packet.get(28..34) == Some(&mac.0[..]);
    is_ours && packet.get(OPTIONS..OPTIONS + 3) == Some(&[53, 1, OFFER][..])
}

fn parse(packet: &[u8]) -> Option<Request<'_>> {
    let ip = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from);
    // Ethernet only; this network has no relays.
    let is_ours =
        packet.get(..3)? == [1, 1, 6] && packet.get(FIXED..OPTIONS)? == COOKIE && packet.get(24..28)? == [0; 4];
    let mac = MacAddr(<[u8; 6]>::try_from(packet.get(28..34)?).ok()?);
    let ciaddr = ip(packet.get(12..16)?)?;
    let mut request = Request { packet, mac, kind: 0, ciaddr, requested_address: None, server_id: None };
    let mut rest = packet.get(OPTIONS..)?;
    while let [code, after @ ..] = rest {
        match code {
            0 => rest = after,
            255 => break,
            code => {
                let (length, after) = after.split_first()?;
                let value = after.get(..usize::from(*length))?;
                match code {
                    53 => request.kind = *value.first()?,
                    50 => request.requested_address = ip(value),
                    54 => request.server_id = ip(value),
                    _ => {}
                }
                rest = &after[usize::from(*length)..];
            }
        }
    }
    is_ours.then_some(request)
}

fn build_reply(request: &Request<'_>, kind: u8, address: Ipv4Addr, scope: &DhcpScope) -> Reply {
    let mut bytes = vec![0; OPTIONS];
    bytes[..4].copy_from_slice(&[2, 1, 6, 0]);
    // Transaction ID, flags and client address of the request.
    bytes[4..8].copy_from_slice(&request.packet[4..8]);
    bytes[10..12].copy_from_slice(&request.packet[10..12]);
    bytes[28..34].copy_from_slice(&request.mac.0);
    bytes[FIXED..OPTIONS].copy_from_slice(&COOKIE);
    if kind != NAK {
        bytes[12..16].copy_from_slice(&request.ciaddr.octets());
        if request.kind != INFORM {
            bytes[16..20].copy_from_slice(&address.octets());
        }
        bytes[20..24].copy_from_slice(&scope.gateway.octets());
    }
    let mut option = |code: u8, value: &[u8]| {
        bytes.extend_from_slice(&[code, u8::try_from(value.len()).unwrap_or(0)]);
        bytes.extend_from_slice(value);
    };
    option(53, &[kind]);
    option(54, &scope.gateway.octets());
    if kind != NAK {
        if request.kind != INFORM {
            option(51, &LEASE_S.to_be_bytes());
        }
        option(1, &scope.mask.octets());
        option(3, &scope.gateway.octets());
        let dns: Vec<u8> = scope.dns.iter().take(4).flat_map(|server| server.octets()).collect();
        if !dns.is_empty() {
            option(6, &dns);
        }
    }
    bytes.push(255);
    bytes.resize(bytes.len().max(MIN_PACKET), 0);
    let reachable = kind != NAK && !request.ciaddr.is_unspecified();
    let destination = if reachable { request.ciaddr } else { Ipv4Addr::BROADCAST };
    Reply { bytes, destination: SocketAddrV4::new(destination, CLIENT_PORT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 7]);
    const OWN: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 7);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);

    fn scope() -> DhcpScope {
        let dns = vec![Ipv4Addr::new(10, 77, 0, 1)];
        DhcpScope {
            gateway: GATEWAY,
            mask: Ipv4Addr::new(255, 255, 255, 0),
            dns,
            reserved: BTreeMap::from([(MAC, OWN)]),
        }
    }

    fn packet(mac: MacAddr, kind: u8, ciaddr: Ipv4Addr, options: &[(u8, Ipv4Addr)]) -> Vec<u8> {
        let mut bytes = vec![0; OPTIONS];
        bytes[..4].copy_from_slice(&[1, 1, 6, 0]);
        bytes[4..8].copy_from_slice(&[1, 2, 3, 4]);
        bytes[12..16].copy_from_slice(&ciaddr.octets());
        bytes[28..34].copy_from_slice(&mac.0);
        bytes[FIXED..].copy_from_slice(&COOKIE);
        bytes.extend_from_slice(&[0, 53, 1, kind]);
        for (code, value) in options {
            bytes.extend_from_slice(&[*code, 4]);
            bytes.extend_from_slice(&value.octets());
        }
        bytes.push(255);
        bytes
    }

    /// Message type, yiaddr and destination.
    fn fields_of(packet: &[u8]) -> Option<(u8, Ipv4Addr, Ipv4Addr)> {
        let Reply { bytes, destination } = reply(packet, &scope())?;
        assert_eq!((&bytes[..4], &bytes[4..8], destination.port()), (&[2, 1, 6, 0][..], &[1, 2, 3, 4][..], 68));
        assert!(bytes.len() >= MIN_PACKET && bytes[OPTIONS] == 53);
        let address = <[u8; 4]>::try_from(&bytes[16..20]).expect("four bytes");
        Some((bytes[OPTIONS + 2], address.into(), *destination.ip()))
    }

    #[test]
    fn client_receives_only_its_reserved_address() {
        let none = Ipv4Addr::UNSPECIFIED;
        let every = Ipv4Addr::BROADCAST;
        let other = Ipv4Addr::new(172, 30, 0, 8);
        assert_eq!(fields_of(&packet(MAC, DISCOVER, none, &[])), Some((OFFER, OWN, every)));
        assert_eq!(fields_of(&packet(MAC, REQUEST, none, &[(50, OWN), (54, GATEWAY)])), Some((ACK, OWN, every)));
        assert_eq!(fields_of(&packet(MAC, REQUEST, none, &[(50, other)])), Some((NAK, none, every)));
        assert_eq!(fields_of(&packet(MAC, REQUEST, OWN, &[])), Some((ACK, OWN, OWN)), "renewal");
        assert_eq!(fields_of(&packet(MAC, REQUEST, other, &[])), Some((NAK, none, every)), "a NAK is broadcast");
        assert_eq!(fields_of(&packet(MAC, INFORM, OWN, &[])), Some((ACK, none, OWN)));
    }

    #[test]
    fn discover_is_answered_by_an_offer() {
        let offer = reply(&discover(MAC), &scope()).expect("a reply");
        assert!(
            is_offer(&offer.bytes, MAC) && !is_offer(&offer.bytes, MacAddr([0; 6])) && !is_offer(&discover(MAC), MAC)
        );
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_packet_never_panics(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = reply(&bytes, &scope());
            let _ = reply(&[discover(MAC), tail.clone()].concat(), &scope());
            let mut whole = discover(MAC);
            whole.truncate(OPTIONS);
            let _ = reply(&[whole, tail].concat(), &scope());
        }
    }

    #[test]
    fn unknown_client_other_server_and_invalid_packet_get_no_reply() {
        let none = Ipv4Addr::UNSPECIFIED;
        assert_eq!(fields_of(&packet(MacAddr([2, 0, 0, 0, 0, 9]), DISCOVER, none, &[])), None);
        assert_eq!(fields_of(&packet(MAC, REQUEST, none, &[(50, OWN), (54, OWN)])), None, "another server was chosen");
        for kind in [0, OFFER, 4, ACK, NAK, 7, 9] {
            assert_eq!(fields_of(&packet(MAC, kind, none, &[])), None, "{kind}");
        }
        let whole = packet(MAC, DISCOVER, none, &[]);
        for length in 0..OPTIONS {
            assert_eq!(reply(&whole[..length], &scope()), None);
        }
        let mut relayed = whole;
        relayed[24] = 10;
        assert_eq!(reply(&relayed, &scope()), None);
    }
}
