//! The MTU of the path to a client, as the kernel knows it: of the interface, of the route, or
//! learned from routers (RFC 1191).

use crate::engine::PathMtu;
use rustix::net::{connect, sockopt::ip_mtu};
use std::net::{SocketAddrV4, UdpSocket};

/// The MTU of an Ethernet network in bytes, if the kernel does not tell.
const DEFAULT: usize = 1500;

/// Returns the look-up. It sends nothing: `socket`, which no transfer uses, is connected to the
/// client and asked.
pub(super) fn path_mtu(socket: UdpSocket) -> PathMtu {
    Box::new(move |client: SocketAddrV4| {
        let mtu = connect(&socket, &client).and_then(|()| ip_mtu(&socket));
        mtu.ok().and_then(|mtu| usize::try_from(mtu).ok()).unwrap_or(DEFAULT)
    })
}
