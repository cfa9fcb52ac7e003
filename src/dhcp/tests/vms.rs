//! NICs of VMs: reserved addresses, no boot file, and no state left after deletion.

use super::clients::*;
use crate::*;
use dhcproto::v4::MessageType;
use meshd_types::{MacAddr, SystemUuid, Timestamp};
use proptest::prelude::*;
use std::{collections::BTreeMap, net::Ipv4Addr};

/// The UUID of a test VM.
fn vm(number: u8) -> SystemUuid {
    SystemUuid([number; 16])
}

fn ip(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

fn vm_nic(number: u8, address: Option<u8>) -> ReservedNic {
    let name = format!("guest_{number}").parse().expect("a name");
    ReservedNic { vm: vm(number), name, mac: mac(number), address: address.map(ip) }
}

fn engine_with_nics(nics: Vec<ReservedNic>, first: u8, last: u8, stored: Vec<Lease>) -> Engine {
    let nics = nics.into_iter().map(NicRecord::of_vm).collect();
    Engine::new(Setup { nics, ..setup(DhcpMode::Authoritative, Some(pool(first, last))) }, stored)
}

/// Changes VMs' NICs; `None` removes one.
fn change_nics(engine: &mut Engine, changes: Vec<(MacAddr, Option<ReservedNic>)>) {
    let change = |(mac, nic): (MacAddr, Option<ReservedNic>)| {
        nic.map_or(RecordChange::NicRemoved(mac), |nic| RecordChange::Nic(NicRecord::of_vm(nic)))
    };
    engine.apply(at(0), RecordChanges::Some(changes.into_iter().map(change).collect()));
}

fn leased(outcome: &Outcome) -> Vec<&Lease> {
    let lease = |effect: &'_ Effect| match effect {
        Effect::Store(Change::LeaseGranted(_)) => true,
        Effect::Store(_) => panic!("a boot session, or a change: {outcome:?}"),
        _ => false,
    };
    let steps = outcome.0.iter().filter(|effect| lease(effect));
    steps
        .filter_map(|effect| {
            if let Effect::Store(Change::LeaseGranted(lease)) = effect { Some(lease) } else { None }
        })
        .collect()
}

#[test]
fn vm_nic_gets_reserved_address_and_host_name_but_no_boot_file() {
    let mut engine = engine_with_nics(vec![vm_nic(9, Some(220))], 100, 200, Vec::new());
    for program in [Program::Pxe(7), Program::Http(16), Program::Ipxe, Program::Os] {
        let offered = Packet::discover(mac(9), program).to(&mut engine, at(0));
        assert!(leased(&offered).is_empty() && offered.warnings().is_empty(), "{offered:?}");
        let offer = offered.expect(MessageType::Offer);
        assert_eq!((offer.address(), offer.boot_file()), (ip(220), None), "{program:?}");
        assert_eq!(offer.option(12).as_deref(), Some(&b"guest-9"[..]));
        assert_eq!(
            (offer.option(3), offer.option(6)),
            (Some(SERVER.octets().to_vec()), Some(SERVER.octets().to_vec()))
        );
        let acked = Packet::select(mac(9), program, ip(220), SERVER).to(&mut engine, at(1));
        assert_eq!(acked.expect(MessageType::Ack).address(), ip(220));
        let lease = Lease { mac: mac(9), address: ip(220), expires_at: at(3601), vm: Some(vm(9)) };
        assert_eq!(leased(&acked), [&lease], "and no boot session: {acked:?}");
    }
    let other = Packet::discover(mac(1), Program::Pxe(7)).to(&mut engine, at(2));
    assert!(
        other.expect(MessageType::Offer).boot_file().is_some() && other.exchange().is_some(),
        "boots of nodes are unchanged"
    );
    assert_eq!(other.expect(MessageType::Offer).option(12), None);
}

