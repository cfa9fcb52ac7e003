//! DHCP server of a network that the node makes (RFC 2131): one fixed address for each MAC address;
//! unknown MAC addresses get no answer. Pure.

pub use dhcproto::v4::{CLIENT_PORT, SERVER_PORT};

use dhcproto::v4::{
    Decoder, DhcpOption, Encodable as _, Encoder, HType, MAGIC, MIN_PACKET_SIZE, Message,
    MessageType, Opcode, OptionCode, borrowed,
};
use meshd_types::MacAddr;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

/// Maximum packet size that is read, in bytes.
pub const MAX_PACKET: usize = 1500;
/// Lease time in seconds. A VM keeps its address as long as it exists.
const LEASE_S: u32 = 3600;
/// Maximum number of name servers in a reply.
const MAX_DNS: usize = 4;
/// Length of the header with its magic cookie, in bytes.
const HEADER: usize = 240;
/// Length of an Ethernet address.
const ETHERNET: u8 = 6;

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
    /// At least [`MIN_PACKET_SIZE`]: some clients drop smaller packets.
    pub bytes: Vec<u8>,
    /// A client without address receives only broadcasts.
    pub destination: SocketAddrV4,
}

struct Request<'a> {
    header: borrowed::Message<'a>,
    mac: MacAddr,
    kind: MessageType,
    requested_address: Option<Ipv4Addr>,
    server_id: Option<Ipv4Addr>,
}

/// Builds the reply to a request; `None` for any other packet.
pub fn reply(packet: &[u8], scope: &DhcpScope) -> Option<Reply> {
    let request = parse(packet)?;
    let address = *scope.reserved.get(&request.mac)?;
    let kind = match request.kind {
        MessageType::Discover => MessageType::Offer,
        MessageType::Request if request.server_id.is_some_and(|server| server != scope.gateway) => {
            return None;
        }
        MessageType::Request => {
            let requested = request.requested_address.unwrap_or(request.header.ciaddr());
            if requested == address { MessageType::Ack } else { MessageType::Nak }
        }
        MessageType::Inform => MessageType::Ack,
        _ => return None,
    };
    Some(build_reply(&request, kind, address, scope))
}

/// Builds a DHCPDISCOVER.
pub fn discover(mac: MacAddr) -> Vec<u8> {
    let none = Ipv4Addr::UNSPECIFIED;
    let [_, _, id @ ..] = mac.0;
    let message = Message::new_with_id(u32::from_be_bytes(id), none, none, none, none, &mac.0);
    encode(&message, &[DhcpOption::MessageType(MessageType::Discover)])
}

/// Returns true for the reply to [`discover`].
pub fn is_offer(packet: &[u8], mac: MacAddr) -> bool {
    let Some(header) = ethernet_header(packet) else { return false };
    let is_ours = header.opcode() == Opcode::BootReply && header.chaddr() == mac.0;
    let offer = [u8::from(MessageType::Offer)];
    is_ours
        && header
            .opts()
            .any(|option| option.code() == OptionCode::MessageType && option.data() == offer)
}

/// Reads the header of a packet of DHCP on Ethernet.
fn ethernet_header(packet: &[u8]) -> Option<borrowed::Message<'_>> {
    let header = borrowed::Message::new(packet).ok()?;
    let is_dhcp = packet.get(HEADER - MAGIC.len()..HEADER)? == MAGIC;
    (is_dhcp && header.htype() == HType::Eth && header.hlen() == ETHERNET).then_some(header)
}

