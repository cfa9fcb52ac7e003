//! A packet of a client as a typed [`ClientMessage`]; accepts any input.
//!
//! The borrowed view of dhcproto is used, because the owned one stops at the first malformed option
//! and asserts lengths. Here a malformed option is ignored.

use super::{
    bmc_class::{BmcClaim, bmc_claim},
    client_class::{ClientKind, VendorClass, arch, client_kind, vendor},
    link::{ClientLink, infiniband_address},
    options::{HEADER, Options},
    relay_agent_information::RelayInformation,
};
use dhcproto::v4::{MessageType, Opcode, OptionCode, UnknownOption, borrowed};
use meshd_types::{ClientArch, MacAddr, SystemUuid};
use std::net::Ipv4Addr;

/// The longest packet that is parsed; longer than any Ethernet frame.
pub(crate) const MAX_REQUEST: usize = 2048;
/// Options that the reply repeats, in its order: the relay's option is last.
const ECHOED: [OptionCode; 4] = [
    OptionCode::ClientIdentifier,
    OptionCode::ClientMachineIdentifier,
    OptionCode::SubnetSelection,
    OptionCode::RelayAgentInformation,
];

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
    /// Seconds since the client began to ask, by its own count.
    pub secs: u16,
    /// Header flags.
    pub flags: u16,
    /// The link layer of the client.
    pub link: ClientLink,
    /// The client: chaddr, or an address made of its identifier if it has no chaddr.
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
    /// What a BMC says of itself.
    pub bmc: Option<BmcClaim>,
    /// The architecture that determines the boot file: option 93, or the value in the text of
    /// option 60. `None` if firmware names none: it gets no loader rather than a wrong one.
    pub arch: Option<ClientArch>,
    /// Option 97.
    pub uuid: Option<SystemUuid>,
    /// Option 82.
    pub relay: RelayInformation,
    /// Option 118 of a relayed request (RFC 3011).
    pub subnet_selection: Option<Ipv4Addr>,
    /// Options that the reply repeats: 61 (RFC 6842), 97 (RFC 4578), 118 (RFC 3011), 82 (RFC 3046).
    pub echoed: Vec<UnknownOption>,
}

impl ClientMessage {
    /// Parses a packet; `None` if it is not a request of a client whose link is served.
    pub fn parse(packet: &[u8]) -> Option<ClientMessage> {
        if !(HEADER..=MAX_REQUEST).contains(&packet.len()) {
            return None;
        }
        let message = borrowed::Message::new(packet).ok()?;
        if message.opcode() != Opcode::BootRequest {
            return None;
        }
        let link = ClientLink::of(message.htype(), message.hlen())?;
        let options = Options::read(packet);
        let mac = match link {
            ClientLink::Infiniband => {
                infiniband_address(options.get(OptionCode::ClientIdentifier)?)?
            }
            _ => MacAddr::from_chaddr(message.chaddr())?,
        };
        let vendor = vendor(&options);
        // Any machine on a direct segment could name another one.
        let is_relayed = !message.giaddr().is_unspecified();
        let echoed =
            ECHOED.into_iter().filter(|code| is_relayed || *code != OptionCode::SubnetSelection);
        Some(ClientMessage {
            xid: message.xid(),
            secs: message.secs(),
            flags: message.flags().into(),
            link,
            mac,
            kind: kind(&options)?,
            ciaddr: message.ciaddr(),
            giaddr: message.giaddr(),
            requested: options.address(OptionCode::RequestedIpAddress),
            server: options.address(OptionCode::ServerIdentifier),
            vendor,
            client: client_kind(&options, vendor),
            bmc: bmc_claim(&options),
            arch: arch(&options, vendor),
            // Quirk::NoUuid, Quirk::OddUuid: the MAC address identifies the machine.
            uuid: options
                .get(OptionCode::ClientMachineIdentifier)
                .and_then(SystemUuid::from_option97),
            relay: options.relay_information(),
            subnet_selection: options.address(OptionCode::SubnetSelection).filter(|_| is_relayed),
            echoed: echoed.filter_map(|code| options.echo(code)).collect(),
        })
    }

    /// Returns true if a relay forwarded the request.
    pub fn is_relayed(&self) -> bool {
        !self.giaddr.is_unspecified()
    }

    /// Returns the address of a network that the relay selects (RFC 3527, RFC 3011); giaddr is then
    /// only the address to reply to.
    pub fn selected_network(&self) -> Option<Ipv4Addr> {
        self.relay.link_selection.or(self.subnet_selection).filter(|_| self.is_relayed())
    }

    /// Returns chaddr; empty if the client has none.
    pub(crate) fn chaddr(&self) -> &[u8] {
        match self.link {
            ClientLink::Infiniband => &[],
            _ => &self.mac.0,
        }
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
