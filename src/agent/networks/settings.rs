//! The private network that the overlay enables, and the subnet that the node chooses for it.

use crate::system::{self, Route, Tree};
use meshd_proto::{InterfaceName, NetworkSpec, Subnet};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};

/// File of the overlay that enables the private network.
const FILE: &str = "/etc/meshd/nat.json";

#[derive(Deserialize)]
struct Settings {
    enabled: bool,
    /// `172.30.0.0/16`
    pool: Subnet,
}

/// Reads the private network; `None` if the overlay does not enable it.
pub fn private_network(tree: &Tree) -> Option<NetworkSpec> {
    let settings: Settings = serde_json::from_str(&tree.text(FILE)?).ok()?;
    settings.enabled.then(|| NetworkSpec::private(settings.pool))
}

/// Chooses the subnet of a network that the node makes: the current one unless a route overlaps it,
/// else the first free one.
pub fn choose_subnet(tree: &Tree, spec: &NetworkSpec) -> Option<Subnet> {
    let NetworkSpec { bridge, pool, prefix, .. } = spec;
    let others: Vec<Subnet> = other_routes(tree, bridge).map(|route| destination(&route)).collect();
    let current =
        bridge_addresses(tree, bridge).first().map(|address| Subnet::containing(*address, *prefix));
    let current = current.filter(|subnet| pool.overlaps(*subnet));
    let is_free = |subnet: &Subnet| subnet.first_free(*prefix, &others).is_some();
    current.filter(is_free).or_else(|| pool.first_free(*prefix, &others))
}

/// Returns the routes of the node, without those of a network's bridge.
pub fn other_routes(tree: &Tree, bridge: &InterfaceName) -> impl Iterator<Item = Route> {
    system::routes(tree).into_iter().filter(|route| route.interface != bridge.as_str())
}

pub fn destination(route: &Route) -> Subnet {
    Subnet::containing(
        route.destination,
        u8::try_from(route.mask.to_bits().count_ones()).unwrap_or(32),
    )
}

/// Returns the name servers of the node: `nameserver 10.77.0.1`.
pub fn name_servers(tree: &Tree) -> Vec<Ipv4Addr> {
    let text = tree.read("/etc/resolv.conf").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
        .collect()
}

/// Returns the IPv4 addresses of a bridge.
pub fn bridge_addresses(tree: &Tree, bridge: &InterfaceName) -> Vec<Ipv4Addr> {
    let addresses = system::by_interface(tree).remove(bridge.as_str()).unwrap_or_default();
    let v4 = |address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    };
    addresses.into_iter().filter_map(v4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    const BRIDGE: &str = "mesh-nat0";

    fn settings(enabled: bool, pool: &str) -> FakeMachine {
        let fake = FakeMachine::new("", &[]);
        fake.file(
            "etc/meshd/nat.json",
            &format!("{{\"enabled\": {enabled}, \"pool\": \"{pool}\"}}"),
        );
        fake
    }

    fn route(name: &str, net: [u8; 4]) -> (&str, [u8; 4], [u8; 4], [u8; 4]) {
        (name, net, [255, 255, 255, 0], [0; 4])
    }

    #[test]
    fn network_is_absent_unless_the_overlay_enables_it_with_a_valid_pool() {
        assert_eq!(private_network(&FakeMachine::new("", &[]).tree), None);
        assert_eq!(private_network(&settings(false, "172.30.0.0/16").tree), None);
        assert_eq!(private_network(&settings(true, "172.30.0.1/16").tree), None);
        let found = private_network(&settings(true, "172.30.0.0/16").tree).expect("enabled");
        assert_eq!(found.bridge.as_str(), BRIDGE);
    }

    #[test]
    fn subnet_stays_until_another_route_overlaps() {
        let fake = settings(true, "172.30.0.0/16");
        let spec = private_network(&fake.tree).expect("enabled");
        let chosen = || choose_subnet(&fake.tree, &spec).map(|subnet| subnet.to_string());
        assert_eq!(chosen().as_deref(), Some("172.30.0.0/24"));
        fake.routes(&[route("eth0", [172, 30, 0, 0])]);
        assert_eq!(chosen().as_deref(), Some("172.30.1.0/24"));
        fake.routes(&[route(BRIDGE, [172, 30, 5, 0])]);
        fake.file("proc/net/fib_trie", "  |-- 172.30.5.1\n   /32 host LOCAL\n");
        assert_eq!(chosen().as_deref(), Some("172.30.5.0/24"), "the current subnet stays");
        fake.routes(&[BRIDGE, "eth1"].map(|name| route(name, [172, 30, 5, 0])));
        assert_eq!(chosen().as_deref(), Some("172.30.0.0/24"));
    }
}