#[test]
fn vm_nic_without_reservation_gets_pool_address_and_no_boot_file() {
    let mut engine = engine_with_nics(vec![vm_nic(9, None)], 100, 200, Vec::new());
    let offer = Packet::discover(mac(9), Program::Pxe(0)).to(&mut engine, at(0));
    assert!(leased(&offer).is_empty() && offer.expect(MessageType::Offer).boot_file().is_none());
    let address = offer.expect(MessageType::Offer).address();
    let acked = Packet::select(mac(9), Program::Pxe(0), address, SERVER).to(&mut engine, at(0));
    assert_eq!(leased(&acked).len(), 1);
    let mut proxy = Engine::new(
        Setup { nics: vec![NicRecord::of_vm(vm_nic(9, None))], ..setup(DhcpMode::Proxy, None) },
        Vec::new(),
    );
    assert!(Packet::discover(mac(9), Program::Pxe(7)).to(&mut proxy, at(0)).0.is_empty());
    assert!(Packet::discover(mac(1), Program::Pxe(7)).to(&mut proxy, at(0)).reply().is_some());
}

#[test]
fn deleted_vm_frees_its_addresses() {
    let mut engine =
        engine_with_nics(vec![vm_nic(9, Some(220)), vm_nic(8, Some(101))], 100, 101, Vec::new());
    assert_eq!(boot(&mut engine, at(0), mac(9), Program::Os), ip(220));
    assert_eq!(boot(&mut engine, at(0), mac(8), Program::Os), ip(101));
    assert_eq!(boot(&mut engine, at(0), mac(1), Program::Os), ip(100));
    assert!(
        Packet::discover(mac(2), Program::Os).to(&mut engine, at(1)).reply().is_none(),
        "the other address is kept"
    );
    assert_eq!(engine.status(at(5))[0].pool.size, 1);

    change_nics(
        &mut engine,
        vec![(mac(9), None), (mac(8), None), (mac(7), Some(vm_nic(7, Some(220))))],
    );
    let renewed = Packet::new(MessageType::Request, mac(9), Program::Os)
        .using(ip(220))
        .to(&mut engine, at(10));
    renewed.expect(MessageType::Nak);
    assert_eq!(
        boot(&mut engine, at(10), mac(2), Program::Os),
        ip(101),
        "of a range it is for anybody again"
    );
    assert_eq!(boot(&mut engine, at(10), mac(7), Program::Os), ip(220));
    let pool = engine.status(at(20))[0].pool;
    assert_eq!((pool.size, pool.leased), (2, 2));
    assert_eq!(engine.take_warnings(), []);
}

#[test]
fn complete_nic_list_replaces_reservations() {
    let mut engine =
        engine_with_nics(vec![vm_nic(9, Some(220)), vm_nic(8, Some(221))], 100, 200, Vec::new());
    let all = [vm_nic(8, Some(221)), vm_nic(7, Some(220))].map(NicRecord::of_vm).to_vec();
    engine.apply(at(0), RecordChanges::All(all));
    assert_eq!(boot(&mut engine, at(0), mac(7), Program::Os), ip(220));
    assert_eq!(boot(&mut engine, at(0), mac(8), Program::Os), ip(221));
    assert!((100..=200).contains(&boot(&mut engine, at(0), mac(9), Program::Os).octets()[3]));
}

#[test]
fn address_reserved_while_leased_is_given_after_lease_ends() {
    let mut engine = engine_with_nics(Vec::new(), 100, 101, Vec::new());
    let leased_address = boot(&mut engine, at(0), mac(1), Program::Os);
    change_nics(&mut engine, vec![(mac(9), Some(vm_nic(9, Some(leased_address.octets()[3]))))]);
    let temporary = boot(&mut engine, at(10), mac(9), Program::Os);
    assert_ne!(temporary, leased_address);
    let renewed = Packet::new(MessageType::Request, mac(1), Program::Os)
        .using(leased_address)
        .to(&mut engine, at(1800));
    renewed.expect(MessageType::Nak);
    assert_eq!(
        boot(&mut engine, at(3600), mac(9), Program::Os),
        leased_address,
        "once that lease is over"
    );
}

