//! The bytes of replies: order and number of options, link layers without chaddr, and the receiver
//! of a reply.

use super::clients::*;
use crate::{packet::CLIENT_PORT, *};
use dhcproto::v4::{MessageType, OptionCode};
use meshd_types::MacAddr;
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddrV4};

const CLAIMED: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 150);

/// Returns the codes of the options as they are in the packet.
fn codes(packet: &[u8]) -> Vec<u8> {
    let mut codes = Vec::new();
    let mut rest = &packet[240..];
    while let [code, length, more @ ..] = rest
        && *code != 255
    {
        codes.push(*code);
        rest = &more[usize::from(*length)..];
    }
    assert_eq!(rest.first(), Some(&255), "the options end");
    codes
}

fn bytes_of(outcome: &Outcome) -> Vec<u8> {
    let reply = outcome.0.iter().find_map(|effect| match effect {
        Effect::Reply(reply) => Some(reply.packet.clone()),
        _ => None,
    });
    reply.expect("a reply")
}

#[test]
fn options_are_in_the_order_of_dnsmasq_and_relay_option_is_last() {
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 200)));
    let relay = Ipv4Addr::new(10, 77, 0, 254);
    setup.segments[0].link = Link::Relay(relay);
    let mut engine = Engine::new(setup, Vec::new());
    let packet = Packet::discover(mac(1), Program::Ipxe)
        .via(relay)
        .raw(OptionCode::RelayAgentInformation, b"\x01\x04port")
        .raw(OptionCode::ClientIdentifier, b"\x01client");
    let offer = bytes_of(&packet.to(&mut engine, at(0)));
    assert_eq!(codes(&offer), [53, 54, 51, 66, 67, 58, 59, 1, 28, 3, 6, 15, 42, 175, 61, 97, 82]);
    let nak = Packet::reboot(mac(1), Program::Os, Ipv4Addr::new(10, 1, 0, 1)).via(relay);
    assert_eq!(codes(&bytes_of(&nak.to(&mut engine, at(0)))), [53, 54, 56]);
}

#[test]
fn discover_with_claimed_address_is_answered_at_chaddr() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let from = |packet: Packet, engine: &mut Engine, source| packet.from(engine, at(0), 0, source);
    for source in [Ipv4Addr::UNSPECIFIED, CLAIMED] {
        let offer =
            from(Packet::discover(mac(1), Program::Pxe(7)).using(CLAIMED), &mut engine, source);
        let offer = offer.expect(MessageType::Offer);
        assert_eq!(
            offer.to,
            Destination::Frame { mac: mac(1), address: offer.address() },
            "{source}"
        );
    }
    let address = boot(&mut engine, at(0), mac(1), Program::Os);
    let renewal = Packet::new(MessageType::Request, mac(1), Program::Os).using(address);
    let ack = from(renewal, &mut engine, Ipv4Addr::UNSPECIFIED).expect(MessageType::Ack);
    assert_eq!(ack.to, Destination::Frame { mac: mac(1), address }, "it did not send from there");
    let mut proxy = Engine::new(setup(DhcpMode::Proxy, None), Vec::new());
    let offer = from(
        Packet::discover(mac(1), Program::Pxe(7)).using(CLAIMED),
        &mut proxy,
        Ipv4Addr::UNSPECIFIED,
    );
    assert_eq!(offer.expect(MessageType::Offer).to, Destination::BROADCAST);
}

#[test]
fn inform_without_address_is_answered_at_its_source() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let inform = Packet::new(MessageType::Inform, mac(1), Program::Os);
    let ack = inform.from(&mut engine, at(0), 0, CLAIMED).expect(MessageType::Ack);
    assert_eq!(ack.to, Destination::Ip(SocketAddrV4::new(CLAIMED, CLIENT_PORT)));
    assert_eq!(ack.option(1), Some(vec![255, 255, 255, 0]));
    let bytes = inform.bytes();
    let origin = Origin {
        interface_index: 0,
        source: SocketAddrV4::new(CLAIMED, CLIENT_PORT),
        local_port: 67,
        ethernet_source: Some(mac(1)),
    };
    let effects = engine.handle(at(0), &bytes, origin);
    let last_hop = effects.iter().find_map(|effect| match effect {
        Effect::Reply(reply) => reply.last_hop,
        _ => None,
    });
    assert_eq!(last_hop, Some(LastHop::Client(mac(1))), "nobody may answer ARP for its source");
    let other = Ipv4Addr::new(10, 77, 0, 151);
    for (packet, source) in
        [(inform.clone(), Ipv4Addr::UNSPECIFIED), (inform.using(CLAIMED), other)]
    {
        assert_eq!(
            packet.from(&mut engine, at(0), 0, source).dropped(),
            Some(DropReason::UnprovenSender),
            "{source}"
        );
    }
}

#[test]
fn packet_without_reply_is_counted_by_its_reason() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let bootp = Packet::discover(mac(1), Program::Os).without(OptionCode::MessageType);
    assert_eq!(bootp.to(&mut engine, at(0)).dropped(), Some(DropReason::Malformed));
    let request = Packet::new(MessageType::Request, mac(1), Program::Os);
    assert_eq!(request.to(&mut engine, at(0)).dropped(), Some(DropReason::NoAddress));
    let dropped = engine.counters().dropped;
    assert_eq!(
        [DropReason::Malformed, DropReason::NoAddress].map(|reason| dropped[reason as usize]),
        [1, 1]
    );
}

