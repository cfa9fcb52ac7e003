//! What real clients sent, and what meshd makes of it: `tests/golden/packets/*.hex`, captured in
//! the lab, and `ANSWERS` beside them, which says for each packet who meshd takes the client for
//! and how it answers in each mode.
//!
//! tcpdump reads the answers too: a reader that shares no code with meshd.
//!
//! After a change that is meant: `MESHD_UPDATE_GOLDEN=1 cargo test captures`, then read the
//! difference.

use crate::world::dhcp::parse;
use meshd_dhcp::{
    BootSources, Change, ClientExchange, Destination, DhcpMode, Effect, Engine, Interface, Link,
    Origin, Reply, Segment, Setup, Subnet,
    packet::{SERVER_PORT, udp_frame},
};
use meshd_types::{MacAddr, Timestamp};
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::Write as _,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const FOLDER: &str = "tests/golden/packets";
const ANSWERS: &str = "ANSWERS";
const UPDATE: &str = "MESHD_UPDATE_GOLDEN";
const CENTRAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const INTERFACE: &str = "br0";
/// Of the segment behind the router.
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 254);
const TFTP_PORT: u16 = 69;

/// A packet with its way through the network.
struct Capture {
    name: String,
    /// Client, version, message.
    what: String,
    from: SocketAddrV4,
    to: SocketAddrV4,
    bytes: Vec<u8>,
}

/// The first line says who sent it, the second from where to where; the rest is the UDP payload.
fn read(path: &Path) -> Capture {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let mut comment = || lines.next().and_then(|line| line.strip_prefix("# ")).unwrap().to_owned();
    let what = comment();
    let way = comment();
    let (from, to) = way.split_once(" > ").unwrap();
    let digits: String = lines.collect();
    let bytes = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    Capture {
        name,
        what,
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        bytes: bytes.collect(),
    }
}

fn captures() -> Vec<Capture> {
    let entries = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "hex"))
        .collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// A site as it is on its first day, at the addresses that the lab's meshd and relay had.
fn engine(mode: DhcpMode) -> Engine {
    let segment = |link: Link| {
        let (network, first) = if matches!(link, Link::Relay(_)) { (78, 20) } else { (77, 100) };
        let subnet = Subnet {
            first: Ipv4Addr::new(10, network, 0, first),
            last: Ipv4Addr::new(10, network, 0, 200),
            prefix_len: 24,
            lease: Duration::from_secs(3600),
            router: None,
            dns: Vec::new(),
            ntp: Vec::new(),
            domain: None,
        };
        let subnet = (mode == DhcpMode::Authoritative).then_some(subnet);
        Segment {
            link,
            address: Some(CENTRAL),
            mode,
            subnet,
            relay_macs: Vec::new(),
            redundant_relays: Vec::new(),
        }
    };
    let loaders = ["undionly.kpxe", "snponly.efi"].map(str::to_owned).into();
    let setup = Setup {
        interfaces: vec![Interface { name: INTERFACE.to_owned(), address: CENTRAL }],
        segments: vec![segment(Link::Interface(INTERFACE.to_owned())), segment(Link::Relay(RELAY))],
        reservations: Vec::new(),
        nics: Vec::new(),
        non_identifying_uuids: Default::default(),
        sources: BootSources { http_port: 8080, loaders },
    };
    Engine::new(setup, Vec::new())
}

fn effects(capture: &Capture, mode: DhcpMode) -> Vec<String> {
    outcome(capture, mode).iter().map(describe).collect()
}

fn outcome(capture: &Capture, mode: DhcpMode) -> Vec<Effect> {
    let sender = capture.bytes.get(28..34).and_then(|mac| mac.try_into().ok()).map(MacAddr);
    let origin = Origin {
        interface_index: 0,
        source: capture.from,
        local_port: capture.to.port(),
        ethernet_source: sender,
    };
    engine(mode).handle(Timestamp::from_millis(0), &capture.bytes, origin)
}

fn describe(effect: &Effect) -> String {
    match effect {
        Effect::Store(Change::Exchange(seen)) => who(seen),
        Effect::Reply(reply) => answer(reply),
        other => format!("{other:?}"),
    }
}

fn who(ClientExchange { mac, client, uuid, arch, address, lease, .. }: &ClientExchange) -> String {
    let mut text = format!("{client:?} of {mac}");
    let mut more = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, ", {what} {value}");
        }
    };
    more("arch", arch.map(|arch| arch.0.to_string()));
    more("UUID", uuid.map(|uuid| uuid.to_string()));
    more("address", address.map(|address| address.to_string()));
    more("leased", lease.as_ref().map(|lease| lease.address.to_string()));
    text
}

fn answer(Reply { packet, to, .. }: &Reply) -> String {
    let answer = parse(packet);
    let to = match to {
        Destination::Ip(to) => to.to_string(),
        Destination::Frame { mac, address } => format!("{mac} at {address}"),
    };
    let kind = match answer.kind {
        2 => "OFFER",
        5 => "ACK",
        6 => "NAK",
        _ => "?",
    };
    let text = |data: &Vec<u8>| String::from_utf8_lossy(data).trim_end_matches('\0').to_owned();
    let hex = |data: &Vec<u8>| {
        data.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
    };
    let mut line = format!("{kind} {} to {to}", answer.address);
    let file = answer.options.get(&67).map(text);
    assert_eq!(file.as_deref().unwrap_or_default(), answer.file, "header and option 67 agree");
    let options = [("file", file), ("class", answer.options.get(&60).map(text))];
    let raw = [43, 82, 175].map(|code| (code, answer.options.get(&code).map(hex)));
    let raw = raw.map(|(code, value)| ("option", value.map(|value| format!("{code}: {value}"))));
    for (name, value) in options.into_iter().chain(raw) {
        if let Some(value) = value {
            let _ = write!(line, ", {name} {value}");
        }
    }
    line
}

