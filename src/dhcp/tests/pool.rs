//! One address, one machine; one machine, one address.

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
fn firmware_ipxe_and_linux_of_one_machine_share_one_address_also_after_a_restart() {
    let mut first = engine(pool(100, 200), Vec::new());
    let address = boot(&mut first, at(0), mac(1), Who::Pxe(7));
    assert_eq!(boot(&mut first, at(9), mac(1), Who::Ipxe), address);
    assert_eq!(boot(&mut first, at(60), mac(1), Who::Os), address);
    let stored = vec![Lease { mac: mac(1), address, expires_at: at(3660), vm: None }];
    assert_eq!(boot(&mut engine(pool(100, 200), stored), at(99_999), mac(1), Who::Pxe(0)), address);
    let anew = boot(&mut engine(pool(100, 200), Vec::new()), at(0), mac(1), Who::Pxe(0));
    assert_eq!(anew, address, "a rack that is set up anew gets the same addresses");
}

#[test]
fn addresses_of_server_router_network_and_broadcast_are_never_given() {
    let mut wide = pool(0, 255);
    wide.dns = vec![Ipv4Addr::new(10, 77, 0, 53)];
    let mut engine = engine(wide, Vec::new());
    let mut given = Vec::new();
    for number in 0..=255 {
        if let Some(offer) = Packet::discover(mac(number), Who::Os).to(&mut engine, at(0)).reply() {
            given.push(offer.address().octets()[3]);
        }
    }
    given.sort_unstable();
    let free: Vec<u8> = (0..=255).filter(|last| ![0, 1, 53, 255].contains(last)).collect();
    assert_eq!(given, free);
}

#[test]
fn a_full_pool_says_so_and_gives_away_only_what_was_unused_for_longest() {
    let mut engine = engine(pool(100, 101), Vec::new());
    let old = boot(&mut engine, at(0), mac(1), Who::Os);
    let young = boot(&mut engine, at(10), mac(2), Who::Os);
    let refused = Packet::discover(mac(3), Who::Os).to(&mut engine, at(3599));
    assert!(matches!(refused.0[..], [Effect::Warn(Warning::Pool { level: PoolLevel::Exhausted, .. })]), "{refused:?}");
    assert!(Packet::discover(mac(3), Who::Os).to(&mut engine, at(3599)).0.is_empty(), "it is said once");
    assert_eq!(engine.counters().refused, 2);
    let outcome = Packet::discover(mac(3), Who::Os).to(&mut engine, at(3600));
    assert_eq!(outcome.expect(MessageType::Offer).address(), old);
    let before = Lease { mac: mac(1), address: old, expires_at: at(3600), vm: None };
    assert_eq!(outcome.0.get(1), Some(&stored(LeaseChange { before, after: None })));
    assert_eq!(boot(&mut engine, at(3600), mac(2), Who::Os), young, "the other one keeps its own");
}

#[test]
fn an_offer_that_nobody_takes_is_free_again_before_any_lease() {
    let mut engine = engine(pool(100, 101), Vec::new());
    let leased = boot(&mut engine, at(0), mac(1), Who::Os);
    let offered = Packet::discover(mac(2), Who::Os).to(&mut engine, at(4000)).expect(MessageType::Offer).address();
    assert_eq!(
        Packet::discover(mac(3), Who::Os).to(&mut engine, at(4059)).expect(MessageType::Offer).address(),
        leased
    );
    assert_eq!(
        Packet::discover(mac(4), Who::Os).to(&mut engine, at(4060)).expect(MessageType::Offer).address(),
        offered
    );
}

#[test]
fn a_declined_address_rests_and_only_its_holder_can_decline_it() {
    let mut engine = engine(pool(100, 101), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Who::Os);
    let decline =
        |mac| Packet::new(MessageType::Decline, mac, Who::Os).raw(OptionCode::RequestedIpAddress, &address.octets());
    assert!(decline(mac(2)).to(&mut engine, at(1)).0.is_empty());
    let outcome = decline(mac(1)).to(&mut engine, at(1)).0;
    let declined = Warning::Declined { segment: "eth0".into(), address };
    assert_eq!(outcome.get(1), Some(&Effect::Warn(declined)), "{outcome:?}");
    assert!(matches!(outcome[0], Effect::Store(Change::LeaseChanged(LeaseChange { after: None, .. }))), "{outcome:?}");
    let other = boot(&mut engine, at(2), mac(1), Who::Os);
    assert_ne!(other, address);
    assert!(Packet::discover(mac(2), Who::Os).to(&mut engine, at(3)).reply().is_none());
    assert_eq!(boot(&mut engine, at(1).after(DECLINED_HOLD), mac(2), Who::Os), address);
}

