//! The listening socket: bound to one address of one interface, before anything runs.

use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
};
use tokio::net::TcpStream;

/// Connections that wait in the kernel: a rack that comes back at once.
const BACKLOG: i32 = 1024;

/// Why the agent plane cannot listen: one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has the port.
    #[error("agent plane: {address} is taken by another program; stop it (ss -tlnp shows it) or change [agent].port")]
    Taken {
        /// Where.
        address: SocketAddrV4,
    },
    /// Ports below 1024 and devices want a capability.
    #[error(
        "agent plane: no permission to listen on {address}; run as root, grant CAP_NET_BIND_SERVICE and CAP_NET_RAW, \
         or set [agent].port above 1023"
    )]
    Permission {
        /// Where.
        address: SocketAddrV4,
    },
    /// The interface of the segment does not exist.
    #[error("agent plane: there is no interface `{interface}`; see `ip link` and set [net].interface")]
    NoInterface {
        /// Its name.
        interface: String,
    },
    /// The address is not one of this machine's.
    #[error("agent plane: {address} is no address of this machine; see `ip address` and set [net].address")]
    NoAddress {
        /// Where.
        address: SocketAddrV4,
    },
    /// Anything else.
    #[error("agent plane: cannot listen on {address}")]
    Other {
        /// Where.
        address: SocketAddrV4,
        /// Why.
        source: io::Error,
    },
}

/// A bound socket that [`super::run`] will serve.
#[derive(Debug)]
pub struct Listener(tokio::net::TcpListener);

/// Binds to one address, and to one interface where one is given: a packet that came in elsewhere does not reach it. Port 0
/// takes a free one. Call it inside a tokio runtime.
///
/// # Errors
/// [`BindError`], one case for each thing that an operator can put right.
pub fn bind(interface: Option<&str>, address: Ipv4Addr, port: u16) -> Result<Listener, BindError> {
    let address = SocketAddrV4::new(address, port);
    let other = |source| BindError::Other { address, source };
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP)).map_err(other)?;
    // A restart must not wait for the old connections to time out.
    socket.set_reuse_address(true).map_err(other)?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes())).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => BindError::Permission { address },
            // ENODEV has no kind of its own.
            _ if source.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
                BindError::NoInterface { interface: interface.to_owned() }
            }
            _ => other(source),
        })?;
    }
    socket.bind(&address.into()).and_then(|()| socket.listen(BACKLOG)).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::Taken { address },
        io::ErrorKind::PermissionDenied => BindError::Permission { address },
        io::ErrorKind::AddrNotAvailable => BindError::NoAddress { address },
        _ => other(source),
    })?;
    tokio::net::TcpListener::from_std(socket.into()).map(Listener).map_err(other)
}

impl Listener {
    /// Where it listens; the port is the real one.
    ///
    /// # Errors
    /// The kernel's, which never come for a bound socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.accept().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_fault_is_one_sentence_that_says_what_to_do() {
        let taken = bind(None, Ipv4Addr::LOCALHOST, 0).expect("a free port");
        let port = taken.local_addr().expect("bound").port();
        let fault = |interface, address, port| bind(interface, address, port).expect_err("refused").to_string();
        assert!(fault(None, Ipv4Addr::LOCALHOST, port).contains("change [agent].port"));
        assert!(fault(Some("nosuch0"), Ipv4Addr::LOCALHOST, 0).contains("no interface `nosuch0`"));
        assert!(fault(None, Ipv4Addr::new(192, 0, 2, 1), 0).contains("no address of this machine"));
    }
}
