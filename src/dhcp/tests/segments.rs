//! Several networks: the segment of a client, the receiver of its reply, and reservations.

use super::clients::*;
use crate::{engine::MAX_PER_SECOND, lease::PoolLevel, *};
use dhcproto::v4::{MessageType, OptionCode};
use meshd_types::{Basis, DenyList, MacAddr, SystemUuid};
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddrV4};

const SECOND: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SECOND_RELAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const UNSPECIFIED: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fn pool_of(third: u8, last: u8) -> Subnet {
    let address = |last| Ipv4Addr::new(10, third, 0, last);
    Subnet { first: address(100), last: address(last), router: Some(address(1)), ..pool(100, 200) }
}

fn reserve(owner: Owner, third: u8, last: u8) -> Reservation {
    Reservation { owner, address: Ipv4Addr::new(10, third, 0, last), parent: None }
}

/// eth0 leases, eth1 is off, one relay leads to a network that is leased and another to one that is
/// not.
fn site(reservations: Vec<Reservation>, stored: Vec<Lease>) -> Engine {
    let mut setup = setup(DhcpMode::Authoritative, Some(pool_of(77, 110)));
    setup.interfaces.push(Interface { name: "eth1".to_owned(), address: SECOND });
    let segment = |link, mode, subnet| Segment {
        link,
        address: None,
        mode,
        subnet,
        relay_macs: Vec::new(),
        redundant_relays: Vec::new(),
    };
    setup.segments.extend([
        segment(Link::Interface("eth1".to_owned()), DhcpMode::Off, None),
        segment(Link::Relay(RELAY), DhcpMode::Authoritative, Some(pool_of(88, 110))),
        segment(Link::Relay(Ipv4Addr::new(10, 99, 0, 1)), DhcpMode::Proxy, None),
    ]);
    setup.reservations = reservations;
    Engine::new(setup, stored)
}

fn to(address: Ipv4Addr) -> Destination {
    Destination::Ip(SocketAddrV4::new(address, 67))
}

fn network(address: Ipv4Addr) -> u8 {
    address.octets()[1]
}

#[test]
fn relay_selects_segment_on_any_interface() {
    let mut engine = site(Vec::new(), Vec::new());
    for (via, server) in [(0, SERVER), (1, SECOND)] {
        let offer =
            Packet::discover(mac(1), Program::Ipxe).via(RELAY).from(&mut engine, at(0), via, RELAY);
        let offer = offer.expect(MessageType::Offer);
        assert_eq!((network(offer.address()), offer.to), (88, to(RELAY)));
        assert_eq!(
            offer.option(54),
            Some(server.octets().to_vec()),
            "the address that the relay reaches"
        );
        assert_eq!(offer.option(3), Some(RELAY.octets().to_vec()));
    }
    let offer = Packet::discover(mac(1), Program::Ipxe).via(SECOND_RELAY).from(
        &mut engine,
        at(0),
        0,
        SECOND_RELAY,
    );
    assert_eq!(
        offer.expect(MessageType::Offer).to,
        to(SECOND_RELAY),
        "another relay of the same network"
    );
    let proxied = Packet::discover(mac(1), Program::Pxe(7)).via(Ipv4Addr::new(10, 99, 0, 1)).from(
        &mut engine,
        at(0),
        1,
        RELAY,
    );
    assert!(proxied.expect(MessageType::Offer).address().is_unspecified());
}

#[test]
fn unknown_relay_gets_warning_and_no_reply() {
    let mut engine = site(Vec::new(), Vec::new());
    let unknown = Ipv4Addr::new(10, 66, 0, 1);
    let outcome =
        Packet::discover(mac(1), Program::Ipxe).via(unknown).from(&mut engine, at(0), 0, unknown);
    assert_eq!(outcome.0, [Effect::Warn(Warning::ForeignRelay { relay: unknown, selected: None })]);
    assert_eq!(engine.counters().foreign_relay, 1);
    let elsewhere = Ipv4Addr::new(10, 77, 0, 9);
    let outcome = Packet::discover(mac(1), Program::Ipxe).via(elsewhere).from(
        &mut engine,
        at(0),
        1,
        elsewhere,
    );
    let warning = Warning::ForeignRelay { relay: elsewhere, selected: None };
    assert_eq!(outcome.0, [Effect::Warn(warning)], "that network is behind eth0, not eth1");
}

