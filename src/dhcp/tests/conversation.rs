//! Each state of a client, each kind of firmware, and packets as real firmware sent them.

use super::clients::*;
use crate::{packet::PROXY_PORT, *};
use dhcproto::v4::{DhcpOption, MessageType, OptionCode};
use meshd_types::{ClientArch, unhex};
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddrV4};

const BROADCAST: Destination = Destination::BROADCAST;

fn ip(address: Ipv4Addr, port: u16) -> Destination {
    Destination::Ip(SocketAddrV4::new(address, port))
}

const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);

#[test]
fn firmware_gets_its_loader_and_ipxe_gets_script() {
    let script = Some("http://10.77.0.1:8080/boot.ipxe");
    let url = Some("http://10.77.0.1:8080/loader/snponly.efi");
    let rows = [
        (Program::Pxe(0), Some("undionly.kpxe"), None, ClientKind::Firmware),
        (Program::OldPxe, Some("undionly.kpxe"), None, ClientKind::Firmware),
        (Program::Pxe(7), Some("snponly.efi"), None, ClientKind::Firmware),
        (Program::Pxe(9), Some("snponly.efi"), None, ClientKind::Firmware),
        (Program::Http(16), url, Some(b"HTTPClient".as_slice()), ClientKind::Firmware),
        (Program::Pxe(11), None, None, ClientKind::Firmware),
        (Program::Pxe(999), None, None, ClientKind::Firmware),
        (Program::Ipxe, script, None, ClientKind::Ipxe),
        (Program::IpxeInList, script, None, ClientKind::Ipxe),
        (Program::Os, None, None, ClientKind::Other),
    ];
    for (program, file, class, client_kind) in rows {
        let mut engine = engine(pool(100, 200), Vec::new());
        let offer =
            Packet::discover(mac(1), program).to(&mut engine, at(0)).expect(MessageType::Offer);
        let outcome =
            Packet::select(mac(1), program, offer.address(), SERVER).to(&mut engine, at(1));
        for answer in [offer, outcome.expect(MessageType::Ack)] {
            assert_eq!(
                (answer.boot_file().as_deref(), answer.class()),
                (file, class),
                "{program:?}"
            );
        }
        assert_eq!(
            outcome.exchange().map(|exchange| exchange.client),
            Some(client_kind),
            "{program:?}"
        );
        let has_warning =
            outcome.warnings().iter().any(|warning| matches!(warning, Warning::NoLoader(_)));
        assert_eq!(has_warning, matches!(program, Program::Pxe(11 | 999)), "{program:?}");
    }
}

#[test]
fn ack_follows_lease_store_and_has_network_options() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let outcome = Packet::discover(mac(1), Program::Ipxe).to(&mut engine, at(0));
    assert!(
        matches!(outcome.0[..], [Effect::Reply(_), Effect::Store(_)]),
        "an offer waits for nothing: {outcome:?}"
    );
    let address = outcome.expect(MessageType::Offer).address();
    let outcome = Packet::select(mac(1), Program::Ipxe, address, SERVER).to(&mut engine, at(1));
    assert!(matches!(outcome.0[..], [Effect::Store(_), Effect::Reply(_)]), "{outcome:?}");
    let lease = outcome.exchange().and_then(|exchange| exchange.lease.clone()).expect("a lease");
    assert_eq!((lease.mac, lease.address, lease.expires_at), (mac(1), address, at(3601)));
    assert_eq!(outcome.exchange().and_then(|exchange| exchange.uuid), UUID.parse().ok());
    let ack = outcome.expect(MessageType::Ack);
    assert_eq!(ack.to, Destination::Frame { mac: mac(1), address }, "nobody could resolve it yet");
    let options = ack.message.opts();
    for option in [
        DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        DhcpOption::BroadcastAddr(Ipv4Addr::new(10, 77, 0, 255)),
        DhcpOption::Router(vec![SERVER]),
        DhcpOption::DomainNameServer(vec![SERVER]),
        DhcpOption::NtpServers(vec![SERVER]),
        DhcpOption::DomainName("rack.example".to_owned()),
        DhcpOption::AddressLeaseTime(3600),
        DhcpOption::ServerIdentifier(SERVER),
        DhcpOption::TFTPServerName(b"10.77.0.1\0".to_vec()),
    ] {
        assert_eq!(options.get(OptionCode::from(&option)), Some(&option));
    }
    assert!(
        options.contains(OptionCode::ClientMachineIdentifier),
        "option 97 goes back (RFC 4578)"
    );
}

#[test]
fn lease_renewal_is_unicast_and_reboot_keeps_address() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let address = boot(&mut engine, at(0), mac(1), Program::Os);
    let renewal = Packet::new(MessageType::Request, mac(1), Program::Os).using(address);
    let ack = renewal.to(&mut engine, at(1800)).expect(MessageType::Ack);
    assert_eq!((ack.address(), ack.to), (address, ip(address, 68)));
    let reboot = Packet::reboot(mac(1), Program::Os, address)
        .to(&mut engine, at(1900))
        .expect(MessageType::Ack);
    assert_eq!(
        (reboot.address(), reboot.to),
        (address, Destination::Frame { mac: mac(1), address })
    );
    let broadcast_only =
        Packet::reboot(mac(1), Program::Os, address).broadcast_only().to(&mut engine, at(1900));
    assert_eq!(
        broadcast_only.expect(MessageType::Ack).to,
        BROADCAST,
        "it says that it hears nothing else"
    );
}

