//! The link layer of a client: its hardware type, and the address by which the server knows it.

use dhcproto::v4::HType;
use meshd_types::{Digest, MacAddr};

/// First byte of the address of an IP over InfiniBand client. It has the group bit, so it is never
/// the address of an Ethernet NIC, and no client identifier can be made to name one.
const INFINIBAND: u8 = 0x03;
/// Shortest client identifier of IP over InfiniBand: type, IAID and a DUID (RFC 4390, 2.1; RFC
/// 4361), in bytes.
const MIN_CLIENT_ID: usize = 8;

/// The hardware type of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLink {
    Ethernet,
    /// Any IEEE 802 network, with addresses as Ethernet has them.
    Ieee802,
    /// IP over InfiniBand: its addresses are longer than chaddr, so the client identifier replaces
    /// chaddr (RFC 4390).
    Infiniband,
    /// IP over InfiniBand in iPXE and in firmware made from it: chaddr is the Ethernet address that
    /// the client derives from its port.
    InfinibandAsEthernet,
}

impl ClientLink {
    /// Returns the link of a packet with this hardware type and address length; `None` if it is not
    /// served.
    pub(super) fn of(htype: HType, length: u8) -> Option<Self> {
        match (htype, length) {
            (HType::Eth, 6) => Some(ClientLink::Ethernet),
            (HType::IEEE802, 6) => Some(ClientLink::Ieee802),
            (HType::Infiniband, 0) => Some(ClientLink::Infiniband),
            (HType::Infiniband, 6) => Some(ClientLink::InfinibandAsEthernet),
            _ => None,
        }
    }

    pub(super) fn htype(self) -> HType {
        match self {
            ClientLink::Ethernet => HType::Eth,
            ClientLink::Ieee802 => HType::IEEE802,
            ClientLink::Infiniband | ClientLink::InfinibandAsEthernet => HType::Infiniband,
        }
    }

    /// Returns true if a reply can be sent to chaddr in an Ethernet frame.
    pub(super) fn has_ethernet_frames(self) -> bool {
        matches!(self, ClientLink::Ethernet | ClientLink::Ieee802)
    }
}

/// Returns the address for an IP over InfiniBand client: a hash of its whole identifier, because
/// two ports of one node differ only in a part of it.
pub(super) fn infiniband_address(client_id: &[u8]) -> Option<MacAddr> {
    let [a, b, c, d, e, ..] = Digest::of(client_id).0;
    (client_id.len() >= MIN_CLIENT_ID).then_some(MacAddr([INFINIBAND, a, b, c, d, e]))
}
