//! The boot LAN according to this host's kernel.

use super::{
    arp_claimants::probe,
    interfaces::{Interface, InterfaceTable},
    kernel_tables::KernelTables,
};
use meshd_central::{Lan, Neighbour};
use meshd_types::MacAddr;
use std::{collections::BTreeSet, future::Future, net::Ipv4Addr, pin::Pin};

/// Looks up addresses on the interfaces on which machines boot.
pub struct SystemLan {
    interfaces: Vec<String>,
    table: InterfaceTable,
    kernel: KernelTables,
}

/// Interface whose network contains an address.
struct OnLink {
    name: String,
    interface: Interface,
    /// This host's address in the network.
    own: Ipv4Addr,
}

impl SystemLan {
    /// Creates the boot LAN of these interfaces.
    pub fn new(interfaces: Vec<String>) -> Self {
        SystemLan { interfaces, table: InterfaceTable::default(), kernel: KernelTables::default() }
    }

    /// Returns the interface whose network contains an address. A wrong result would admit a foreign machine or lock a node out, so address
    /// changes take effect at once.
    fn on_link(&self, address: Ipv4Addr) -> std::io::Result<Option<OnLink>> {
        let table = self.table.read()?;
        for name in &self.interfaces {
            let Some(interface) = table.get(name) else { continue };
            let is_on = |(own, mask): &&(Ipv4Addr, Ipv4Addr)| *own & *mask == address & *mask;
            if let Some((own, _)) = interface.addresses.iter().find(is_on) {
                return Ok(Some(OnLink { name: name.clone(), interface: interface.clone(), own: *own }));
            }
        }
        Ok(None)
    }

    fn look_up(&self, address: Ipv4Addr) -> std::io::Result<Neighbour> {
        let Some(OnLink { interface, own, .. }) = self.on_link(address)? else { return Ok(Neighbour::Routed) };
        if own == address || !interface.is_ethernet {
            return Ok(Neighbour::Routed);
        }
        Ok(self.kernel.neighbour(interface.index, address)?.map_or(Neighbour::Unknown, Neighbour::Machine))
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
        let hop = self.kernel.route(address);
        let router = hop.and_then(|hop| hop.map_or(Ok(None), |(index, router)| self.kernel.neighbour(index, router)));
        router.unwrap_or_else(|error| {
            tracing::error!(%address, %error, "cannot read the kernel's routes");
            None
        })
    }

    fn holders(&self, address: Ipv4Addr) -> Pin<Box<dyn Future<Output = BTreeSet<MacAddr>> + Send + '_>> {
        Box::pin(async move {
            let Ok(Some(OnLink { name, own, .. })) = self.on_link(address) else { return BTreeSet::new() };
            probe(&name, own, address).await.unwrap_or_else(|error| {
                tracing::error!(%address, %error, "cannot ask the boot LAN who has an address");
                BTreeSet::new()
            })
        })
    }
}
