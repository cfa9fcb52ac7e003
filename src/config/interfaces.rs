//! Networks of this machine's interfaces, the default of a missing netmask.

use nix::ifaddrs::getifaddrs;
use std::net::Ipv4Addr;

/// One IPv4 address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceNetwork {
    pub interface: String,
    pub address: Ipv4Addr,
    /// Length of the network prefix, 0 to 32.
    pub prefix_len: u8,
}

impl InterfaceNetwork {
    fn contains(&self, other: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len.min(32))).unwrap_or(0);
        u32::from(self.address) & mask == u32::from(other) & mask
    }
}

/// Returns the IPv4 networks of all interfaces; none if the kernel does not list them.
pub fn all() -> Vec<InterfaceNetwork> {
    let ipv4 = |of: Option<nix::sys::socket::SockaddrStorage>| Some(of?.as_sockaddr_in()?.ip());
    let network = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = ipv4(entry.address)?;
        let mask = ipv4(entry.netmask)?;
        let prefix_len = u8::try_from(u32::from(mask).leading_ones()).ok()?;
        Some(InterfaceNetwork { interface: entry.interface_name, address, prefix_len })
    };
    getifaddrs().map(|entries| entries.filter_map(network).collect()).unwrap_or_default()
}

/// Returns the longest prefix of the networks of an interface that contain the address.
pub(super) fn prefix_of(
    networks: &[InterfaceNetwork],
    interface: &str,
    address: Ipv4Addr,
) -> Option<u8> {
    let matching = networks
        .iter()
        .filter(|network| network.interface == interface && network.contains(address));
    matching.map(|network| network.prefix_len).max()
}
