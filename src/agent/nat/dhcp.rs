//! DHCP server of the private network (RFC 2131): one fixed address for each MAC address; unknown MAC addresses get no answer. Pure.

use meshd_types::MacAddr;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
};

/// Maximum packet size that is read, in bytes.
pub const MAX_PACKET: usize = 1500;
/// Client port.
const CLIENT: u16 = 68;
/// Lease time in seconds. A VM keeps its address as long as it exists.
const LEASE_S: u32 = 3600;
/// Sizes of the fixed part and the magic cookie, and the offset of the options.
const FIXED: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const OPTIONS: usize = FIXED + COOKIE.len();
/// Minimum size of a BOOTP packet: some clients drop smaller ones.
const LEAST: usize = 300;

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
const INFORM: u8 = 8;

/// Configuration and reservations of the server.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Address of the node: router and server.
    pub gateway: Ipv4Addr,
    pub mask: Ipv4Addr,
    /// Name servers.
    pub dns: Vec<Ipv4Addr>,
    /// Address by MAC address.
    pub reserved: BTreeMap<MacAddr, Ipv4Addr>,
}

/// An answer and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub bytes: Vec<u8>,
    /// Destination; a client without address receives only broadcasts.
    pub to: SocketAddrV4,
}

struct Request<'a> {
    packet: &'a [u8],
    mac: MacAddr,
    kind: u8,
    /// Field `ciaddr`.
    has: Ipv4Addr,
    /// Option 50 (requested address).
    wants: Option<Ipv4Addr>,
    /// Option 54 (server identifier).
    server: Option<Ipv4Addr>,
}

/// Answers a request; `None` for any other packet.
pub fn answer(packet: &[u8], given: &Pool) -> Option<Answer> {
    let asked = read(packet)?;
    let address = *given.reserved.get(&asked.mac)?;
    let kind = match asked.kind {
        DISCOVER => OFFER,
        REQUEST if asked.server.is_some_and(|server| server != given.gateway) => return None,
        REQUEST => {
            let means = asked.wants.unwrap_or(asked.has);
            if means == address { ACK } else { NAK }
        }
        INFORM => ACK,
        _ => return None,
    };
    Some(write(&asked, kind, address, given))
}

/// Builds a client's request.
pub fn discover(mac: MacAddr) -> Vec<u8> {
    let mut bytes = vec![0; OPTIONS];
    bytes[..4].copy_from_slice(&[1, 1, 6, 0]);
    bytes[4..8].copy_from_slice(&mac.0[2..]);
    bytes[28..34].copy_from_slice(&mac.0);
    bytes[FIXED..OPTIONS].copy_from_slice(&COOKIE);
    bytes.extend_from_slice(&[53, 1, DISCOVER, 255]);
    bytes.resize(LEAST, 0);
    bytes
}

/// Returns true for the answer to [`discover`].
pub fn is_offer(packet: &[u8], mac: MacAddr) -> bool {
    let is_ours = packet.first() == Some(&2) && packet.get(28..34) == Some(&mac.0[..]);
    is_ours && packet.get(OPTIONS..OPTIONS + 3) == Some(&[53, 1, OFFER][..])
}

fn read(packet: &[u8]) -> Option<Request<'_>> {
    let ip = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from);
    // Ethernet only; this network has no relays.
    let is_ours =
        packet.get(..3)? == [1, 1, 6] && packet.get(FIXED..OPTIONS)? == COOKIE && packet.get(24..28)? == [0; 4];
    let mac = MacAddr(<[u8; 6]>::try_from(packet.get(28..34)?).ok()?);
    let mut asked = Request { packet, mac, kind: 0, has: ip(packet.get(12..16)?)?, wants: None, server: None };
    let mut rest = packet.get(OPTIONS..)?;
    while let [code, after @ ..] = rest {
        match code {
            0 => rest = after,
            255 => break,
            code => {
                let (length, after) = after.split_first()?;
                let value = after.get(..usize::from(*length))?;
                match code {
                    53 => asked.kind = *value.first()?,
                    50 => asked.wants = ip(value),
                    54 => asked.server = ip(value),
                    _ => {}
                }
                rest = &after[usize::from(*length)..];
            }
        }
    }
    is_ours.then_some(asked)
}

