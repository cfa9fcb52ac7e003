//! The boot LAN as this machine's kernel sees it.

use super::{
    arp::probe,
    link_of,
    neighbour::{neighbour, route},
};
use crate::serve::central::{Lan, Neighbour};
use meshd_types::MacAddr;
use nix::ifaddrs::getifaddrs;
use std::{collections::BTreeSet, future::Future, net::Ipv4Addr, pin::Pin};

/// Answers from the interfaces on which machines boot.
pub struct SystemLan {
    interfaces: Vec<String>,
}

impl SystemLan {
    /// The boot LAN on these interfaces.
    pub fn new(interfaces: Vec<String>) -> Self {
        SystemLan { interfaces }
    }

    /// The interface on whose network an address is, and this machine's own address there. Read anew each time: addresses change
    /// while this program runs, and a wrong answer here lets a stranger in or keeps a node out.
    fn on_link(&self, address: Ipv4Addr) -> std::io::Result<Option<(String, Ipv4Addr)>> {
        for entry in getifaddrs()? {
            if !self.interfaces.contains(&entry.interface_name) {
                continue;
            }
            let ipv4 = |address: Option<nix::sys::socket::SockaddrStorage>| Some(address?.as_sockaddr_in()?.ip());
            let (Some(own), Some(mask)) = (ipv4(entry.address), ipv4(entry.netmask)) else { continue };
            let network = |address: Ipv4Addr| u32::from(address) & u32::from(mask);
            if network(own) == network(address) {
                return Ok(Some((entry.interface_name, own)));
            }
        }
        Ok(None)
    }

    fn look_up(&self, address: Ipv4Addr) -> std::io::Result<Neighbour> {
        let Some((interface, own)) = self.on_link(address)? else { return Ok(Neighbour::Routed) };
        let link = link_of(&interface)?;
        if own == address || super::ethernet(&link).is_none() {
            return Ok(Neighbour::Routed);
        }
        let index = u32::try_from(link.ifindex()).unwrap_or_default();
        Ok(neighbour(index, address)?.map_or(Neighbour::Unknown, Neighbour::Machine))
    }
}

impl Lan for SystemLan {
    fn neighbour(&self, address: Ipv4Addr) -> Neighbour {
        self.look_up(address).unwrap_or_else(|error| {
            tracing::error!(%address, %error, "cannot read the kernel's neighbour table");
            Neighbour::Unknown
        })
    }

    fn router_to(&self, address: Ipv4Addr) -> Option<MacAddr> {
        let router = route(address).and_then(|hop| hop.map_or(Ok(None), |(index, router)| neighbour(index, router)));
        router.unwrap_or_else(|error| {
            tracing::error!(%address, %error, "cannot read the kernel's routes");
            None
        })
    }

    fn holders(&self, address: Ipv4Addr) -> Pin<Box<dyn Future<Output = BTreeSet<MacAddr>> + Send + '_>> {
        Box::pin(async move {
            let Ok(Some((interface, own))) = self.on_link(address) else { return BTreeSet::new() };
            probe(&interface, own, address).await.unwrap_or_else(|error| {
                tracing::error!(%address, %error, "cannot ask the boot LAN who has an address");
                BTreeSet::new()
            })
        })
    }
}
