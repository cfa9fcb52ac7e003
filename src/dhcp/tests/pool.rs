//! Pools: at most one client per address, one address per client.

use super::clients::*;
use crate::{
    lease::{DECLINED_HOLD, PoolLevel},
    *,
};
use dhcproto::v4::{MessageType, OptionCode};
use meshd_types::MacAddr;
use proptest::prelude::*;
use std::{collections::BTreeMap, net::Ipv4Addr};

fn stored(change: LeaseChange) -> Effect {
    Effect::Store(Change::LeaseChanged(change))
}

#[test]
fn boot_stages_of_one_mac_share_address_across_restarts() {
    let mut first = engine(pool(100, 200), Vec::new());
    let address = boot(&mut first, at(0), mac(1), Program::Pxe(7));
    assert_eq!(boot(&mut first, at(9), mac(1), Program::Ipxe), address);
    assert_eq!(boot(&mut first, at(60), mac(1), Program::Os), address);
    let stored = vec![Lease { mac: mac(1), address, expires_at: at(3660), vm: None }];
    assert_eq!(
        boot(&mut engine(pool(100, 200), stored), at(99_999), mac(1), Program::Pxe(0)),
        address
    );
    let anew = boot(&mut engine(pool(100, 200), Vec::new()), at(0), mac(1), Program::Pxe(0));
    assert_eq!(anew, address, "a rack that is set up anew gets the same addresses");
}

#[test]
fn server_router_dns_and_broadcast_addresses_are_never_leased() {
    let mut wide = pool(0, 255);
    wide.dns = vec![Ipv4Addr::new(10, 77, 0, 53)];
    let mut engine = engine(wide, Vec::new());
    let mut offered = Vec::new();
    for number in 0..=255 {
        if let Some(offer) =
            Packet::discover(mac(number), Program::Os).to(&mut engine, at(0)).reply()
        {
            offered.push(offer.address().octets()[3]);
        }
    }
    offered.sort_unstable();
    let free: Vec<u8> = (0..=255).filter(|last| ![0, 1, 53, 255].contains(last)).collect();
    assert_eq!(offered, free);
}

#[test]
fn lease_of_a_clock_in_the_future_ends_after_one_lease_time() {
    let late = at(4_000_000_000);
    let address = Ipv4Addr::new(10, 77, 0, 100);
    let mut restarted =
        engine(pool(100, 100), vec![Lease { mac: mac(1), address, expires_at: late, vm: None }]);
    restarted.status(at(0));
    assert!(Packet::discover(mac(2), Program::Os).to(&mut restarted, at(3599)).reply().is_none());
    assert_eq!(boot(&mut restarted, at(3600), mac(2), Program::Os), address);
    let mut running = engine(pool(100, 100), Vec::new());
    assert_eq!(boot(&mut running, late, mac(1), Program::Os), address);
    running.status(late);
    running.status(at(0));
    assert_eq!(
        boot(&mut running, at(3600), mac(2), Program::Os),
        address,
        "the clock went back while it ran"
    );
}

#[test]
fn full_pool_warns_once_and_reclaims_longest_expired_lease() {
    let mut engine = engine(pool(100, 101), Vec::new());
    let old = boot(&mut engine, at(0), mac(1), Program::Os);
    let young = boot(&mut engine, at(10), mac(2), Program::Os);
    let refused = Packet::discover(mac(3), Program::Os).to(&mut engine, at(3599));
    assert!(
        matches!(refused.0[..], [Effect::Warn(Warning::Pool { level: PoolLevel::Exhausted, .. })]),
        "{refused:?}"
    );
    assert!(
        Packet::discover(mac(3), Program::Os).to(&mut engine, at(3599)).0.is_empty(),
        "the engine warns once"
    );
    assert_eq!(engine.counters().refused, 2);
    let to_other = Packet::discover(mac(3), Program::Os)
        .raw(OptionCode::ServerIdentifier, &Ipv4Addr::new(10, 77, 0, 9).octets());
    assert!(to_other.to(&mut engine, at(3599)).reply().is_none());
    assert_eq!(engine.counters().refused, 2, "it asked for no address of this server");
    let outcome = Packet::discover(mac(3), Program::Os).to(&mut engine, at(3600));
    assert_eq!(outcome.expect(MessageType::Offer).address(), old);
    let before = Lease { mac: mac(1), address: old, expires_at: at(3600), vm: None };
    assert_eq!(outcome.0.get(1), Some(&stored(LeaseChange { before, after: None })));
    assert_eq!(
        boot(&mut engine, at(3600), mac(2), Program::Os),
        young,
        "the other one keeps its own"
    );
}

