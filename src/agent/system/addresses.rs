//! Addresses of network interfaces from procfs. The kernel lists local IPv4 addresses without
//! interface: the narrowest connected route names the interface.

use super::{Tree, routes};
use meshd_proto::MAX_DEVICES;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Maximum number of addresses of one machine.
const MAX_ADDRESSES: usize = MAX_DEVICES;

/// Returns all addresses by interface name.
pub fn by_interface(tree: &Tree) -> BTreeMap<String, Vec<IpAddr>> {
    let routes = routes(tree);
    let v6 = tree.read("/proc/net/if_inet6").unwrap_or_default();
    let v4 = local_addresses(tree).into_iter().filter_map(|address| {
        let connected = routes.iter().filter(|route| {
            !route.mask.is_unspecified() && address & route.mask == route.destination
        });
        let route = connected.max_by_key(|route| route.mask)?;
        Some((route.interface.clone(), IpAddr::V4(address)))
    });
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for (interface, address) in v4.chain(v6.lines().filter_map(v6_line)).take(MAX_ADDRESSES) {
        found.entry(interface).or_default().push(address);
    }
    found
}

/// Returns the IPv4 addresses of this machine, without loopback addresses.
pub fn local_addresses(tree: &Tree) -> Vec<Ipv4Addr> {
    local_v4(&tree.read("/proc/net/fib_trie").unwrap_or_default())
}

/// `|-- 10.77.0.100` followed by `/32 host LOCAL`. Two tables list each address.
fn local_v4(table: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in table.lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.trim().parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL") {
            let new = last.filter(|address| !address.is_loopback() && !found.contains(address));
            found.extend(new.filter(|_| found.len() < MAX_ADDRESSES));
        }
    }
    found
}

/// `fe80...0001 02 40 20 80     eth0`.
fn v6_line(line: &str) -> Option<(String, IpAddr)> {
    let mut fields = line.split_ascii_whitespace();
    let bits = u128::from_str_radix(fields.next()?, 16).ok()?;
    Some((fields.nth(4)?.to_owned(), IpAddr::V6(Ipv6Addr::from_bits(bits))))
}
