//! Packets in the name of another machine, and floods of them.

use super::clients::*;
use crate::{lease::DECLINE_WINDOW, *};
use dhcproto::v4::{MessageType, OptionCode};
use meshd_types::{MacAddr, Timestamp};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
};

const ATTACKER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0x66]);
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
/// Shorter than a lease.
const LEASE_START: std::time::Duration = std::time::Duration::from_secs(10);

/// Sends a packet from an Ethernet address.
fn send_from(
    engine: &mut Engine,
    now: Timestamp,
    packet: &Packet,
    sender: MacAddr,
    machines: &OneNode,
) -> Outcome {
    let bytes = packet.bytes();
    let source = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port_of(&bytes));
    let origin =
        Origin { interface_index: 0, source, local_port: 67, ethernet_source: Some(sender) };
    machines.apply_to(engine, now);
    Outcome(engine.handle(now, &bytes, origin))
}

fn decline(mac: MacAddr, address: Ipv4Addr) -> Packet {
    Packet::new(MessageType::Decline, mac, Program::Os)
        .raw(OptionCode::RequestedIpAddress, &address.octets())
}

#[test]
fn packet_with_other_ethernet_source_is_dropped_with_warning() {
    let mut engine = engine(pool(100, 110), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Program::Ipxe);
    let free = Ipv4Addr::new(10, 77, 0, if address.octets()[3] == 109 { 108 } else { 109 });
    let forged = [
        (Packet::discover(mac(1), Program::Ipxe), ClientMessageType::Discover),
        (Packet::reboot(mac(1), Program::Ipxe, free), ClientMessageType::Request),
        (decline(mac(1), address), ClientMessageType::Decline),
        (
            Packet::new(MessageType::Release, mac(1), Program::Os).using(address),
            ClientMessageType::Release,
        ),
    ];
    for (packet, kind) in forged {
        let outcome = send_from(&mut engine, at(1), &packet, ATTACKER, &OneNode::default());
        assert_eq!(
            outcome.0,
            [Effect::Warn(Warning::Forged { mac: mac(1), sender: ATTACKER, kind })]
        );
    }
    assert_eq!(engine.counters().forged, 4);
    assert_eq!(
        boot(&mut engine, at(2), mac(1), Program::Ipxe),
        address,
        "the machine keeps its address"
    );
}

#[test]
fn packet_from_port_of_unprivileged_programs_is_dropped() {
    let mut engine = engine(pool(100, 110), Vec::new());
    let discover = Packet::discover(mac(1), Program::Ipxe).bytes();
    let mut send = |port: u16| {
        let source = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        let origin =
            Origin { interface_index: 0, source, local_port: 67, ethernet_source: Some(mac(1)) };
        Outcome(engine.handle(at(0), &discover, origin)).dropped()
    };
    // A task of a node has the Ethernet source of the node.
    assert_eq!([1024, 40_000, 67, 4011].map(&mut send), [Some(DropReason::SourcePort); 4]);
    assert_eq!(send(68), None);
    assert_eq!(engine.counters().dropped[DropReason::SourcePort as usize], 4);
}

#[test]
fn decline_counts_only_shortly_after_ack_of_its_client() {
    let mut engine = engine(pool(100, 110), Vec::new());
    let no_machine = OneNode::default();
    let offered = Packet::discover(mac(1), Program::Os)
        .to(&mut engine, at(0))
        .expect(MessageType::Offer)
        .address();
    let unfounded = Some(DropReason::Unfounded);
    let offered = send_from(&mut engine, at(0), &decline(mac(1), offered), mac(1), &no_machine);
    assert_eq!(offered.dropped(), unfounded, "only offered");
    let leased = boot(&mut engine, at(0), mac(2), Program::Os);
    let late = at(0).after(DECLINE_WINDOW * 2);
    let late = send_from(&mut engine, late, &decline(mac(2), leased), mac(2), &no_machine);
    assert_eq!(late.dropped(), unfounded, "long ago");
    let used = OneNode { mac: Some(mac(2)), used: Some(leased), ..OneNode::default() };
    let booting = send_from(&mut engine, at(1), &decline(mac(2), leased), mac(2), &used);
    assert_eq!(booting.dropped(), unfounded, "it boots from there");
    assert_eq!(
        send_from(&mut engine, at(1), &decline(mac(2), leased), mac(2), &no_machine).0.len(),
        2
    );
}

