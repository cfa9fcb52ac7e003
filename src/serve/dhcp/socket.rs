//! The sockets of the DHCP service: bound to one interface, so that no other network ever sees it.

use super::{engine::PROXY_PORT, reply::SERVER_PORT};
use crate::config::{DhcpMode, Segment};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
};
use tokio::net::UdpSocket;

/// A DHCP service that can hear its network.
pub struct Bound {
    pub(super) segment: Segment,
    pub(super) address: Ipv4Addr,
    pub(super) server: Option<UdpSocket>,
    pub(super) proxy: Option<UdpSocket>,
}

/// Why the service cannot hear its network.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The site names an interface that is not there.
    #[error("there is no network interface `{interface}`; this machine has {known}; correct [net].interface")]
    NoSuchInterface {
        /// As configured.
        interface: String,
        /// Those that exist.
        known: String,
    },
    /// The interface has no IPv4 address, and the site names none.
    #[error("interface `{interface}` has no IPv4 address; give it one, or set [net].address")]
    NoAddress {
        /// Which.
        interface: String,
    },
    /// Somebody else answers DHCP on this machine.
    #[error(
        "UDP port {port} on `{interface}` is taken by another program, such as dnsmasq, Kea or dhcpd; find it with \
         `ss -ulpn sport = :{port}` and stop it, or set [dhcp].mode = \"off\""
    )]
    Taken {
        /// Which port.
        port: u16,
        /// Where.
        interface: String,
    },
    /// Not root.
    #[error(
        "no permission for UDP port {port} on `{interface}`; run meshd as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
    )]
    Denied {
        /// Which port.
        port: u16,
        /// Where.
        interface: String,
    },
    /// Anything else.
    #[error("cannot open UDP port {port} on `{interface}`")]
    Io {
        /// Which port.
        port: u16,
        /// Where.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Bound {
    /// The address that clients are told.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }
}

/// Opens the ports that the segment's mode needs: none in mode `off`.
pub fn bind(segment: &Segment) -> Result<Bound, BindError> {
    let open = |port| open(&segment.interface, port);
    let (server, proxy) = match segment.mode {
        DhcpMode::Off => (None, None),
        DhcpMode::Authoritative => (Some(open(SERVER_PORT)?), None),
        DhcpMode::Proxy => (Some(open(SERVER_PORT)?), Some(open(PROXY_PORT)?)),
    };
    let address = match segment.address {
        Some(address) => address,
        None => first_address(&segment.interface)?,
    };
    Ok(Bound { segment: segment.clone(), address, server, proxy })
}

/// The interface's first IPv4 address: the one that the kernel puts on a broadcast there.
fn first_address(interface: &str) -> Result<Ipv4Addr, BindError> {
    let probe = || -> io::Result<Option<SocketAddrV4>> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        socket.set_broadcast(true)?;
        socket.connect(&SockAddr::from(SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT)))?;
        Ok(socket.local_addr()?.as_socket_ipv4())
    };
    match probe() {
        Ok(Some(local)) if !local.ip().is_unspecified() => Ok(*local.ip()),
        Err(source) if source.raw_os_error() == Some(ENODEV) => Err(explain(source, interface, SERVER_PORT)),
        _ => Err(BindError::NoAddress { interface: interface.to_owned() }),
    }
}

/// No SO_REUSEADDR: with it a second server on this interface would go unseen, each getting half of the packets. Services
/// on different interfaces do not conflict, because each socket belongs to its device.
fn open(interface: &str, port: u16) -> Result<UdpSocket, BindError> {
    let opened = || -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        socket.set_broadcast(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)))?;
        UdpSocket::from_std(socket.into())
    };
    opened().map_err(|source| explain(source, interface, port))
}

/// SO_BINDTODEVICE's answer to a name that no interface has.
const ENODEV: i32 = 19;

fn explain(source: io::Error, interface: &str, port: u16) -> BindError {
    let interface = interface.to_owned();
    match source.kind() {
        io::ErrorKind::AddrInUse => BindError::Taken { port, interface },
        io::ErrorKind::PermissionDenied => BindError::Denied { port, interface },
        _ if source.raw_os_error() == Some(ENODEV) => BindError::NoSuchInterface { interface, known: interfaces() },
        _ => BindError::Io { port, interface, source },
    }
}

fn interfaces() -> String {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_interface_that_is_not_there_is_named_beside_those_that_are() {
        let segment =
            Segment { interface: "nosuch0".to_owned(), address: None, mode: DhcpMode::Authoritative, pool: None };
        let error = bind(&segment).err().expect("there is no such interface").to_string();
        assert!(error.contains("`nosuch0`") && error.contains("lo"), "{error}");
    }

    #[tokio::test]
    async fn a_service_that_is_off_opens_no_port() {
        let address = Some(Ipv4Addr::LOCALHOST);
        let segment = Segment { interface: "lo".to_owned(), address, mode: DhcpMode::Off, pool: None };
        let bound = bind(&segment).expect("nothing to open");
        assert!(bound.server.is_none() && bound.proxy.is_none());
    }
}