fn rendered(captures: &[Capture]) -> String {
    let mut text = String::new();
    for capture in captures.iter().filter(|capture| capture.to.port() != TFTP_PORT) {
        let _ = writeln!(
            text,
            "{}: {}\n  from {} to {}",
            capture.name, capture.what, capture.from, capture.to
        );
        for (name, mode) in [("authoritative", DhcpMode::Authoritative), ("proxy", DhcpMode::Proxy)]
        {
            let effects = effects(capture, mode);
            let silent = if effects.is_empty() { vec!["nothing".to_owned()] } else { effects };
            for effect in silent {
                let _ = writeln!(text, "  {name:13}  {effect}");
            }
        }
        text.push('\n');
    }
    text
}

#[test]
fn captured_clients_are_classified_and_answered_as_recorded() {
    let text = rendered(&captures());
    let path = Path::new(FOLDER).join(ANSWERS);
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, &text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "{} differs; if it is meant, set {UPDATE}=1", path.display());
}

#[test]
fn boot_file_is_offered_only_to_firmware_and_never_in_mode_off() {
    let captures = captures();
    assert!(captures.len() >= 20, "{}", captures.len());
    for capture in captures.iter().filter(|capture| capture.to.port() != TFTP_PORT) {
        let loader = capture.name.contains("ipxe-") || capture.name.contains("ovmf-");
        for mode in [DhcpMode::Authoritative, DhcpMode::Proxy] {
            let file = effects(capture, mode).iter().any(|effect| effect.contains(", file "));
            assert!(loader || !file, "{} is an operating system", capture.name);
            let served = capture.name.ends_with("-discover") && loader;
            assert!(!served || file, "{} is told what to boot", capture.name);
        }
        assert!(effects(capture, DhcpMode::Off).is_empty(), "{}", capture.name);
    }
}

/// A file in the format of pcap with one Ethernet frame for each packet.
fn pcap(replies: &[Reply]) -> Vec<u8> {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    // Magic number, version 2.4, time zone, accuracy, longest packet, Ethernet.
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for Reply { packet, to, .. } in replies {
        let (mac, to) = match to {
            Destination::Ip(to) => (MacAddr([0xff; 6]), *to),
            Destination::Frame { mac, address } => (*mac, SocketAddrV4::new(*address, 68)),
        };
        // tcpdump knows DHCP by this port, and not by that of proxies.
        let from = (MacAddr([2, 0, 0, 0, 0, 1]), SocketAddrV4::new(CENTRAL, SERVER_PORT));
        let frame = udp_frame(from, (mac, to), packet).unwrap();
        let length = u32::try_from(frame.len()).unwrap();
        file.extend(words(&[0, 0, length, length]));
        file.extend(frame);
    }
    file
}

/// Returns what tcpdump prints of each packet.
fn tcpdump(file: &[u8]) -> Vec<String> {
    let mut command = Command::new("tcpdump");
    command
        .args(["-n", "-vvv", "-r", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("tcpdump (`make setup` installs it)");
    // A thread, because tcpdump prints while it reads.
    let mut stdin = child.stdin.take().unwrap();
    let file = file.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&file));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split("BOOTP/DHCP, ").skip(1).map(str::to_owned).collect()
}

/// Returns the codes of the options, which tcpdump prints as `Name (code), length n`.
fn codes(printed: &str) -> Vec<u8> {
    let code = |line: &str| line.split_once("), length ")?.0.rsplit_once('(')?.1.parse().ok();
    let options = printed.lines().skip_while(|line| !line.contains("Magic Cookie")).skip(1);
    let options = options.take_while(|line| !line.contains("END (255)"));
    options.filter(|line| !line.contains("SubOption")).filter_map(code).collect()
}

#[test]
fn golden_replies_are_read_by_tcpdump_with_each_option_once() {
    let mut replies = Vec::new();
    for capture in captures() {
        for mode in [DhcpMode::Authoritative, DhcpMode::Proxy] {
            let of_capture =
                outcome(&capture, mode).into_iter().filter_map(|effect| match effect {
                    Effect::Reply(reply) => Some(reply),
                    _ => None,
                });
            replies.extend(of_capture);
        }
    }
    let printed = tcpdump(&pcap(&replies));
    assert_eq!(printed.len(), replies.len());
    let mut relayed = 0;
    for text in &printed {
        assert!(
            text.starts_with("Reply") && !text.contains("[|") && !text.contains("invalid"),
            "{text}"
        );
        let codes = codes(text);
        assert_eq!(codes.get(..2), Some(&[53, 54][..]), "old firmware expects these first: {text}");
        let unique: BTreeSet<u8> = codes.iter().copied().collect();
        assert_eq!(unique.len(), codes.len(), "an option is there twice: {text}");
        relayed += usize::from(codes.contains(&82));
        assert!(
            !codes.contains(&82) || codes.last() == Some(&82),
            "the relay's option is last: {text}"
        );
        for (name, code) in [("file \"", 67), ("sname \"", 66)] {
            let header = text.split_once(name).and_then(|(_, rest)| rest.split('"').next());
            let option = text.lines().find(|line| line.contains(&format!("({code}), length")));
            let option = option.and_then(|line| line.split('"').nth(1));
            // tcpdump shows the NUL that ends the option.
            assert_eq!(option, header.map(|header| format!("{header}^@")).as_deref(), "{text}");
        }
    }
    assert!(relayed >= 2, "{relayed} replies to relays");
}