#[test]
fn address_of_a_machine_record_is_reserved_while_the_server_runs() {
    let mut engine = Engine::new(setup(DhcpMode::Authoritative, Some(pool(100, 101))), Vec::new());
    let reserve = |engine: &mut Engine, number, address: Option<u8>| {
        let record = NicRecord { reserved: address.map(ip), ..NicRecord::new(mac(number)) };
        engine.apply(at(0), RecordChanges::Some(vec![RecordChange::Nic(record)]));
    };
    reserve(&mut engine, 1, Some(30));
    reserve(&mut engine, 2, Some(100));
    assert_eq!(boot(&mut engine, at(0), mac(1), Program::Os), ip(30));
    assert_eq!(boot(&mut engine, at(0), mac(3), Program::Os), ip(101), "100 is reserved");
    assert_eq!(boot(&mut engine, at(0), mac(2), Program::Os), ip(100));
    reserve(&mut engine, 1, Some(31));
    assert_eq!(boot(&mut engine, at(10), mac(1), Program::Os), ip(31), "the record has changed");
    reserve(&mut engine, 4, Some(31));
    let warning = Warning::MachineNotReserved { mac: mac(4), address: ip(31) };
    assert_eq!(engine.take_warnings(), [warning]);
    reserve(&mut engine, 1, None);
    reserve(&mut engine, 4, Some(32));
    reserve(&mut engine, 4, Some(30));
    assert_eq!(boot(&mut engine, at(20), mac(4), Program::Os), ip(30), "the address is free again");
}

#[test]
fn refused_reservation_is_made_when_another_record_gives_the_address_up() {
    let mut engine = Engine::new(setup(DhcpMode::Authoritative, Some(pool(100, 101))), Vec::new());
    let reserve = |engine: &mut Engine, number, address: Option<u8>| {
        let record = NicRecord { reserved: address.map(ip), ..NicRecord::new(mac(number)) };
        engine.apply(at(0), RecordChanges::Some(vec![RecordChange::Nic(record)]));
    };
    reserve(&mut engine, 1, Some(30));
    // Two batches of one list: the row that takes the address comes before the one that gives it.
    reserve(&mut engine, 2, Some(30));
    let warning = Warning::MachineNotReserved { mac: mac(2), address: ip(30) };
    assert_eq!(engine.take_warnings(), [warning]);
    reserve(&mut engine, 1, Some(31));
    assert_eq!(boot(&mut engine, at(10), mac(2), Program::Os), ip(30));
    assert_eq!(boot(&mut engine, at(10), mac(1), Program::Os), ip(31));
    assert_eq!(engine.take_warnings(), []);
}

#[test]
fn vm_reservation_conflicting_with_site_toml_is_warned() {
    let owner = Owner::Mac(mac(1));
    let reservations = vec![Reservation { owner, address: ip(220), parent: None }];
    let nics =
        [vm_nic(9, Some(220)), vm_nic(8, Some(1)), vm_nic(1, Some(230)), vm_nic(7, Some(231))];
    let nics = nics.map(NicRecord::of_vm).to_vec();
    let setup =
        Setup { nics, reservations, ..setup(DhcpMode::Authoritative, Some(pool(100, 200))) };
    let mut engine = Engine::new(setup, Vec::new());
    let warnings = engine.take_warnings();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    let expected =
        Warning::NotReserved { vm: "guest_9".parse().expect("a name"), address: ip(220) };
    assert!(warnings.contains(&expected));
    assert_eq!(
        (
            boot(&mut engine, at(0), mac(1), Program::Os),
            boot(&mut engine, at(0), mac(7), Program::Os)
        ),
        (ip(220), ip(231))
    );
    for other in [9, 8] {
        assert!(
            (100..=200).contains(&boot(&mut engine, at(0), mac(other), Program::Os).octets()[3])
        );
    }
}