#[test]
fn release_of_address_in_use_is_ignored() {
    let mut engine = engine(pool(100, 110), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Program::Os);
    let release = Packet::new(MessageType::Release, mac(1), Program::Os).using(address);
    let used = OneNode { mac: Some(mac(1)), used: Some(address), ..OneNode::default() };
    assert_eq!(
        send_from(&mut engine, at(1), &release, mac(1), &used).dropped(),
        Some(DropReason::Unfounded)
    );
    let unused = OneNode { used: None, ..used };
    assert!(matches!(
        send_from(&mut engine, at(1), &release, mac(1), &unused).0[..],
        [Effect::Store(Change::LeaseChanged(_))]
    ));
}

#[test]
fn address_of_approved_node_is_never_reassigned() {
    let mut engine = engine(pool(100, 103), Vec::new());
    let node = OneNode { mac: Some(mac(1)), ..OneNode::default() };
    let own = boot(&mut engine, at(0), mac(1), Program::Os);
    let mut now = at(100_000);
    let mut leased = BTreeSet::new();
    for number in 0..60u8 {
        let client = MacAddr([2, 0, 0, 0, 0, number]);
        let offer =
            send_from(&mut engine, now, &Packet::discover(client, Program::Os), client, &node)
                .reply();
        if let Some(address) = offer.map(|offer| offer.address()) {
            leased.insert(address);
            let select = Packet::select(client, Program::Os, address, SERVER);
            send_from(&mut engine, now, &select, client, &node);
        }
        now = now.after(std::time::Duration::from_secs(10));
    }
    assert!(!leased.contains(&own) && leased.len() == 3, "{own} among {leased:?}");
    let offer = send_from(&mut engine, now, &Packet::discover(mac(1), Program::Os), mac(1), &node);
    assert_eq!(offer.expect(MessageType::Offer).address(), own);
}

#[test]
fn changes_of_records_keep_free_and_end_leases() {
    let mut engine = engine(pool(100, 100), Vec::new());
    let own = boot(&mut engine, at(0), mac(1), Program::Os);
    let late = at(100_000);
    let node = OneNode { mac: Some(mac(1)), ..OneNode::default() };
    node.apply_to(&mut engine, at(1));
    assert!(
        Packet::discover(mac(2), Program::Os).to(&mut engine, late).reply().is_none(),
        "it was approved"
    );
    engine.apply(late, RecordChanges::Some(vec![RecordChange::NicRemoved(mac(1))]));
    assert_eq!(boot(&mut engine, late, mac(2), Program::Os), own, "its node was removed");
    let renewal = |engine: &mut Engine| {
        Packet::new(MessageType::Request, mac(2), Program::Os).using(own).to(engine, late)
    };
    renewal(&mut engine).expect(MessageType::Ack);
    let of_other = RecordChange::LeaseRemoved { mac: mac(1), address: own };
    engine.apply(late, RecordChanges::Some(vec![of_other]));
    assert!(
        Packet::discover(mac(3), Program::Os)
            .to(&mut engine, late.after(LEASE_START))
            .reply()
            .is_none()
    );
    engine.apply(
        late,
        RecordChanges::Some(vec![RecordChange::LeaseRemoved { mac: mac(2), address: own }]),
    );
    assert_eq!(boot(&mut engine, late.after(LEASE_START), mac(3), Program::Os), own);
}

#[test]
fn discover_flood_leaves_address_for_later_client() {
    let mut engine = engine(pool(100, 110), Vec::new());
    for number in 0..40u8 {
        let client = MacAddr([2, 0, 0, 0, 1, number]);
        send_from(
            &mut engine,
            at(0),
            &Packet::discover(client, Program::Os),
            client,
            &OneNode::default(),
        );
    }
    let offer = Packet::discover(mac(1), Program::Os).to(&mut engine, at(6));
    offer.expect(MessageType::Offer);
}

#[test]
fn declined_addresses_are_bounded_part_of_pool() {
    let mut engine = engine(pool(100, 115), Vec::new());
    for number in 0..64u8 {
        let client = MacAddr([2, 0, 0, 0, 2, number]);
        let address = boot(&mut engine, at(i64::from(number)), client, Program::Os);
        send_from(
            &mut engine,
            at(i64::from(number)),
            &decline(client, address),
            client,
            &OneNode::default(),
        );
    }
    let health = engine.status(at(64));
    assert!(health[0].pool.declined <= 2, "{:?}", health[0].pool);
}

/// A site with a local segment and one behind a relay.
fn two_segments(relay_macs: Vec<MacAddr>) -> Engine {
    two_segments_with(relay_macs, Vec::new())
}