#[test]
fn request_after_server_restart_is_acknowledged() {
    let offer =
        Packet::discover(mac(1), Program::Ipxe).to(&mut engine(pool(100, 200), Vec::new()), at(0));
    let address = offer.expect(MessageType::Offer).address();
    let mut restarted = engine(pool(100, 200), Vec::new());
    let ack = Packet::select(mac(1), Program::Ipxe, address, SERVER)
        .to(&mut restarted, at(1))
        .expect(MessageType::Ack);
    assert_eq!(ack.address(), address);
}

#[test]
fn request_for_foreign_address_gets_broadcast_nak() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let taken = boot(&mut engine, at(0), mac(1), Program::Os);
    for wanted in [taken, Ipv4Addr::new(192, 168, 1, 5), SERVER, ELSEWHERE] {
        let nak = Packet::reboot(mac(2), Program::Os, wanted)
            .to(&mut engine, at(1))
            .expect(MessageType::Nak);
        assert_eq!((nak.address(), nak.to), (Ipv4Addr::UNSPECIFIED, BROADCAST), "{wanted}");
        let renewal = Packet::new(MessageType::Request, mac(2), Program::Os).using(wanted);
        assert_eq!(renewal.to(&mut engine, at(1)).expect(MessageType::Nak).to, BROADCAST);
    }
}

#[test]
fn offer_is_withdrawn_when_client_selects_other_server() {
    let mut engine = engine(pool(100, 100), Vec::new());
    let offer =
        Packet::discover(mac(1), Program::Os).to(&mut engine, at(0)).expect(MessageType::Offer);
    let outcome =
        Packet::select(mac(1), Program::Os, offer.address(), ELSEWHERE).to(&mut engine, at(1));
    let segment = "eth0".into();
    assert_eq!(
        outcome.0,
        [Effect::Warn(Warning::OtherServer { segment, server: ELSEWHERE, proxy: false })]
    );
    assert_eq!(
        boot(&mut engine, at(2), mac(2), Program::Os),
        offer.address(),
        "its offer is free again"
    );
}

#[test]
fn relay_gets_reply_with_its_option_82_and_unknown_relay_is_refused() {
    let relay = Ipv4Addr::new(10, 88, 0, 1);
    let behind =
        Subnet { first: [10, 88, 0, 100].into(), last: [10, 88, 0, 200].into(), ..pool(100, 200) };
    let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 200)));
    let segment = setup.segments[0].clone();
    setup.segments.push(Segment { link: Link::Relay(relay), subnet: Some(behind), ..segment });
    let mut engine = Engine::new(setup, Vec::new());
    let circuit = b"\x01\x04port";
    let packet = Packet::discover(mac(1), Program::Ipxe)
        .via(relay)
        .raw(OptionCode::RelayAgentInformation, circuit);
    let outcome = packet.to(&mut engine, at(0));
    assert_eq!(outcome.expect(MessageType::Offer).to, ip(relay, 67));
    let Some(Effect::Reply(Reply { packet, .. })) = outcome.0.first() else {
        panic!("{outcome:?}")
    };
    assert!(
        packet.windows(8).any(|window| window == b"\x52\x06\x01\x04port"),
        "option 82 as it came"
    );
    let foreign = Ipv4Addr::new(10, 99, 0, 1);
    let outcome = Packet::discover(mac(1), Program::Ipxe).via(foreign).to(&mut engine, at(0));
    assert_eq!(outcome.0, [Effect::Warn(Warning::ForeignRelay { relay: foreign, selected: None })]);
    let outcome = Packet::discover(mac(1), Program::Ipxe).via(ELSEWHERE).to(&mut engine, at(0));
    assert_eq!(
        outcome.0,
        [Effect::Warn(Warning::ForeignRelay { relay: ELSEWHERE, selected: None })],
        "anybody on a segment could claim to be a relay"
    );
}

#[test]
fn inform_gets_options_without_address() {
    let mut engine = engine(pool(100, 200), Vec::new());
    let ack = Packet::new(MessageType::Inform, mac(1), Program::Os)
        .using(ELSEWHERE)
        .to(&mut engine, at(0));
    let ack = ack.expect(MessageType::Ack);
    assert_eq!((ack.address(), ack.to), (Ipv4Addr::UNSPECIFIED, ip(ELSEWHERE, 68)));
    assert!(!ack.message.opts().contains(OptionCode::AddressLeaseTime));
}

