//! Sockets of the DHCP service, each bound to one interface.

use super::frame_socket::FrameSocket;
use crate::serve::{
    bind::{self, BindError, Service},
    lan::{ArpProber, Receiver, drop_all_received},
};
use meshd_config::{DhcpMode, Link, Segment, Site};
use meshd_dhcp::{
    Destination, Interface, Reply,
    packet::{CLIENT_PORT, PROXY_PORT, SERVER_PORT},
};
use rustix::net::{SendFlags, sendto};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
};
use tokio::net::UdpSocket;

/// Port at which replies to probes arrive.
const PROBE_PORT: u16 = CLIENT_PORT;

/// Receive buffer in bytes: holds the requests of a rack that powers on at once, about 1 KB each.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;

/// The bound sockets of the DHCP service.
pub struct Bound {
    pub(super) interfaces: Vec<BoundInterface>,
}

/// The sockets of one interface.
pub(super) struct BoundInterface {
    pub(super) interface: Interface,
    /// Port 67, for sending.
    pub(super) server: Option<UdpSocket>,
    /// Port 4011, for sending.
    pub(super) proxy: Option<UdpSocket>,
    /// Receives the packets of both ports.
    pub(super) receiver: Option<Receiver>,
    /// Port 68: sends probes, receives the replies of other servers.
    pub(super) probe: Option<UdpSocket>,
    /// Asks whether new offers are in use.
    pub(super) arp: Option<ArpProber>,
    frames: Option<FrameSocket>,
}

impl Bound {
    /// Returns each interface with the server address for its clients.
    pub fn interfaces(&self) -> impl Iterator<Item = (&str, Ipv4Addr)> {
        self.interfaces.iter().map(|bound| (bound.interface.name.as_str(), bound.interface.address))
    }
}

/// Opens the ports that the modes of the segments need. Mode `off` needs none, unless relayed packets can arrive nowhere else.
pub fn bind(site: &Site) -> Result<Bound, BindError> {
    let relayed = || site.segments.iter().filter(|segment| matches!(segment.link, Link::Relay(_)));
    let on = |segment: &&Segment| segment.mode != DhcpMode::Off;
    let direct_is_on = site.segments.iter().filter(on).any(|segment| segment.interface().is_some());
    let relays_need_a_port = relayed().any(|segment| on(&segment)) && !direct_is_on;
    let relayed_proxy = relayed().any(|segment| segment.mode == DhcpMode::Proxy);
    let mut interfaces: Vec<BoundInterface> = Vec::new();
    for segment in &site.segments {
        let Some(name) = segment.interface() else { continue };
        let serves = segment.mode != DhcpMode::Off || relays_need_a_port;
        let proxy = segment.mode == DhcpMode::Proxy || (serves && relayed_proxy);
        interfaces.push(BoundInterface::open(name, segment, serves, proxy)?);
    }
    // The server address for clients behind a relay must be an address of a bound interface.
    for address in relayed().filter_map(|segment| segment.address) {
        if interfaces.iter().all(|bound| bound.interface.address != address) {
            return Err(BindError::NotHere { service: Service::Dhcp, address });
        }
    }
    Ok(Bound { interfaces })
}

impl BoundInterface {
    fn open(name: &str, segment: &Segment, serves: bool, proxy: bool) -> Result<Self, BindError> {
        let server = serves.then(|| open(Service::Dhcp, name, SERVER_PORT)).transpose()?;
        let proxy = proxy.then(|| open(Service::ProxyDhcp, name, PROXY_PORT)).transpose()?;
        let address = match segment.address {
            Some(address) => address,
            None => bind::first_address(name)?,
        };
        let watched = segment.mode != DhcpMode::Off;
        let probe = watched.then(|| open(Service::Dhcp, name, PROBE_PORT)).and_then(|opened| {
            let why = opened.as_ref().err().map(ToString::to_string);
            if let Some(why) = why {
                tracing::warn!(interface = name, why, "cannot look for other DHCP servers: a DHCP client has the port");
            }
            opened.ok()
        });
        let ports: Vec<u16> = [(SERVER_PORT, &server), (PROXY_PORT, &proxy)]
            .into_iter()
            .filter_map(|(port, socket)| socket.as_ref().map(|_| port))
            .collect();
        let receiver = (!ports.is_empty()).then(|| receive(name, &ports)).transpose()?;
        let frames = server.as_ref().and_then(|_| {
            let opened = FrameSocket::open(name);
            if let Err(why) = &opened {
                tracing::info!(interface = name, %why, "clients without an address are answered by broadcast");
            }
            opened.ok()
        });
        let leases = serves && segment.mode == DhcpMode::Authoritative;
        // `frames` reports an interface without Ethernet addresses.
        let arp = leases.then(|| ArpProber::open(name, address).ok()).flatten();
        let interface = Interface { name: name.to_owned(), address };
        Ok(BoundInterface { interface, server, proxy, receiver, probe, arp, frames })
    }

    /// Sends a reply without waiting: a client repeats a request that got no reply.
    pub(super) fn send(&self, reply: &Reply) -> io::Result<()> {
        let to = match reply.to {
            Destination::Ip(to) => to,
            Destination::Frame { mac, address } => {
                if let Some(frames) = &self.frames {
                    return frames.send(self.interface.address, mac, address, &reply.packet);
                }
                let Destination::Ip(broadcast) = Destination::BROADCAST else { return Ok(()) };
                broadcast
            }
        };
        let proxy = self.proxy.as_ref().filter(|_| reply.local_port == PROXY_PORT);
        let Some(socket) = proxy.or(self.server.as_ref()) else { return Ok(()) };
        sendto(socket, &reply.packet, SendFlags::DONTWAIT, &to)?;
        Ok(())
    }

    /// Broadcasts a probe from the port of clients.
    pub(super) fn send_probe(&self, packet: &[u8]) -> io::Result<()> {
        let Some(socket) = &self.probe else { return Ok(()) };
        sendto(socket, packet, SendFlags::DONTWAIT, &SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT))?;
        Ok(())
    }
}

fn open(service: Service, interface: &str, port: u16) -> Result<UdpSocket, BindError> {
    let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let socket = bind::udp(service, Some(interface), at)?;
    let failed = |source| BindError::Io { service, at, source };
    if port != PROBE_PORT {
        drop_all_received(&socket).map_err(failed)?;
    }
    UdpSocket::from_std(socket.into()).map_err(failed)
}

/// Opens the receiver of the ports. meshd requires it, because forged packets are detected by their Ethernet sender.
fn receive(interface: &str, ports: &[u16]) -> Result<Receiver, BindError> {
    let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, SERVER_PORT);
    Receiver::open(interface, ports, RECEIVE_BUFFER).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => BindError::Denied { service: Service::Dhcp, at },
        _ => BindError::Io { service: Service::Dhcp, at, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn segment_with_mode_off_opens_no_port() {
        let address = Some(Ipv4Addr::LOCALHOST);
        let segment = Segment {
            link: Link::Interface("lo".to_owned()),
            address,
            mode: DhcpMode::Off,
            subnet: None,
            relay_macs: Vec::new(),
        };
        let bound = BoundInterface::open("lo", &segment, false, false).expect("nothing to open");
        assert!(
            bound.server.is_none()
                && bound.proxy.is_none()
                && bound.probe.is_none()
                && bound.frames.is_none()
                && bound.receiver.is_none()
        );
    }
}
