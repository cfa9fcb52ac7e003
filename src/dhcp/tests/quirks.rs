//! Every firmware of the table, and every quirk: a quirk without a case here does not compile.

use super::clients::*;
use crate::{
    client_arch::{ARCHITECTURES, LoaderTransport, loader_names},
    firmware_quirks::{QUIRKS, Quirk},
    packet::PROXY_PORT,
    *,
};
use dhcproto::v4::{MessageType, OptionCode};
use std::net::{Ipv4Addr, SocketAddrV4};

const SCRIPT: &str = "http://10.77.0.1:8080/boot.ipxe";
const TAKE_THE_FILE: [u8; 4] = [6, 1, 8, 255];

/// An engine with all loaders.
fn engine_with_all_loaders(mode: DhcpMode) -> Engine {
    let mut setup = setup(mode, (mode == DhcpMode::Authoritative).then(|| pool(100, 200)));
    setup.sources.loaders = loader_names().map(str::to_owned).collect();
    Engine::new(setup, Vec::new())
}

fn offered(mode: DhcpMode, packet: &Packet) -> DecodedReply {
    packet.to(&mut engine_with_all_loaders(mode), at(0)).expect(MessageType::Offer)
}

fn file(packet: &Packet) -> Option<String> {
    offered(DhcpMode::Authoritative, packet).boot_file()
}

#[test]
fn firmware_gets_first_available_loader_of_its_architecture() {
    for row in &ARCHITECTURES {
        let program = match row.name {
            name if name.starts_with("U-Boot") => Program::UBoot(row.arch),
            _ if row.transport == LoaderTransport::Http => Program::Http(row.arch),
            _ => Program::Pxe(row.arch),
        };
        for present in 0..=row.loaders.len() {
            let mut setup = setup(DhcpMode::Authoritative, Some(pool(100, 200)));
            setup.sources.loaders =
                row.loaders[present..].iter().map(|loader| (*loader).to_owned()).collect();
            let outcome =
                Packet::discover(mac(1), program).to(&mut Engine::new(setup, Vec::new()), at(0));
            let offer = outcome.expect(MessageType::Offer);
            let expected = row.loaders.get(present).map(|loader| match row.transport {
                LoaderTransport::Tftp => (*loader).to_owned(),
                LoaderTransport::Http => format!("http://10.77.0.1:8080/loader/{loader}"),
            });
            assert_eq!(offer.boot_file(), expected, "{}", row.name);
            let has_warning = outcome
                .warnings()
                .iter()
                .any(|warning| matches!(warning, Warning::NoLoader(NoLoader::Absent { .. })));
            assert_eq!(has_warning, expected.is_none(), "{}", row.name);
        }
    }
}

#[test]
fn quirk_table_is_sorted_and_each_quirk_is_handled() {
    for (index, (quirk, firmware, answer)) in QUIRKS.iter().enumerate() {
        assert!(QUIRKS[..index].iter().all(|(other, ..)| other < quirk), "{quirk:?}");
        assert!(!firmware.is_empty() && !answer.is_empty());
        check_quirk(*quirk);
    }
}

fn x64() -> Packet {
    Packet::discover(mac(1), Program::Pxe(7))
}

fn check_quirk(quirk: Quirk) {
    match quirk {
        Quirk::BareUserClass => bare_user_class(),
        Quirk::ListedUserClass => listed_user_class(),
        Quirk::LoopsIntoItself => loops_into_itself(),
        Quirk::NoUuid => no_uuid(),
        Quirk::OddUuid => odd_uuid(),
        Quirk::ReadsCStrings => reads_c_strings(),
        Quirk::ArchInClass => arch_in_class(),
        Quirk::NoArch => no_arch(),
        Quirk::SeveralArchs => several_archs(),
        Quirk::HttpByClassOnly => http_by_class_only(),
        Quirk::UrlNeedsClass => url_needs_class(),
        Quirk::ProxyNeedsClass => proxy_needs_class(),
        Quirk::LooksForBootServers => looks_for_boot_servers(),
        Quirk::Option43OpensMenu => option_43_opens_menu(),
        Quirk::HeaderOnly => header_only(),
        Quirk::NoShortReply => no_short_reply(),
        Quirk::WaitsForProxy => waits_for_proxy(),
        Quirk::AsksProxyFromAnyPort => asks_proxy_from_any_port(),
    }
}

fn bare_user_class() {
    assert_eq!(file(&Packet::discover(mac(1), Program::Ipxe)).as_deref(), Some(SCRIPT));
}

fn listed_user_class() {
    assert_eq!(file(&Packet::discover(mac(1), Program::IpxeInList)).as_deref(), Some(SCRIPT));
    let other = x64().raw(OptionCode::UserClass, b"\x05iPXEx\x09iPXE");
    assert_eq!(
        file(&other).as_deref(),
        Some("snponly.efi"),
        "a name that only begins so, and a broken list"
    );
}

