//! Finds the DHCP servers of a network before meshd serves there.

use crate::bind::{BindError, Service, udp};
use meshd_dhcp::packet::{CLIENT_PORT, SERVER_PORT, ServerMessage, probe_packets};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::{Duration, Instant},
};

/// Interval between probes. Probes are repeated, because a packet may be lost.
const REPEAT: Duration = Duration::from_secs(1);
/// Maximum size of a packet on an Ethernet network, in bytes.
const LONGEST: usize = 1500;

/// Returns the addresses of the DHCP and PXE servers that answer on an interface within `wait`,
/// except `address` itself. Sends a DISCOVER and an INFORM every second, and accepts no offer.
/// Needs UDP port 68 and therefore root.
pub fn find_servers(
    interface: &str,
    address: Ipv4Addr,
    xid: u32,
    wait: Duration,
) -> Result<BTreeSet<Ipv4Addr>, BindError> {
    let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT);
    let socket = UdpSocket::from(udp(Service::Dhcp, Some(interface), at)?);
    let failed = |source| BindError::Io { service: Service::Dhcp, at, source };
    socket.set_nonblocking(false).map_err(failed)?;
    let began = Instant::now();
    let mut found = BTreeSet::new();
    let mut buffer = [0; LONGEST];
    let end = began + wait;
    let mut next_probe = began;
    loop {
        let now = Instant::now();
        if now >= end {
            return Ok(found);
        }
        if now >= next_probe {
            for packet in probe_packets(address, xid) {
                socket.send_to(&packet, (Ipv4Addr::BROADCAST, SERVER_PORT)).map_err(failed)?;
            }
            next_probe = now + REPEAT;
        }
        let left = end.min(next_probe).saturating_duration_since(now);
        socket.set_read_timeout(Some(left)).map_err(failed)?;
        // A timeout ends the loop above; an ICMP error is not a reply.
        if let Ok((length, _)) = socket.recv_from(&mut buffer) {
            let message =
                ServerMessage::parse(&buffer[..length]).filter(|message| message.xid == xid);
            found.extend(message.map(|message| message.server).filter(|server| *server != address));
        }
    }
}
