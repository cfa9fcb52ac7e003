//! Sets the NIC up, and adds address and default route, by rtnetlink(7). The kernel answers each
//! request at once.

use netlink_packet_core::{
    ErrorBuffer, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkMessage},
    route::{
        RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
        RouteType,
    },
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::{
    AddressFamily as SocketFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};

/// Size of the receive buffer, in bytes. An acknowledgement contains at most the request.
const MAX_ANSWER: usize = 4096;

/// Sets an interface up.
pub fn set_up(interface: &str) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = index(interface)?;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    request(RouteNetlinkMessage::SetLink(link), 0)
}

/// Sets the maximum packet size of an interface, in bytes.
pub fn set_mtu(interface: &str, mtu: u16) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = index(interface)?;
    link.attributes = vec![LinkAttribute::Mtu(mtu.into())];
    request(RouteNetlinkMessage::SetLink(link), 0)
}

/// Adds an address to an interface.
pub fn add_address(interface: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.index = index(interface)?;
    message.header.prefix_len = prefix;
    message.attributes = vec![
        AddressAttribute::Local(IpAddr::V4(address)),
        AddressAttribute::Address(IpAddr::V4(address)),
    ];
    request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Adds the default route through a router of the network of an interface.
pub fn add_default_route(interface: &str, router: Ipv4Addr) -> io::Result<()> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Dhcp;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![
        RouteAttribute::Gateway(RouteAddress::Inet(router)),
        RouteAttribute::Oif(index(interface)?),
    ];
    request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
}

fn index(interface: &str) -> io::Result<u32> {
    let socket = socket_with(SocketFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(name_to_index(&socket, interface)?)
}

/// Sends a request and waits for its acknowledgement.
fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let mut answer = Vec::with_capacity(MAX_ANSWER);
    socket.recv(&mut answer, 0)?;
    let malformed =
        |_| io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer cannot be read");
    let answer = NetlinkBuffer::new_checked(answer.as_slice()).map_err(malformed)?;
    let error = ErrorBuffer::new_checked(answer.payload()).map_err(malformed)?;
    match error.code() {
        None => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.get().saturating_neg())),
    }
}
