//! The listening socket: one segment's address on one segment's interface, or a sentence that says why not.

use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddrV4},
};
use tokio::net::TcpListener;

/// Connections that wait to be accepted: a rack that powers on at once.
const BACKLOG: i32 = 1024;

/// Why the boot plane cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program is there.
    #[error("HTTP port {0} is taken by another program; stop it (`ss -ltnp` shows it) or set [http].port in site.toml")]
    PortTaken(SocketAddrV4),
    /// A low port or an interface, and not root.
    #[error("no permission to listen on {0}; run as root, or give meshd CAP_NET_BIND_SERVICE and CAP_NET_RAW")]
    NotPermitted(SocketAddrV4),
    /// The segment's interface is not there.
    #[error("there is no network interface `{0}`; `ip link` lists them, [net].interface in site.toml names it")]
    NoInterface(String),
    /// The interface has another address.
    #[error("{0} is no address of this machine; `ip address` lists them, [net].address in site.toml names it")]
    NoAddress(Ipv4Addr),
    /// Something that should not happen.
    #[error("cannot listen on {at} for HTTP")]
    Other {
        /// Where.
        at: SocketAddrV4,
        /// What the system says.
        source: io::Error,
    },
}

/// Listens on `address:port`, and with an interface only for what comes in there. Port 0 lets the system choose.
///
/// # Errors
/// Each one says what to do about it. Must be called inside a tokio runtime.
pub fn bind(address: Ipv4Addr, port: u16, interface: Option<&str>) -> Result<TcpListener, BindError> {
    let at = SocketAddrV4::new(address, port);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    let socket = socket.map_err(|source| BindError::Other { at, source })?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes())).map_err(|source| match source.kind() {
            ErrorKind::PermissionDenied => BindError::NotPermitted(at),
            // ENODEV; a name that is too long for the kernel (EINVAL) is no interface either.
            _ => BindError::NoInterface(interface.to_owned()),
        })?;
    }
    listen(&socket, at).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => BindError::PortTaken(at),
        ErrorKind::PermissionDenied => BindError::NotPermitted(at),
        ErrorKind::AddrNotAvailable => BindError::NoAddress(address),
        _ => BindError::Other { at, source },
    })?;
    TcpListener::from_std(socket.into()).map_err(|source| BindError::Other { at, source })
}

fn listen(socket: &Socket, at: SocketAddrV4) -> io::Result<()> {
    // Connections of a former run linger in TIME_WAIT; a restart does not wait for them.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)
}