fn write(asked: &Request<'_>, kind: u8, address: Ipv4Addr, given: &Pool) -> Answer {
    let mut bytes = vec![0; OPTIONS];
    bytes[..4].copy_from_slice(&[2, 1, 6, 0]);
    // Transaction ID, flags and client address of the request.
    bytes[4..8].copy_from_slice(&asked.packet[4..8]);
    bytes[10..12].copy_from_slice(&asked.packet[10..12]);
    bytes[28..34].copy_from_slice(&asked.mac.0);
    bytes[FIXED..OPTIONS].copy_from_slice(&COOKIE);
    if kind != NAK {
        bytes[12..16].copy_from_slice(&asked.has.octets());
        if asked.kind != INFORM {
            bytes[16..20].copy_from_slice(&address.octets());
        }
        bytes[20..24].copy_from_slice(&given.gateway.octets());
    }
    let mut option = |code: u8, value: &[u8]| {
        bytes.extend_from_slice(&[code, u8::try_from(value.len()).unwrap_or(0)]);
        bytes.extend_from_slice(value);
    };
    option(53, &[kind]);
    option(54, &given.gateway.octets());
    if kind != NAK {
        if asked.kind != INFORM {
            option(51, &LEASE_S.to_be_bytes());
        }
        option(1, &given.mask.octets());
        option(3, &given.gateway.octets());
        let dns: Vec<u8> = given.dns.iter().take(4).flat_map(|server| server.octets()).collect();
        if !dns.is_empty() {
            option(6, &dns);
        }
    }
    bytes.push(255);
    bytes.resize(bytes.len().max(LEAST), 0);
    let reachable = kind != NAK && !asked.has.is_unspecified();
    let to = if reachable { asked.has } else { Ipv4Addr::BROADCAST };
    Answer { bytes, to: SocketAddrV4::new(to, CLIENT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 7]);
    const OWN: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 7);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);

    fn given() -> Pool {
        let dns = vec![Ipv4Addr::new(10, 77, 0, 1)];
        Pool { gateway: GATEWAY, mask: Ipv4Addr::new(255, 255, 255, 0), dns, reserved: BTreeMap::from([(MAC, OWN)]) }
    }

    fn packet(mac: MacAddr, kind: u8, has: Ipv4Addr, options: &[(u8, Ipv4Addr)]) -> Vec<u8> {
        let mut bytes = vec![0; OPTIONS];
        bytes[..4].copy_from_slice(&[1, 1, 6, 0]);
        bytes[4..8].copy_from_slice(&[1, 2, 3, 4]);
        bytes[12..16].copy_from_slice(&has.octets());
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
        let Answer { bytes, to } = answer(packet, &given())?;
        assert_eq!((&bytes[..4], &bytes[4..8], to.port()), (&[2, 1, 6, 0][..], &[1, 2, 3, 4][..], 68));
        assert!(bytes.len() >= LEAST && bytes[OPTIONS] == 53);
        let address = <[u8; 4]>::try_from(&bytes[16..20]).expect("four bytes");
        Some((bytes[OPTIONS + 2], address.into(), *to.ip()))
    }

    #[test]
    fn a_machine_gets_its_own_address_and_no_other() {
        let none = Ipv4Addr::UNSPECIFIED;
        let every = Ipv4Addr::BROADCAST;
        let other = Ipv4Addr::new(172, 30, 0, 8);
        assert_eq!(fields_of(&packet(MAC, DISCOVER, none, &[])), Some((OFFER, OWN, every)));
        assert_eq!(fields_of(&packet(MAC, REQUEST, none, &[(50, OWN), (54, GATEWAY)])), Some((ACK, OWN, every)));
        assert_eq!(fields_of(&packet(MAC, REQUEST, none, &[(50, other)])), Some((NAK, none, every)));
        assert_eq!(fields_of(&packet(MAC, REQUEST, OWN, &[])), Some((ACK, OWN, OWN)), "it renews");
        assert_eq!(fields_of(&packet(MAC, REQUEST, other, &[])), Some((NAK, none, every)), "a NAK is broadcast");
        assert_eq!(fields_of(&packet(MAC, INFORM, OWN, &[])), Some((ACK, none, OWN)));
    }

    #[test]
    fn the_doctors_question_is_a_question_and_its_answer_an_offer() {
        let told = answer(&discover(MAC), &given()).expect("answered");
        assert!(
            is_offer(&told.bytes, MAC) && !is_offer(&told.bytes, MacAddr([0; 6])) && !is_offer(&discover(MAC), MAC)
        );
    }

    proptest::proptest! {
        #[test]
        fn any_packet_is_read(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = answer(&bytes, &given());
            let _ = answer(&[discover(MAC), tail.clone()].concat(), &given());
            let mut whole = discover(MAC);
            whole.truncate(OPTIONS);
            let _ = answer(&[whole, tail].concat(), &given());
        }
    }

    #[test]
    fn strangers_other_servers_and_what_is_no_question_get_no_answer() {
        let none = Ipv4Addr::UNSPECIFIED;
        assert_eq!(fields_of(&packet(MacAddr([2, 0, 0, 0, 0, 9]), DISCOVER, none, &[])), None);
        assert_eq!(fields_of(&packet(MAC, REQUEST, none, &[(50, OWN), (54, OWN)])), None, "another server was chosen");
        for kind in [0, OFFER, 4, ACK, NAK, 7, 9] {
            assert_eq!(fields_of(&packet(MAC, kind, none, &[])), None, "{kind}");
        }
        let whole = packet(MAC, DISCOVER, none, &[]);
        for length in 0..OPTIONS {
            assert_eq!(answer(&whole[..length], &given()), None);
        }
        let mut relayed = whole;
        relayed[24] = 10;
        assert_eq!(answer(&relayed, &given()), None);
    }
}
