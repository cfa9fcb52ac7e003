//! Packets in the name of another machine, and floods of them.

use super::clients::*;
use crate::{lease::DECLINE_WINDOW, *};
use dhcproto::v4::{MessageType, OptionCode};
use meshd_types::{MacAddr, Timestamp};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
};

const THIEF: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0x66]);
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// Sends a packet from an Ethernet address.
fn send_from(engine: &mut Engine, now: Timestamp, packet: &Packet, sender: MacAddr, machines: &OneNode) -> Outcome {
    let source = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
    let origin = Origin { interface_index: 0, source, local_port: 67, ethernet_source: Some(sender) };
    Outcome(engine.handle(now, &packet.bytes(), origin, machines))
}

fn decline(who: MacAddr, address: Ipv4Addr) -> Packet {
    Packet::new(MessageType::Decline, who, Who::Os).raw(OptionCode::RequestedIpAddress, &address.octets())
}

#[test]
fn packet_from_another_card_than_it_names_changes_nothing() {
    let mut engine = engine(pool(100, 110), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Who::Ipxe);
    let free = Ipv4Addr::new(10, 77, 0, if address.octets()[3] == 109 { 108 } else { 109 });
    let forged = [
        (Packet::discover(mac(1), Who::Ipxe), ClientMessageType::Discover),
        (Packet::reboot(mac(1), Who::Ipxe, free), ClientMessageType::Request),
        (decline(mac(1), address), ClientMessageType::Decline),
        (Packet::new(MessageType::Release, mac(1), Who::Os).using(address), ClientMessageType::Release),
    ];
    for (packet, kind) in forged {
        let outcome = send_from(&mut engine, at(1), &packet, THIEF, &OneNode::default());
        assert_eq!(outcome.0, [Effect::Warn(Warning::Forged { mac: mac(1), sender: THIEF, kind })]);
    }
    assert_eq!(engine.counters().forged, 4);
    assert_eq!(boot(&mut engine, at(2), mac(1), Who::Ipxe), address, "the machine keeps its address");
}

#[test]
fn decline_counts_only_from_the_client_that_was_just_acknowledged() {
    let mut engine = engine(pool(100, 110), Vec::new());
    let nobody = OneNode::default();
    let offered = Packet::discover(mac(1), Who::Os).to(&mut engine, at(0)).expect(MessageType::Offer).address();
    assert!(send_from(&mut engine, at(0), &decline(mac(1), offered), mac(1), &nobody).0.is_empty(), "only offered");
    let leased = boot(&mut engine, at(0), mac(2), Who::Os);
    let late = at(0).after(DECLINE_WINDOW * 2);
    assert!(send_from(&mut engine, late, &decline(mac(2), leased), mac(2), &nobody).0.is_empty(), "long ago");
    let used = OneNode { mac: Some(mac(2)), uses_address: true, ..OneNode::default() };
    assert!(send_from(&mut engine, at(1), &decline(mac(2), leased), mac(2), &used).0.is_empty(), "it boots from there");
    assert_eq!(send_from(&mut engine, at(1), &decline(mac(2), leased), mac(2), &nobody).0.len(), 2);
}

#[test]
fn release_of_an_address_that_its_machine_uses_is_ignored() {
    let mut engine = engine(pool(100, 110), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Who::Os);
    let release = Packet::new(MessageType::Release, mac(1), Who::Os).using(address);
    let used = OneNode { mac: Some(mac(1)), uses_address: true, ..OneNode::default() };
    assert!(send_from(&mut engine, at(1), &release, mac(1), &used).0.is_empty());
    let unused = OneNode { uses_address: false, ..used };
    assert!(matches!(
        send_from(&mut engine, at(1), &release, mac(1), &unused).0[..],
        [Effect::Store(Change::LeaseChanged(_))]
    ));
}

