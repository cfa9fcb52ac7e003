//! Looks up one IPv4 address in the kernel's neighbour table and routes, and pins addresses to
//! Ethernet addresses in the neighbour table (rtnetlink(7), `RTM_GETNEIGH`, `RTM_NEWNEIGH`,
//! `RTM_DELNEIGH` and `RTM_GETROUTE`).

use meshd_types::MacAddr;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::{
    io,
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
};

/// Size of the receive buffer, in bytes. One entry of a table is smaller.
const MAX_ANSWER: usize = 4096;

/// Size of the receive buffer for a dump of the neighbour table, in bytes: the kernel fills at most
/// 32 KiB per message.
const MAX_DUMP: usize = 64 * 1024;

/// Maximum number of skipped answers to earlier queries.
const MAX_SKIPPED: usize = 8;

/// Marks entries of the neighbour table as those of meshd (`NDA_PROTOCOL`, "m"), so that a later
/// run finds them. Linux 5.0 and later keep it.
const OWN_PROTOCOL: RouteProtocol = RouteProtocol::Other(0x6d);

/// Queries the kernel for single entries. One socket serves all queries. The kernel answers each at
/// once, without a network request.
#[derive(Default)]
pub(super) struct KernelTables {
    socket: Mutex<Option<(Socket, u32)>>,
}

impl KernelTables {
    /// Returns the current Ethernet address for packets to `address` on this interface; `None` if
    /// the kernel knows none.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn neighbour(&self, index: u32, address: Ipv4Addr) -> io::Result<Option<MacAddr>> {
        match self.query(RouteNetlinkMessage::GetNeighbour(entry_of(index, address)))? {
            Some(RouteNetlinkMessage::NewNeighbour(entry)) => Ok(mac_of(&entry)),
            _ => Ok(None),
        }
    }

    /// Returns the interface and the router for packets to `address`; `None` for a route without a
    /// router.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn route(&self, address: Ipv4Addr) -> io::Result<Option<(u32, Ipv4Addr)>> {
        Ok(self.next_hop(address)?.filter(|(_, hop)| *hop != address))
    }

    /// Returns the interface and the next hop for packets to `address`: a router, or `address`.
    /// `None` if the kernel has no route.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn next_hop(&self, address: Ipv4Addr) -> io::Result<Option<(u32, Ipv4Addr)>> {
        let mut request = RouteMessage::default();
        request.header.address_family = AddressFamily::Inet;
        request.header.destination_prefix_length = 32;
        request.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(address)));
        let Some(RouteNetlinkMessage::NewRoute(route)) =
            self.query(RouteNetlinkMessage::GetRoute(request))?
        else {
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
        Ok(index.zip(Some(router.unwrap_or(address))))
    }

    /// Sends one query; `None` if the kernel has no matching entry. After an error, the next query
    /// opens another socket.
    fn query(&self, request: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
        self.exchange(request, NLM_F_REQUEST)
    }

    /// Makes the kernel send packets for `address` to this Ethernet address, whatever ARP says,
    /// until [`KernelTables::unpin`].
    ///
    /// # Errors
    /// Errors of the kernel. Needs CAP_NET_ADMIN.
    pub(super) fn pin(&self, index: u32, address: Ipv4Addr, mac: MacAddr) -> io::Result<()> {
        let mut entry = entry_of(index, address);
        entry.header.state = NeighbourState::Permanent;
        entry.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        entry.attributes.push(NeighbourAttribute::Protocol(OWN_PROTOCOL));
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.exchange(RouteNetlinkMessage::NewNeighbour(entry), flags).map(drop)
    }

    /// Removes an entry, so that the kernel asks by ARP again.
    ///
    /// # Errors
    /// Errors of the kernel. Needs CAP_NET_ADMIN.
    pub(super) fn unpin(&self, index: u32, address: Ipv4Addr) -> io::Result<()> {
        let request = RouteNetlinkMessage::DelNeighbour(entry_of(index, address));
        self.exchange(request, NLM_F_REQUEST | NLM_F_ACK).map(drop)
    }

    /// Returns the addresses that an earlier run pinned on an interface and did not remove.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn pinned(&self, index: u32) -> io::Result<Vec<Ipv4Addr>> {
        let socket = open()?;
        let mut request = NeighbourMessage::default();
        request.header.family = AddressFamily::Inet;
        socket.send(
            &bytes_of(RouteNetlinkMessage::GetNeighbour(request), NLM_F_REQUEST | NLM_F_DUMP, 1),
            0,
        )?;
        let mut found = Vec::new();
        loop {
            let mut answer = Vec::with_capacity(MAX_DUMP);
            socket.recv(&mut answer, 0)?;
            let mut rest = answer.as_slice();
            while !rest.is_empty() {
                let message =
                    NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(malformed)?;
                let length = usize::try_from(message.header.length)
                    .unwrap_or(usize::MAX)
                    .next_multiple_of(4);
                rest = rest.get(length.max(16)..).unwrap_or_default();
                match message.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => {
                        found.extend(own_pin(&entry, index));
                    }
                    NetlinkPayload::Done(_) => return Ok(found),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    /// Sends a request and returns the answer; `None` if there is no such entry, and for an
    /// acknowledgement.
    fn exchange(
        &self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Option<RouteNetlinkMessage>> {
        let mut shared = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, number) = match shared.take() {
            Some((socket, number)) => (socket, number.wrapping_add(1)),
            None => (open()?, 1),
        };
        socket.send(&bytes_of(request, flags, number), 0)?;
        let answer = receive(&socket, number)?;
        *shared = Some((socket, number));
        match answer {
            NetlinkPayload::InnerMessage(answer) => Ok(Some(answer)),
            NetlinkPayload::Error(error) if error.code.is_none() => Ok(None),
            NetlinkPayload::Error(error) => match error.to_io() {
                error if error.kind() == io::ErrorKind::NotFound => Ok(None),
                error => Err(error),
            },
            _ => Ok(None),
        }
    }
}

fn entry_of(index: u32, address: Ipv4Addr) -> NeighbourMessage {
    let mut entry = NeighbourMessage::default();
    entry.header.family = AddressFamily::Inet;
    entry.header.ifindex = index;
    entry.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    entry
}

/// Returns the address of a permanent entry of meshd on an interface.
fn own_pin(entry: &NeighbourMessage, index: u32) -> Option<Ipv4Addr> {
    let is_own = entry.attributes.contains(&NeighbourAttribute::Protocol(OWN_PROTOCOL));
    if entry.header.ifindex != index || entry.header.state != NeighbourState::Permanent || !is_own {
        return None;
    }
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(*address),
        _ => None,
    })
}

