//! Runs the DHCP client on a NIC without address, through a UDP socket that is bound to the NIC.

use super::{
    dhcp_client::{DhcpClient, DhcpStep},
    lease::Lease,
};
use meshd_types::MacAddr;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::{Duration, Instant},
};

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
/// Maximum size of a packet in bytes.
const MAX_PACKET: usize = 1500;
/// Time for a lease: outlives a server that restarts, and a switch port that learns for a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// No lease.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    #[error("open a DHCP socket: {0}")]
    Socket(io::Error),
    #[error("no DHCP server answered in {} s", PATIENCE.as_secs())]
    NoAnswer,
}

/// Acquires a lease on an interface that is up.
pub fn acquire(interface: &str, mac: MacAddr) -> Result<Lease, AcquireError> {
    let socket = open(interface).map_err(AcquireError::Socket)?;
    let begin = Instant::now();
    let mut number = [0; 4];
    getrandom::fill(&mut number)
        .map_err(|error| AcquireError::Socket(io::Error::other(error.to_string())))?;
    let mut client = DhcpClient::new(mac, u32::from_ne_bytes(number), begin.elapsed());
    while begin.elapsed() < PATIENCE {
        let until = match client.step(begin.elapsed()) {
            DhcpStep::Bound(lease) => return Ok(lease),
            DhcpStep::Wait(until) => until,
            DhcpStep::Send(packet, until) => {
                let servers = SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT);
                // A NIC whose link is not up yet refuses: the client repeats the packet.
                let _ = socket.send_to(&packet, servers);
                until
            }
        };
        let wait = until.saturating_sub(begin.elapsed()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(wait)).map_err(AcquireError::Socket)?;
        let mut packet = [0; MAX_PACKET];
        if let Ok(length) = socket.recv(&mut packet) {
            client.receive(&packet[..length], begin.elapsed());
        }
    }
    Err(AcquireError::NoAnswer)
}

fn open(interface: &str) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_broadcast(true)?;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT).into())?;
    Ok(socket.into())
}