fn loops_into_itself() {
    for row in &ARCHITECTURES {
        let packet = Packet::discover(mac(1), Program::Ipxe);
        let packet = packet.raw(OptionCode::ClientSystemArchitecture, &row.arch.to_be_bytes());
        assert_eq!(file(&packet).as_deref(), Some(SCRIPT), "{}", row.name);
    }
}

fn no_uuid() {
    uuid(&x64().without(OptionCode::ClientMachineIdentifier), None);
}

fn odd_uuid() {
    let odd: [&[u8]; 3] = [&[7; 16], &[1; 17], &[0; 3]];
    odd.into_iter()
        .for_each(|odd| uuid(&x64().raw(OptionCode::ClientMachineIdentifier, odd), Some(odd)));
    uuid(&x64().raw(OptionCode::ClientMachineIdentifier, &[]), None);
}

fn reads_c_strings() {
    for program in [Program::Pxe(0), Program::Http(16), Program::Ipxe] {
        let offer = offered(DhcpMode::Authoritative, &Packet::discover(mac(1), program));
        let file = [offer.boot_file().expect("a file").as_bytes(), b"\0"].concat();
        assert_eq!(offer.option(67), Some(file), "{program:?}");
        assert_eq!(offer.option(66), Some(b"10.77.0.1\0".to_vec()), "{program:?}");
    }
    for class in [b"iPXE\0".as_slice(), b"\x05iPXE\0", b"\x04iPXE\0"] {
        assert_eq!(
            file(&x64().raw(OptionCode::UserClass, class)).as_deref(),
            Some(SCRIPT),
            "{class:?}"
        );
    }
}

fn arch_in_class() {
    let url = "http://10.77.0.1:8080/loader/snponly.efi";
    for (class, expected) in [
        ("HTTPClient:Arch:00016:UNDI:003001", Some(url)),
        ("HTTPClient:Arch:00016\0", Some(url)),
        ("PXEClient:Arch:00007:UNDI:003016\0\0", Some("snponly.efi")),
        ("PXEClient:Arch:0000b:UNDI:003000", Some("snponly-arm64.efi")),
        ("PXEClient:Arch:0000B", Some("snponly-arm64.efi")),
        ("PXEClient:Arch:00011", Some("snponly-arm64.efi")),
        ("U-Boot.armv7", Some("snponly-arm32.efi")),
        ("U-Boot.armv8\0", Some("snponly-arm64.efi")),
    ] {
        assert_eq!(
            file(&Packet::discover(mac(1), Program::Class(class))).as_deref(),
            expected,
            "{class:?}"
        );
    }
}

fn no_arch() {
    for class in ["PXEClient", "PXEClient\0", "PXEClient:UNDI:002001"] {
        assert_eq!(
            file(&Packet::discover(mac(1), Program::Class(class))).as_deref(),
            Some("undionly.kpxe"),
            "{class:?}"
        );
    }
    for class in [
        "HTTPClient",
        "HTTPClient:Arch:",
        "U-Boot",
        "U-Boot.arm",
        "PXEClient:Arch",
        "PXEClient:Arch:x64",
        "PXEClient:Arch:+7",
        "PXEClient:Arch:99999",
    ] {
        let packet = Packet::discover(mac(1), Program::Class(class));
        for mode in [DhcpMode::Authoritative, DhcpMode::Proxy] {
            let outcome = packet.to(&mut engine_with_all_loaders(mode), at(0));
            assert_eq!(outcome.reply().and_then(|reply| reply.boot_file()), None, "{class:?}");
            assert!(
                matches!(outcome.warnings()[..], [Warning::NoLoader(NoLoader::UnknownArch { .. })]),
                "{class:?}"
            );
        }
    }
    let uboot_of_x86 = Packet::discover(mac(1), Program::UBoot(0));
    assert_eq!(file(&uboot_of_x86), None, "it says that it is a BIOS, but is none");
}

fn several_archs() {
    let packet = x64().raw(OptionCode::ClientSystemArchitecture, &[0x7f, 0xff, 0, 11, 0, 7]);
    assert_eq!(file(&packet).as_deref(), Some("snponly-arm64.efi"));
}

fn http_by_class_only() {
    let offer = offered(DhcpMode::Authoritative, &Packet::discover(mac(1), Program::Http(7)));
    assert_eq!(offer.boot_file().as_deref(), Some("http://10.77.0.1:8080/loader/snponly.efi"));
    assert_eq!(offer.class(), Some(b"HTTPClient".as_slice()));
}