fn two_segments_with(relay_macs: Vec<MacAddr>, redundant_relays: Vec<Ipv4Addr>) -> Engine {
    let behind =
        Subnet { first: [10, 88, 0, 100].into(), last: [10, 88, 0, 110].into(), ..pool(100, 110) };
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 110)));
    let segment =
        Segment { link: Link::Relay(RELAY), subnet: Some(behind), ..setup.segments[0].clone() };
    setup.segments.push(Segment { relay_macs, redundant_relays, ..segment });
    Engine::new(setup, Vec::new())
}

#[test]
fn relayed_packet_from_unlisted_relay_mac_is_refused() {
    let relay = MacAddr([2, 0, 0, 0, 3, 1]);
    let mut engine = two_segments(vec![relay]);
    let relayed = Packet::discover(mac(1), Program::Ipxe).via(RELAY);
    let outcome = send_from(&mut engine, at(0), &relayed, ATTACKER, &OneNode::default());
    let expected =
        Warning::Forged { mac: mac(1), sender: ATTACKER, kind: ClientMessageType::Discover };
    assert_eq!(outcome.0, [Effect::Warn(expected)]);
    send_from(&mut engine, at(0), &relayed, relay, &OneNode::default()).expect(MessageType::Offer);
    // A site that lists no relay MAC accepts every relay.
    send_from(&mut two_segments(Vec::new()), at(0), &relayed, ATTACKER, &OneNode::default())
        .expect(MessageType::Offer);
}

#[test]
fn node_at_other_relay_port_is_refused_with_warning() {
    let mut engine = two_segments(Vec::new());
    let known = RelayPort { circuit_id: Some("01".to_owned()), ..RelayPort::default() };
    let node = OneNode {
        mac: Some(mac(1)),
        attachment: Some(Attachment { is_local: false, relay_port: Some(known.clone()) }),
        ..OneNode::default()
    };
    let at_port = |port: &[u8]| {
        let packet = Packet::discover(mac(1), Program::Ipxe).via(RELAY);
        if port.is_empty() { packet } else { packet.raw(OptionCode::RelayAgentInformation, port) }
    };
    send_from(&mut engine, at(0), &at_port(&[1, 1, 1]), ATTACKER, &node).expect(MessageType::Offer);
    let other =
        RelayPort { relay: Some(RELAY), circuit_id: Some("02".to_owned()), remote_id: None };
    for (port, seen) in [(&[1, 1, 2][..], Some(other)), (&[][..], None)] {
        let outcome = send_from(&mut engine, at(1), &at_port(port), ATTACKER, &node);
        let expected = Warning::RelayPortMismatch { mac: mac(1), known: known.clone(), seen };

        assert_eq!(outcome.0, [Effect::Warn(expected)]);
    }
}

/// A relay that appends forwards what the client wrote before it.
#[test]
fn relay_port_that_the_client_wrote_before_the_relay_does_not_count() {
    let mut engine = two_segments(Vec::new());
    let known = RelayPort { circuit_id: Some("01".to_owned()), ..RelayPort::default() };
    let node = OneNode {
        mac: Some(mac(1)),
        attachment: Some(Attachment { is_local: false, relay_port: Some(known.clone()) }),
        ..OneNode::default()
    };
    let discover = |information: &[u8]| {
        let packet = Packet::discover(mac(1), Program::Ipxe).via(RELAY);
        packet.raw(OptionCode::RelayAgentInformation, information).bytes()
    };
    let mut two_options = discover(&[1, 1, 1]);
    assert_eq!(two_options.pop(), Some(255), "the end");
    two_options.extend([82, 3, 1, 1, 2, 255]);
    node.apply_to(&mut engine, at(0));
    for bytes in [discover(&[1, 1, 1, 1, 1, 2]), two_options] {
        let source = SocketAddrV4::new(RELAY, 67);
        let ethernet_source = Some(ATTACKER);
        let origin = Origin { interface_index: 0, source, local_port: 67, ethernet_source };
        let outcome = Outcome(engine.handle(at(0), &bytes, origin));
        let mac = mac(1);
        let known = known.clone();
        let seen = None;
        let expected = Warning::RelayPortMismatch { mac, known, seen };
        assert_eq!(outcome.0, [Effect::Warn(expected)]);
    }
}