#[test]
fn address_that_the_server_takes_is_not_leased_and_its_former_one_is() {
    let [first, second] = [100, 101].map(|last| Ipv4Addr::new(10, 77, 0, last));
    let mut engine = engine(pool(100, 101), Vec::new());
    let offered = |engine: &mut Engine, number| {
        let outcome = Packet::discover(mac(number), Program::Os).to(engine, at(0));
        outcome.reply().map(|offer| offer.address())
    };
    engine.set_interface_address(0, first);
    assert_eq!(offered(&mut engine, 1), Some(second));
    assert_eq!(offered(&mut engine, 2), None, "the other address is that of the server");
    engine.set_interface_address(0, SERVER);
    assert_eq!(boot(&mut engine, at(1), mac(2), Program::Os), first);
    engine.set_interface_address(0, first);
    let renewal = Packet::new(MessageType::Request, mac(2), Program::Os).using(first);
    renewal.to(&mut engine, at(2)).expect(MessageType::Nak);
    let selected = Packet::select(mac(1), Program::Os, second, SERVER).to(&mut engine, at(3));
    assert!(
        matches!(selected.warnings()[..], [Warning::OtherServer { server: SERVER, .. }]),
        "another server may have the former address: {selected:?}"
    );
}

#[test]
fn expired_offer_is_reclaimed() {
    let mut engine = engine(pool(100, 101), Vec::new());
    let leased = boot(&mut engine, at(0), mac(1), Program::Os);
    let offered = Packet::discover(mac(2), Program::Os)
        .to(&mut engine, at(4000))
        .expect(MessageType::Offer)
        .address();
    assert_eq!(
        Packet::discover(mac(3), Program::Os)
            .to(&mut engine, at(4059))
            .expect(MessageType::Offer)
            .address(),
        leased
    );
    assert_eq!(
        Packet::discover(mac(4), Program::Os)
            .to(&mut engine, at(4060))
            .expect(MessageType::Offer)
            .address(),
        offered
    );
}

#[test]
fn declined_address_is_held_back_and_only_its_client_can_decline() {
    let mut engine = engine(pool(100, 101), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Program::Os);
    let decline = |mac| {
        Packet::new(MessageType::Decline, mac, Program::Os)
            .raw(OptionCode::RequestedIpAddress, &address.octets())
    };
    assert_eq!(decline(mac(2)).to(&mut engine, at(1)).dropped(), Some(DropReason::Unfounded));
    let outcome = decline(mac(1)).to(&mut engine, at(1)).0;
    let declined = Warning::AddressInUse { segment: "eth0".into(), address, by: None };
    assert_eq!(outcome.get(1), Some(&Effect::Warn(declined)), "{outcome:?}");
    assert!(
        matches!(outcome[0], Effect::Store(Change::LeaseChanged(LeaseChange { after: None, .. }))),
        "{outcome:?}"
    );
    let other = boot(&mut engine, at(2), mac(1), Program::Os);
    assert_ne!(other, address);
    assert!(Packet::discover(mac(2), Program::Os).to(&mut engine, at(3)).reply().is_none());
    assert_eq!(boot(&mut engine, at(1).after(DECLINED_HOLD), mac(2), Program::Os), address);
}

