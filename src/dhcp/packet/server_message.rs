//! Detection of other DHCP servers: parses packets that a server sent to a client.

use super::{
    client_class::vendor,
    options::{HEADER, Options},
    request::MAX_REQUEST,
};
use dhcproto::v4::{MessageType, Opcode, OptionCode, borrowed};
use std::net::Ipv4Addr;

/// An OFFER or ACK of another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerMessage {
    /// Transaction ID.
    pub xid: u32,
    /// Server identifier (option 54), or else siaddr.
    pub server: Ipv4Addr,
    /// True for a proxy, which assigns no address.
    pub proxy: bool,
}

impl ServerMessage {
    /// Parses an OFFER or ACK; `None` for anything else.
    pub fn parse(packet: &[u8]) -> Option<ServerMessage> {
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
        Some(ServerMessage { xid: message.xid(), server, proxy })
    }
}