#[test]
fn a_released_lease_ends_and_its_machine_gets_the_same_address_again() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Who::Os);
    let outcome = Packet::new(MessageType::Release, mac(1), Who::Os).using(address).to(&mut engine, at(5));
    let before = Lease { mac: mac(1), address, expires_at: at(3600), vm: None };
    let after = Some(Lease { expires_at: at(5), ..before.clone() });
    assert_eq!(outcome.0, [stored(LeaseChange { before, after })]);
    assert_eq!(boot(&mut engine, at(6), mac(1), Who::Os), address);
}

#[test]
fn of_two_stored_leases_for_one_address_the_later_one_counts() {
    let address = Ipv4Addr::new(10, 77, 0, 100);
    let stored = [(1, 10), (2, 9000)].map(|(n, until)| Lease { mac: mac(n), address, expires_at: at(until), vm: None });
    let mut engine = engine(pool(100, 101), stored.to_vec());
    assert_eq!(boot(&mut engine, at(20), mac(2), Who::Os), address);
    assert_ne!(boot(&mut engine, at(20), mac(1), Who::Os), address);
}

#[derive(Clone, Debug)]
enum Step {
    Discover(u8),
    Select(u8, u8),
    Reboot(u8, u8),
    Renew(u8, u8),
    Release(u8, u8),
    Decline(u8, u8),
    Wait(u16),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let pair = || (0u8..12, 98u8..108);
    prop_oneof![
        4 => (0u8..12).prop_map(Step::Discover),
        4 => pair().prop_map(|(who, address)| Step::Select(who, address)),
        2 => pair().prop_map(|(who, address)| Step::Reboot(who, address)),
        1 => pair().prop_map(|(who, address)| Step::Renew(who, address)),
        1 => pair().prop_map(|(who, address)| Step::Release(who, address)),
        1 => pair().prop_map(|(who, address)| Step::Decline(who, address)),
        1 => (0u16..4000).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

/// What clients believe and what is stored, beside the engine.
struct Model {
    engine: Engine,
    now: i64,
    offers: BTreeMap<MacAddr, Ipv4Addr>,
    believed: BTreeMap<MacAddr, Lease>,
    stored: BTreeMap<Ipv4Addr, Lease>,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        let place = |last: u8| Ipv4Addr::new(10, 77, 0, last);
        let (who, packet) = match *step {
            Step::Wait(seconds) => return self.now += i64::from(seconds),
            Step::Restart => {
                self.engine = engine(pool(100, 105), self.stored.values().cloned().collect());
                return self.offers.clear();
            }
            Step::Discover(who) => (who, Packet::discover(mac(who), Who::Ipxe)),
            Step::Select(who, last) => {
                let wanted = self.offers.get(&mac(who)).copied().unwrap_or(place(last));
                (who, Packet::select(mac(who), Who::Ipxe, wanted, SERVER))
            }
            Step::Reboot(who, last) => (who, Packet::reboot(mac(who), Who::Os, place(last))),
            Step::Renew(who, last) => {
                let own = self.believed.get(&mac(who)).map_or(place(last), |lease| lease.address);
                (who, Packet::new(MessageType::Request, mac(who), Who::Os).using(own))
            }
            Step::Release(who, last) => {
                let own = self.believed.remove(&mac(who)).map_or(place(last), |lease| lease.address);
                (who, Packet::new(MessageType::Release, mac(who), Who::Os).using(own))
            }
            Step::Decline(who, last) => {
                let own = self.believed.remove(&mac(who)).map_or(place(last), |lease| lease.address);
                let packet = Packet::new(MessageType::Decline, mac(who), Who::Os);
                (who, packet.raw(OptionCode::RequestedIpAddress, &own.octets()))
            }
        };
        let outcome = packet.to(&mut self.engine, at(self.now));
        self.store(&outcome);
        self.believe(mac(who), &outcome);
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
                Effect::Store(Change::Seen(seen)) => {
                    if let Some(lease) = &seen.lease {
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
                if let Some(lease) = self.believed.get(&mac).filter(|lease| lease.expires_at > at(self.now)) {
                    assert_eq!(address, lease.address, "a machine with a lease is offered its own address");
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
            assert!((100..=105).contains(&lease.address.octets()[3]), "{} is not in the pool", lease.address);
            assert_eq!(self.stored.get(&lease.address), Some(lease), "what was acknowledged is stored");
        }
    }
}

proptest! {
    #[test]
    fn no_sequence_of_messages_gives_one_address_to_two_machines(steps in proptest::collection::vec(step(), 0..120)) {
        let engine = engine(pool(100, 105), Vec::new());
        let mut model =
            Model { engine, now: 0, offers: BTreeMap::new(), believed: BTreeMap::new(), stored: BTreeMap::new() };
        for step in &steps {
            model.apply(step);
            model.check();
        }
    }
}