#[test]
fn released_lease_ends_and_client_gets_same_address_again() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Program::Os);
    let outcome = Packet::new(MessageType::Release, mac(1), Program::Os)
        .using(address)
        .to(&mut engine, at(5));
    let before = Lease { mac: mac(1), address, expires_at: at(3600), vm: None };
    let after = Some(Lease { expires_at: at(5), ..before.clone() });
    assert_eq!(outcome.0, [stored(LeaseChange { before, after })]);
    assert_eq!(boot(&mut engine, at(6), mac(1), Program::Os), address);
    let foreign = Packet::new(MessageType::Release, mac(2), Program::Os)
        .using(address)
        .to(&mut engine, at(7));
    assert_eq!(foreign.dropped(), Some(crate::DropReason::Unfounded), "it holds no such address");
}

#[test]
fn stored_lease_with_later_expiry_wins() {
    let address = Ipv4Addr::new(10, 77, 0, 100);
    let stored = [(1, 10), (2, 9000)].map(|(n, until)| Lease {
        mac: mac(n),
        address,
        expires_at: at(until),
        vm: None,
    });
    let mut engine = engine(pool(100, 101), stored.to_vec());
    assert_eq!(boot(&mut engine, at(20), mac(2), Program::Os), address);
    assert_ne!(boot(&mut engine, at(20), mac(1), Program::Os), address);
}

#[derive(Clone, Debug)]
enum ClientAction {
    Discover(u8),
    Select(u8, u8),
    Reboot(u8, u8),
    Renew(u8, u8),
    Release(u8, u8),
    Decline(u8, u8),
    Wait(u16),
    Restart,
}

fn client_action() -> impl Strategy<Value = ClientAction> {
    let pair = || (0u8..12, 98u8..108);
    prop_oneof![
        4 => (0u8..12).prop_map(ClientAction::Discover),
        4 => pair().prop_map(|(client, address)| ClientAction::Select(client, address)),
        2 => pair().prop_map(|(client, address)| ClientAction::Reboot(client, address)),
        1 => pair().prop_map(|(client, address)| ClientAction::Renew(client, address)),
        1 => pair().prop_map(|(client, address)| ClientAction::Release(client, address)),
        1 => pair().prop_map(|(client, address)| ClientAction::Decline(client, address)),
        1 => (0u16..4000).prop_map(ClientAction::Wait),
        1 => Just(ClientAction::Restart),
    ]
}

/// The engine, the leases that clients believe to hold, and the stored leases.
struct Model {
    engine: Engine,
    now: i64,
    offers: BTreeMap<MacAddr, Ipv4Addr>,
    believed: BTreeMap<MacAddr, Lease>,
    stored: BTreeMap<Ipv4Addr, Lease>,
}

impl Model {
    fn apply(&mut self, action: &ClientAction) {
        let pool_address = |last: u8| Ipv4Addr::new(10, 77, 0, last);
        let (client, packet) = match *action {
            ClientAction::Wait(seconds) => return self.now += i64::from(seconds),
            ClientAction::Restart => {
                self.engine = engine(pool(100, 105), self.stored.values().cloned().collect());
                return self.offers.clear();
            }
            ClientAction::Discover(client) => {
                (client, Packet::discover(mac(client), Program::Ipxe))
            }
            ClientAction::Select(client, last) => {
                let wanted = self.offers.get(&mac(client)).copied().unwrap_or(pool_address(last));
                (client, Packet::select(mac(client), Program::Ipxe, wanted, SERVER))
            }
            ClientAction::Reboot(client, last) => {
                (client, Packet::reboot(mac(client), Program::Os, pool_address(last)))
            }
            ClientAction::Renew(client, last) => {
                let own = self
                    .believed
                    .get(&mac(client))
                    .map_or(pool_address(last), |lease| lease.address);
                (client, Packet::new(MessageType::Request, mac(client), Program::Os).using(own))
            }
            ClientAction::Release(client, last) => {
                let own = self
                    .believed
                    .remove(&mac(client))
                    .map_or(pool_address(last), |lease| lease.address);
                (client, Packet::new(MessageType::Release, mac(client), Program::Os).using(own))
            }
            ClientAction::Decline(client, last) => {
                let own = self
                    .believed
                    .remove(&mac(client))
                    .map_or(pool_address(last), |lease| lease.address);
                let packet = Packet::new(MessageType::Decline, mac(client), Program::Os);
                (client, packet.raw(OptionCode::RequestedIpAddress, &own.octets()))
            }
        };
        let outcome = packet.to(&mut self.engine, at(self.now));
        self.store(&outcome);
        self.believe(mac(client), &outcome);
    }

