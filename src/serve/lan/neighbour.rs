//! Looks up one IPv4 address in the kernel's neighbour table and routes (rtnetlink(7), `RTM_GETNEIGH` and `RTM_GETROUTE`).

use meshd_types::MacAddr;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::{io, net::Ipv4Addr};

/// More than one entry of the table.
const MAX_ANSWER: usize = 4096;

/// Returns the Ethernet address that packets to `address` are sent to on this interface now; `None` if the kernel knows none. The kernel
/// answers at once, without asking the network.
///
/// # Errors
/// What the kernel says.
pub(super) fn neighbour(index: u32, address: Ipv4Addr) -> io::Result<Option<MacAddr>> {
    let mut entry = NeighbourMessage::default();
    entry.header.family = AddressFamily::Inet;
    entry.header.ifindex = index;
    entry.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    match ask(RouteNetlinkMessage::GetNeighbour(entry))? {
        Some(RouteNetlinkMessage::NewNeighbour(entry)) => Ok(mac_of(&entry)),
        _ => Ok(None),
    }
}

/// Returns the interface and the router that packets to `address` go through; `None` if they go through no router.
///
/// # Errors
/// What the kernel says.
pub(super) fn route(address: Ipv4Addr) -> io::Result<Option<(u32, Ipv4Addr)>> {
    let mut wanted = RouteMessage::default();
    wanted.header.address_family = AddressFamily::Inet;
    wanted.header.destination_prefix_length = 32;
    wanted.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(address)));
    let Some(RouteNetlinkMessage::NewRoute(route)) = ask(RouteNetlinkMessage::GetRoute(wanted))? else {
        return Ok(None);
    };
    let router = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(router)) => Some(*router),
        _ => None,
    });
    let index = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    });
    Ok(index.zip(router))
}

/// One question to the kernel; `None` if it has no such entry.
fn ask(question: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes_of(question), 0)?;
    let mut answer = Vec::with_capacity(MAX_ANSWER);
    socket.recv(&mut answer, 0)?;
    let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer cannot be read");
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(malformed)?;
    match message.payload {
        NetlinkPayload::InnerMessage(answer) => Ok(Some(answer)),
        NetlinkPayload::Error(error) => match error.to_io() {
            error if error.kind() == io::ErrorKind::NotFound => Ok(None),
            error => Err(error),
        },
        _ => Ok(None),
    }
}

fn bytes_of(question: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let payload = NetlinkPayload::from(question);
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn mac_of(entry: &NeighbourMessage) -> Option<MacAddr> {
    if matches!(entry.header.state, NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None) {
        return None;
    }
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddr),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_that_nobody_has_spoken_from_has_no_neighbour() {
        // Interface 1 is the loopback interface, which has no neighbours.
        assert_eq!(neighbour(1, Ipv4Addr::new(127, 1, 2, 3)).expect("the kernel answers"), None);
    }
}
