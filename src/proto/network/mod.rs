//! Networks of a node to which VMs attach.
//!
//! | module | content |
//! | --- | --- |
//! | `subnet` | IPv4 subnets: the one that a node chooses from a pool, and its addresses |

mod subnet;

pub use subnet::Subnet;

use crate::text::{plain, text_type};
use meshd_types::MacAddr;

/// Maximum length of the name of a Linux network interface (IFNAMSIZ), in bytes.
const MAX_INTERFACE: usize = 15;
/// Name of the private network, and of its bridge.
const PRIVATE: &str = "mesh-nat0";
/// Fixed MAC address of the bridge of the private network (locally administered). Without it the
/// address would change with the ports.
pub const PRIVATE_BRIDGE_MAC: MacAddr = MacAddr([0x02, 0x4d, 0x45, 0x53, 0x48, 0x02]);
/// Prefix length of the subnet of the private network: 253 VMs.
const PRIVATE_PREFIX: u8 = 24;

text_type!(
    /// Name of a Linux network interface.
    InterfaceName,
    "interface name",
    "use 1 to 15 of a-z, A-Z, 0-9, `-`, `_` and `.`",
    |text| plain(text, MAX_INTERFACE, b"-_.")
);
text_type!(
    /// Name of a network of a node. The networks of the site have the names of their bridges.
    NetworkName,
    "network name",
    "use 1 to 15 of a-z, A-Z, 0-9, `-`, `_` and `.`",
    |text| plain(text, MAX_INTERFACE, b"-_.")
);

impl InterfaceName {
    /// Returns the bridge of the private network.
    pub fn private_bridge() -> Self {
        InterfaceName(PRIVATE.to_owned())
    }
}

impl NetworkName {
    /// Returns the name of the private network, which each node can have. The node assigns its
    /// addresses; they repeat on other nodes.
    pub fn private() -> Self {
        NetworkName(PRIVATE.to_owned())
    }

    /// Returns true if each node assigns the addresses of the network, and false if they are unique
    /// on the site.
    pub fn is_private(&self) -> bool {
        self.0 == PRIVATE
    }

    /// Returns the network to which NICs on a bridge belong.
    pub fn of_bridge(bridge: &InterfaceName) -> Self {
        NetworkName(bridge.to_string())
    }
}

/// A network that a node makes: the bridge with the first address of a subnet, a DHCP server for
/// the others, a firewall that denies guests the services and networks of the node, and masquerade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// The bridge to which NICs attach. Its name is that of the network.
    pub bridge: InterfaceName,
    /// MAC address of the bridge.
    pub mac: MacAddr,
    /// The node takes the first subnet that none of its routes overlaps.
    pub pool: Subnet,
    /// Prefix length of that subnet.
    pub prefix: u8,
}

impl NetworkSpec {
    /// Returns the private network of a node, with a subnet of `pool`.
    pub fn private(pool: Subnet) -> Self {
        let bridge = InterfaceName::private_bridge();
        NetworkSpec { bridge, mac: PRIVATE_BRIDGE_MAC, pool, prefix: PRIVATE_PREFIX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_network_and_networks_of_the_site_differ_by_their_bridge() {
        assert!(NetworkName::of_bridge(&InterfaceName::private_bridge()).is_private());
        assert!(!NetworkName::of_bridge(&"br0".parse().expect("a name")).is_private());
        for text in ["", "a/b", "sixteen-letters-", "-a"] {
            assert!(text.parse::<NetworkName>().is_err(), "{text}");
        }
    }
}
