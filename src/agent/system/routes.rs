//! IPv4 routes from `/proc/net/route`.

use super::Tree;
use std::net::Ipv4Addr;

/// An IPv4 route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub interface: String,
    pub destination: Ipv4Addr,
    /// Unspecified for a connected network.
    pub gateway: Ipv4Addr,
    pub mask: Ipv4Addr,
}

impl Route {
    pub fn is_default(&self) -> bool {
        self.destination.is_unspecified() && self.mask.is_unspecified()
    }
}

/// Reads all IPv4 routes.
pub fn routes(tree: &Tree) -> Vec<Route> {
    let table = tree.read("/proc/net/route").unwrap_or_default();
    table.lines().skip(1).filter_map(parse).collect()
}

/// `eth0 00004D0A 0101A8C0 0003 0 0 0 00FFFFFF ...`: interface, destination, gateway, flags,
/// counters, mask. The kernel prints the four bytes of an address as one number in its byte order.
fn parse(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let address = |index: usize| {
        Some(Ipv4Addr::from(u32::from_str_radix(fields.get(index)?, 16).ok()?.to_ne_bytes()))
    };
    let interface = (*fields.first()?).to_owned();
    Some(Route { interface, destination: address(1)?, gateway: address(2)?, mask: address(7)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    #[test]
    fn routes_are_read_and_invalid_lines_ignored() {
        let fake = FakeMachine::new("", &[]);
        let number = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let net = number([10, 77, 0, 0]);
        let mask = number([255, 255, 255, 0]);
        let gateway = number([10, 0, 0, 1]);
        let table = format!(
            "Iface\neth0 {net} 0 1 0 0 0 {mask} 0 0 0\njunk\neth1 0 {gateway} 3 0 0 0 0 0 0 0\n"
        );
        fake.file("proc/net/route", &table);
        let route =
            |interface: &str, destination: [u8; 4], gateway: [u8; 4], mask: [u8; 4]| Route {
                interface: interface.to_owned(),
                destination: destination.into(),
                gateway: gateway.into(),
                mask: mask.into(),
            };
        let connected = route("eth0", [10, 77, 0, 0], [0; 4], [255, 255, 255, 0]);
        let default = route("eth1", [0; 4], [10, 0, 0, 1], [0; 4]);
        assert!(default.is_default() && !connected.is_default());
        assert_eq!(routes(&fake.tree), [connected, default]);
    }
}
