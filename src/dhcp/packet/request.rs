//! A packet of a client as a typed [`ClientMessage`]; accepts any input.
//!
//! The borrowed view of dhcproto is used, because the owned one stops at the first malformed option and asserts lengths. Here a malformed
//! option is ignored.

use super::{
    client_class::{VendorClass, client_kind, vendor},
    options::{HEADER, Options},
    relay_agent_information::RelayInformation,
};
use crate::{client_arch::arch_entry, effect::ClientKind};
use dhcproto::v4::{HType, MessageType, Opcode, OptionCode, UnknownOption, borrowed};
use meshd_types::{ClientArch, MacAddr, SystemUuid};
use std::net::Ipv4Addr;

/// The longest packet that is parsed; longer than any Ethernet frame.
pub(crate) const MAX_REQUEST: usize = 2048;
/// Options that the reply repeats.
const ECHOED: [OptionCode; 3] =
    [OptionCode::ClientIdentifier, OptionCode::ClientMachineIdentifier, OptionCode::RelayAgentInformation];

/// The message type of a request (option 53).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientMessageType {
    Discover,
    Request,
    Decline,
    Release,
    Inform,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientMessage {
    /// Transaction ID.
    pub xid: u32,
    /// Seconds since the client began.
    pub secs: u16,
    /// Header flags.
    pub flags: u16,
    /// The client (chaddr).
    pub mac: MacAddr,
    /// Option 53.
    pub kind: ClientMessageType,
    /// The address that the client uses; unspecified if none.
    pub ciaddr: Ipv4Addr,
    /// The relay; unspecified if none.
    pub giaddr: Ipv4Addr,
    /// Option 50.
    pub requested: Option<Ipv4Addr>,
    /// Option 54.
    pub server: Option<Ipv4Addr>,
    /// Option 60, if a firmware loader sent it.
    pub vendor: Option<VendorClass>,
    /// Firmware, iPXE or operating system.
    pub client: ClientKind,
    /// Option 93, or the value in the text of option 60.
    pub arch: Option<ClientArch>,
    /// Option 97.
    pub uuid: Option<SystemUuid>,
    /// Option 82.
    pub relay: RelayInformation,
    /// Options that the reply repeats: 61 (RFC 6842), 97 (RFC 4578), 82 (RFC 3046).
    pub echoed: Vec<UnknownOption>,
}

impl ClientMessage {
    /// Parses a packet; `None` if it is not a request of an Ethernet client.
    pub fn parse(packet: &[u8]) -> Option<ClientMessage> {
        if !(HEADER..=MAX_REQUEST).contains(&packet.len()) {
            return None;
        }
        let message = borrowed::Message::new(packet).ok()?;
        // `chaddr()` would read beyond the packet with another length.
        if message.opcode() != Opcode::BootRequest || message.htype() != HType::Eth || message.hlen() != 6 {
            return None;
        }
        let options = Options::read(packet);
        let vendor = vendor(&options);
        Some(ClientMessage {
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
            client: client_kind(&options, vendor),
            arch: arch(&options),
            // Quirk::NoUuid, Quirk::OddUuid: the MAC address identifies the machine.
            uuid: options.get(OptionCode::ClientMachineIdentifier).and_then(SystemUuid::from_option97),
            relay: options.relay_information(),
            echoed: ECHOED.into_iter().filter_map(|code| options.echo(code)).collect(),
        })
    }

    /// Returns true if a relay forwarded the request.
    pub fn is_relayed(&self) -> bool {
        !self.giaddr.is_unspecified()
    }

    /// Returns an address of the client's network behind a relay: link selection, or the relay's own address.
    pub fn network(&self) -> Option<Ipv4Addr> {
        self.is_relayed().then(|| self.relay.link_selection.unwrap_or(self.giaddr))
    }

    /// Returns the architecture that determines the boot file: BIOS without option 93 (`Quirk::NoArch`).
    pub fn boot_arch(&self) -> ClientArch {
        self.arch.unwrap_or(ClientArch::BIOS)
    }
}

fn kind(options: &Options<'_>) -> Option<ClientMessageType> {
    let [value] = *options.get(OptionCode::MessageType)? else { return None };
    match MessageType::from(value) {
        MessageType::Discover => Some(ClientMessageType::Discover),
        MessageType::Request => Some(ClientMessageType::Request),
        MessageType::Decline => Some(ClientMessageType::Decline),
        MessageType::Release => Some(ClientMessageType::Release),
        MessageType::Inform => Some(ClientMessageType::Inform),
        _ => None,
    }
}

fn arch(options: &Options<'_>) -> Option<ClientArch> {
    let listed = options.get(OptionCode::ClientSystemArchitecture).unwrap_or_default();
    let mut values = listed.as_chunks::<2>().0.iter().map(|value| u16::from_be_bytes(*value));
    // Quirk::SeveralArchs
    if let Some(first) = values.clone().next() {
        return Some(ClientArch(values.find(|value| arch_entry(*value).is_some()).unwrap_or(first)));
    }
    // Quirk::ArchInClass: the text of option 60 contains it too, as in "HTTPClient:Arch:00016:UNDI:003016".
    let class = std::str::from_utf8(options.get(OptionCode::ClassIdentifier)?).ok()?;
    let mut words = class.split(':').skip_while(|word| *word != "Arch");
    words.nth(1)?.parse().ok().map(ClientArch)
}