#[test]
fn address_of_an_approved_node_is_never_given_to_another_machine() {
    let mut engine = engine(pool(100, 103), Vec::new());
    let node = OneNode { mac: Some(mac(1)), ..OneNode::default() };
    let own = boot(&mut engine, at(0), mac(1), Who::Os);
    engine.keep_addresses(&BTreeSet::from([mac(1)]));
    let mut now = at(100_000);
    let mut given = BTreeSet::new();
    for number in 0..60u8 {
        let who = MacAddr([2, 0, 0, 0, 0, number]);
        let offer = send_from(&mut engine, now, &Packet::discover(who, Who::Os), who, &node).reply();
        if let Some(address) = offer.map(|offer| offer.address()) {
            given.insert(address);
            let select = Packet::select(who, Who::Os, address, SERVER);
            send_from(&mut engine, now, &select, who, &node);
        }
        now = now.after(std::time::Duration::from_secs(10));
    }
    assert!(!given.contains(&own) && given.len() == 3, "{own} among {given:?}");
    let offer = send_from(&mut engine, now, &Packet::discover(mac(1), Who::Os), mac(1), &node);
    assert_eq!(offer.expect(MessageType::Offer).address(), own);
}

#[test]
fn flood_of_discovers_leaves_an_address_for_a_machine_that_comes_later() {
    let mut engine = engine(pool(100, 110), Vec::new());
    for number in 0..40u8 {
        let who = MacAddr([2, 0, 0, 0, 1, number]);
        send_from(&mut engine, at(0), &Packet::discover(who, Who::Os), who, &OneNode::default());
    }
    let offer = Packet::discover(mac(1), Who::Os).to(&mut engine, at(6));
    offer.expect(MessageType::Offer);
}

#[test]
fn declined_addresses_are_never_more_than_a_part_of_the_pool() {
    let mut engine = engine(pool(100, 115), Vec::new());
    for number in 0..64u8 {
        let who = MacAddr([2, 0, 0, 0, 2, number]);
        let address = boot(&mut engine, at(i64::from(number)), who, Who::Os);
        send_from(&mut engine, at(i64::from(number)), &decline(who, address), who, &OneNode::default());
    }
    let health = engine.status(at(64));
    assert!(health[0].pool.declined <= 2, "{:?}", health[0].pool);
}

/// A site with a local segment and one behind a relay.
fn two_segments(relay_macs: Vec<MacAddr>) -> Engine {
    let behind = Subnet { first: [10, 88, 0, 100].into(), last: [10, 88, 0, 110].into(), ..pool(100, 110) };
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 110)));
    let segment = Segment { link: Link::Relay(RELAY), subnet: Some(behind), ..setup.segments[0].clone() };
    setup.segments.push(Segment { relay_macs, ..segment });
    Engine::new(setup, Vec::new())
}

#[test]
fn relayed_packet_from_another_card_than_the_relays_is_refused_with_an_alarm() {
    let relay = MacAddr([2, 0, 0, 0, 3, 1]);
    let mut engine = two_segments(vec![relay]);
    let relayed = Packet::discover(mac(1), Who::Ipxe).via(RELAY);
    let outcome = send_from(&mut engine, at(0), &relayed, THIEF, &OneNode::default());
    let expected = Warning::Forged { mac: mac(1), sender: THIEF, kind: ClientMessageType::Discover };
    assert_eq!(outcome.0, [Effect::Warn(expected)]);
    send_from(&mut engine, at(0), &relayed, relay, &OneNode::default()).expect(MessageType::Offer);
    // A site that names no card takes every relay's word.
    send_from(&mut two_segments(Vec::new()), at(0), &relayed, THIEF, &OneNode::default()).expect(MessageType::Offer);
}

