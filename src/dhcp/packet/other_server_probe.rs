//! Builds packets that make other DHCP and PXE servers answer: a DISCOVER, which every server
//! answers, and an INFORM, which most answer at once, where an offer waits for a ping. No offer is
//! ever accepted.

use super::request::ClientMessageType;
use dhcproto::v4::{
    DhcpOption, Encodable, Encoder, Flags, Message, MessageType, OptionCode, UnknownOption,
};
use meshd_types::MacAddr;
use std::net::Ipv4Addr;

/// A locally administered prefix. The address of the interface follows, so that two servers notice
/// each other.
const PREFIX: [u8; 2] = [0x02, 0x6d];

/// Returns the client MAC of probes from this address.
pub(crate) fn probe_mac(address: Ipv4Addr) -> MacAddr {
    let ([p, q], [a, b, c, d]) = (PREFIX, address.octets());
    MacAddr([p, q, a, b, c, d])
}

/// True for the client MAC of another server's probe. That server sends it from its own NIC, so the
/// Ethernet source differs.
pub(crate) fn is_probe(mac: MacAddr, kind: ClientMessageType) -> bool {
    let asks = matches!(kind, ClientMessageType::Discover | ClientMessageType::Inform);
    asks && mac.0.starts_with(&PREFIX)
}

/// Returns both packets.
pub fn probe_packets(address: Ipv4Addr, xid: u32) -> [Vec<u8>; 2] {
    [ClientMessageType::Discover, ClientMessageType::Inform].map(|kind| {
        let none = Ipv4Addr::UNSPECIFIED;
        let (ciaddr, what) = match kind {
            ClientMessageType::Inform => (address, MessageType::Inform),
            _ => (none, MessageType::Discover),
        };
        let mut message =
            Message::new_with_id(xid, ciaddr, none, none, none, &probe_mac(address).0);
        if kind == ClientMessageType::Discover {
            message.set_flags(Flags::default().set_broadcast());
        }
        let raw = |code, data: &[u8]| DhcpOption::Unknown(UnknownOption::new(code, data.to_vec()));
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(what));
        options.insert(raw(OptionCode::ClassIdentifier, b"PXEClient:Arch:00007:UNDI:003016"));
        options.insert(raw(OptionCode::ClientSystemArchitecture, &[0, 7]));
        options.insert(raw(OptionCode::ClientNetworkInterface, &[1, 3, 16]));
        // Subnet mask, router, server identifier, vendor options, class, TFTP server, boot file.
        options.insert(raw(OptionCode::ParameterRequestList, &[1, 3, 54, 43, 60, 66, 67]));
        let mut bytes = Vec::with_capacity(400);
        message
            .encode(&mut Encoder::new(&mut bytes))
            .expect("header fields fit, and no option is long");
        bytes.resize(bytes.len().max(300), 0);
        bytes
    })
}
