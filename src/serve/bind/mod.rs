//! Opens ports before any service starts, each on one interface and one address. Errors are one
//! sentence with a hint.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `rebind` | binds handles again with their interface |

pub mod rebind;

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::{
    fmt,
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddrV4},
};

/// Maximum number of connections in the kernel's accept queue: a rack that powers on at once.
const BACKLOG: i32 = 1024;

/// Service that uses a port. The hint of an error depends on the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// UDP 67.
    Dhcp,
    /// UDP 4011.
    ProxyDhcp,
    /// UDP 69, and the source ports of transfers.
    Tftp,
    /// TCP `[http].port`.
    Http,
    /// TCP `[agent].port`.
    Agent,
    /// TCP `[metrics].port`.
    Metrics,
    /// TCP `[admin.https].port`.
    Admin,
}

impl Service {
    /// Returns the hint for an occupied port: the usual other programs, and alternatives to
    /// stopping them.
    fn when_taken(self) -> &'static str {
        match self {
            Service::Dhcp => "stop it (dnsmasq, Kea, dhcpd?), or set [dhcp].mode = \"off\"",
            Service::ProxyDhcp => {
                "stop it (dnsmasq?), or set [dhcp].mode to \"authoritative\" or \"off\""
            }
            Service::Tftp => "stop it (tftpd-hpa, atftpd, dnsmasq?)",
            Service::Http => "stop it, or change [http].port",
            Service::Agent => "stop it, or change [agent].port",
            Service::Metrics => "stop it, or change [metrics].port",
            Service::Admin => "stop it, or change [admin.https].port",
        }
    }

    fn protocol(self) -> &'static str {
        match self {
            Service::Dhcp | Service::ProxyDhcp | Service::Tftp => "UDP",
            Service::Http | Service::Agent | Service::Metrics | Service::Admin => "TCP",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Service::Dhcp => "DHCP",
            Service::ProxyDhcp => "proxy DHCP",
            Service::Tftp => "TFTP",
            Service::Http => "the boot API (HTTP)",
            Service::Agent => "the agent API",
            Service::Metrics => "metrics",
            Service::Admin => "the admin API (HTTPS)",
        })
    }
}

/// Reason why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process uses the port.
    #[error(
        "{service}: {} port {} is taken by another program",
        service.protocol(), at.port()
    )]
    Taken { service: Service, at: SocketAddrV4 },
    /// Ports below 1024 and binding to an interface require a capability.
    #[error("{service}: no permission to open {at}")]
    Denied { service: Service, at: SocketAddrV4 },
    /// The site names an interface that does not exist.
    #[error("there is no network interface `{interface}`")]
    NoSuchInterface {
        /// Configured interface.
        interface: String,
        /// Existing interfaces.
        known: String,
    },
    /// The interface has no IPv4 address, and the site configures none.
    #[error("interface `{interface}` has no IPv4 address")]
    NoAddress { interface: String },
    /// The address belongs to another host or another interface.
    #[error("{service}: {address} is no address of this machine")]
    NotHere {
        service: Service,
        /// Configured address.
        address: Ipv4Addr,
    },
    /// The addresses of this host cannot be listed.
    #[error("{service}: cannot list the addresses of this machine")]
    Interfaces {
        service: Service,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Any other error.
    #[error("{service}: cannot open {at}")]
    Io {
        service: Service,
        at: SocketAddrV4,
        /// Error of the kernel.
        source: io::Error,
    },
}

meshd_types::hints!(BindError {
    BindError::Taken { service, at } => "`ss -lnp sport = :{}` shows it: {}", at.port(), service.when_taken();
    BindError::Denied { .. } => "run meshd as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW";
    BindError::NoSuchInterface { known, .. } => "correct it in site.toml, then start meshd again: this machine has {known}";
    BindError::NoAddress { .. } => "give it one, or set `address` beside it in site.toml";
    BindError::NotHere { .. } => "`ip address` lists them; correct it in site.toml";
});

/// Opens a non-blocking UDP port. With an interface, the socket receives only packets of that
/// interface. Port 0 selects a free port.
///
/// The socket does not set SO_REUSEADDR: a second server on this interface would go undetected, and
/// each would receive half of the packets. Services on different interfaces do not conflict,
/// because each socket is bound to its device.
pub fn udp(
    service: Service,
    interface: Option<&str>,
    at: SocketAddrV4,
) -> Result<Socket, BindError> {
    let opened = || -> io::Result<Socket> {
        let socket = on_interface(Type::DGRAM, Protocol::UDP, interface)?;
        socket.set_broadcast(true)?;
        socket.bind(&SockAddr::from(at))?;
        Ok(socket)
    };
    opened().map_err(|source| explain(source, service, interface, at))
}

/// Listens on a TCP port; with an interface, only for connections on it. Port 0 selects a free
/// port. Needs a tokio runtime.
pub fn tcp(
    service: Service,
    interface: Option<&str>,
    at: SocketAddrV4,
) -> Result<tokio::net::TcpListener, BindError> {
    let opened =
        listen(interface, at).and_then(|socket| tokio::net::TcpListener::from_std(socket.into()));
    opened.map_err(|source| explain(source, service, interface, at))
}

