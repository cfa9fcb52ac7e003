//! Compares the private network with its desired state.

use super::{BRIDGE, Subnet, masquerade};
use crate::system::{self, Route, Tree};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};

/// File of the overlay that enables the private network.
const FILE: &str = "/etc/meshd/nat.json";
/// Prefix length of a subnet of the pool: 253 VMs.
const BITS: u8 = 24;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Settings {
    enabled: bool,
    /// `172.30.0.0/16`
    pool: String,
}

/// A part of the desired state that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingPart {
    Bridge,
    Address,
    LinkUp,
    Forwarding,
    Masquerade,
}

/// Reads the settings; `None` if there is no private network.
pub fn settings(tree: &Tree) -> Option<Settings> {
    let settings: Settings = serde_json::from_str(&tree.text(FILE)?).ok()?;
    settings.enabled.then_some(settings)
}

/// Chooses the subnet: the current one unless a route overlaps it, else the first free one.
pub fn choose_subnet(tree: &Tree, settings: &Settings) -> Option<Subnet> {
    let pool: Subnet = settings.pool.parse().ok()?;
    let others: Vec<Subnet> = other_routes(tree).map(|route| destination(&route)).collect();
    let current = bridge_address(tree).map(|address| Subnet::containing(address, BITS));
    let current = current.filter(|subnet| pool.overlaps(*subnet));
    current.filter(|subnet| subnet.first_free(BITS, &others).is_some()).or_else(|| pool.first_free(BITS, &others))
}

/// Returns the routes of the node, without those of the bridge.
pub fn other_routes(tree: &Tree) -> impl Iterator<Item = Route> {
    system::routes(tree).into_iter().filter(|route| route.interface != BRIDGE)
}

pub fn destination(route: &Route) -> Subnet {
    Subnet::containing(route.destination, u8::try_from(route.mask.to_bits().count_ones()).unwrap_or(32))
}

fn bridge_address(tree: &Tree) -> Option<Ipv4Addr> {
    let addresses = system::by_interface(tree).remove(BRIDGE)?;
    addresses.into_iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    })
}

/// Returns the missing parts in the order of repair: every other part needs the bridge.
pub fn missing(tree: &Tree, subnet: Subnet) -> Vec<MissingPart> {
    let folder = format!("/sys/class/net/{BRIDGE}");
    let flags = tree.text(&format!("{folder}/flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
    let parts = [
        (MissingPart::Bridge, tree.has(&format!("{folder}/bridge"))),
        (MissingPart::Address, bridge_address(tree) == Some(subnet.gateway())),
        (MissingPart::LinkUp, flags & 1 != 0),
        (MissingPart::Forwarding, tree.number("/proc/sys/net/ipv4/ip_forward") == Some(1u8)),
        (MissingPart::Masquerade, masquerade::is_current(subnet).unwrap_or(false)),
    ];
    parts.into_iter().filter(|(_, is_present)| !is_present).map(|(part, _)| part).collect()
}

/// Describes missing parts.
pub fn list(missing: &[MissingPart]) -> String {
    missing.iter().map(|missing| missing.as_str()).collect::<Vec<_>>().join(", ")
}

impl MissingPart {
    pub fn as_str(self) -> &'static str {
        match self {
            MissingPart::Bridge => "the bridge",
            MissingPart::Address => "the address of the bridge",
            MissingPart::LinkUp => "the bridge in state up",
            MissingPart::Forwarding => "forwarding",
            MissingPart::Masquerade => "the masquerade rule",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    fn settings_of(enabled: bool) -> FakeMachine {
        let fake = FakeMachine::new("", &[]);
        fake.file("etc/meshd/nat.json", &format!("{{\"enabled\": {enabled}, \"pool\": \"172.30.0.0/16\"}}"));
        fake
    }

    fn route(name: &str, net: [u8; 4]) -> (&str, [u8; 4], [u8; 4], [u8; 4]) {
        (name, net, [255, 255, 255, 0], [0; 4])
    }

    #[test]
    fn settings_are_absent_unless_the_overlay_enables_the_network() {
        assert_eq!(settings(&FakeMachine::new("", &[]).tree), None);
        assert_eq!(settings(&settings_of(false).tree), None);
        assert!(settings(&settings_of(true).tree).is_some());
    }

    #[test]
    fn subnet_stays_until_another_route_overlaps() {
        let fake = settings_of(true);
        let settings = settings(&fake.tree).expect("enabled");
        let chosen = || choose_subnet(&fake.tree, &settings).map(|subnet| subnet.to_string());
        assert_eq!(chosen().as_deref(), Some("172.30.0.0/24"));
        fake.routes(&[route("eth0", [172, 30, 0, 0])]);
        assert_eq!(chosen().as_deref(), Some("172.30.1.0/24"));
        fake.routes(&[route(BRIDGE, [172, 30, 5, 0])]);
        fake.file("proc/net/fib_trie", "  |-- 172.30.5.1\n   /32 host LOCAL\n");
        assert_eq!(chosen().as_deref(), Some("172.30.5.0/24"), "the current subnet stays");
        fake.routes(&[BRIDGE, "eth1"].map(|name| route(name, [172, 30, 5, 0])));
        assert_eq!(chosen().as_deref(), Some("172.30.0.0/24"));
    }

    #[test]
    fn missing_parts_are_listed_in_order_of_repair() {
        let fake = settings_of(true);
        // The masquerade rule is in the kernel, so the fake machine never has it.
        let missing = || missing(&fake.tree, "172.30.5.0/24".parse().expect("a subnet"));
        let parts = [
            ("sys/class/net/mesh-nat0/bridge", ""),
            ("proc/net/fib_trie", "  |-- 172.30.5.1\n   /32 host LOCAL\n"),
            ("sys/class/net/mesh-nat0/flags", "0x1003\n"),
            ("proc/sys/net/ipv4/ip_forward", "1\n"),
        ];
        fake.routes(&[route(BRIDGE, [172, 30, 5, 0])]);
        let all = [
            MissingPart::Bridge,
            MissingPart::Address,
            MissingPart::LinkUp,
            MissingPart::Forwarding,
            MissingPart::Masquerade,
        ];
        for (present, (path, text)) in parts.into_iter().enumerate() {
            assert_eq!(missing(), all[present..]);
            fake.file(path, text);
        }
        assert_eq!(missing(), [MissingPart::Masquerade]);
    }
}