    fn store(&mut self, outcome: &Outcome) {
        for effect in &outcome.0 {
            match effect {
                Effect::Store(Change::LeaseChanged(LeaseChange { before, after }))
                    if self.stored.get(&before.address) == Some(before) =>
                {
                    self.stored.remove(&before.address);
                    self.stored.extend(after.clone().map(|lease| (lease.address, lease)));
                }
                Effect::Store(Change::Exchange(exchange)) => {
                    if let Some(lease) = &exchange.lease {
                        self.stored.insert(lease.address, lease.clone());
                    }
                }
                _ => {}
            }
        }
    }

    fn believe(&mut self, mac: MacAddr, outcome: &Outcome) {
        let Some(answer) = outcome.reply() else { return };
        let address = answer.address();
        match answer.message.opts().msg_type() {
            Some(MessageType::Offer) => {
                if let Some(lease) =
                    self.believed.get(&mac).filter(|lease| lease.expires_at > at(self.now))
                {
                    assert_eq!(
                        address, lease.address,
                        "a machine with a lease is offered its own address"
                    );
                }
                self.offers.insert(mac, address);
            }
            Some(MessageType::Ack) => {
                let expires_at = at(self.now + 3600);
                self.believed.insert(mac, Lease { mac, address, expires_at, vm: None });
            }
            _ => {
                self.believed.remove(&mac);
            }
        }
    }

    fn check(&self) {
        let now = at(self.now);
        let mut holders: BTreeMap<Ipv4Addr, MacAddr> = BTreeMap::new();
        for lease in self.believed.values().filter(|lease| lease.expires_at > now) {
            let other = holders.insert(lease.address, lease.mac);
            assert_eq!(
                other,
                None,
                "{} and {} believe to hold {}",
                other.unwrap_or(lease.mac),
                lease.mac,
                lease.address
            );
            assert!(
                (100..=105).contains(&lease.address.octets()[3]),
                "{} is not in the pool",
                lease.address
            );
            assert_eq!(
                self.stored.get(&lease.address),
                Some(lease),
                "what was acknowledged is stored"
            );
        }
    }
}

proptest! {
    #[test]
    fn message_sequence_never_leases_one_address_twice(actions in proptest::collection::vec(client_action(), 0..120)) {
        let engine = engine(pool(100, 105), Vec::new());
        let mut model =
            Model { engine, now: 0, offers: BTreeMap::new(), believed: BTreeMap::new(), stored: BTreeMap::new() };
        for action in &actions {
            model.apply(action);
            model.check();
        }
    }
}

#[test]
fn discover_of_free_address_is_offered_that_address() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let wanted = Ipv4Addr::new(10, 77, 0, 177);
    let discover = |number, address: Ipv4Addr| {
        Packet::discover(mac(number), Program::Os)
            .raw(OptionCode::RequestedIpAddress, &address.octets())
    };
    let offered = |engine: &mut Engine, packet: &Packet| {
        packet.to(engine, at(0)).expect(MessageType::Offer).address()
    };
    assert_eq!(offered(&mut engine, &discover(1, wanted)), wanted, "RFC 2131, 4.3.1");
    assert_ne!(offered(&mut engine, &discover(2, wanted)), wanted, "it is offered to another one");
    for foreign in [SERVER, Ipv4Addr::new(10, 77, 0, 99), Ipv4Addr::new(192, 168, 0, 1)] {
        let address = offered(&mut engine, &discover(3, foreign));
        assert!(pool(100, 200).contains(address) && address != foreign, "{foreign}");
    }
    let leased = boot(&mut engine, at(0), mac(4), Program::Os);
    assert_eq!(
        offered(&mut engine, &discover(4, Ipv4Addr::new(10, 77, 0, 178))),
        leased,
        "its lease comes first"
    );
}