#[test]
fn client_behind_relay_gets_ack_and_nak_of_renewal_by_unicast() {
    let mut engine = site(Vec::new(), Vec::new());
    let discover = Packet::discover(mac(1), Program::Os).via(RELAY);
    let address = discover.from(&mut engine, at(0), 1, RELAY).expect(MessageType::Offer).address();
    let select = Packet::select(mac(1), Program::Os, address, SECOND).via(RELAY);
    assert_eq!(select.from(&mut engine, at(0), 1, RELAY).expect(MessageType::Ack).to, to(RELAY));
    let renewal = Packet::new(MessageType::Request, mac(1), Program::Os).using(address);
    let ack = renewal.from(&mut engine, at(1800), 1, address).expect(MessageType::Ack);
    assert_eq!((ack.address(), ack.to), (address, Destination::Ip(SocketAddrV4::new(address, 68))));
    let other = Packet::new(MessageType::Request, mac(2), Program::Os).using(address);
    let nak = other.from(&mut engine, at(1801), 1, address).expect(MessageType::Nak);
    assert_eq!(nak.to, Destination::Ip(SocketAddrV4::new(address, 68)), "no broadcast gets there");
    let outcome = Packet::new(MessageType::Release, mac(1), Program::Os).using(address).from(
        &mut engine,
        at(1900),
        1,
        address,
    );
    assert!(matches!(outcome.0[..], [Effect::Store(Change::LeaseChanged(_))]), "{outcome:?}");
}

#[test]
fn nak_through_relay_sets_broadcast_flag() {
    let mut engine = site(Vec::new(), Vec::new());
    let wrong = Packet::reboot(mac(1), Program::Os, Ipv4Addr::new(10, 77, 0, 105)).via(RELAY);
    let nak = wrong.from(&mut engine, at(0), 0, RELAY).expect(MessageType::Nak);
    assert_eq!(nak.to, to(RELAY));
    assert!(nak.message.flags().broadcast());
}

#[test]
fn nic_has_one_lease_per_network_and_keeps_it_after_a_move() {
    let mut engine = site(Vec::new(), Vec::new());
    let here = boot(&mut engine, at(0), mac(1), Program::Os);
    let discover = Packet::discover(mac(1), Program::Os).via(RELAY);
    let there = discover.from(&mut engine, at(9), 0, RELAY).expect(MessageType::Offer).address();
    let outcome = Packet::select(mac(1), Program::Os, there, SERVER).via(RELAY).from(
        &mut engine,
        at(9),
        0,
        RELAY,
    );
    assert_eq!(outcome.expect(MessageType::Ack).address(), there);
    assert_eq!((network(here), network(there)), (77, 88));
    let stray = Packet::reboot(mac(1), Program::Os, there).to(&mut engine, at(20));
    assert_eq!(
        stray.expect(MessageType::Nak).to,
        Destination::BROADCAST,
        "back again, with the address from there"
    );
    assert_eq!(boot(&mut engine, at(20), mac(1), Program::Os), here);
}

#[test]
fn option_82_selects_link_and_overrides_server_identifier() {
    let mut engine = site(Vec::new(), Vec::new());
    let giaddr = Ipv4Addr::new(192, 0, 2, 1);
    let agent = [&[5, 4][..], &RELAY.octets(), &[11, 4], &SECOND_RELAY.octets()].concat();
    let packet = Packet::discover(mac(1), Program::Os)
        .via(giaddr)
        .raw(OptionCode::RelayAgentInformation, &agent);
    let offer = packet.from(&mut engine, at(0), 0, giaddr).expect(MessageType::Offer);
    assert_eq!((network(offer.address()), offer.to), (88, to(giaddr)), "RFC 3527");
    assert_eq!(offer.option(54), Some(SECOND_RELAY.octets().to_vec()), "RFC 5107");
    assert_eq!(offer.option(82), Some(agent.clone()));
    let select = Packet::select(mac(1), Program::Os, offer.address(), SECOND_RELAY).via(giaddr);
    let select = select.raw(OptionCode::RelayAgentInformation, &agent);
    assert_eq!(
        select.from(&mut engine, at(0), 0, giaddr).expect(MessageType::Ack).address(),
        offer.address()
    );
}

