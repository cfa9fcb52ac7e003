//! Other DHCP and PXE servers: how they are asked for, and how they are noticed.

use super::clients::*;
use crate::{packet::probe_packets, *};
use dhcproto::v4::{MessageType, OptionCode};
use std::net::Ipv4Addr;

const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);

fn authoritative() -> Engine {
    engine(pool(100, 200), Vec::new())
}

fn proxy() -> Engine {
    Engine::new(setup(DhcpMode::Proxy, None), Vec::new())
}

/// What another meshd, with another address, answers to a probe from here.
fn answers(mode: DhcpMode, to: Ipv4Addr) -> Vec<Vec<u8>> {
    let mut other = setup(mode, (mode == DhcpMode::Authoritative).then(|| pool(100, 200)));
    other.interfaces[0].address = OTHER;
    let mut other = Engine::new(other, Vec::new());
    let reply = |packet: Vec<u8>| {
        send(&mut other, at(0), &packet, 67).0.into_iter().find_map(|effect| match effect {
            Effect::Reply(reply) => Some(reply.packet),
            _ => None,
        })
    };
    probe_packets(to, 7).into_iter().filter_map(reply).collect()
}

#[test]
fn a_probe_is_answered_by_both_kinds_of_server_and_ignored_by_ourselves() {
    assert_eq!(answers(DhcpMode::Authoritative, SERVER).len(), 2, "an offer, and an acknowledgement at once");
    assert_eq!(answers(DhcpMode::Proxy, SERVER).len(), 1);
    let mut own = authoritative();
    for packet in probe_packets(SERVER, 7) {
        assert!(send(&mut own, at(0), &packet, 67).0.is_empty(), "a broadcast comes back to its sender");
    }
    assert_eq!(own.status(at(0))[0].pool.offered, 0);
}

#[test]
fn another_dhcp_server_is_reported_once_and_remembered_while_it_is_heard() {
    let mut own = authoritative();
    let [offer, ack] = &answers(DhcpMode::Authoritative, SERVER)[..] else { panic!("two answers") };
    let note = Warning::OtherServer { segment: "eth0".into(), server: OTHER, proxy: false };
    assert_eq!(own.handle_server_packet(at(0), ack, 0), Some(Effect::Warn(note)));
    assert_eq!(own.handle_server_packet(at(0), offer, 0), None);
    let heard = |own: &mut Engine, seconds| {
        let others = own.status(at(seconds)).remove(0).other_servers;
        others.iter().map(|other| (other.address, other.proxy, other.last)).collect::<Vec<_>>()
    };
    assert_eq!(heard(&mut own, 100), [(OTHER, false, at(0))]);
    let select = Packet::select(mac(1), Who::Os, Ipv4Addr::new(10, 77, 0, 180), OTHER).to(&mut own, at(600));
    assert!(select.notes().is_empty(), "it is known");
    assert_eq!(heard(&mut own, 1400), [(OTHER, false, at(600))]);
    assert_eq!(heard(&mut own, 1500), []);
    let select = Packet::select(mac(1), Who::Os, Ipv4Addr::new(10, 77, 0, 180), OTHER).to(&mut own, at(1501));
    assert_eq!(select.notes().len(), 1, "it is back");
}

#[test]
fn a_proxy_expects_a_dhcp_server_but_no_other_proxy() {
    let mut own = proxy();
    let [offer, _] = &answers(DhcpMode::Authoritative, SERVER)[..] else { panic!("two answers") };
    assert_eq!(own.handle_server_packet(at(0), offer, 0), None);
    assert_eq!(own.status(at(0))[0].other_servers.len(), 1, "it is shown all the same");
    let [offer] = &answers(DhcpMode::Proxy, SERVER)[..] else { panic!("one answer") };
    let mut own = proxy();
    let note = Warning::OtherServer { segment: "eth0".into(), server: OTHER, proxy: true };
    assert_eq!(own.handle_server_packet(at(0), offer, 0), Some(Effect::Warn(note)));
}

#[test]
fn what_is_no_answer_of_another_server_is_nobody() {
    let mut own = authoritative();
    let offer = Packet::discover(mac(1), Who::Os).to(&mut own, at(0));
    let Some(Effect::Reply(reply)) = offer.0.first() else { panic!("{offer:?}") };
    assert_eq!(own.handle_server_packet(at(0), &reply.packet, 0), None, "our own");
    assert_eq!(own.handle_server_packet(at(0), &Packet::discover(mac(1), Who::Os).bytes(), 0), None);
    assert_eq!(
        own.handle_server_packet(at(0), &answers(DhcpMode::Proxy, SERVER)[0], 9),
        None,
        "an interface that is not there"
    );
}

#[test]
fn a_segment_remembers_few_of_many_servers() {
    let mut own = authoritative();
    for last in 2..=90 {
        let other = Ipv4Addr::new(10, 77, 0, last);
        Packet::select(mac(1), Who::Os, other, other).to(&mut own, at(i64::from(last)));
    }
    let others = own.status(at(91)).remove(0).other_servers;
    assert_eq!((others.len(), others.last().map(|other| other.address)), (16, Some(Ipv4Addr::new(10, 77, 0, 90))));
}

#[test]
fn what_a_client_says_to_another_server_changes_nothing_here() {
    let mut own = authoritative();
    let address = boot(&mut own, at(0), mac(1), Who::Os);
    for kind in [MessageType::Release, MessageType::Decline] {
        let packet = Packet::new(kind, mac(1), Who::Os).using(address);
        let packet = packet.raw(OptionCode::RequestedIpAddress, &address.octets());
        let packet = packet.raw(OptionCode::ServerIdentifier, &OTHER.octets());
        assert!(packet.to(&mut own, at(1)).0.is_empty(), "{kind:?}");
    }
}