#[test]
fn mode_off_is_silent_and_proxy_offers_boot_file_only() {
    let packet = Packet::discover(mac(1), Program::Pxe(7));
    let mut off = Engine::new(setup(DhcpMode::Off, None), Vec::new());
    assert!(packet.to(&mut off, at(0)).0.is_empty());

    let mut proxy = Engine::new(setup(DhcpMode::Proxy, None), Vec::new());
    let offer = packet.to(&mut proxy, at(0)).expect(MessageType::Offer);
    assert_eq!((offer.address(), offer.to), (Ipv4Addr::UNSPECIFIED, BROADCAST));
    assert_eq!(
        (offer.boot_file().as_deref(), offer.class()),
        (Some("snponly.efi"), Some(b"PXEClient".as_slice()))
    );
    let request = Packet::select(mac(1), Program::Ipxe, ELSEWHERE, SERVER).using(ELSEWHERE);
    let silent = request.to(&mut proxy, at(0));
    assert!(silent.reply().is_none(), "port 67 belongs to the other server");
    assert!(
        silent.exchange().is_some_and(|exchange| exchange.address == Some(ELSEWHERE) && exchange.lease.is_none()),
        "but we listen"
    );
    let ack = send(&mut proxy, at(0), &request.bytes(), PROXY_PORT).expect(MessageType::Ack);
    assert_eq!(ack.to, ip(ELSEWHERE, 68), "to where it came from");
    assert_eq!(ack.boot_file().as_deref(), Some("http://10.77.0.1:8080/boot.ipxe"));
    assert!(Packet::discover(mac(1), Program::Os).to(&mut proxy, at(0)).0.is_empty());
}

/// Text after `#` says which firmware sent it.
fn golden(text: &str) -> Vec<u8> {
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| unhex::<1>(&String::from_utf8_lossy(pair)).expect("hexadecimal")[0])
        .collect()
}

#[test]
fn captured_firmware_packets_are_parsed() {
    let rows = [
        (
            include_str!("../../../tests/golden/dhcp-discover-ipxe-bios.hex"),
            ClientKind::Ipxe,
            0,
            "http://10.77.0.1:8080/boot.ipxe",
        ),
        (
            include_str!("../../../tests/golden/dhcp-discover-ipxe-efi.hex"),
            ClientKind::Ipxe,
            7,
            "http://10.77.0.1:8080/boot.ipxe",
        ),
        (
            include_str!("../../../tests/golden/dhcp-discover-ovmf-pxe.hex"),
            ClientKind::Firmware,
            7,
            "snponly.efi",
        ),
        (
            include_str!("../../../tests/golden/dhcp-discover-ovmf-http.hex"),
            ClientKind::Firmware,
            16,
            "http://10.77.0.1:8080/loader/snponly.efi",
        ),
    ];
    for (text, client_kind, arch, file) in rows {
        let mut engine = engine(pool(100, 200), Vec::new());
        let outcome = send(&mut engine, at(0), &golden(text), 67);
        assert_eq!(outcome.expect(MessageType::Offer).boot_file().as_deref(), Some(file));
        let exchange = outcome.exchange().expect("a boot session opens");
        assert_eq!((exchange.client, exchange.arch), (client_kind, Some(ClientArch(arch))));
        let uuid = exchange.uuid.expect("option 97").to_string();
        assert!(uuid.starts_with("01020304-0506-0708-090a-0b0c0d0e0f1"), "{uuid}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(junk in proptest::collection::vec(any::<u8>(), 0..700), port in prop_oneof![Just(67), Just(4011)]) {
        for mode in [DhcpMode::Authoritative, DhcpMode::Proxy, DhcpMode::Off] {
            let mut engine = Engine::new(setup(mode, Some(pool(100, 110))), Vec::new());
            send(&mut engine, at(0), &junk, port);
        }
    }

    #[test]
    fn corrupted_packet_never_panics(
        at_byte in 0usize..240, byte: u8, tail in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..600
    ) {
        let mut bytes = Packet::discover(mac(1), Program::Pxe(7)).bytes();
        bytes.truncate(bytes.len() - 1);
        bytes.extend(tail);
        bytes[at_byte] = byte;
        bytes.truncate(cut);
        send(&mut engine(pool(100, 110), Vec::new()), at(0), &bytes, 67);
    }

    #[test]
    fn ipxe_never_gets_loader(arch: u16, listed: bool, vendor in "(PXEClient|HTTPClient|)\\PC{0,20}", kind in 1u8..9, proxy: bool) {
        let mode = if proxy { DhcpMode::Proxy } else { DhcpMode::Authoritative };
        let mut engine = Engine::new(setup(mode, Some(pool(100, 110))), Vec::new());
        let program = if listed { Program::IpxeInList } else { Program::Ipxe };
        let packet = Packet::new(MessageType::from(kind), mac(1), program)
            .raw(OptionCode::ClientSystemArchitecture, &arch.to_be_bytes())
            .raw(OptionCode::ClassIdentifier, vendor.as_bytes())
            .raw(OptionCode::RequestedIpAddress, &[10, 77, 0, 105]);
        for port in [67, PROXY_PORT] {
            if let Some(answer) = send(&mut engine, at(0), &packet.bytes(), port).reply() {
                let file = answer.boot_file();
                prop_assert!(file.is_none() || file.as_deref() == Some("http://10.77.0.1:8080/boot.ipxe"), "{:?}", file);
            }
        }
    }
}
