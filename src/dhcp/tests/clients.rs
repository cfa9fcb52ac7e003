//! Clients built in code, and their view of an answer.

use crate::*;
use dhcproto::v4::{
    Decodable, Decoder, DhcpOption, Encodable, Encoder, Flags, Message, MessageType, OptionCode,
    UnknownOption,
};
use meshd_types::{Basis, MacAddr, NodeId, SystemUuid, Timestamp};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const UUID: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";

pub fn pool(first: u8, last: u8) -> Subnet {
    Subnet {
        first: Ipv4Addr::new(10, 77, 0, first),
        last: Ipv4Addr::new(10, 77, 0, last),
        prefix_len: 24,
        lease: Duration::from_secs(3600),
        router: Some(SERVER),
        dns: vec![SERVER],
        ntp: vec![SERVER],
        domain: Some("rack.example".to_owned()),
    }
}

/// An interface `eth0` with a segment.
pub fn setup(mode: DhcpMode, subnet: Option<Subnet>) -> Setup {
    let loaders = ["undionly.kpxe", "snponly.efi"].map(str::to_owned).into();
    Setup {
        interfaces: vec![Interface { name: "eth0".to_owned(), address: SERVER }],
        segments: vec![Segment {
            link: Link::Interface("eth0".to_owned()),
            address: None,
            mode,
            subnet,
            relay_macs: Vec::new(),
            redundant_relays: Vec::new(),
        }],
        reservations: Vec::new(),
        nics: Vec::new(),
        non_identifying_uuids: Default::default(),
        sources: BootSources { http_port: 8080, loaders },
    }
}

pub fn engine(pool: Subnet, stored: Vec<Lease>) -> Engine {
    Engine::new(setup(DhcpMode::Authoritative, Some(pool)), stored)
}

pub fn mac(last: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, last])
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

/// The program that sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `PXEClient` with this option 93.
    Pxe(u16),
    /// `PXEClient` without option 93.
    OldPxe,
    /// `HTTPClient` with this option 93.
    Http(u16),
    /// iPXE, user class as it sends it.
    Ipxe,
    /// iPXE, user class as RFC 3004 wants it.
    IpxeInList,
    /// U-Boot with this option 93.
    UBoot(u16),
    /// This option 60 without option 93.
    Class(&'static str),
    Os,
}

/// A client packet under construction.
#[derive(Clone)]
pub struct Packet(pub Message);

impl Packet {
    pub fn new(kind: MessageType, mac: MacAddr, program: Program) -> Self {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut packet = Packet(Message::new_with_id(0x0102_0304, none, none, none, none, &mac.0));
        packet.0.opts_mut().insert(DhcpOption::MessageType(kind));
        let (class, arch) = match program {
            Program::Pxe(arch) => ("PXEClient:Arch:00000:UNDI:003001", Some(arch)),
            Program::OldPxe => ("PXEClient", None),
            Program::Http(arch) => ("HTTPClient:Arch:00016:UNDI:003001", Some(arch)),
            Program::Ipxe | Program::IpxeInList => ("PXEClient:Arch:00000:UNDI:002001", Some(0)),
            Program::UBoot(arch) => ("U-Boot.armv8", Some(arch)),
            Program::Class(class) => (class, None),
            Program::Os => ("udhcp 1.37.0", None),
        };
        packet = packet.raw(OptionCode::ClassIdentifier, class.as_bytes());
        if let Some(arch) = arch {
            packet = packet.raw(OptionCode::ClientSystemArchitecture, &arch.to_be_bytes());
            let uuid: SystemUuid = UUID.parse().expect("a UUID");
            packet = packet.raw(OptionCode::ClientMachineIdentifier, &uuid.to_option97());
        }
        match program {
            Program::Ipxe => packet.raw(OptionCode::UserClass, b"iPXE"),
            Program::IpxeInList => packet.raw(OptionCode::UserClass, b"\x03foo\x04iPXE"),
            _ => packet,
        }
    }

    pub fn discover(mac: MacAddr, program: Program) -> Self {
        Packet::new(MessageType::Discover, mac, program)
    }