/// Returns the interface to which a listener is bound.
pub fn bound_interface(listener: &tokio::net::TcpListener) -> Option<String> {
    SockRef::from(listener).device().ok().flatten().and_then(|name| String::from_utf8(name).ok())
}

/// Checks whether a program can listen on this TCP port now.
pub fn is_free(
    service: Service,
    interface: Option<&str>,
    at: SocketAddrV4,
) -> Result<(), BindError> {
    // SO_REUSEADDR permits a second bind, so only a second `listen` detects another server.
    listen(interface, at).map(drop).map_err(|source| explain(source, service, interface, at))
}

fn listen(interface: Option<&str>, at: SocketAddrV4) -> io::Result<Socket> {
    let socket = on_interface(Type::STREAM, Protocol::TCP, interface)?;
    // Connections of an earlier process linger in TIME_WAIT and must not delay a restart.
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(at))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Returns the interface that has a local address. Linux accepts packets for any local address on
/// any interface. A listener bound to the interface is reachable from that network only.
pub fn interface_of(service: Service, address: Ipv4Addr) -> Result<Option<String>, BindError> {
    let failed = |errno: nix::errno::Errno| BindError::Interfaces { service, source: errno.into() };
    let mut all = nix::ifaddrs::getifaddrs().map_err(failed)?;
    let has = |it: &nix::ifaddrs::InterfaceAddress| {
        let own = it.address.as_ref().and_then(|at| Some(at.as_sockaddr_in()?.ip()));
        // All addresses in 127.0.0.0/8 are local.
        own.is_some_and(|ip| ip == address || (ip.is_loopback() && address.is_loopback()))
    };
    Ok(all.find(has).map(|it| it.interface_name))
}

/// Returns the first IPv4 address of an interface, which the kernel uses as source of broadcasts.
pub fn first_address(interface: &str) -> Result<Ipv4Addr, BindError> {
    /// Arbitrary port, because nothing is sent.
    const DISCARD: u16 = 9;
    let to = SocketAddrV4::new(Ipv4Addr::BROADCAST, DISCARD);
    let probe = || -> io::Result<Option<SocketAddrV4>> {
        let socket = on_interface(Type::DGRAM, Protocol::UDP, Some(interface))?;
        socket.set_broadcast(true)?;
        socket.connect(&SockAddr::from(to))?;
        Ok(socket.local_addr()?.as_socket_ipv4())
    };
    match probe() {
        Ok(Some(local)) if !local.ip().is_unspecified() => Ok(*local.ip()),
        Err(source) if is_no_interface(&source) => Err(no_such_interface(interface)),
        _ => Err(BindError::NoAddress { interface: interface.to_owned() }),
    }
}

fn on_interface(kind: Type, protocol: Protocol, interface: Option<&str>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, kind.nonblocking().cloexec(), Some(protocol))?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    Ok(socket)
}

/// Returns true if SO_BINDTODEVICE failed because no interface has, or can have, this name.
fn is_no_interface(error: &io::Error) -> bool {
    [Errno::NODEV, Errno::INVAL]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn no_such_interface(interface: &str) -> BindError {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    BindError::NoSuchInterface { interface: interface.to_owned(), known }
}

fn explain(
    source: io::Error,
    service: Service,
    interface: Option<&str>,
    at: SocketAddrV4,
) -> BindError {
    match (source.kind(), interface) {
        (ErrorKind::AddrInUse, _) => BindError::Taken { service, at },
        (ErrorKind::PermissionDenied, _) => BindError::Denied { service, at },
        (ErrorKind::AddrNotAvailable, _) => BindError::NotHere { service, address: *at.ip() },
        (_, Some(interface)) if is_no_interface(&source) => no_such_interface(interface),
        _ => BindError::Io { service, at, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Hint as _;

    const LOOPBACK: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

    #[tokio::test]
    async fn bind_errors_name_cause_and_remedy() {
        let listener = tcp(Service::Agent, None, LOOPBACK).expect("a free port");
        let taken =
            SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().expect("bound").port());
        let fault = |interface, at| {
            let error = tcp(Service::Agent, interface, at).expect_err("refused");
            format!("{}: {}", error.message(), error.hint().unwrap_or_default())
        };
        assert!(fault(None, taken).contains("or change [agent].port"));
        let nowhere = fault(Some("nosuch0"), LOOPBACK);
        assert!(nowhere.contains("`nosuch0`") && nowhere.contains("lo"), "{nowhere}");
        let foreign = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 0);
        assert!(fault(None, foreign).contains("192.0.2.1 is no address of this machine"));
    }

    #[test]
    fn udp_port_in_use_is_refused() {
        let first = udp(Service::Tftp, Some("lo"), LOOPBACK).expect("a free port");
        let at = first.local_addr().expect("bound").as_socket_ipv4().expect("IPv4");
        let second = udp(Service::Tftp, Some("lo"), at).expect_err("taken").to_string();
        assert!(second.contains(&format!("UDP port {} is taken", at.port())), "{second}");
    }

    #[test]
    fn first_address_of_unknown_interface_is_refused() {
        assert!(matches!(first_address("nosuch0"), Err(BindError::NoSuchInterface { .. })));
    }
}