/// The proxy segment's network is unknown, so the finer key of its own relay must not hide it.
#[test]
fn selected_network_is_served_by_its_segment_or_named_in_warning() {
    let mut engine = site(Vec::new(), Vec::new());
    let proxied = Ipv4Addr::new(10, 99, 0, 1);
    let select = |code, relay, data: &[u8]| {
        Packet::discover(mac(1), Program::Pxe(7)).via(relay).raw(code, data)
    };
    let by_link = |relay, network: Ipv4Addr| {
        select(OptionCode::RelayAgentInformation, relay, &[&[5, 4][..], &network.octets()].concat())
    };
    let by_subnet =
        |relay, network: Ipv4Addr| select(OptionCode::SubnetSelection, relay, &network.octets());
    let own = Ipv4Addr::new(10, 99, 0, 0);
    for packet in [by_link(proxied, own), by_subnet(proxied, own), by_link(ELSEWHERE, proxied)] {
        let offer = packet.from(&mut engine, at(0), 0, proxied).expect(MessageType::Offer);
        assert!(offer.address().is_unspecified() && offer.boot_file().is_some());
    }
    let leased = Ipv4Addr::new(10, 88, 0, 0);
    for relay in [ELSEWHERE, proxied] {
        let offer =
            by_subnet(relay, leased).from(&mut engine, at(0), 0, relay).expect(MessageType::Offer);
        assert_eq!((network(offer.address()), offer.to), (88, to(relay)), "RFC 3011");
        assert_eq!(offer.option(118), Some(leased.octets().to_vec()));
    }
    let both = by_link(ELSEWHERE, leased).raw(OptionCode::SubnetSelection, &own.octets());
    let offer = both.from(&mut engine, at(0), 0, ELSEWHERE).expect(MessageType::Offer);
    assert_eq!(network(offer.address()), 88, "link selection takes precedence (RFC 3527)");
    let unknown = Ipv4Addr::new(10, 66, 0, 0);
    for (relay, packet) in
        [(RELAY, by_link(RELAY, unknown)), (ELSEWHERE, by_subnet(ELSEWHERE, unknown))]
    {
        let warning = Warning::ForeignRelay { relay, selected: Some(unknown) };
        assert_eq!(
            packet.from(&mut engine, at(0), 0, relay).0,
            [Effect::Warn(warning)],
            "no address of another network"
        );
    }
    let direct =
        Packet::discover(mac(1), Program::Os).raw(OptionCode::SubnetSelection, &leased.octets());
    let offer = direct.to(&mut engine, at(0)).expect(MessageType::Offer);
    assert_eq!((network(offer.address()), offer.option(118)), (77, None), "only a relay selects");
}

#[test]
fn relay_with_source_port_gets_replies_there() {
    let mut engine = site(Vec::new(), Vec::new());
    let mut send = |agent: &[u8], port: u16| {
        let packet = Packet::discover(mac(1), Program::Os)
            .via(RELAY)
            .raw(OptionCode::RelayAgentInformation, agent);
        let source = SocketAddrV4::new(RELAY, port);
        let origin =
            Origin { interface_index: 0, source, local_port: 67, ethernet_source: Some(mac(9)) };
        Outcome(engine.handle(at(0), &packet.bytes(), origin))
    };
    for (agent, port) in [(&[1, 1, 7, 19, 0][..], 40_000), (&[1, 1, 7], 67)] {
        let offer = send(agent, port).expect(MessageType::Offer);
        assert_eq!(offer.to, Destination::Ip(SocketAddrV4::new(RELAY, port)), "RFC 8357");
        assert_eq!(offer.option(82).as_deref(), Some(agent));
    }
    assert_eq!(send(&[1, 1, 7], 40_000).dropped(), Some(DropReason::SourcePort));
}

#[test]
fn interface_with_mode_off_answers_no_local_client() {
    let mut engine = site(Vec::new(), Vec::new());
    for program in [Program::Os, Program::Ipxe, Program::Pxe(0)] {
        assert!(
            Packet::discover(mac(1), program).from(&mut engine, at(0), 1, UNSPECIFIED).0.is_empty(),
            "{program:?}"
        );
    }
}

