//! A packet from the network becomes a typed [`Request`], or nothing.
//!
//! Total: every byte string has an outcome. dhcproto's borrowed view is used because its owned one stops at the first
//! option that it dislikes and asserts lengths; here an option that makes no sense is as if it were not there.

use super::{
    firmware::firmware,
    options::{Agent, HEADER, Options},
};
use dhcproto::v4::{HType, MessageType, Opcode, OptionCode, UnknownOption, borrowed};
use meshd_model::fleet::DhcpExchange;
use meshd_types::{ClientArch, MacAddr, SystemUuid};
use std::net::Ipv4Addr;

/// More than any Ethernet frame carries.
const MAX_REQUEST: usize = 2048;
/// User class of iPXE, in option 77.
const IPXE: &[u8] = b"iPXE";
/// What goes back as it came.
const ECHOED: [OptionCode; 3] =
    [OptionCode::ClientIdentifier, OptionCode::ClientMachineIdentifier, OptionCode::RelayAgentInformation];

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Which addresses are there?
    Discover,
    /// I take this one; or: may I keep it?
    Request,
    /// Somebody else uses this address already.
    Decline,
    /// I no longer need it.
    Release,
    /// I have an address; tell me the rest.
    Inform,
}

/// Which firmware loader asks, by option 60.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// `PXEClient`: wants a file name.
    Pxe,
    /// `HTTPClient`: wants a URL.
    Http,
    /// `U-Boot`: wants a file name, in the header.
    UBoot,
}

/// One client message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Transaction.
    pub xid: u32,
    /// Seconds since the client began.
    pub secs: u16,
    /// Header flags as they came.
    pub flags: u16,
    /// Who.
    pub mac: MacAddr,
    /// Option 53.
    pub kind: Kind,
    /// The address that the client uses already; unspecified if none.
    pub ciaddr: Ipv4Addr,
    /// The relay; unspecified if none.
    pub giaddr: Ipv4Addr,
    /// Option 50.
    pub requested: Option<Ipv4Addr>,
    /// Option 54.
    pub server: Option<Ipv4Addr>,
    /// Option 60, if a firmware loader sent it.
    pub vendor: Option<Vendor>,
    /// Firmware, iPXE, or an operating system.
    pub exchange: DhcpExchange,
    /// Option 93, or what option 60 says of it.
    pub arch: Option<ClientArch>,
    /// Option 97.
    pub uuid: Option<SystemUuid>,
    /// What the relay says in option 82.
    pub agent: Agent,
    /// Options that go back as they came: 61 (RFC 6842), 97 (RFC 4578), 82 (RFC 3046).
    pub echoed: Vec<UnknownOption>,
}

impl Request {
    /// Reads a packet; `None` if it is not a request of an Ethernet client.
    pub fn parse(packet: &[u8]) -> Option<Request> {
        if !(HEADER..=MAX_REQUEST).contains(&packet.len()) {
            return None;
        }
        let message = borrowed::Message::new(packet).ok()?;
        // The length is checked before `chaddr()`, which would reach beyond the packet with another.
        if message.opcode() != Opcode::BootRequest || message.htype() != HType::Eth || message.hlen() != 6 {
            return None;
        }
        let options = Options::read(packet);
        let vendor = vendor(&options);
        Some(Request {
            xid: message.xid(),
            secs: message.secs(),
            flags: message.flags().into(),
            mac: MacAddr::from_chaddr(message.chaddr())?,
            kind: kind(&options)?,
            ciaddr: message.ciaddr(),
            giaddr: message.giaddr(),
            requested: options.address(OptionCode::RequestedIpAddress),
            server: options.address(OptionCode::ServerIdentifier),
            vendor,
            exchange: exchange(&options, vendor),
            arch: arch(&options),
            uuid: options.get(OptionCode::ClientMachineIdentifier).and_then(SystemUuid::from_option97),
            agent: options.agent(),
            echoed: ECHOED.into_iter().filter_map(|code| options.echo(code)).collect(),
        })
    }

    /// True if a relay passed it on.
    pub fn is_relayed(&self) -> bool {
        !self.giaddr.is_unspecified()
    }