#[test]
fn node_that_asks_from_another_relay_port_is_refused_with_an_alarm() {
    let mut engine = two_segments(Vec::new());
    let known = RelayPort { circuit_id: Some("01".to_owned()), remote_id: None };
    let node = OneNode {
        mac: Some(mac(1)),
        attachment: Some(Attachment { is_local: false, relay_port: Some(known.clone()) }),
        ..OneNode::default()
    };
    let at_port = |port: &[u8]| {
        let packet = Packet::discover(mac(1), Who::Ipxe).via(RELAY);
        if port.is_empty() { packet } else { packet.raw(OptionCode::RelayAgentInformation, port) }
    };
    send_from(&mut engine, at(0), &at_port(&[1, 1, 1]), THIEF, &node).expect(MessageType::Offer);
    let other = RelayPort { circuit_id: Some("02".to_owned()), remote_id: None };
    for (port, seen) in [(&[1, 1, 2][..], Some(other)), (&[][..], None)] {
        let outcome = send_from(&mut engine, at(1), &at_port(port), THIEF, &node);
        let expected = Warning::RelayPortMismatch { mac: mac(1), known: known.clone(), seen };

        assert_eq!(outcome.0, [Effect::Warn(expected)]);
    }
}

#[test]
fn relayed_packet_in_the_name_of_a_local_node_is_refused_with_an_alarm() {
    let mut engine = two_segments(Vec::new());
    let attachment = Some(Attachment { is_local: true, relay_port: None });
    let node = OneNode { mac: Some(mac(1)), attachment, ..OneNode::default() };
    let relayed = Packet::discover(mac(1), Who::Ipxe).via(RELAY).raw(OptionCode::RelayAgentInformation, &[1, 1, 7]);
    let outcome = send_from(&mut engine, at(0), &relayed, THIEF, &node);
    assert!(matches!(&outcome.0[..], [Effect::Warn(Warning::RelayPortMismatch { .. })]), "{outcome:?}");
    send_from(&mut engine, at(0), &Packet::discover(mac(1), Who::Ipxe), mac(1), &node).expect(MessageType::Offer);
}

#[test]
fn renewal_past_a_relay_opens_no_boot_session() {
    let mut engine = two_segments(Vec::new());
    let discover = Packet::discover(mac(1), Who::Os).via(RELAY);
    let address = discover.from(&mut engine, at(0), 0, RELAY).expect(MessageType::Offer).address();
    let select = Packet::select(mac(1), Who::Os, address, SERVER).via(RELAY);
    select.from(&mut engine, at(0), 0, RELAY).expect(MessageType::Ack);
    for who in [Who::Os, Who::Ipxe, Who::Pxe(7)] {
        let renewal = Packet::new(MessageType::Request, mac(1), who).using(address);
        let source = SocketAddrV4::new(address, 68);
        let origin = Origin { interface_index: 0, source, local_port: 67, ethernet_source: Some(THIEF) };
        let outcome = Outcome(engine.handle(at(9), &renewal.bytes(), origin, &NoMachines));
        assert!(outcome.seen().is_none(), "{who:?}: {outcome:?}");
        assert_eq!(outcome.reply().is_some(), who == Who::Os, "only a system renews: {who:?}");
    }
}

#[test]
fn claimed_uuid_gets_no_reserved_address_of_an_approved_node() {
    let node = meshd_types::Basis::Uuid(UUID.parse().expect("a UUID")).node_id();
    let reserved = Ipv4Addr::new(10, 77, 0, 105);
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 110)));
    setup.reservations.push(Reservation { owner: Owner::Node(node), address: reserved });
    let mut engine = Engine::new(setup, Vec::new());
    let claims = Packet::discover(THIEF, Who::Pxe(7));
    let approved = OneNode { approved: Some(node), ..OneNode::default() };
    let offer = send_from(&mut engine, at(0), &claims, THIEF, &approved).expect(MessageType::Offer);
    assert_ne!(offer.address(), reserved);
    let offer = send_from(&mut engine, at(100), &claims, THIEF, &OneNode::default()).expect(MessageType::Offer);
    assert_eq!(offer.address(), reserved, "before the node is approved its UUID is all that is known");
}