    /// Takes an offer of `server`.
    pub fn select(mac: MacAddr, program: Program, address: Ipv4Addr, server: Ipv4Addr) -> Self {
        let packet = Packet::reboot(mac, program, address);
        packet.raw(OptionCode::ServerIdentifier, &server.octets())
    }

    /// Asks for the address that it had (init-reboot).
    pub fn reboot(mac: MacAddr, program: Program, address: Ipv4Addr) -> Self {
        Packet::new(MessageType::Request, mac, program)
            .raw(OptionCode::RequestedIpAddress, &address.octets())
    }

    /// Uses `address` already.
    pub fn using(mut self, address: Ipv4Addr) -> Self {
        self.0.set_ciaddr(address);
        self
    }

    pub fn via(mut self, relay: Ipv4Addr) -> Self {
        self.0.set_giaddr(relay);
        self
    }

    /// Takes only broadcasts.
    pub fn broadcast_only(mut self) -> Self {
        self.0.set_flags(Flags::default().set_broadcast());
        self
    }

    /// Without an option.
    pub fn without(mut self, code: OptionCode) -> Self {
        self.0.opts_mut().remove(code);
        self
    }

    pub fn raw(mut self, code: OptionCode, data: &[u8]) -> Self {
        self.0.opts_mut().insert(DhcpOption::Unknown(UnknownOption::new(code, data.to_vec())));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.0.encode(&mut Encoder::new(&mut bytes)).expect("it can be encoded");
        bytes
    }

    pub fn to(&self, engine: &mut Engine, now: Timestamp) -> Outcome {
        send(engine, now, &self.bytes(), 67)
    }

    /// Sends the packet from this address to the interface with this index.
    pub fn from(
        &self,
        engine: &mut Engine,
        now: Timestamp,
        interface_index: usize,
        source: Ipv4Addr,
    ) -> Outcome {
        let bytes = self.bytes();
        let origin = Origin {
            interface_index,
            source: SocketAddrV4::new(source, port_of(&bytes)),
            local_port: 67,
            ethernet_source: chaddr_of(&bytes),
        };
        Outcome(engine.handle(now, &bytes, origin))
    }
}

/// Sends raw bytes from 0.0.0.0, or from the client's address.
pub fn send(engine: &mut Engine, now: Timestamp, bytes: &[u8], local_port: u16) -> Outcome {
    let address =
        bytes.get(12..16).and_then(|octets| octets.first_chunk::<4>()).copied().unwrap_or_default();
    let source = SocketAddrV4::new(Ipv4Addr::from(address), port_of(bytes));
    let origin =
        Origin { interface_index: 0, source, local_port, ethernet_source: chaddr_of(bytes) };
    Outcome(engine.handle(now, bytes, origin))
}

/// Returns the source port of an honest sender: relays send from the port of servers.
pub fn port_of(bytes: &[u8]) -> u16 {
    if bytes.get(24..28) == Some(&[0; 4]) { 68 } else { 67 }
}

/// Returns chaddr, which is also the Ethernet source of an honest client.
pub fn chaddr_of(bytes: &[u8]) -> Option<MacAddr> {
    bytes.get(28..34).and_then(|octets| octets.try_into().ok()).map(MacAddr)
}

/// The effects of a packet.
#[derive(Debug)]
pub struct Outcome(pub Vec<Effect>);

impl Outcome {
    pub fn reply(&self) -> Option<DecodedReply> {
        self.0.iter().find_map(|effect| match effect {
            Effect::Reply(Reply { packet, to, .. }) => {
                assert!(packet.len() >= 300, "BOOTP's least length");
                let message = Message::decode(&mut Decoder::new(packet))
                    .expect("our own answers can be read");
                Some(DecodedReply { message, to: *to })
            }
            _ => None,
        })
    }

    pub fn expect(&self, kind: MessageType) -> DecodedReply {
        let reply = self.reply().unwrap_or_else(|| panic!("no {kind:?} but {:?}", self.0));
        assert_eq!(reply.message.opts().msg_type(), Some(kind));
        reply
    }

    pub fn exchange(&self) -> Option<&ClientExchange> {
        self.0.iter().find_map(|effect| match effect {
            Effect::Store(Change::Exchange(exchange)) => Some(exchange),
            _ => None,
        })
    }

