//! Tests the private network as a guest would use it.

use super::{PROBE_MAC, dhcp};
use meshd_proto::{InterfaceName, Subnet};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::{Duration, Instant},
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
    let broadcast = Ipv4Addr::from_bits(subnet.network().to_bits() | !subnet.mask().to_bits());
    socket.send_to(&dhcp::discover(PROBE_MAC), (broadcast, dhcp::SERVER_PORT))?;
    let end = Instant::now() + REPLY_TIMEOUT;
    let mut packet = [0; dhcp::MAX_PACKET];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut packet) {
            Ok((length, _)) if dhcp::is_offer(&packet[..length], PROBE_MAC) => return Ok(true),
            Ok(_) => {}
            // A program of the agent has ended: the kernel does not restart a read with a timeout.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(false),
        }
    }
}

/// Connects from the node's private address. A response, even a refusal, proves address
/// translation: no other machine has a route to that address.
pub fn connects(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddrV4::new(from, 0).into())?;
    match socket.connect_timeout(&to.into(), REPLY_TIMEOUT) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