fn malformed<E>(_: E) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer cannot be read")
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Receives the answer to a query by its sequence number.
fn receive(socket: &Socket, number: u32) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
    for _ in 0..MAX_SKIPPED {
        let mut answer = Vec::with_capacity(MAX_ANSWER);
        socket.recv(&mut answer, 0)?;
        let message =
            NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(malformed)?;
        if message.header.sequence_number == number {
            return Ok(message.payload);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel answered other queries"))
}

fn bytes_of(request: RouteNetlinkMessage, flags: u16, number: u32) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    (header.flags, header.sequence_number) = (flags, number);
    let payload = NetlinkPayload::from(request);
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn mac_of(entry: &NeighbourMessage) -> Option<MacAddr> {
    if matches!(
        entry.header.state,
        NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None
    ) {
        return None;
    }
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => {
            <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddr)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_loopback_address_has_no_neighbour_and_no_route() {
        // Interface 1 is the loopback interface, which has no neighbours.
        let tables = KernelTables::default();
        for _ in 0..3 {
            assert_eq!(
                tables.neighbour(1, Ipv4Addr::new(127, 1, 2, 3)).expect("the kernel answers"),
                None
            );
            assert_eq!(
                tables.route(Ipv4Addr::new(127, 1, 2, 3)).expect("the kernel answers"),
                None
            );
        }
    }
}