#[test]
fn machine_behind_a_relay_that_poses_as_relay_is_refused_with_warning() {
    const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 3, 1]);
    let machine = Ipv4Addr::new(10, 88, 0, 66);
    let discover = |relay| Packet::discover(mac(1), Program::Ipxe).via(relay);
    let send = |engine: &mut Engine, giaddr, source| {
        let source = SocketAddrV4::new(source, 67);
        let ethernet_source = Some(ROUTER);
        let origin = Origin { interface_index: 0, source, local_port: 67, ethernet_source };
        Outcome(engine.handle(at(0), &discover(giaddr).bytes(), origin))
    };
    let mut engine = two_segments(vec![ROUTER]);
    for (giaddr, source) in [(machine, machine), (RELAY, machine), (machine, SERVER)] {
        let expected = Warning::UnknownRelay { mac: mac(1), sender: machine };
        assert_eq!(send(&mut engine, giaddr, source).0, [Effect::Warn(expected)]);
    }
    // The relay itself, also with the address of its other interface.
    for source in [RELAY, Ipv4Addr::new(10, 77, 0, 2)] {
        send(&mut engine, RELAY, source).expect(MessageType::Offer);
    }
    // A second relay that the site names, and a site that names no relay's MAC.
    let mut engine = two_segments_with(vec![ROUTER], vec![machine]);
    send(&mut engine, machine, machine).expect(MessageType::Offer);
    send(&mut two_segments(Vec::new()), machine, machine).expect(MessageType::Offer);
}

#[test]
fn node_at_the_same_port_of_another_segment_is_refused_with_warning() {
    const OTHER_RELAY: Ipv4Addr = Ipv4Addr::new(10, 89, 0, 1);
    let network = |third| Subnet {
        first: [10, third, 0, 100].into(),
        last: [10, third, 0, 110].into(),
        ..pool(100, 110)
    };
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 110)));
    for (relay, third) in [(RELAY, 88), (OTHER_RELAY, 89)] {
        let local = setup.segments[0].clone();
        let subnet = Some(network(third));
        setup.segments.push(Segment { link: Link::Relay(relay), subnet, ..local });
    }
    let mut engine = Engine::new(setup, Vec::new());
    let port = |relay| RelayPort { relay, circuit_id: Some("01".to_owned()), remote_id: None };
    let node = |relay| OneNode {
        mac: Some(mac(1)),
        attachment: Some(Attachment { is_local: false, relay_port: Some(port(relay)) }),
        ..OneNode::default()
    };
    let discover = |relay: Option<Ipv4Addr>| {
        let packet = Packet::discover(mac(1), Program::Ipxe);
        let Some(relay) = relay else { return packet };
        packet.via(relay).raw(OptionCode::RelayAgentInformation, &[1, 1, 1])
    };
    let mut send =
        |from, known| send_from(&mut engine, at(0), &discover(from), mac(1), &node(known));
    send(Some(RELAY), Some(RELAY)).expect(MessageType::Offer);
    for from in [Some(OTHER_RELAY), None] {
        let outcome = send(from, Some(RELAY));
        let known = port(Some(RELAY));
        let seen = from.map(|relay| port(Some(relay)));
        assert_eq!(
            outcome.0,
            [Effect::Warn(Warning::RelayPortMismatch { mac: mac(1), known, seen })]
        );
    }
    // The record of an earlier version, and a relay that the configuration no longer has.
    for known in [None, Some(Ipv4Addr::new(10, 90, 0, 1))] {
        send(Some(OTHER_RELAY), known).expect(MessageType::Offer);
    }
}

#[test]
fn relayed_packet_with_mac_of_local_node_is_refused_with_warning() {
    let mut engine = two_segments(Vec::new());
    let attachment = Some(Attachment { is_local: true, relay_port: None });
    let node = OneNode { mac: Some(mac(1)), attachment, ..OneNode::default() };
    let relayed = Packet::discover(mac(1), Program::Ipxe)
        .via(RELAY)
        .raw(OptionCode::RelayAgentInformation, &[1, 1, 7]);
    let outcome = send_from(&mut engine, at(0), &relayed, ATTACKER, &node);
    assert!(
        matches!(&outcome.0[..], [Effect::Warn(Warning::RelayPortMismatch { .. })]),
        "{outcome:?}"
    );
    send_from(&mut engine, at(0), &Packet::discover(mac(1), Program::Ipxe), mac(1), &node)
        .expect(MessageType::Offer);
}

