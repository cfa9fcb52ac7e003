//! Network interfaces of this machine: bridges with their addresses and ports by rtnetlink(7), TAP
//! devices by `/dev/net/tun`. The kernel answers each request at once.

use meshd_proto::InterfaceName;
use meshd_types::MacAddr;
use netlink_packet_core::{
    ErrorBuffer, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::{
    io::Errno,
    net::{
        AddressFamily as SocketFamily, SocketFlags, SocketType, netdevice::name_to_index,
        socket_with,
    },
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};
use tokio_tun::Tun;

/// Size of the receive buffer, in bytes. An acknowledgement contains at most the request.
const MAX_ANSWER: usize = 4096;
/// Maximum number of addresses that are removed from an interface.
const MAX_ADDRESSES: usize = 256;

/// Makes a bridge, down and without address.
pub fn make_bridge(name: &InterfaceName, mac: MacAddr) -> io::Result<()> {
    let mut bridge = LinkMessage::default();
    bridge.attributes = vec![
        LinkAttribute::IfName(name.to_string()),
        LinkAttribute::Address(mac.0.to_vec()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
    ];
    request(RouteNetlinkMessage::NewLink(bridge), NLM_F_CREATE | NLM_F_EXCL)
}

/// Adds an address to an interface.
pub fn add_address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mut message = address_message(name)?;
    message.header.prefix_len = prefix;
    message.attributes = vec![
        AddressAttribute::Local(IpAddr::V4(address)),
        AddressAttribute::Address(IpAddr::V4(address)),
    ];
    request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Removes all IPv4 addresses of an interface. Needs no list of addresses: procfs does not say which
/// interface has an address, and a guess by routes fails if two interfaces have the same route.
pub fn remove_addresses(name: &str) -> io::Result<()> {
    // A request without an address removes the first one, with its secondaries.
    let request_removal = || request(RouteNetlinkMessage::DelAddress(address_message(name)?), 0);
    for _ in 0..MAX_ADDRESSES {
        match request_removal() {
            Err(error) if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) => {
                return Ok(());
            }
            removed => removed?,
        }
    }
    Err(io::Error::other(format!("{name} has more than {MAX_ADDRESSES} addresses")))
}

/// Sets an interface up.
pub fn set_up(name: &str) -> io::Result<()> {
    let mut link = link_message(name)?;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    request(RouteNetlinkMessage::SetLink(link), 0)
}

/// Makes an interface a port of a bridge.
pub fn attach(name: &str, bridge: &InterfaceName) -> io::Result<()> {
    let mut link = link_message(name)?;
    link.attributes.push(LinkAttribute::Controller(index(bridge.as_str())?));
    request(RouteNetlinkMessage::SetLink(link), 0)
}

/// Removes an interface if it exists.
pub fn remove(name: &str) -> io::Result<()> {
    let link = match link_message(name) {
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => return Ok(()),
        link => link?,
    };
    request(RouteNetlinkMessage::DelLink(link), 0)
}

/// Makes a TAP device for programs of a user, down and without bridge. It exists until [`remove`].
/// Must be called within a runtime.
pub fn make_tap(name: &str, user: u32) -> io::Result<()> {
    let user = i32::try_from(user).map_err(io::Error::other)?;
    Tun::builder()
        .name(name)
        .tap()
        .owner(user)
        .persist()
        .build()
        .map(drop)
        .map_err(io::Error::other)
}

fn index(name: &str) -> io::Result<u32> {
    let socket = socket_with(SocketFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(name_to_index(&socket, name)?)
}

fn link_message(name: &str) -> io::Result<LinkMessage> {
    let mut link = LinkMessage::default();
    link.header.index = index(name)?;
    Ok(link)
}

fn address_message(name: &str) -> io::Result<AddressMessage> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.index = index(name)?;
    Ok(message)
}

/// Sends a request and waits for its acknowledgement. Answers have no other content, so their
/// attributes are not parsed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fake::in_namespace,
        system::{self, Tree},
    };
    use std::path::Path;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

    #[test]
    fn bridge_with_address_and_tap_port_is_made_and_removed() {
        if !in_namespace(
            "networks::links::tests::bridge_with_address_and_tap_port_is_made_and_removed",
        ) {
            return;
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _context = runtime.enter();
        let tree = Tree::new(Path::new("/"));
        let text = |name: &str, file: &str| tree.text(&format!("/sys/class/net/{name}/{file}"));
        let bridge: InterfaceName = "br7".parse().expect("a name");
        make_bridge(&bridge, MAC).expect("made");
        assert!(
            make_bridge(&bridge, MAC)
                .is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
        );
        assert_eq!(text("br7", "address"), Some(MAC.to_string()));

        let addresses = || system::by_interface(&tree).remove("br7").unwrap_or_default();
        let address = |last: u8| Ipv4Addr::new(172, 30, 0, last);
        let is_there = |last: u8| addresses().contains(&IpAddr::V4(address(last)));
        set_up("br7").expect("up");
        add_address("br7", address(1), 24).expect("added");
        add_address("br7", address(1), 24).expect("the same again");
        assert!(is_there(1));
        // Another interface with an equal route, which comes later in the table: the address seems
        // to be its own.
        make_bridge(&"br9".parse().expect("a name"), MacAddr([2, 0, 0, 0, 0, 9])).expect("made");
        set_up("br9").expect("up");
        add_address("br9", address(9), 24).expect("added");
        add_address("br7", address(2), 24).expect("a secondary one");
        remove_addresses("br7").expect("removed");
        remove_addresses("br7").expect("nothing is left");
        assert_eq!(system::local_addresses(&tree), [address(9)], "those of others stay");

        make_tap("tap7", 4242).expect("made");
        assert_eq!(
            (text("tap7", "owner"), text("tap7", "flags")),
            (Some("4242".into()), Some("0x1002".into())),
            "down"
        );
        attach("tap7", &bridge).expect("attached");
        set_up("tap7").expect("up");
        assert!(text("tap7", "flags").is_some_and(|flags| flags.ends_with('3')), "up");
        assert!(tree.has("/sys/class/net/br7/brif/tap7"));
        assert!(attach("tap7", &"br8".parse().expect("a name")).is_err(), "no such bridge");
        for name in ["tap7", "br7", "br9", "br7"] {
            remove(name).expect("removed, or absent");
            assert!(!tree.has(&format!("/sys/class/net/{name}")));
        }
    }
}