    /// An address on the client's network, as the relay says it: link selection, or where the relay itself stands.
    pub fn network(&self) -> Option<Ipv4Addr> {
        self.is_relayed().then(|| self.agent.link.unwrap_or(self.giaddr))
    }

    /// The architecture that decides the boot file: a loader without option 93 is a BIOS one.
    pub fn boot_arch(&self) -> ClientArch {
        self.arch.unwrap_or(ClientArch::BIOS)
    }
}

fn kind(options: &Options<'_>) -> Option<Kind> {
    let [value] = *options.get(OptionCode::MessageType)? else { return None };
    match MessageType::from(value) {
        MessageType::Discover => Some(Kind::Discover),
        MessageType::Request => Some(Kind::Request),
        MessageType::Decline => Some(Kind::Decline),
        MessageType::Release => Some(Kind::Release),
        MessageType::Inform => Some(Kind::Inform),
        _ => None,
    }
}

fn vendor(options: &Options<'_>) -> Option<Vendor> {
    let class = options.get(OptionCode::ClassIdentifier)?;
    let known = [(b"PXEClient".as_slice(), Vendor::Pxe), (b"HTTPClient", Vendor::Http), (b"U-Boot", Vendor::UBoot)];
    known.into_iter().find(|(name, _)| class.starts_with(name)).map(|(_, vendor)| vendor)
}

fn exchange(options: &Options<'_>, vendor: Option<Vendor>) -> DhcpExchange {
    if options.get(OptionCode::UserClass).is_some_and(is_ipxe) {
        DhcpExchange::Ipxe
    } else if vendor.is_some() {
        DhcpExchange::Firmware
    } else {
        DhcpExchange::Os
    }
}

fn arch(options: &Options<'_>) -> Option<ClientArch> {
    let listed = options.get(OptionCode::ClientSystemArchitecture).unwrap_or_default();
    let mut values = listed.as_chunks::<2>().0.iter().map(|value| u16::from_be_bytes(*value));
    if let Some(first) = values.clone().next() {
        return Some(ClientArch(values.find(|value| firmware(*value).is_some()).unwrap_or(first)));
    }
    // "HTTPClient:Arch:00016:UNDI:003016" says the same.
    let class = std::str::from_utf8(options.get(OptionCode::ClassIdentifier)?).ok()?;
    let mut words = class.split(':').skip_while(|word| *word != "Arch");
    words.nth(1)?.parse().ok().map(ClientArch)
}

/// iPXE sends its name bare; relays and RFC 3004 make it a list of length-prefixed names. Both are read.
fn is_ipxe(user_class: &[u8]) -> bool {
    if user_class == IPXE {
        return true;
    }
    let mut rest = user_class;
    while let Some((&length, tail)) = rest.split_first() {
        let Some((class, tail)) = tail.split_at_checked(usize::from(length)) else { return false };
        if class == IPXE {
            return true;
        }
        rest = tail;
    }
    false
}

/// What another server says to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherServer {
    /// Transaction.
    pub xid: u32,
    /// Its server identifier (option 54), or else what its header says.
    pub server: Ipv4Addr,
    /// True if it gives no address: a proxy, for PXE clients only.
    pub proxy: bool,
}

impl OtherServer {
    /// Reads an OFFER or ACK; `None` for anything else.
    pub fn parse(packet: &[u8]) -> Option<OtherServer> {
        if !(HEADER..=MAX_REQUEST).contains(&packet.len()) {
            return None;
        }
        let message = borrowed::Message::new(packet).ok()?;
        if message.opcode() != Opcode::BootReply {
            return None;
        }
        let options = Options::read(packet);
        let [value] = *options.get(OptionCode::MessageType)? else { return None };
        if !matches!(MessageType::from(value), MessageType::Offer | MessageType::Ack) {
            return None;
        }
        let header = Some(message.siaddr()).filter(|address| !address.is_unspecified());
        let server = options.address(OptionCode::ServerIdentifier).or(header)?;
        let proxy = message.yiaddr().is_unspecified() && vendor(&options).is_some();
        Some(OtherServer { xid: message.xid(), server, proxy })
    }
}
