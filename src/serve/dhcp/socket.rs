//! Sockets of the DHCP service, each bound to one interface.

use crate::{
    bind::rebind::{BoundTo, InterfaceWatch},
    bind::{self, BindError, Service},
    lan::{ArpProber, FrameSocket, NextHops, Receiver, drop_all_received, enlarge_send_queue},
};
use meshd_config::{DhcpMode, Link, Segment, Site};
use meshd_dhcp::{
    Destination, Interface, LastHop, Reply,
    packet::{CLIENT_PORT, PROXY_PORT, SERVER_PORT},
};
use meshd_types::{MacAddr, failpoint};
use rustix::net::{SendFlags, sendto};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    time::Instant,
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

/// The ports that an interface needs.
#[derive(Clone, Copy)]
struct Ports {
    server: bool,
    proxy: bool,
    probe: bool,
    /// Addresses are leased here.
    arp: bool,
}

/// The sockets of one interface.
pub(super) struct BoundInterface {
    pub(super) interface: Interface,
    ports: Ports,
    watch: InterfaceWatch,
    /// What the sockets are bound to.
    bound: BoundTo,
    /// Ethernet address in the frames of `frames`.
    mac: Option<MacAddr>,
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
    frames: Option<Frames>,
}

/// Sends frames to clients without an address, and to clients and relays that ARP has not resolved.
struct Frames {
    socket: FrameSocket,
    next_hops: NextHops,
}

impl Frames {
    fn open(interface: &str) -> io::Result<Self> {
        let socket = FrameSocket::open(interface)?;
        let next_hops = NextHops::new(socket.interface());
        Ok(Frames { socket, next_hops })
    }

    /// Returns the Ethernet destination of a frame to this address; `None` if the kernel sends the
    /// reply.
    ///
    /// The kernel would keep replies in the queue of all clients until ARP resolves the address, and
    /// a sender can invent addresses.
    fn destination_mac(&mut self, address: Ipv4Addr, last_hop: LastHop) -> Option<MacAddr> {
        if !failpoint::defends("dhcp-frames") {
            return None;
        }
        match last_hop {
            LastHop::Client(mac) => Some(mac),
            LastHop::Router(mac) => {
                let next_hop = self.next_hops.get(Instant::now(), address);
                (!next_hop.is_resolved).then_some(mac)
            }
        }
    }
}

impl Bound {
    /// Returns each interface, and what its sockets are bound to.
    pub fn interfaces(&self) -> impl Iterator<Item = (&InterfaceWatch, BoundTo)> {
        self.interfaces.iter().map(|bound| (&bound.watch, bound.bound))
    }
}