#[test]
fn address_seen_at_another_machine_is_neither_offered_nor_acknowledged() {
    let used = Ipv4Addr::new(10, 77, 0, 100);
    let mut engine = engine(pool(100, 101), Vec::new());
    engine.set_neighbours(0, [(used, mac(9))].into_iter());
    let wants = |number| {
        Packet::discover(mac(number), Program::Os)
            .raw(OptionCode::RequestedIpAddress, &used.octets())
    };
    for number in 1..=4 {
        let offer =
            wants(number).to(&mut engine, at(i64::from(number) * 61)).expect(MessageType::Offer);
        assert_ne!(offer.address(), used);
    }
    Packet::reboot(mac(5), Program::Os, used).to(&mut engine, at(300)).expect(MessageType::Nak);
    assert_eq!(
        wants(9).to(&mut engine, at(301)).expect(MessageType::Offer).address(),
        used,
        "its user gets it"
    );
    engine.set_neighbours(0, std::iter::empty());
    assert_eq!(
        wants(6).to(&mut engine, at(400)).expect(MessageType::Offer).address(),
        used,
        "it is free again"
    );
}

#[test]
fn new_offer_ends_when_another_machine_answers_for_it() {
    let mut engine = engine(pool(100, 101), Vec::new());
    let offer = |engine: &mut Engine, seconds| {
        Packet::discover(mac(1), Program::Os)
            .to(engine, at(seconds))
            .expect(MessageType::Offer)
            .address()
    };
    let used = offer(&mut engine, 0);
    assert_eq!(engine.take_unproven_offers(0, 16), [used]);
    assert_eq!(engine.handle_arp_reply(at(0), 0, used, mac(1)), None, "the client itself");
    let warning = Warning::AddressInUse { segment: "eth0".into(), address: used, by: Some(mac(9)) };
    assert_eq!(engine.handle_arp_reply(at(0), 0, used, mac(9)), Some(Effect::Warn(warning)));
    Packet::select(mac(1), Program::Os, used, SERVER)
        .to(&mut engine, at(1))
        .expect(MessageType::Nak);
    let other = offer(&mut engine, 2);
    assert_ne!(other, used);
    Packet::select(mac(1), Program::Os, other, SERVER)
        .to(&mut engine, at(3))
        .expect(MessageType::Ack);
    assert_eq!(engine.take_unproven_offers(0, 16), [other]);
    assert_eq!(offer(&mut engine, 4), other);
    assert!(engine.take_unproven_offers(0, 16).is_empty(), "its own lease needs no proof");
    assert_eq!(
        engine.handle_arp_reply(at(5), 0, other, mac(9)),
        None,
        "a lease stays: its machine notices a conflict"
    );
}

#[test]
fn address_seen_at_another_machine_is_reclaimed_last() {
    let mut engine = engine(pool(100, 101), Vec::new());
    let [first, second] = [1, 2].map(|number| {
        boot(&mut engine, at(number), mac(u8::try_from(number).unwrap()), Program::Os)
    });
    engine.set_neighbours(0, [(first, mac(1))].into_iter());
    let discover = |engine: &mut Engine, number, seconds| {
        Packet::discover(mac(number), Program::Os)
            .to(engine, at(seconds))
            .expect(MessageType::Offer)
            .address()
    };
    assert_eq!(
        discover(&mut engine, 3, 9000),
        second,
        "{first} expired first, and its machine still uses it"
    );
    assert_eq!(discover(&mut engine, 4, 9000), first, "the last one");
    assert_eq!(discover(&mut engine, 4, 9001), first, "the same client again");
}

#[test]
fn offers_beyond_one_look_at_the_network_wait_for_the_next() {
    let mut engine = engine(pool(100, 150), Vec::new());
    let mut offer = |number| {
        Packet::discover(mac(number), Program::Os)
            .to(&mut engine, at(0))
            .expect(MessageType::Offer)
            .address()
    };
    let offered: Vec<Ipv4Addr> = (0..20).map(&mut offer).collect();
    assert_eq!(engine.take_unproven_offers(0, 16), offered[..16]);
    assert_eq!(engine.take_unproven_offers(0, 16), offered[16..]);
}
