//! Networks of a node to which VMs attach.
//!
//! | module | content |
//! | --- | --- |
//! | `subnet` | IPv4 subnets: the one that a node chooses from a pool, and its addresses |

mod subnet;

pub use subnet::Subnet;

use crate::text::{plain, text_type};
use meshd_types::MacAddr;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// Maximum length of the name of a Linux network interface (IFNAMSIZ), in bytes.
const MAX_INTERFACE: usize = 15;
/// Name of the private network, and of its bridge.
const PRIVATE: &str = "mesh-nat0";
/// Fixed MAC address of the bridge of the private network (locally administered). Without it the
/// address would change with the ports.
const PRIVATE_MAC: MacAddr = MacAddr([0x02, 0x4d, 0x45, 0x53, 0x48, 0x02]);
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

/// A network of a node to which VMs attach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSpec {
    /// Unique on the node.
    pub name: NetworkName,
    /// The bridge to which NICs attach.
    pub bridge: InterfaceName,
    /// What the node provides for the network. `None`: the site owns the bridge and assigns the
    /// addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeNetwork>,
}

/// A network that a node makes: the bridge with the first address of a subnet, a DHCP server for
/// the others, and a firewall that denies guests the services and networks of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNetwork {
    /// MAC address of the bridge.
    pub mac: MacAddr,
    /// The node takes the first subnet that none of its routes overlaps.
    pub pool: Subnet,
    /// Prefix length of that subnet.
    pub prefix: u8,
    /// Name servers of guests. Without any they use those of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<Ipv4Addr>,
    /// Packets to other networks have the address of the node.
    pub masquerade: bool,
}

impl NodeNetwork {
    /// Returns the name servers of guests. `of_node` are those of the node.
    pub fn name_servers<'a>(&'a self, of_node: &'a [Ipv4Addr]) -> &'a [Ipv4Addr] {
        if self.dns.is_empty() { of_node } else { &self.dns }
    }
}

impl NetworkSpec {
    /// Returns the private network of a node, with a subnet of `pool`.
    pub fn private(pool: Subnet) -> Self {
        let bridge = InterfaceName(PRIVATE.to_owned());
        let node = NodeNetwork {
            mac: PRIVATE_MAC,
            pool,
            prefix: PRIVATE_PREFIX,
            dns: Vec::new(),
            masquerade: true,
        };
        NetworkSpec { name: NetworkName::private(), bridge, node: Some(node) }
    }

    /// Returns the network of a bridge of the site.
    pub fn of_site(bridge: InterfaceName) -> Self {
        NetworkSpec { name: NetworkName::of_bridge(&bridge), bridge, node: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_network_and_networks_of_the_site_differ_by_their_bridge() {
        let pool: Subnet = "172.30.0.0/16".parse().expect("a subnet");
        let private = NetworkSpec::private(pool);
        assert!(
            private.name.is_private() && NetworkName::of_bridge(&private.bridge) == private.name
        );
        let mut node = private.node.clone().expect("a network of the node");
        let servers = [Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 3)];
        assert_eq!(node.name_servers(&servers), servers);
        node.dns = vec![Ipv4Addr::new(9, 9, 9, 9)];
        assert_eq!(node.name_servers(&servers), node.dns);
        let site = NetworkSpec::of_site("br0".parse().expect("a name"));
        assert!(!site.name.is_private() && site.node.is_none());
        for spec in [private, site] {
            let text = serde_json::to_string(&spec).expect("valid JSON");
            assert_eq!(
                serde_json::from_str::<NetworkSpec>(&text).expect("the same"),
                spec,
                "{text}"
            );
        }
        for text in ["", "a/b", "sixteen-letters-", "-a"] {
            assert!(text.parse::<NetworkName>().is_err(), "{text}");
        }
    }
}
