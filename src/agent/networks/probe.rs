//! Tests the private network as a guest would use it.

use super::{PROBE_MAC, dhcp};
use meshd_proto::{InterfaceName, Subnet};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SocketFlags, SocketType, bind, connect, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

const REPLY_TIMEOUT: Duration = Duration::from_secs(4);

/// Sends a DHCP request to the bridge as [`PROBE_MAC`]; the node receives its own broadcast.
///
/// # Errors
/// The socket cannot be bound: another DHCP client uses the port on the bridge.
pub fn dhcp_answers(bridge: &InterfaceName, subnet: Subnet) -> io::Result<bool> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // Before the port: the DHCP client of the node has the port on its own interface.
    socket.bind_device(Some(bridge.as_str().as_bytes()))?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, dhcp::CLIENT_PORT).into())?;
    socket.set_broadcast(true)?;
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let broadcast = Ipv4Addr::from_bits(subnet.network().to_bits() | !subnet.mask().to_bits());
    socket.send_to(&dhcp::discover(PROBE_MAC), (broadcast, dhcp::SERVER_PORT))?;
    let mut packet = [0; dhcp::MAX_PACKET];
    loop {
        match socket.recv_from(&mut packet) {
            Ok((length, _)) if dhcp::is_offer(&packet[..length], PROBE_MAC) => return Ok(true),
            Ok(_) => {}
            Err(_) => return Ok(false),
        }
    }
}

/// Connects from the node's private address. A response, even a refusal, proves address
/// translation: no other machine has a route to that address.
pub fn connects(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrV4::new(from, 0))?;
    // The kernel's TCP connect timeout.
    set_socket_timeout(&socket, Timeout::Send, Some(REPLY_TIMEOUT))?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::CONNREFUSED) => Ok(()),
        Err(Errno::INPROGRESS) => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
    }
}