#[test]
fn routed_renewal_opens_no_boot_session() {
    let mut engine = two_segments(Vec::new());
    let discover = Packet::discover(mac(1), Program::Os).via(RELAY);
    let address = discover.from(&mut engine, at(0), 0, RELAY).expect(MessageType::Offer).address();
    let select = Packet::select(mac(1), Program::Os, address, SERVER).via(RELAY);
    select.from(&mut engine, at(0), 0, RELAY).expect(MessageType::Ack);
    for program in [Program::Os, Program::Ipxe, Program::Pxe(7)] {
        let renewal = Packet::new(MessageType::Request, mac(1), program).using(address);
        let source = SocketAddrV4::new(address, 68);
        let origin =
            Origin { interface_index: 0, source, local_port: 67, ethernet_source: Some(ATTACKER) };
        let outcome = Outcome(engine.handle(at(9), &renewal.bytes(), origin));
        assert!(outcome.exchange().is_none(), "{program:?}: {outcome:?}");
        assert_eq!(
            outcome.reply().is_some(),
            program == Program::Os,
            "only a system renews: {program:?}"
        );
    }
}

#[test]
fn claimed_uuid_gets_no_reserved_address_of_approved_node() {
    let node = meshd_types::Basis::Uuid(UUID.parse().expect("a UUID")).node_id();
    let reserved = Ipv4Addr::new(10, 77, 0, 105);
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 110)));
    setup.reservations.push(Reservation {
        owner: Owner::Node(node),
        address: reserved,
        parent: None,
    });
    let mut engine = Engine::new(setup, Vec::new());
    let claim = Packet::discover(ATTACKER, Program::Pxe(7));
    let approved = OneNode { approved: Some(node), ..OneNode::default() };
    let offer =
        send_from(&mut engine, at(0), &claim, ATTACKER, &approved).expect(MessageType::Offer);
    assert_ne!(offer.address(), reserved);
    let offer = send_from(&mut engine, at(100), &claim, ATTACKER, &OneNode::default())
        .expect(MessageType::Offer);
    assert_eq!(
        offer.address(),
        reserved,
        "before the node is approved its UUID is all that is known"
    );
}

#[test]
fn parent_of_reserved_virtual_interface_may_send_for_it() {
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 110)));
    let address = Ipv4Addr::new(10, 77, 0, 20);
    setup.reservations.push(Reservation {
        owner: Owner::Mac(mac(1)),
        address,
        parent: Some(mac(7)),
    });
    let mut engine = Engine::new(setup, Vec::new());
    assert_eq!(boot(&mut engine, at(0), mac(1), Program::Os), address);
    let renewal = Packet::new(MessageType::Request, mac(1), Program::Os).using(address);
    let none = OneNode::default();
    let by_parent = send_from(&mut engine, at(1800), &renewal, mac(7), &none);
    assert_eq!(by_parent.expect(MessageType::Ack).address(), address);
    let by_other = send_from(&mut engine, at(1800), &renewal, mac(8), &none);
    assert!(
        matches!(by_other.warnings()[..], [Warning::Forged { .. }]) && by_other.reply().is_none()
    );
}

#[test]
fn machine_that_claims_every_address_by_arp_takes_none() {
    let mut engine = engine(pool(100, 131), Vec::new());
    let addresses = || (100..=131).map(|last| Ipv4Addr::new(10, 77, 0, last));
    let warning =
        Effect::Warn(Warning::ManyAddressesClaimed { segment: "eth0".into(), by: ATTACKER });
    assert_eq!(engine.set_neighbours(0, addresses().map(|address| (address, ATTACKER))), [warning]);
    assert!(
        engine.set_neighbours(0, addresses().map(|address| (address, ATTACKER))).is_empty(),
        "one warning"
    );
    let offer = Packet::discover(mac(1), Program::Os)
        .to(&mut engine, at(0))
        .expect(MessageType::Offer)
        .address();
    assert_eq!(
        engine.handle_arp_reply(at(0), 0, offer, ATTACKER),
        None,
        "its answers end no offer"
    );
}

#[test]
fn addresses_claimed_by_invented_machines_are_bounded_and_offered_last() {
    let mut engine = engine(pool(100, 131), Vec::new());
    let claims = (100..=131).map(|last| (Ipv4Addr::new(10, 77, 0, last), mac(last)));
    assert!(engine.set_neighbours(0, claims).is_empty());
    let mut offer = |number| {
        Packet::discover(mac(number), Program::Os)
            .to(&mut engine, at(0))
            .expect(MessageType::Offer)
            .address()
    };
    let offered: Vec<Ipv4Addr> = (0..32).map(&mut offer).collect();
    let claimed: BTreeSet<Ipv4Addr> = offered[28..].iter().copied().collect();
    assert_eq!(offered.iter().collect::<BTreeSet<_>>().len(), 32, "the whole pool is offered");
    let expected: BTreeSet<Ipv4Addr> =
        (100..=103).map(|last| Ipv4Addr::new(10, 77, 0, last)).collect();
    assert_eq!(claimed, expected, "an eighth, after all others");
}