/// Opens the ports that the modes of the segments need. Mode `off` needs none, unless relayed
/// packets can arrive nowhere else.
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
        let ports = Ports {
            server: serves,
            proxy,
            probe: segment.mode != DhcpMode::Off,
            arp: serves && segment.mode == DhcpMode::Authoritative,
        };
        interfaces.push(BoundInterface::open(name, segment.address, ports)?);
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
    fn open(name: &str, configured: Option<Ipv4Addr>, ports: Ports) -> Result<Self, BindError> {
        let watch = InterfaceWatch::new(name, configured);
        let address = match configured {
            Some(address) => address,
            None => bind::first_address(name)?,
        };
        let interface = Interface { name: name.to_owned(), address };
        let bound = watch.bound(address);
        let mac = watch.mac();
        let mut opened = BoundInterface {
            interface,
            ports,
            watch,
            bound,
            mac,
            server: None,
            proxy: None,
            receiver: None,
            probe: None,
            arp: None,
            frames: None,
        };
        opened.open_sockets()?;
        Ok(opened)
    }

    fn open_sockets(&mut self) -> Result<(), BindError> {
        let name = self.interface.name.as_str();
        self.server =
            self.ports.server.then(|| open_port(Service::Dhcp, name, SERVER_PORT)).transpose()?;
        self.proxy = self
            .ports
            .proxy
            .then(|| open_port(Service::ProxyDhcp, name, PROXY_PORT))
            .transpose()?;
        self.probe = self.ports.probe.then(|| open_port(Service::Dhcp, name, PROBE_PORT)).and_then(
            |opened| {
                let why = opened.as_ref().err().map(ToString::to_string);
                if let Some(why) = why {
                    tracing::warn!(
                        interface = name,
                        why,
                        "cannot look for other DHCP servers: a DHCP client has the port"
                    );
                }
                opened.ok()
            },
        );
        let ports: Vec<u16> = [(SERVER_PORT, &self.server), (PROXY_PORT, &self.proxy)]
            .into_iter()
            .filter_map(|(port, socket)| socket.as_ref().map(|_| port))
            .collect();
        self.receiver = (!ports.is_empty()).then(|| open_receiver(name, &ports)).transpose()?;
        self.open_frames();
        Ok(())
    }

    fn open_frames(&mut self) {
        let name = self.interface.name.as_str();
        self.frames = self.server.as_ref().and_then(|_| {
            let opened = Frames::open(name);
            if let Err(why) = &opened {
                tracing::info!(interface = name, %why, "clients without an address are answered by broadcast");
            }
            opened.ok()
        });
        // `frames` reports an interface without Ethernet addresses.
        self.arp =
            self.ports.arp.then(|| ArpProber::open(name, self.interface.address).ok()).flatten();
    }

    /// Opens the sockets again if the interface was made again, or has another address. Returns the
    /// new server address. A failure is repeated at the next call.
    pub(super) fn rebind(&mut self) -> Result<Option<Ipv4Addr>, BindError> {
        let Some(current) = self.watch.change_since(self.bound) else {
            // A bridge has another Ethernet address after a change of its ports. Only frames
            // contain it.
            let mac = self.watch.mac();
            if mac.is_some() && mac != self.mac {
                self.mac = mac;
                self.open_frames();
            }
            return Ok(None);
        };
        // The ports of an interface that has only another address are free after this.
        (self.server, self.proxy, self.receiver, self.probe, self.arp, self.frames) =
            Default::default();
        self.bound = BoundTo { index: 0, ..current };
        self.mac = self.watch.mac();
        self.interface.address = current.address;
        self.open_sockets()?;
        self.bound = current;
        Ok(Some(current.address))
    }

    /// Returns the reason if no packet of a client can arrive; `None` if the interface needs no
    /// port, too.
    pub(super) fn fault(&self) -> Option<String> {
        if !self.ports.server {
            return None;
        }
        let Some(current) = self.watch.current(self.bound) else {
            return Some("the interface is absent or has no address".to_owned());
        };
        let is_bound =
            self.receiver.as_ref().is_some_and(|receiver| receiver.is_bound_to(current.index));
        (!is_bound)
            .then(|| "the ports are not bound to the interface; the log has the cause".to_owned())
    }

    /// Sends a reply without waiting: a client repeats a request that got no reply.
    pub(super) fn send(&mut self, reply: &Reply) -> io::Result<()> {
        let proxy = self.proxy.as_ref().filter(|_| reply.local_port == PROXY_PORT);
        let from = |port| SocketAddrV4::new(self.interface.address, port);
        let to = match (reply.to, &mut self.frames) {
            (Destination::Frame { mac, address }, Some(frames)) => {
                let to = (mac, SocketAddrV4::new(address, CLIENT_PORT));
                return frames.socket.send(from(SERVER_PORT), to, &reply.packet);
            }
            (Destination::Frame { .. }, None) => {
                SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT)
            }
            (Destination::Ip(to), frames) => {
                let destination =
                    frames.as_mut().zip(reply.last_hop).and_then(|(frames, last_hop)| {
                        Some((frames.destination_mac(*to.ip(), last_hop)?, frames))
                    });
                if let Some((mac, frames)) = destination {
                    let port = if proxy.is_some() { PROXY_PORT } else { SERVER_PORT };
                    return frames.socket.send(from(port), (mac, to), &reply.packet);
                }
                to
            }
        };
        let Some(socket) = proxy.or(self.server.as_ref()) else { return Ok(()) };
        sendto(socket, &reply.packet, SendFlags::DONTWAIT, &to)?;
        Ok(())
    }

    /// Broadcasts a probe from the port of clients.
    pub(super) fn send_probe(&self, packet: &[u8]) -> io::Result<()> {
        let Some(socket) = &self.probe else { return Ok(()) };
        sendto(
            socket,
            packet,
            SendFlags::DONTWAIT,
            &SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT),
        )?;
        Ok(())
    }
}

fn open_port(service: Service, interface: &str, port: u16) -> Result<UdpSocket, BindError> {
    let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let socket = bind::udp(service, Some(interface), at)?;
    let failed = |source| BindError::Io { service, at, source };
    enlarge_send_queue(&socket);
    if port != PROBE_PORT {
        drop_all_received(&socket).map_err(failed)?;
    }
    UdpSocket::from_std(socket.into()).map_err(failed)
}

/// Opens the receiver of the ports. meshd requires it, because forged packets are detected by their
/// Ethernet sender.
fn open_receiver(interface: &str, ports: &[u16]) -> Result<Receiver, BindError> {
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
        let ports = Ports { server: false, proxy: false, probe: false, arp: false };
        let bound =
            BoundInterface::open("lo", Some(Ipv4Addr::LOCALHOST), ports).expect("nothing to open");
        assert!(
            bound.server.is_none()
                && bound.proxy.is_none()
                && bound.probe.is_none()
                && bound.frames.is_none()
                && bound.receiver.is_none()
        );
    }
}