#[test]
fn reserved_address_is_leased_only_to_its_owner() {
    let reserved = Ipv4Addr::new(10, 77, 0, 105);
    let reservations =
        || vec![reserve(Owner::Mac(mac(1)), 77, 105), reserve(Owner::Mac(mac(1)), 88, 20)];
    let mut engine = site(reservations(), Vec::new());
    for other in 2..=20 {
        if let Some(offer) =
            Packet::discover(mac(other), Program::Os).to(&mut engine, at(0)).reply()
        {
            assert_ne!(offer.address(), reserved);
        }
        let grab = Packet::reboot(mac(other), Program::Os, reserved).to(&mut engine, at(0));
        assert!(grab.exchange().is_none(), "{grab:?}");
    }
    assert_eq!(
        boot(&mut engine, at(0), mac(1), Program::Os),
        reserved,
        "though the rest of the pool is full"
    );
    let there = Packet::discover(mac(1), Program::Os).via(RELAY).from(&mut engine, at(0), 0, RELAY);
    assert_eq!(
        there.expect(MessageType::Offer).address(),
        Ipv4Addr::new(10, 88, 0, 20),
        "outside of the range"
    );
}

#[test]
fn new_reservation_evicts_holder_and_moves_owner_at_next_discover() {
    let reserved = Ipv4Addr::new(10, 77, 0, 105);
    let old = Ipv4Addr::new(10, 77, 0, 106);
    let lease = |last, address| Lease { mac: mac(last), address, expires_at: at(3600), vm: None };
    let stored = vec![lease(2, reserved), lease(1, old)];
    let mut engine = site(vec![reserve(Owner::Mac(mac(1)), 77, 105)], stored);
    let renewal = |number, address| {
        Packet::new(MessageType::Request, mac(number), Program::Os).using(address)
    };
    assert_eq!(renewal(1, old).to(&mut engine, at(1)).expect(MessageType::Ack).address(), old);
    assert_eq!(
        boot(&mut engine, at(2), mac(1), Program::Os),
        old,
        "the other one may still use it"
    );
    renewal(2, reserved).to(&mut engine, at(3)).expect(MessageType::Nak);
    let elsewhere = boot(&mut engine, at(4), mac(2), Program::Os);
    assert_ne!(elsewhere, reserved);
    let offer =
        Packet::discover(mac(1), Program::Os).to(&mut engine, at(5)).expect(MessageType::Offer);
    assert_eq!(offer.address(), reserved, "it is free now");
    Packet::reboot(mac(1), Program::Os, old).to(&mut engine, at(5)).expect(MessageType::Nak);
    let outcome = Packet::select(mac(1), Program::Os, reserved, SERVER).to(&mut engine, at(5));
    assert_eq!(outcome.expect(MessageType::Ack).address(), reserved);
    let gone = |effect: &&Effect| matches!(effect, Effect::Store(Change::LeaseChanged(LeaseChange { before, after: None })) if before.address == old);
    assert_eq!(outcome.0.iter().filter(gone).count(), 1, "its old lease ends with it");
}

#[test]
fn uuid_that_the_site_denies_later_identifies_no_machine() {
    let uuid: SystemUuid = UUID.parse().expect("a UUID");
    let reservation = reserve(Owner::Node(Basis::Uuid(uuid).node_id()), 77, 20);
    let mut engine = site(vec![reservation], Vec::new());
    let offered = |engine: &mut Engine, number| {
        let outcome = Packet::discover(mac(number), Program::Ipxe).to(engine, at(0));
        outcome.expect(MessageType::Offer).address()
    };
    assert_eq!(offered(&mut engine, 1), Ipv4Addr::new(10, 77, 0, 20));
    engine.set_non_identifying_uuids(DenyList::from_iter([uuid]));
    assert_ne!(offered(&mut engine, 2), Ipv4Addr::new(10, 77, 0, 20));
}

