//! Cards of virtual machines: their own addresses, nothing to boot, and nothing left when they go.

use super::clients::*;
use crate::*;
use dhcproto::v4::MessageType;
use meshd_types::{MacAddr, SystemUuid, Timestamp};
use proptest::prelude::*;
use std::{collections::BTreeMap, net::Ipv4Addr};

/// The machine of a card, and of nothing else.
fn vm(number: u8) -> SystemUuid {
    SystemUuid([number; 16])
}

fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

fn card(number: u8, address: Option<u8>) -> ReservedNic {
    let name = format!("guest_{number}").parse().expect("a name");
    ReservedNic { vm: vm(number), name, mac: mac(number), address: address.map(ip) }
}

fn with(cards: Vec<ReservedNic>, first: u8, last: u8, stored: Vec<Lease>) -> Engine {
    Engine::new(Setup { nics: cards, ..setup(DhcpMode::Authoritative, Some(pool(first, last))) }, stored)
}

fn leased(outcome: &Outcome) -> Vec<&Lease> {
    let lease = |effect: &'_ Effect| match effect {
        Effect::Store(Change::LeaseGranted(_)) => true,
        Effect::Store(_) => panic!("a boot session, or a change: {outcome:?}"),
        _ => false,
    };
    let steps = outcome.0.iter().filter(|effect| lease(effect));
    steps
        .filter_map(|effect| if let Effect::Store(Change::LeaseGranted(lease)) = effect { Some(lease) } else { None })
        .collect()
}

#[test]
fn a_card_gets_its_address_the_name_of_its_machine_and_nothing_to_boot_whoever_asks() {
    let mut engine = with(vec![card(9, Some(220))], 100, 200, Vec::new());
    for who in [Who::Pxe(7), Who::Http(16), Who::Ipxe, Who::Os] {
        let offered = Packet::discover(mac(9), who).to(&mut engine, at(0));
        assert!(leased(&offered).is_empty() && offered.notes().is_empty(), "{offered:?}");
        let offer = offered.expect(MessageType::Offer);
        assert_eq!((offer.address(), offer.boot_file()), (ip(220), None), "{who:?}");
        assert_eq!(offer.option(12).as_deref(), Some(&b"guest-9"[..]));
        assert_eq!(
            (offer.option(3), offer.option(6)),
            (Some(SERVER.octets().to_vec()), Some(SERVER.octets().to_vec()))
        );
        let acked = Packet::select(mac(9), who, ip(220), SERVER).to(&mut engine, at(1));
        assert_eq!(acked.expect(MessageType::Ack).address(), ip(220));
        let lease = Lease { mac: mac(9), address: ip(220), expires_at: at(3601), vm: Some(vm(9)) };
        assert_eq!(leased(&acked), [&lease], "and no boot session: {acked:?}");
    }
    let other = Packet::discover(mac(1), Who::Pxe(7)).to(&mut engine, at(2));
    assert!(other.expect(MessageType::Offer).boot_file().is_some() && other.seen().is_some(), "nodes boot as ever");
    assert_eq!(other.expect(MessageType::Offer).option(12), None);
}

#[test]
fn a_card_without_a_reserved_address_gets_any_and_is_no_node_either() {
    let mut engine = with(vec![card(9, None)], 100, 200, Vec::new());
    let offer = Packet::discover(mac(9), Who::Pxe(0)).to(&mut engine, at(0));
    assert!(leased(&offer).is_empty() && offer.expect(MessageType::Offer).boot_file().is_none());
    let address = offer.expect(MessageType::Offer).address();
    let acked = Packet::select(mac(9), Who::Pxe(0), address, SERVER).to(&mut engine, at(0));
    assert_eq!(leased(&acked).len(), 1);
    let mut proxy = Engine::new(Setup { nics: vec![card(9, None)], ..setup(DhcpMode::Proxy, None) }, Vec::new());
    assert!(Packet::discover(mac(9), Who::Pxe(7)).to(&mut proxy, at(0)).0.is_empty());
    assert!(Packet::discover(mac(1), Who::Pxe(7)).to(&mut proxy, at(0)).reply().is_some());
}