fn url_needs_class() {
    for mode in [DhcpMode::Authoritative, DhcpMode::Proxy] {
        let offer = offered(mode, &Packet::discover(mac(1), Program::Http(16)));
        assert_eq!(offer.class(), Some(b"HTTPClient".as_slice()), "{mode:?}");
    }
}

fn proxy_needs_class() {
    for program in [Program::Pxe(7), Program::Pxe(0), Program::Ipxe] {
        let offer = offered(DhcpMode::Proxy, &Packet::discover(mac(1), program));
        assert_eq!(offer.class(), Some(b"PXEClient".as_slice()), "{program:?}");
    }
}

fn looks_for_boot_servers() {
    for program in [Program::Pxe(0), Program::OldPxe] {
        let packet = Packet::discover(mac(1), program);
        assert_eq!(
            offered(DhcpMode::Proxy, &packet).option(43),
            Some(TAKE_THE_FILE.to_vec()),
            "{program:?}"
        );
        assert_eq!(offered(DhcpMode::Authoritative, &packet).option(43), None, "{program:?}");
    }
}

fn option_43_opens_menu() {
    for program in [Program::Pxe(7), Program::Pxe(11), Program::Http(16), Program::Ipxe] {
        assert_eq!(
            offered(DhcpMode::Proxy, &Packet::discover(mac(1), program)).option(43),
            None,
            "{program:?}"
        );
    }
}

fn header_only() {
    let packet = Packet::discover(mac(1), Program::UBoot(22));
    let outcome = packet.to(&mut engine_with_all_loaders(DhcpMode::Authoritative), at(0));
    let offer = outcome.expect(MessageType::Offer);
    let header = offer
        .message
        .fname()
        .map(|name| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned());
    assert_eq!(header.as_deref(), Some("snponly-arm64.efi"));
    assert_eq!(offer.message.siaddr(), SERVER);
    assert_eq!(
        outcome.exchange().map(|exchange| exchange.client),
        Some(ClientKind::Firmware),
        "it opens a boot session"
    );
    let outcome = packet.to(&mut engine_with_all_loaders(DhcpMode::Proxy), at(0));
    let offer = outcome.expect(MessageType::Offer);
    assert_eq!(
        (offer.boot_file().as_deref(), offer.address()),
        (Some("snponly-arm64.efi"), Ipv4Addr::UNSPECIFIED)
    );
    assert_eq!(
        offer.class(),
        Some(b"PXEClient".as_slice()),
        "other clients know it as a proxy's by the class"
    );
    assert!(outcome.exchange().is_some(), "it opens a boot session");
}

fn no_short_reply() {
    let outcome = Packet::discover(mac(1), Program::Os)
        .to(&mut engine_with_all_loaders(DhcpMode::Authoritative), at(0));
    let Some(Effect::Reply(reply)) = outcome.0.first() else { panic!("{outcome:?}") };
    assert!(reply.packet.len() >= 300);
}

fn waits_for_proxy() {
    for (program, has_option) in [
        (Program::Ipxe, true),
        (Program::Pxe(7), false),
        (Program::Http(16), false),
        (Program::Os, false),
    ] {
        let offer = offered(DhcpMode::Authoritative, &Packet::discover(mac(1), program));
        assert_eq!(offer.option(175), has_option.then(|| vec![176, 1, 1]), "{program:?}");
    }
    assert_eq!(
        offered(DhcpMode::Proxy, &Packet::discover(mac(1), Program::Ipxe)).option(175),
        None
    );
}

fn asks_proxy_from_any_port() {
    let own = Ipv4Addr::new(10, 77, 0, 120);
    for port in [68, 4011] {
        let source = SocketAddrV4::new(own, port);
        let request = Packet::new(MessageType::Request, mac(1), Program::Pxe(7)).using(own).bytes();
        let origin = Origin {
            interface_index: 0,
            source,
            local_port: PROXY_PORT,
            ethernet_source: Some(mac(1)),
        };
        let outcome =
            Outcome(engine_with_all_loaders(DhcpMode::Proxy).handle(at(0), &request, origin));
        assert_eq!(outcome.expect(MessageType::Ack).to, Destination::Ip(source));
    }
}

/// The machine boots, has no UUID for us, and gets option 97 back as it came.
fn uuid(packet: &Packet, back: Option<&[u8]>) {
    let outcome = packet.to(&mut engine_with_all_loaders(DhcpMode::Authoritative), at(0));
    let offer = outcome.expect(MessageType::Offer);
    assert_eq!(offer.boot_file().as_deref(), Some("snponly.efi"));
    assert_eq!(outcome.exchange().map(|exchange| exchange.uuid), Some(None));
    assert_eq!(offer.option(97).as_deref(), back);
}