    /// The reason if the packet was dropped.
    pub fn dropped(&self) -> Option<DropReason> {
        match self.0[..] {
            [Effect::Warn(Warning::Dropped { reason, .. })] => Some(reason),
            _ => None,
        }
    }

    pub fn warnings(&self) -> Vec<&Warning> {
        let mut warnings = Vec::new();
        for effect in &self.0 {
            if let Effect::Warn(warning) = effect {
                warnings.push(warning);
            }
        }
        warnings
    }
}

/// An answer as a client reads it.
pub struct DecodedReply {
    pub message: Message,
    pub to: Destination,
}

impl DecodedReply {
    pub fn address(&self) -> Ipv4Addr {
        self.message.yiaddr()
    }

    /// The boot file; header and option 67 must agree.
    pub fn boot_file(&self) -> Option<String> {
        let header = self.message.fname().map(text);
        let option = match self.message.opts().get(OptionCode::BootfileName) {
            Some(DhcpOption::BootfileName(name)) => Some(text(name)),
            _ => None,
        };
        assert_eq!(header, option, "header and option 67");
        if option.is_some() {
            assert_eq!(self.message.siaddr(), SERVER);
            assert_eq!(self.message.sname().map(text).as_deref(), Some("10.77.0.1"));
        }
        option
    }

    pub fn option(&self, code: u8) -> Option<Vec<u8>> {
        let option = self.message.opts().get(OptionCode::from(code))?;
        let mut bytes = Vec::new();
        option.encode(&mut Encoder::new(&mut bytes)).expect("it was read");
        Some(bytes.split_off(2))
    }

    pub fn class(&self) -> Option<&[u8]> {
        match self.message.opts().get(OptionCode::ClassIdentifier) {
            Some(DhcpOption::ClassIdentifier(class)) => Some(class),
            _ => None,
        }
    }
}

/// A field as text; dhcproto leaves the NUL that ends a field of the header in it.
fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches('\0').to_owned()
}

/// Sends DISCOVER and REQUEST. Returns the leased address.
pub fn boot(engine: &mut Engine, now: Timestamp, mac: MacAddr, program: Program) -> Ipv4Addr {
    let offered =
        Packet::discover(mac, program).to(engine, now).expect(MessageType::Offer).address();
    let acked = Packet::select(mac, program, offered, SERVER)
        .to(engine, now)
        .expect(MessageType::Ack)
        .address();
    assert_eq!(acked, offered);
    acked
}

#[derive(Default)]
pub struct OneNode {
    /// NICs and ID of the node.
    pub known: Option<(Vec<MacAddr>, NodeId)>,
    /// The NIC that keeps its address.
    pub mac: Option<MacAddr>,
    /// The address that it uses.
    pub used: Option<Ipv4Addr>,
    pub attachment: Option<Attachment>,
    pub approved: Option<NodeId>,
}

impl OneNode {
    /// Replaces all records of the engine.
    pub fn apply_to(&self, engine: &mut Engine, now: Timestamp) {
        let machine =
            |ids, is_approved| MachineNic { ids, is_approved, is_boot_nic: true, attachment: None };
        let mut records = BTreeMap::new();
        if let Some((macs, node)) = &self.known {
            records.extend(macs.iter().map(|mac| {
                (
                    *mac,
                    NicRecord {
                        machine: Some(machine(vec![*node], false)),
                        ..NicRecord::new(*mac)
                    },
                )
            }));
        }
        if let Some(mac) = self.mac {
            let attachment = self.attachment.clone();
            let approved =
                MachineNic { attachment, ..machine(vec![Basis::Mac(mac).node_id()], true) };
            let used =
                self.used.map(|address| UsedAddress { address, until: None }).into_iter().collect();
            records.insert(mac, NicRecord { machine: Some(approved), used, ..NicRecord::new(mac) });
        }
        if let Some(node) = self.approved {
            // Any NIC that sends nothing.
            let mac = MacAddr([2, 0, 0, 0, 9, 9]);
            records.insert(
                mac,
                NicRecord { machine: Some(machine(vec![node], true)), ..NicRecord::new(mac) },
            );
        }
        engine.apply(now, RecordChanges::All(records.into_values().collect()));
    }
}