#[test]
fn what_a_deleted_machine_had_is_gone_and_its_address_may_be_another_ones() {
    let mut engine = with(vec![card(9, Some(220)), card(8, Some(101))], 100, 101, Vec::new());
    assert_eq!(boot(&mut engine, at(0), mac(9), Who::Os), ip(220));
    assert_eq!(boot(&mut engine, at(0), mac(8), Who::Os), ip(101));
    assert_eq!(boot(&mut engine, at(0), mac(1), Who::Os), ip(100));
    assert!(Packet::discover(mac(2), Who::Os).to(&mut engine, at(1)).reply().is_none(), "the other address is kept");
    assert_eq!(engine.status(at(5))[0].pool.size, 1);

    engine.change_nics(NicChanges::Changed(vec![(mac(9), None), (mac(8), None), (mac(7), Some(card(7, Some(220))))]));
    let renewed = Packet::new(MessageType::Request, mac(9), Who::Os).using(ip(220)).to(&mut engine, at(10));
    renewed.expect(MessageType::Nak);
    assert_eq!(boot(&mut engine, at(10), mac(2), Who::Os), ip(101), "of a range it is for anybody again");
    assert_eq!(boot(&mut engine, at(10), mac(7), Who::Os), ip(220));
    let pool = engine.status(at(20))[0].pool;
    assert_eq!((pool.size, pool.leased), (2, 2));
    assert_eq!(engine.take_warnings(), []);
}

#[test]
fn who_was_away_too_long_is_told_of_all_cards() {
    let mut engine = with(vec![card(9, Some(220)), card(8, Some(221))], 100, 200, Vec::new());
    engine.change_nics(NicChanges::All(vec![card(8, Some(221)), card(7, Some(220))]));
    assert_eq!(boot(&mut engine, at(0), mac(7), Who::Os), ip(220));
    assert_eq!(boot(&mut engine, at(0), mac(8), Who::Os), ip(221));
    assert!((100..=200).contains(&boot(&mut engine, at(0), mac(9), Who::Os).octets()[3]));
}

#[test]
fn an_address_that_somebody_holds_when_it_is_reserved_is_not_given_twice() {
    let mut engine = with(Vec::new(), 100, 101, Vec::new());
    let held = boot(&mut engine, at(0), mac(1), Who::Os);
    engine.change_nics(NicChanges::Changed(vec![(mac(9), Some(card(9, Some(held.octets()[3]))))]));
    let meanwhile = boot(&mut engine, at(10), mac(9), Who::Os);
    assert_ne!(meanwhile, held);
    let renewed = Packet::new(MessageType::Request, mac(1), Who::Os).using(held).to(&mut engine, at(1800));
    renewed.expect(MessageType::Nak);
    assert_eq!(boot(&mut engine, at(3600), mac(9), Who::Os), held, "once that lease is over");
}

#[test]
fn what_site_toml_gives_to_somebody_else_stays_theirs_and_is_told() {
    let whom = Owner::Mac(mac(1));
    let reservations = vec![Reservation { owner: whom, address: ip(220) }];
    let cards = vec![card(9, Some(220)), card(8, Some(1)), card(1, Some(230)), card(7, Some(231))];
    let setup = Setup { nics: cards, reservations, ..setup(DhcpMode::Authoritative, Some(pool(100, 200))) };
    let mut engine = Engine::new(setup, Vec::new());
    let warnings = engine.take_warnings();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    let expected = Warning::NotReserved { vm: "guest_9".parse().expect("a name"), address: ip(220) };
    assert!(warnings.contains(&expected));
    assert_eq!(
        (boot(&mut engine, at(0), mac(1), Who::Os), boot(&mut engine, at(0), mac(7), Who::Os)),
        (ip(220), ip(231))
    );
    for other in [9, 8] {
        assert!((100..=200).contains(&boot(&mut engine, at(0), mac(other), Who::Os).octets()[3]));
    }
}

