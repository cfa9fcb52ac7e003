//! A packet from the network becomes a typed [`Request`], or nothing.
//!
//! Total: every byte string has an outcome. dhcproto's borrowed view is used because its owned one stops at the first
//! option that it dislikes and asserts lengths; here an option that makes no sense is as if it were not there.

use crate::fleet::Exchange;
use crate::id::{ClientArch, MacAddr, SystemUuid};
use dhcproto::v4::{HType, MessageType, Opcode, OptionCode, UnknownOption, borrowed};
use std::net::Ipv4Addr;

/// Header and magic cookie; what is shorter is no DHCP packet.
const MIN_REQUEST: usize = 240;
/// More than any Ethernet frame carries.
const MAX_REQUEST: usize = 2048;
/// User class of iPXE, in option 77.
const IPXE: &[u8] = b"iPXE";

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
    pub exchange: Exchange,
    /// Option 93, or what option 60 says of it.
    pub arch: Option<ClientArch>,
    /// Option 97.
    pub uuid: Option<SystemUuid>,
    /// Options that go back as they came: 61 (RFC 6842), 97 (RFC 4578), 82 (RFC 3046).
    pub echoed: Vec<UnknownOption>,
}

impl Request {
    /// Reads a packet; `None` if it is not a request of an Ethernet client.
    pub fn parse(packet: &[u8]) -> Option<Request> {
        if !(MIN_REQUEST..=MAX_REQUEST).contains(&packet.len()) {
            return None;
        }
        let message = borrowed::Message::new(packet).ok()?;
        // The length is checked before `chaddr()`, which would reach beyond the packet with another.
        if message.opcode() != Opcode::BootRequest || message.htype() != HType::Eth || message.hlen() != 6 {
            return None;
        }
        let options = Options::read(&message);
        let vendor = options.vendor();
        Some(Request {
            xid: message.xid(),
            secs: message.secs(),
            flags: message.flags().into(),
            mac: MacAddr::from_chaddr(message.chaddr())?,
            kind: options.kind()?,
            ciaddr: message.ciaddr(),
            giaddr: message.giaddr(),
            requested: options.address(OptionCode::RequestedIpAddress),
            server: options.address(OptionCode::ServerIdentifier),
            vendor,
            exchange: options.exchange(vendor),
            arch: options.arch(),
            uuid: options.get(OptionCode::ClientMachineIdentifier).and_then(SystemUuid::from_option97),
            echoed: options.echoed(),
        })
    }

    /// True if a relay passed it on.
    pub fn is_relayed(&self) -> bool {
        !self.giaddr.is_unspecified()
    }

    /// The architecture that decides the boot file: a loader without option 93 is a BIOS one.
    pub fn boot_arch(&self) -> ClientArch {
        self.arch.unwrap_or(ClientArch::BIOS)
    }
}

/// Raw options; the first of each code counts.
struct Options(Vec<(u8, Vec<u8>)>);

impl Options {
    fn read(message: &borrowed::Message<'_>) -> Self {
        let mut options: Vec<(u8, Vec<u8>)> = Vec::new();
        for option in message.opts() {
            let code = u8::from(option.code());
            if options.iter().all(|(known, _)| *known != code) {
                options.push((code, option.data().to_vec()));
            }
        }
        Options(options)
    }

    fn get(&self, code: OptionCode) -> Option<&[u8]> {
        let code = u8::from(code);
        self.0.iter().find(|(known, _)| *known == code).map(|(_, data)| data.as_slice())
    }

    fn address(&self, code: OptionCode) -> Option<Ipv4Addr> {
        let octets: [u8; 4] = self.get(code)?.try_into().ok()?;
        Some(octets.into())
    }

    fn kind(&self) -> Option<Kind> {
        let [value] = *self.get(OptionCode::MessageType)? else { return None };
        match MessageType::from(value) {
            MessageType::Discover => Some(Kind::Discover),
            MessageType::Request => Some(Kind::Request),
            MessageType::Decline => Some(Kind::Decline),
            MessageType::Release => Some(Kind::Release),
            MessageType::Inform => Some(Kind::Inform),
            _ => None,
        }
    }

    fn vendor(&self) -> Option<Vendor> {
        let class = self.get(OptionCode::ClassIdentifier)?;
        if class.starts_with(b"PXEClient") {
            Some(Vendor::Pxe)
        } else if class.starts_with(b"HTTPClient") {
            Some(Vendor::Http)
        } else {
            None
        }
    }

    fn exchange(&self, vendor: Option<Vendor>) -> Exchange {
        if self.get(OptionCode::UserClass).is_some_and(is_ipxe) {
            Exchange::Ipxe
        } else if vendor.is_some() {
            Exchange::Firmware
        } else {
            Exchange::Os
        }
    }

    fn arch(&self) -> Option<ClientArch> {
        let from_93 = self.get(OptionCode::ClientSystemArchitecture).and_then(|data| data.first_chunk::<2>());
        if let Some(value) = from_93 {
            return Some(ClientArch(u16::from_be_bytes(*value)));
        }
        // "HTTPClient:Arch:00016:UNDI:003016" says the same.
        let class = std::str::from_utf8(self.get(OptionCode::ClassIdentifier)?).ok()?;
        let mut words = class.split(':').skip_while(|word| *word != "Arch");
        words.nth(1)?.parse().ok().map(ClientArch)
    }

    fn echoed(&self) -> Vec<UnknownOption> {
        [OptionCode::ClientIdentifier, OptionCode::ClientMachineIdentifier, OptionCode::RelayAgentInformation]
            .into_iter()
            .filter_map(|code| Some(UnknownOption::new(code, self.get(code)?.to_vec())))
            .collect()
    }
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