fn parse(packet: &[u8]) -> Option<Request<'_>> {
    let header = ethernet_header(packet)?;
    // This network has no relays.
    if header.opcode() != Opcode::BootRequest || !header.giaddr().is_unspecified() {
        return None;
    }
    let mac = MacAddr(header.chaddr().try_into().ok()?);
    let mut kind = None;
    let mut requested_address = None;
    let mut server_id = None;
    let mut rest = Decoder::new(packet.get(HEADER..)?);
    while let Ok(code) = rest.read_u8() {
        let code = OptionCode::from(code);
        match code {
            OptionCode::Pad => continue,
            OptionCode::End => break,
            _ => {}
        }
        // A packet with a cut option is dropped; the iterator of the library would end there.
        let length = rest.read_u8().ok()?;
        let value = rest.read_slice(length.into()).ok()?;
        match code {
            OptionCode::MessageType => kind = Some(MessageType::from(*value.first()?)),
            OptionCode::RequestedIpAddress => requested_address = address_of(value),
            OptionCode::ServerIdentifier => server_id = address_of(value),
            _ => {}
        }
    }
    Some(Request { header, mac, kind: kind?, requested_address, server_id })
}

fn address_of(value: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from)
}

fn build_reply(
    request: &Request<'_>,
    kind: MessageType,
    address: Ipv4Addr,
    scope: &DhcpScope,
) -> Reply {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message =
        Message::new_with_id(request.header.xid(), none, none, none, none, &request.mac.0);
    message.set_opcode(Opcode::BootReply).set_flags(request.header.flags());
    let mut options =
        vec![DhcpOption::MessageType(kind), DhcpOption::ServerIdentifier(scope.gateway)];
    if kind != MessageType::Nak {
        message.set_ciaddr(request.header.ciaddr()).set_siaddr(scope.gateway);
        if request.kind != MessageType::Inform {
            message.set_yiaddr(address);
            options.push(DhcpOption::AddressLeaseTime(LEASE_S));
        }
        options
            .extend([DhcpOption::SubnetMask(scope.mask), DhcpOption::Router(vec![scope.gateway])]);
        let dns: Vec<Ipv4Addr> = scope.dns.iter().take(MAX_DNS).copied().collect();
        if !dns.is_empty() {
            options.push(DhcpOption::DomainNameServer(dns));
        }
    }
    let reachable = kind != MessageType::Nak && !request.header.ciaddr().is_unspecified();
    let destination = if reachable { request.header.ciaddr() } else { Ipv4Addr::BROADCAST };
    Reply {
        bytes: encode(&message, &options),
        destination: SocketAddrV4::new(destination, CLIENT_PORT),
    }
}

