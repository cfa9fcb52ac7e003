//! Network interfaces of this host with their addresses. They are read again when the kernel
//! reports a change.

use super::ethernet;
use meshd_types::MacAddr;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{AddressFamily, SockaddrLike as _, SockaddrStorage},
};
use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
};

/// Notification groups for links and IPv4 addresses (rtnetlink(7), `RTMGRP_LINK` and
/// `RTMGRP_IPV4_IFADDR`).
const GROUPS: u32 = 0x1 | 0x10;
/// Size of the buffer for a notification, in bytes. The content is ignored, so truncation is
/// harmless.
const BUFFER: usize = 64;

/// An interface of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Number by which the kernel knows the interface. An interface that is made again has another
    /// one.
    pub index: u32,
    pub is_ethernet: bool,
    /// The Ethernet address.
    pub mac: Option<MacAddr>,
    /// Addresses of this host on the interface, with their netmasks.
    pub addresses: Vec<(Ipv4Addr, Ipv4Addr)>,
}

pub type Interfaces = BTreeMap<String, Interface>;

/// Reads the interfaces. Reading takes the kernel's lock of its network configuration, so it is
/// repeated only after a change. The kernel queues the notification before the change becomes
/// visible.
#[derive(Default)]
pub struct InterfaceTable {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    notifications: Option<Socket>,
    interfaces: Arc<Interfaces>,
}

impl InterfaceTable {
    /// Returns the current interfaces.
    ///
    /// # Errors
    /// The kernel query fails.
    pub fn read(&self) -> io::Result<Arc<Interfaces>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current =
            state.notifications.as_ref().is_some_and(|socket| !has_notifications(socket));
        if !is_current {
            // The subscription precedes the read: a change during the read causes another one.
            state.notifications = None;
            let socket = subscribe()?;
            state.interfaces = Arc::new(interfaces()?);
            state.notifications = Some(socket);
        }
        Ok(Arc::clone(&state.interfaces))
    }
}

fn subscribe() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, GROUPS))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Returns true if a notification has arrived, or may have been lost.
fn has_notifications(socket: &Socket) -> bool {
    let mut buffer = Vec::with_capacity(BUFFER);
    !matches!(socket.recv(&mut buffer, 0), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

fn interfaces() -> io::Result<Interfaces> {
    let mut found = Interfaces::new();
    for entry in getifaddrs()? {
        let interface: &mut Interface = found.entry(entry.interface_name).or_default();
        let Some(address) = entry.address else { continue };
        if let Some(link) = address.as_link_addr() {
            interface.index = u32::try_from(link.ifindex()).unwrap_or_default();
            interface.mac = ethernet(link);
            interface.is_ethernet = interface.mac.is_some();
        }
        let ipv4 = |address: SockaddrStorage| {
            (address.family() == Some(AddressFamily::Inet))
                .then(|| address.as_sockaddr_in().map(|address| address.ip()))?
        };
        interface.addresses.extend(ipv4(address).zip(entry.netmask.and_then(ipv4)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_table_contains_loopback() {
        let table = InterfaceTable::default();
        let first = table.read().expect("the kernel answers");
        let loopback = first.get("lo").expect("every machine has it");
        assert!(!loopback.is_ethernet && loopback.index > 0, "{loopback:?}");
        assert!(
            loopback.addresses.contains(&(Ipv4Addr::LOCALHOST, Ipv4Addr::new(255, 0, 0, 0))),
            "{loopback:?}"
        );
    }
}