#[test]
fn node_reservation_serves_any_nic_of_node_but_one_at_a_time() {
    let uuid: SystemUuid = UUID.parse().expect("a UUID");
    let node = Basis::Uuid(uuid).node_id();
    let reserved = Ipv4Addr::new(10, 77, 0, 20);
    let mut engine = site(vec![reserve(Owner::Node(node), 77, 20)], Vec::new());
    assert_eq!(
        boot(&mut engine, at(0), mac(1), Program::Ipxe),
        reserved,
        "option 97 identifies the node"
    );
    let known = OneNode { known: Some((vec![mac(1), mac(2)], node)), ..OneNode::default() };
    known.apply_to(&mut engine, at(1));
    let mut send = |number: u8, seconds: i64| {
        let source = SocketAddrV4::new(UNSPECIFIED, 68);
        let origin = Origin {
            interface_index: 0,
            source,
            local_port: 67,
            ethernet_source: Some(mac(number)),
        };
        let outcome = Outcome(engine.handle(
            at(seconds),
            &Packet::discover(mac(number), Program::Os).bytes(),
            origin,
        ));
        outcome.expect(MessageType::Offer).address()
    };
    assert_eq!(send(1, 1), reserved, "Linux does not say option 97; its NIC is known by now");
    assert_ne!(send(2, 2), reserved, "another NIC of the same machine");
    assert_ne!(send(3, 3), reserved);
    assert_eq!(send(2, 4000), reserved, "when the first one has let it go");
}

#[test]
fn flooding_nic_is_rate_limited_and_other_nics_are_not() {
    let mut engine = site(Vec::new(), Vec::new());
    let flood = Packet::discover(mac(1), Program::Os);
    let answered = (0..100_000).filter(|_| flood.to(&mut engine, at(5)).reply().is_some()).count();
    assert_eq!(answered, usize::from(MAX_PER_SECOND));
    assert_eq!(
        engine.counters().dropped[DropReason::RateLimited as usize],
        100_000 - u64::from(MAX_PER_SECOND)
    );
    Packet::discover(mac(2), Program::Os).to(&mut engine, at(5)).expect(MessageType::Offer);
}

#[test]
fn pool_warns_before_it_is_exhausted() {
    let mut engine = site(Vec::new(), Vec::new());
    let mut warned = Vec::new();
    for number in 1..=12 {
        for warning in Packet::discover(mac(number), Program::Os).to(&mut engine, at(0)).warnings()
        {
            let Warning::Pool { segment, level, usage } = warning else { panic!("{warning:?}") };
            warned.push((number, level.to_owned(), usage.offered, segment.to_string()));
        }
    }
    let eth0 = || "eth0".to_owned();
    use PoolLevel::{Exhausted, Filling, NearlyFull};
    // Eleven addresses: nine are 81 %, eleven are all.
    assert_eq!(
        warned,
        [(9, Filling, 9, eth0()), (11, NearlyFull, 11, eth0()), (12, Exhausted, 11, eth0())]
    );
    let health = engine.status(at(0));
    assert_eq!(
        (health[0].name.as_str(), health[0].pool.size, health[0].pool.offered),
        ("eth0", 11, 11)
    );
    assert_eq!(engine.status(at(61))[0].pool.offered, 0, "offers run out");
}

proptest! {
    #[test]
    fn random_bytes_keep_invariants(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        check_invariants(&bytes);
    }

    /// Sequences of sound packets from few machines on all segments, for few addresses.
    #[test]
    fn packet_sequence_on_segments_never_leases_address_to_two_nics(
        packets in proptest::collection::vec((1u8..6, 0u8..6, 98u8..109, 0u8..8, 0u8..3, 0u8..200), 0..80)
    ) {
        let mut script = Vec::new();
        for (number, kind, last, origin, link, seconds) in packets {
            let kinds = [MessageType::Discover, MessageType::Request, MessageType::Request, MessageType::Release,
                MessageType::Decline, MessageType::Inform];
            let third = if link == 1 { 88 } else { 77 };
            let address = Ipv4Addr::new(10, third, 0, if last < 100 { 20 } else { last });
            let nic = MacAddr([2, 0, 0, 0, 0, number]);
            let mut packet = Packet::new(kinds[usize::from(kind)], nic, Program::Os);
            if matches!(kind, 1 | 4) {
                packet = packet.raw(OptionCode::RequestedIpAddress, &address.octets());
            } else if kind > 1 {
                packet = packet.using(address);
            }
            if link == 1 {
                packet = packet.via(RELAY);
            }
            let bytes = packet.bytes();
            script.extend(u16::try_from(bytes.len()).expect("short").to_be_bytes());
            script.extend([origin, seconds]);
            script.extend(bytes);
        }
        check_invariants(&script);
    }
}