/// Encodes the header, which has no options of its own, and the options in their order: old
/// firmware expects the message type first.
fn encode(message: &Message, options: &[DhcpOption]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MIN_PACKET_SIZE);
    let mut encoder = Encoder::new(&mut bytes);
    message.encode(&mut encoder).expect("header fields fit");
    for option in options.iter().chain([&DhcpOption::End]) {
        option.encode(&mut encoder).expect("options are short");
    }
    bytes.resize(bytes.len().max(MIN_PACKET_SIZE), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 7]);
    const OWN: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 7);
    // Message types (RFC 2132, 9.6).
    const DISCOVER: u8 = 1;
    const OFFER: u8 = 2;
    const REQUEST: u8 = 3;
    const ACK: u8 = 5;
    const NAK: u8 = 6;
    const INFORM: u8 = 8;
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
        let mut bytes = vec![0; HEADER];
        bytes[..4].copy_from_slice(&[1, 1, 6, 0]);
        bytes[4..8].copy_from_slice(&[1, 2, 3, 4]);
        bytes[12..16].copy_from_slice(&ciaddr.octets());
        bytes[28..34].copy_from_slice(&mac.0);
        bytes[HEADER - 4..].copy_from_slice(&MAGIC);
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
        assert_eq!(
            (&bytes[..4], &bytes[4..8], destination.port()),
            (&[2, 1, 6, 0][..], &[1, 2, 3, 4][..], 68)
        );
        assert!(bytes.len() >= 300 && bytes[HEADER] == 53, "the message type is the first option");
        let address = <[u8; 4]>::try_from(&bytes[16..20]).expect("four bytes");
        Some((bytes[HEADER + 2], address.into(), *destination.ip()))
    }

    #[test]
    fn client_receives_only_its_reserved_address() {
        let none = Ipv4Addr::UNSPECIFIED;
        let every = Ipv4Addr::BROADCAST;
        let other = Ipv4Addr::new(172, 30, 0, 8);
        assert_eq!(fields_of(&packet(MAC, DISCOVER, none, &[])), Some((OFFER, OWN, every)));
        assert_eq!(
            fields_of(&packet(MAC, REQUEST, none, &[(50, OWN), (54, GATEWAY)])),
            Some((ACK, OWN, every))
        );
        assert_eq!(
            fields_of(&packet(MAC, REQUEST, none, &[(50, other)])),
            Some((NAK, none, every))
        );
        assert_eq!(fields_of(&packet(MAC, REQUEST, OWN, &[])), Some((ACK, OWN, OWN)), "renewal");
        assert_eq!(
            fields_of(&packet(MAC, REQUEST, other, &[])),
            Some((NAK, none, every)),
            "a NAK is broadcast"
        );
        assert_eq!(fields_of(&packet(MAC, INFORM, OWN, &[])), Some((ACK, none, OWN)));
    }

    #[test]
    fn discover_is_answered_by_an_offer() {
        let offer = reply(&discover(MAC), &scope()).expect("a reply");
        assert!(
            is_offer(&offer.bytes, MAC)
                && !is_offer(&offer.bytes, MacAddr([0; 6]))
                && !is_offer(&discover(MAC), MAC)
        );
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_packet_never_panics(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = reply(&bytes, &scope());
            let _ = reply(&[discover(MAC), tail.clone()].concat(), &scope());
            let mut whole = discover(MAC);
            whole.truncate(HEADER);
            let _ = reply(&[whole, tail].concat(), &scope());
        }
    }

    #[test]
    fn unknown_client_other_server_and_invalid_packet_get_no_reply() {
        let none = Ipv4Addr::UNSPECIFIED;
        assert_eq!(fields_of(&packet(MacAddr([2, 0, 0, 0, 0, 9]), DISCOVER, none, &[])), None);
        assert_eq!(
            fields_of(&packet(MAC, REQUEST, none, &[(50, OWN), (54, OWN)])),
            None,
            "another server was chosen"
        );
        for kind in [0, OFFER, 4, ACK, NAK, 7, 9] {
            assert_eq!(fields_of(&packet(MAC, kind, none, &[])), None, "{kind}");
        }
        let whole = packet(MAC, DISCOVER, none, &[]);
        for length in 0..HEADER {
            assert_eq!(reply(&whole[..length], &scope()), None);
        }
        assert!(reply(&whole, &scope()).is_some());
        // Byte offsets of opcode, hardware type, address length, relay and cookie.
        for (offset, value) in [(0, 2), (1, 6), (2, 255), (24, 10), (236, 0)] {
            let mut changed = whole.clone();
            changed[offset] = value;
            assert_eq!(reply(&changed, &scope()), None, "{offset}");
        }
        let cut = [&whole[..whole.len() - 1], &[12, 9, b'a']].concat();
        assert_eq!(reply(&cut, &scope()), None, "an option is cut");
    }

    #[test]
    fn reply_has_router_mask_lease_time_and_at_most_four_name_servers() {
        let server = |last| Ipv4Addr::new(10, 77, 0, last);
        let scope = DhcpScope { dns: (1..=5).map(server).collect(), ..scope() };
        let offer = reply(&discover(MAC), &scope).expect("a reply");
        let header = borrowed::Message::new(&offer.bytes).expect("a header");
        let options: Vec<(u8, Vec<u8>)> =
            header.opts().map(|option| (option.code().into(), option.data().to_vec())).collect();
        let expected: [(u8, Vec<u8>); 6] = [
            (53, vec![OFFER]),
            (54, GATEWAY.octets().to_vec()),
            (51, 3600_u32.to_be_bytes().to_vec()),
            (1, vec![255, 255, 255, 0]),
            (3, GATEWAY.octets().to_vec()),
            (6, (1..=4).flat_map(|last| server(last).octets()).collect()),
        ];
        assert_eq!(options, expected);
        assert_eq!(header.siaddr(), GATEWAY);
    }
}
