//! Other DHCP and PXE servers: probes and detection.

use super::clients::*;
use crate::{packet::probe_packets, *};
use dhcproto::v4::{MessageType, OptionCode};
use meshd_types::MacAddr;
use std::net::{Ipv4Addr, SocketAddrV4};

const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);

fn authoritative() -> Engine {
    engine(pool(100, 200), Vec::new())
}

fn proxy() -> Engine {
    Engine::new(setup(DhcpMode::Proxy, None), Vec::new())
}

/// Replies of another meshd, with another address, to probes from `to`.
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
fn probe_from_the_nic_of_another_server_is_answered_and_opens_no_boot() {
    let mut own = authoritative();
    let mut effects = Vec::new();
    for packet in probe_packets(OTHER, 7) {
        let origin = Origin {
            interface_index: 0,
            source: SocketAddrV4::new(OTHER, 68),
            local_port: 67,
            ethernet_source: Some(MacAddr([0x52, 0x54, 0, 0, 0, 9])),
        };
        effects.extend(own.handle(at(0), &packet, origin));
    }
    let is_reply = |effect: &Effect| matches!(effect, Effect::Reply(_));
    assert!(effects.len() == 2 && effects.iter().all(is_reply), "{effects:?}");
    assert_eq!((own.counters().forged, own.status(at(0))[0].pool.offered), (0, 0));
}

#[test]
fn probe_is_answered_by_other_servers_and_ignored_by_sender() {
    assert_eq!(
        answers(DhcpMode::Authoritative, SERVER).len(),
        2,
        "an offer, and an acknowledgement at once"
    );
    assert_eq!(answers(DhcpMode::Proxy, SERVER).len(), 1);
    let mut own = authoritative();
    for packet in probe_packets(SERVER, 7) {
        assert!(
            send(&mut own, at(0), &packet, 67).0.is_empty(),
            "a broadcast comes back to its sender"
        );
    }
    assert_eq!(own.status(at(0))[0].pool.offered, 0);
}

#[test]
fn other_dhcp_server_is_reported_once_until_it_expires() {
    let mut own = authoritative();
    let [offer, ack] = &answers(DhcpMode::Authoritative, SERVER)[..] else { panic!("two answers") };
    let warning = Warning::OtherServer { segment: "eth0".into(), server: OTHER, proxy: false };
    assert_eq!(own.handle_server_packet(at(0), ack, 0), Some(Effect::Warn(warning)));
    assert_eq!(own.handle_server_packet(at(0), offer, 0), None);
    let known_servers = |own: &mut Engine, seconds| {
        let others = own.status(at(seconds)).remove(0).other_servers;
        others.iter().map(|other| (other.address, other.proxy, other.last)).collect::<Vec<_>>()
    };
    assert_eq!(known_servers(&mut own, 100), [(OTHER, false, at(0))]);
    let select = Packet::select(mac(1), Program::Os, Ipv4Addr::new(10, 77, 0, 180), OTHER)
        .to(&mut own, at(600));
    assert!(select.warnings().is_empty(), "it is known");
    assert_eq!(known_servers(&mut own, 1400), [(OTHER, false, at(600))]);
    assert_eq!(known_servers(&mut own, 1500), []);
    let select = Packet::select(mac(1), Program::Os, Ipv4Addr::new(10, 77, 0, 180), OTHER)
        .to(&mut own, at(1501));
    assert_eq!(select.warnings().len(), 1, "it is back");
}

#[test]
fn proxy_mode_warns_of_other_proxy_but_not_of_dhcp_server() {
    let mut own = proxy();
    let [offer, _] = &answers(DhcpMode::Authoritative, SERVER)[..] else { panic!("two answers") };
    assert_eq!(own.handle_server_packet(at(0), offer, 0), None);
    assert_eq!(own.status(at(0))[0].other_servers.len(), 1, "it is shown all the same");
    let [offer] = &answers(DhcpMode::Proxy, SERVER)[..] else { panic!("one answer") };
    let mut own = proxy();
    let warning = Warning::OtherServer { segment: "eth0".into(), server: OTHER, proxy: true };
    assert_eq!(own.handle_server_packet(at(0), offer, 0), Some(Effect::Warn(warning)));
}

#[test]
fn own_reply_and_client_packet_are_no_other_server() {
    let mut own = authoritative();
    let offer = Packet::discover(mac(1), Program::Os).to(&mut own, at(0));
    let Some(Effect::Reply(reply)) = offer.0.first() else { panic!("{offer:?}") };
    assert_eq!(own.handle_server_packet(at(0), &reply.packet, 0), None, "our own");
    assert_eq!(
        own.handle_server_packet(at(0), &Packet::discover(mac(1), Program::Os).bytes(), 0),
        None
    );
    assert_eq!(
        own.handle_server_packet(at(0), &answers(DhcpMode::Proxy, SERVER)[0], 9),
        None,
        "an interface that is not there"
    );
}

#[test]
fn other_servers_of_segment_are_bounded_to_latest() {
    let mut own = authoritative();
    for last in 2..=90 {
        let other = Ipv4Addr::new(10, 77, 0, last);
        Packet::select(mac(1), Program::Os, other, other).to(&mut own, at(i64::from(last)));
    }
    let others = own.status(at(91)).remove(0).other_servers;
    assert_eq!(
        (others.len(), others.last().map(|other| other.address)),
        (16, Some(Ipv4Addr::new(10, 77, 0, 90)))
    );
}

#[test]
fn release_and_decline_to_other_server_are_ignored() {
    let mut own = authoritative();
    let address = boot(&mut own, at(0), mac(1), Program::Os);
    for kind in [MessageType::Release, MessageType::Decline] {
        let packet = Packet::new(kind, mac(1), Program::Os).using(address);
        let packet = packet.raw(OptionCode::RequestedIpAddress, &address.octets());
        let packet = packet.raw(OptionCode::ServerIdentifier, &OTHER.octets());
        assert!(packet.to(&mut own, at(1)).0.is_empty(), "{kind:?}");
    }
}
