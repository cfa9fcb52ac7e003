//! The sockets of the DHCP service: bound to one interface, so that no other network ever sees it.

use super::{engine::PROXY_PORT, reply::SERVER_PORT};
use crate::config::{DhcpMode, Segment};
use crate::serve::bind::{self, BindError, Service};
use std::net::{Ipv4Addr, SocketAddrV4};
use tokio::net::UdpSocket;

/// A DHCP service that can hear its network.
pub struct Bound {
    pub(super) interface: String,
    pub(super) segment: Segment,
    pub(super) address: Ipv4Addr,
    pub(super) server: Option<UdpSocket>,
    pub(super) proxy: Option<UdpSocket>,
}

impl Bound {
    /// The address that clients are told.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }
}

/// Opens the ports that the segment's mode needs: none in mode `off`.
pub fn bind(segment: &Segment, interface: &str) -> Result<Bound, BindError> {
    let open = |service, port| open(service, interface, port);
    let (server, proxy) = match segment.mode {
        DhcpMode::Off => (None, None),
        DhcpMode::Authoritative => (Some(open(Service::Dhcp, SERVER_PORT)?), None),
        DhcpMode::Proxy => (Some(open(Service::Dhcp, SERVER_PORT)?), Some(open(Service::ProxyDhcp, PROXY_PORT)?)),
    };
    let address = match segment.address {
        Some(address) => address,
        None => bind::first_address(interface)?,
    };
    Ok(Bound { interface: interface.to_owned(), segment: segment.clone(), address, server, proxy })
}

fn open(service: Service, interface: &str, port: u16) -> Result<UdpSocket, BindError> {
    let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let socket = bind::udp(service, Some(interface), at)?;
    UdpSocket::from_std(socket.into()).map_err(|source| BindError::Io { service, at, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Link;

    #[tokio::test]
    async fn a_service_that_is_off_opens_no_port() {
        let address = Some(Ipv4Addr::LOCALHOST);
        let segment = Segment { link: Link::Interface("lo".to_owned()), address, mode: DhcpMode::Off, pool: None };
        let bound = bind(&segment, "lo").expect("nothing to open");
        assert!(bound.server.is_none() && bound.proxy.is_none());
    }
}