#[test]
fn a_lease_beside_the_range_lives_over_a_restart_as_long_as_its_machine_is_on_record() {
    let stored = vec![Lease { mac: mac(9), address: ip(220), expires_at: at(3600), vm: Some(vm(9)) }];
    let renew = Packet::new(MessageType::Request, mac(9), Who::Os).using(ip(220));
    let mut engine = with(vec![card(9, Some(220))], 100, 200, stored.clone());
    assert_eq!(renew.to(&mut engine, at(1800)).expect(MessageType::Ack).address(), ip(220));
    renew.to(&mut with(Vec::new(), 100, 200, stored), at(1800)).expect(MessageType::Nak);
}

#[derive(Clone, Debug)]
enum Action {
    Put(u8, Option<u8>),
    Delete(u8),
    Discover(u8),
    Request(u8, u8),
    Wait(u16),
}

fn step() -> impl Strategy<Value = Action> {
    let (who, address) = (1u8..7, 100u8..108);
    prop_oneof![
        2 => (who.clone(), proptest::option::of(address.clone())).prop_map(|(who, address)| Action::Put(who, address)),
        1 => who.clone().prop_map(Action::Delete),
        3 => who.clone().prop_map(Action::Discover),
        4 => (who, address).prop_map(|(who, address)| Action::Request(who, address)),
        1 => (1u16..4000).prop_map(Action::Wait),
    ]
}

proptest! {
    /// Machines come and go with addresses inside (100 to 103) and beside the range, and others ask as they like.
    #[test]
    fn no_address_is_two_cards_at_once(steps in proptest::collection::vec(step(), 0..80)) {
        let mut engine = with(Vec::new(), 100, 103, Vec::new());
        let mut now = 0;
        let mut cards: BTreeMap<u8, ReservedNic> = BTreeMap::new();
        let mut offered: BTreeMap<u8, Ipv4Addr> = BTreeMap::new();
        let mut holders: BTreeMap<Ipv4Addr, (MacAddr, Timestamp)> = BTreeMap::new();
        for step in steps {
            match step {
                // As the store has it: no two machines of one address.
                Action::Put(who, address) => {
                    let taken = |card: &ReservedNic| card.mac != mac(who) && card.address.is_some() && card.address == address.map(ip);
                    if !cards.values().any(taken) && !cards.contains_key(&who) {
                        cards.insert(who, card(who, address));
                        engine.change_nics(NicChanges::Changed(vec![(mac(who), Some(card(who, address)))]));
                    }
                }
                Action::Delete(who) => {
                    if cards.remove(&who).is_some() {
                        // Its guest is gone.
                        holders.retain(|_, (holder, _)| *holder != mac(who));
                        engine.change_nics(NicChanges::Changed(vec![(mac(who), None)]));
                    }
                }
                Action::Discover(who) => {
                    let outcome = Packet::discover(mac(who), Who::Os).to(&mut engine, at(now));
                    offered.extend(outcome.reply().map(|offer| (who, offer.address())));
                }
                Action::Request(who, address) => {
                    let wanted = offered.remove(&who).unwrap_or(ip(address));
                    let outcome = Packet::select(mac(who), Who::Os, wanted, SERVER).to(&mut engine, at(now));
                    let acked = outcome.reply().filter(|reply| reply.message.opts().msg_type() == Some(MessageType::Ack));
                    if let Some(acked) = acked {
                        let address = acked.address();
                        // Whoever takes another one leaves the one before.
                        holders.retain(|own, (holder, _)| *holder != mac(who) || *own == address);
                        let other = holders.insert(address, (mac(who), at(now + 3600)));
                        prop_assert!(other.is_none_or(|(holder, until)| holder == mac(who) || until <= at(now)), "{address}");
                        let owner = cards.values().find(|card| card.address == Some(address));
                        prop_assert!(owner.is_none_or(|card| card.mac == mac(who)), "{address} is reserved");
                    }
                }
                Action::Wait(seconds) => now += i64::from(seconds),
            }
            let pool = engine.status(at(now))[0].pool;
            prop_assert!(pool.leased + pool.offered <= pool.size, "{pool:?}");
        }
    }
}
