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
    fn holds(&self, other: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len.min(32))).unwrap_or(0);
        u32::from(self.address) & mask == u32::from(other) & mask
    }
}

/// Returns the IPv4 networks of all interfaces; none if the kernel does not list them.
pub fn all() -> Vec<InterfaceNetwork> {
    let ipv4 = |of: Option<nix::sys::socket::SockaddrStorage>| Some(of?.as_sockaddr_in()?.ip());
    let network = |found: nix::ifaddrs::InterfaceAddress| {
        let (address, mask) = (ipv4(found.address)?, ipv4(found.netmask)?);
        let prefix_len = u8::try_from(u32::from(mask).leading_ones()).ok()?;
        Some(InterfaceNetwork { interface: found.interface_name, address, prefix_len })
    };
    getifaddrs().map(|found| found.filter_map(network).collect()).unwrap_or_default()
}

/// The prefix of the narrowest network of an interface that an address is in.
pub(super) fn prefix_of(networks: &[InterfaceNetwork], interface: &str, address: Ipv4Addr) -> Option<u8> {
    let its = networks.iter().filter(|network| network.interface == interface && network.holds(address));
    its.map(|network| network.prefix_len).max()
}