#[test]
fn vm_lease_outside_range_survives_restart_while_vm_exists() {
    let stored =
        vec![Lease { mac: mac(9), address: ip(220), expires_at: at(3600), vm: Some(vm(9)) }];
    let renew = Packet::new(MessageType::Request, mac(9), Program::Os).using(ip(220));
    let mut engine = engine_with_nics(vec![vm_nic(9, Some(220))], 100, 200, stored.clone());
    assert_eq!(renew.to(&mut engine, at(1800)).expect(MessageType::Ack).address(), ip(220));
    renew
        .to(&mut engine_with_nics(Vec::new(), 100, 200, stored), at(1800))
        .expect(MessageType::Nak);
}

#[derive(Clone, Debug)]
enum VmAction {
    Put(u8, Option<u8>),
    Delete(u8),
    Discover(u8),
    Request(u8, u8),
    Wait(u16),
}

fn vm_action() -> impl Strategy<Value = VmAction> {
    let number = 1u8..7;
    let address = 100u8..108;
    prop_oneof![
        2 => (number.clone(), proptest::option::of(address.clone())).prop_map(|(number, address)| VmAction::Put(number, address)),
        1 => number.clone().prop_map(VmAction::Delete),
        3 => number.clone().prop_map(VmAction::Discover),
        4 => (number, address).prop_map(|(number, address)| VmAction::Request(number, address)),
        1 => (1u16..4000).prop_map(VmAction::Wait),
    ]
}

proptest! {
    /// VMs are created and deleted with addresses inside (100 to 103) and outside of the range,
    /// while clients send requests.
    #[test]
    fn vm_nic_changes_never_lease_one_address_twice(actions in proptest::collection::vec(vm_action(), 0..80)) {
        let mut engine = engine_with_nics(Vec::new(), 100, 103, Vec::new());
        let mut now = 0;
        let mut nics: BTreeMap<u8, ReservedNic> = BTreeMap::new();
        let mut offered: BTreeMap<u8, Ipv4Addr> = BTreeMap::new();
        let mut holders: BTreeMap<Ipv4Addr, (MacAddr, Timestamp)> = BTreeMap::new();
        for action in actions {
            match action {
                // The store never has two VMs with one address.
                VmAction::Put(number, address) => {
                    let taken = |nic: &ReservedNic| nic.mac != mac(number) && nic.address.is_some() && nic.address == address.map(ip);
                    if !nics.values().any(taken) && !nics.contains_key(&number) {
                        nics.insert(number, vm_nic(number, address));
                        change_nics(&mut engine, vec![(mac(number), Some(vm_nic(number, address)))]);
                    }
                }
                VmAction::Delete(number) => {
                    if nics.remove(&number).is_some() {
                        // The guest stopped.
                        holders.retain(|_, (holder, _)| *holder != mac(number));
                        change_nics(&mut engine, vec![(mac(number), None)]);
                    }
                }
                VmAction::Discover(number) => {
                    let outcome = Packet::discover(mac(number), Program::Os).to(&mut engine, at(now));
                    offered.extend(outcome.reply().map(|offer| (number, offer.address())));
                }
                VmAction::Request(number, address) => {
                    let wanted = offered.remove(&number).unwrap_or(ip(address));
                    let outcome = Packet::select(mac(number), Program::Os, wanted, SERVER).to(&mut engine, at(now));
                    let acked = outcome.reply().filter(|reply| reply.message.opts().msg_type() == Some(MessageType::Ack));
                    if let Some(acked) = acked {
                        let address = acked.address();
                        // A client that gets another address gives up its previous one.
                        holders.retain(|own, (holder, _)| *holder != mac(number) || *own == address);
                        let other = holders.insert(address, (mac(number), at(now + 3600)));
                        prop_assert!(other.is_none_or(|(holder, until)| holder == mac(number) || until <= at(now)), "{address}");
                        let owner = nics.values().find(|nic| nic.address == Some(address));
                        prop_assert!(owner.is_none_or(|nic| nic.mac == mac(number)), "{address} is reserved");
                    }
                }
                VmAction::Wait(seconds) => now += i64::from(seconds),
            }
            let pool = engine.status(at(now))[0].pool;
            prop_assert!(pool.leased + pool.offered <= pool.size, "{pool:?}");
        }
    }
}
