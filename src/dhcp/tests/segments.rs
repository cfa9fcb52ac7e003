//! Several networks: which segment a client is on, where its answer goes, and whom an address is reserved for.

use super::clients::*;
use crate::{engine::MAX_PER_SECOND, lease::PoolLevel, *};
use dhcproto::v4::{MessageType, OptionCode};
use meshd_types::{Basis, MacAddr, SystemUuid};
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddrV4};

const SECOND: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const TWIN: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fn pool_of(third: u8, last: u8) -> Subnet {
    let place = |last| Ipv4Addr::new(10, third, 0, last);
    Subnet { first: place(100), last: place(last), router: Some(place(1)), ..pool(100, 200) }
}

fn reserve(whom: Owner, third: u8, last: u8) -> Reservation {
    Reservation { owner: whom, address: Ipv4Addr::new(10, third, 0, last) }
}

/// eth0 leases, eth1 is off, one relay leads to a network that is leased and another to one that is not.
fn site(reservations: Vec<Reservation>, stored: Vec<Lease>) -> Engine {
    let mut setup = setup(DhcpMode::Authoritative, Some(pool_of(77, 110)));
    setup.interfaces.push(Interface { name: "eth1".to_owned(), address: SECOND });
    let segment = |link, mode, subnet| Segment { link, address: None, mode, subnet, relay_macs: Vec::new() };
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
fn the_relay_chooses_the_segment_and_gets_the_answer_whatever_interface_it_comes_in_on() {
    let mut engine = site(Vec::new(), Vec::new());
    for (via, server) in [(0, SERVER), (1, SECOND)] {
        let offer = Packet::discover(mac(1), Who::Ipxe).via(RELAY).from(&mut engine, at(0), via, RELAY);
        let offer = offer.expect(MessageType::Offer);
        assert_eq!((network(offer.address()), offer.to), (88, to(RELAY)));
        assert_eq!(offer.option(54), Some(server.octets().to_vec()), "the address that the relay reaches");
        assert_eq!(offer.option(3), Some(RELAY.octets().to_vec()));
    }
    let offer = Packet::discover(mac(1), Who::Ipxe).via(TWIN).from(&mut engine, at(0), 0, TWIN);
    assert_eq!(offer.expect(MessageType::Offer).to, to(TWIN), "another relay of the same network");
    let proxied =
        Packet::discover(mac(1), Who::Pxe(7)).via(Ipv4Addr::new(10, 99, 0, 1)).from(&mut engine, at(0), 1, RELAY);
    assert!(proxied.expect(MessageType::Offer).address().is_unspecified());
}

#[test]
fn a_relay_that_lies_is_named_and_not_answered() {
    let mut engine = site(Vec::new(), Vec::new());
    let liar = Ipv4Addr::new(10, 66, 0, 1);
    let outcome = Packet::discover(mac(1), Who::Ipxe).via(liar).from(&mut engine, at(0), 0, liar);
    assert_eq!(outcome.0, [Effect::Warn(Warning::ForeignRelay(liar))]);
    assert_eq!(engine.counters().foreign_relay, 1);
    let elsewhere = Ipv4Addr::new(10, 77, 0, 9);
    let outcome = Packet::discover(mac(1), Who::Ipxe).via(elsewhere).from(&mut engine, at(0), 1, elsewhere);
    assert_eq!(outcome.0, [Effect::Warn(Warning::ForeignRelay(elsewhere))], "that network is behind eth0, not eth1");
}

#[test]
fn a_client_behind_a_relay_renews_by_unicast_and_is_refused_by_unicast() {
    let mut engine = site(Vec::new(), Vec::new());
    let discover = Packet::discover(mac(1), Who::Os).via(RELAY);
    let address = discover.from(&mut engine, at(0), 1, RELAY).expect(MessageType::Offer).address();
    let select = Packet::select(mac(1), Who::Os, address, SECOND).via(RELAY);
    assert_eq!(select.from(&mut engine, at(0), 1, RELAY).expect(MessageType::Ack).to, to(RELAY));
    let renewal = Packet::new(MessageType::Request, mac(1), Who::Os).using(address);
    let ack = renewal.from(&mut engine, at(1800), 1, address).expect(MessageType::Ack);
    assert_eq!((ack.address(), ack.to), (address, Destination::Ip(SocketAddrV4::new(address, 68))));
    let stranger = Packet::new(MessageType::Request, mac(2), Who::Os).using(address);
    let nak = stranger.from(&mut engine, at(1801), 1, address).expect(MessageType::Nak);
    assert_eq!(nak.to, Destination::Ip(SocketAddrV4::new(address, 68)), "no broadcast gets there");
    let outcome =
        Packet::new(MessageType::Release, mac(1), Who::Os).using(address).from(&mut engine, at(1900), 1, address);
    assert!(matches!(outcome.0[..], [Effect::Store(Change::LeaseChanged(_))]), "{outcome:?}");
}

#[test]
fn a_refusal_through_a_relay_tells_the_relay_to_broadcast_it() {
    let mut engine = site(Vec::new(), Vec::new());
    let wrong = Packet::reboot(mac(1), Who::Os, Ipv4Addr::new(10, 77, 0, 105)).via(RELAY);
    let nak = wrong.from(&mut engine, at(0), 0, RELAY).expect(MessageType::Nak);
    assert_eq!(nak.to, to(RELAY));
    assert!(nak.message.flags().broadcast());
}

#[test]
fn a_card_that_moves_has_an_address_on_each_network_and_gets_its_old_one_back() {
    let mut engine = site(Vec::new(), Vec::new());
    let here = boot(&mut engine, at(0), mac(1), Who::Os);
    let discover = Packet::discover(mac(1), Who::Os).via(RELAY);
    let there = discover.from(&mut engine, at(9), 0, RELAY).expect(MessageType::Offer).address();
    let outcome = Packet::select(mac(1), Who::Os, there, SERVER).via(RELAY).from(&mut engine, at(9), 0, RELAY);
    assert_eq!(outcome.expect(MessageType::Ack).address(), there);
    assert_eq!((network(here), network(there)), (77, 88));
    let stray = Packet::reboot(mac(1), Who::Os, there).to(&mut engine, at(20));
    assert_eq!(stray.expect(MessageType::Nak).to, Destination::BROADCAST, "back again, with the address from there");
    assert_eq!(boot(&mut engine, at(20), mac(1), Who::Os), here);
}

#[test]
fn a_relay_may_name_another_link_and_another_server_than_itself() {
    let mut engine = site(Vec::new(), Vec::new());
    let giaddr = Ipv4Addr::new(192, 0, 2, 1);
    let agent = [&[5, 4][..], &RELAY.octets(), &[11, 4], &TWIN.octets()].concat();
    let packet = Packet::discover(mac(1), Who::Os).via(giaddr).raw(OptionCode::RelayAgentInformation, &agent);
    let offer = packet.from(&mut engine, at(0), 0, giaddr).expect(MessageType::Offer);
    assert_eq!((network(offer.address()), offer.to), (88, to(giaddr)), "RFC 3527");
    assert_eq!(offer.option(54), Some(TWIN.octets().to_vec()), "RFC 5107");
    assert_eq!(offer.option(82), Some(agent.clone()));
    let select = Packet::select(mac(1), Who::Os, offer.address(), TWIN).via(giaddr);
    let select = select.raw(OptionCode::RelayAgentInformation, &agent);
    assert_eq!(select.from(&mut engine, at(0), 0, giaddr).expect(MessageType::Ack).address(), offer.address());
}

#[test]
fn an_interface_that_is_off_is_silent_though_relays_come_in_on_it() {
    let mut engine = site(Vec::new(), Vec::new());
    for who in [Who::Os, Who::Ipxe, Who::Pxe(0)] {
        assert!(Packet::discover(mac(1), who).from(&mut engine, at(0), 1, NOBODY).0.is_empty(), "{who:?}");
    }
}

#[test]
fn a_reserved_address_is_its_owners_and_nobody_elses() {
    let reserved = Ipv4Addr::new(10, 77, 0, 105);
    let reservations = || vec![reserve(Owner::Mac(mac(1)), 77, 105), reserve(Owner::Mac(mac(1)), 88, 20)];
    let mut engine = site(reservations(), Vec::new());
    for other in 2..=20 {
        if let Some(offer) = Packet::discover(mac(other), Who::Os).to(&mut engine, at(0)).reply() {
            assert_ne!(offer.address(), reserved);
        }
        let grab = Packet::reboot(mac(other), Who::Os, reserved).to(&mut engine, at(0));
        assert!(grab.seen().is_none(), "{grab:?}");
    }
    assert_eq!(boot(&mut engine, at(0), mac(1), Who::Os), reserved, "though the rest of the pool is full");
    let there = Packet::discover(mac(1), Who::Os).via(RELAY).from(&mut engine, at(0), 0, RELAY);
    assert_eq!(there.expect(MessageType::Offer).address(), Ipv4Addr::new(10, 88, 0, 20), "outside of the range");
}

#[test]
fn who_has_an_address_that_is_reserved_now_leaves_it_and_the_owner_moves_when_it_asks_anew() {
    let (reserved, old) = (Ipv4Addr::new(10, 77, 0, 105), Ipv4Addr::new(10, 77, 0, 106));
    let lease = |last, address| Lease { mac: mac(last), address, expires_at: at(3600), vm: None };
    let stored = vec![lease(2, reserved), lease(1, old)];
    let mut engine = site(vec![reserve(Owner::Mac(mac(1)), 77, 105)], stored);
    let renewal = |who, address| Packet::new(MessageType::Request, mac(who), Who::Os).using(address);
    assert_eq!(renewal(1, old).to(&mut engine, at(1)).expect(MessageType::Ack).address(), old);
    assert_eq!(boot(&mut engine, at(2), mac(1), Who::Os), old, "the other one may still use it");
    renewal(2, reserved).to(&mut engine, at(3)).expect(MessageType::Nak);
    let elsewhere = boot(&mut engine, at(4), mac(2), Who::Os);
    assert_ne!(elsewhere, reserved);
    let offer = Packet::discover(mac(1), Who::Os).to(&mut engine, at(5)).expect(MessageType::Offer);
    assert_eq!(offer.address(), reserved, "it is free now");
    Packet::reboot(mac(1), Who::Os, old).to(&mut engine, at(5)).expect(MessageType::Nak);
    let outcome = Packet::select(mac(1), Who::Os, reserved, SERVER).to(&mut engine, at(5));
    assert_eq!(outcome.expect(MessageType::Ack).address(), reserved);
    let gone = |effect: &&Effect| matches!(effect, Effect::Store(Change::LeaseChanged(LeaseChange { before, after: None })) if before.address == old);
    assert_eq!(outcome.0.iter().filter(gone).count(), 1, "its old lease ends with it");
}

#[test]
fn a_reservation_by_node_is_for_any_card_of_it_but_for_one_at_a_time() {
    let uuid: SystemUuid = UUID.parse().expect("a UUID");
    let node = Basis::Uuid(uuid).node_id();
    let reserved = Ipv4Addr::new(10, 77, 0, 20);
    let mut engine = site(vec![reserve(Owner::Node(node), 77, 20)], Vec::new());
    assert_eq!(boot(&mut engine, at(0), mac(1), Who::Ipxe), reserved, "option 97 tells who it is");
    let known = OneNode { known: Some((vec![mac(1), mac(2)], node)), ..OneNode::default() };
    let mut send = |who: u8, seconds: i64| {
        let source = SocketAddrV4::new(NOBODY, 68);
        let origin = Origin { interface_index: 0, source, local_port: 67, ethernet_source: Some(mac(who)) };
        let outcome = Outcome(engine.handle(at(seconds), &Packet::discover(mac(who), Who::Os).bytes(), origin, &known));
        outcome.expect(MessageType::Offer).address()
    };
    assert_eq!(send(1, 1), reserved, "Linux does not say option 97; its card is known by now");
    assert_ne!(send(2, 2), reserved, "the other card of the same machine");
    assert_ne!(send(3, 3), reserved);
    assert_eq!(send(2, 4000), reserved, "when the first one has let it go");
}

#[test]
fn a_card_that_floods_is_held_back_and_others_are_not() {
    let mut engine = site(Vec::new(), Vec::new());
    let flood = Packet::discover(mac(1), Who::Os);
    let answered = (0..100_000).filter(|_| flood.to(&mut engine, at(5)).reply().is_some()).count();
    assert_eq!(answered, usize::from(MAX_PER_SECOND));
    assert_eq!(engine.counters().rate_limited, 100_000 - u64::from(MAX_PER_SECOND));
    Packet::discover(mac(2), Who::Os).to(&mut engine, at(5)).expect(MessageType::Offer);
}

#[test]
fn a_pool_says_that_it_fills_up_before_it_is_full() {
    let mut engine = site(Vec::new(), Vec::new());
    let mut said = Vec::new();
    for number in 1..=12 {
        for note in Packet::discover(mac(number), Who::Os).to(&mut engine, at(0)).notes() {
            let Warning::Pool { segment, level, usage } = note else { panic!("{note:?}") };
            said.push((number, level.to_owned(), usage.offered, segment.to_string()));
        }
    }
    let eth0 = || "eth0".to_owned();
    use PoolLevel::{Exhausted, Filling, NearlyFull};
    // Eleven addresses: nine are 81 %, eleven are all.
    assert_eq!(said, [(9, Filling, 9, eth0()), (11, NearlyFull, 11, eth0()), (12, Exhausted, 11, eth0())]);
    let health = engine.status(at(0));
    assert_eq!((health[0].name.as_str(), health[0].pool.size, health[0].pool.offered), ("eth0", 11, 11));
    assert_eq!(engine.status(at(61))[0].pool.offered, 0, "offers run out");
}

proptest! {
    #[test]
    fn any_bytes_have_an_outcome(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        check_invariants(&bytes);
    }

    /// Sequences of sound packets from few machines on all segments, for few addresses.
    #[test]
    fn no_sequence_on_any_segment_gives_one_address_to_two_cards(
        steps in proptest::collection::vec((1u8..6, 0u8..6, 98u8..109, 0u8..8, 0u8..3, 0u8..200), 0..80)
    ) {
        let mut script = Vec::new();
        for (who, kind, last, place, way, seconds) in steps {
            let kinds = [MessageType::Discover, MessageType::Request, MessageType::Request, MessageType::Release,
                MessageType::Decline, MessageType::Inform];
            let third = if way == 1 { 88 } else { 77 };
            let address = Ipv4Addr::new(10, third, 0, if last < 100 { 20 } else { last });
            let card = MacAddr([2, 0, 0, 0, 0, who]);
            let mut packet = Packet::new(kinds[usize::from(kind)], card, Who::Os);
            if matches!(kind, 1 | 4) {
                packet = packet.raw(OptionCode::RequestedIpAddress, &address.octets());
            } else if kind > 1 {
                packet = packet.using(address);
            }
            if way == 1 {
                packet = packet.via(RELAY);
            }
            let bytes = packet.bytes();
            script.extend(u16::try_from(bytes.len()).expect("short").to_be_bytes());
            script.extend([place, seconds]);
            script.extend(bytes);
        }
        check_invariants(&script);
    }
}