/// The identifier of RFC 4390 and RFC 4361: type, IAID, DUID.
const INFINIBAND: &[u8] = b"\xff\0\0\0\0\0\x02\0\0\x02\xc9\0\xec\x0d\x9a\x03\0\x9c\x81\xe2";

fn without_chaddr(kind: MessageType, identifier: &[u8]) -> Vec<u8> {
    let packet = Packet::new(kind, mac(1), Program::Os)
        .broadcast_only()
        .raw(OptionCode::ClientIdentifier, identifier);
    let mut bytes = packet.bytes();
    bytes[1..3].copy_from_slice(&[32, 0]);
    bytes[28..44].fill(0);
    bytes
}

#[test]
fn infiniband_client_is_known_by_its_identifier_and_answered_by_broadcast() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let origin = Origin {
        interface_index: 0,
        source: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68),
        local_port: 67,
        ethernet_source: Some(mac(7)),
    };
    let mut offered = |identifier: &[u8]| {
        let outcome = Outcome(engine.handle(
            at(0),
            &without_chaddr(MessageType::Discover, identifier),
            origin,
        ));
        let reply = bytes_of(&outcome);
        assert_eq!((&reply[..3], &reply[28..44]), (&[2, 32, 0][..], &[0; 16][..]), "RFC 4390");
        let offer = outcome.expect(MessageType::Offer);
        assert_eq!(
            (offer.to, offer.option(61)),
            (Destination::BROADCAST, Some(identifier.to_vec()))
        );
        offer.address()
    };
    let address = offered(INFINIBAND);
    assert_eq!(offered(INFINIBAND), address);
    let mut other_port = INFINIBAND.to_vec();
    other_port[4] = 1;
    assert_ne!(offered(&other_port), address);
    let outcome = engine.handle(at(0), &without_chaddr(MessageType::Discover, b"\xff"), origin);
    assert_eq!(Outcome(outcome).dropped(), Some(DropReason::Malformed), "nothing identifies it");
}

#[test]
fn client_gets_its_hardware_type_and_chaddr_back() {
    // IEEE 802; IP over InfiniBand with an Ethernet address, which is not that of its frames.
    for (hardware, has_frames) in [(6, true), (32, false)] {
        let mut engine = engine(pool(100, 200), Vec::new());
        let mut bytes = Packet::discover(mac(1), Program::Ipxe).bytes();
        bytes[1] = hardware;
        let outcome = send(&mut engine, at(0), &bytes, 67);
        let reply = bytes_of(&outcome);
        assert_eq!((&reply[..3], &reply[28..34]), (&[2, hardware, 6][..], &mac(1).0[..]));
        let to = outcome.expect(MessageType::Offer).to;
        assert_eq!(matches!(to, Destination::Frame { .. }), has_frames, "{to:?}");
    }
}

#[test]
fn relay_option_in_several_parts_is_read_and_returned_as_one() {
    let relay = Ipv4Addr::new(10, 88, 0, 254);
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 200)));
    setup.segments[0].link = Link::Relay(Ipv4Addr::new(10, 77, 0, 254));
    let mut engine = Engine::new(setup, Vec::new());
    // A long port name, and behind it in the second part the network of the client.
    let mut option = [&[2, 251][..], &[b'x'; 251]].concat();
    option.extend([5, 4, 10, 77, 0, 0]);
    let mut bytes = Packet::discover(mac(1), Program::Os).via(relay).bytes();
    assert_eq!(bytes.pop(), Some(255));
    for part in option.chunks(255) {
        bytes.extend([82, u8::try_from(part.len()).expect("short")]);
        bytes.extend(part);
    }
    bytes.push(255);
    let outcome = send(&mut engine, at(0), &bytes, 67);
    let reply = bytes_of(&outcome);
    assert_eq!(outcome.expect(MessageType::Offer).address().octets()[..3], [10, 77, 0]);
    assert!(codes(&reply).ends_with(&[82, 82]), "{:?}", codes(&reply));
    let returned = [&[82, 255][..], &option[..255], &[82, 4], &option[255..], &[255]].concat();
    assert!(reply.ends_with(&returned), "the parts are whole");
}

proptest! {
    /// The address of an identifier has the group bit, so it never impersonates an Ethernet NIC.
    #[test]
    fn infiniband_identifier_never_yields_ethernet_address(identifier in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Some(request) = crate::packet::ClientMessage::parse(&without_chaddr(MessageType::Discover, &identifier)) {
            prop_assert!(request.mac.is_multicast() && request.mac != MacAddr([0xff; 6]));
        }
    }

    #[test]
    fn reply_never_repeats_an_option(agent in proptest::collection::vec(any::<u8>(), 1..255), class in "\\PC{0,40}") {
        let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 200)));
        let relay = Ipv4Addr::new(10, 77, 0, 254);
        setup.segments[0].link = Link::Relay(relay);
        // No link selection, so the relay's segment serves it.
        let agent = [&[1, u8::try_from(agent.len().min(200)).expect("short")][..], &agent[..agent.len().min(200)]].concat();
        let packet = Packet::discover(mac(1), Program::Pxe(7))
            .via(relay)
            .raw(OptionCode::RelayAgentInformation, &agent)
            .raw(OptionCode::ClassIdentifier, class.as_bytes());
        let codes = codes(&bytes_of(&packet.to(&mut Engine::new(setup, Vec::new()), at(0))));
        let mut unique = codes.clone();
        unique.sort_unstable();
        unique.dedup();
        prop_assert_eq!((codes[0], codes.last(), unique.len()), (53, Some(&82), codes.len()));
    }
}
