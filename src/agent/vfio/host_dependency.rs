//! PCI functions that the node needs and that are never assigned.

use crate::system::{
    Route, Tree, by_interface, disk_use, function_of, functions_of_disk, is_file_name, nics, routes,
};
use meshd_types::MacAddr;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Maximum depth of stacked interfaces (VLAN on bridge on bond).
const MAX_STACK: u32 = 8;

/// Returns the functions that the node needs, with the reason.
pub fn needed_functions(tree: &Tree) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut add = |function: Option<String>, reason: String| {
        if let Some(function) = function {
            found.entry(function).or_insert(reason);
        }
    };
    for (interface, reason) in interfaces(tree) {
        add(function_of(tree, &format!("/sys/class/net/{interface}/device")), reason);
    }
    for (disk, reason) in disk_use::in_use(tree) {
        for function in functions_of_disk(tree, &disk) {
            add(Some(function), reason.clone());
        }
    }
    let consoles = tree.read("/proc/consoles").unwrap_or_default();
    let ttys = consoles.lines().filter_map(|line| line.split_ascii_whitespace().next());
    for tty in ttys.filter(|name| is_file_name(name)) {
        add(
            function_of(tree, &format!("/sys/class/tty/{tty}/device")),
            format!("is the console {tty}"),
        );
    }
    found
}

/// Returns the needed interfaces and those below them, with the reason. The boot NIC comes first.
fn interfaces(tree: &Tree) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if let Some(mac) = boot_mac(tree) {
        let boot = nics(tree).into_iter().filter(|nic| nic.mac == Some(mac));
        found.extend(boot.map(|nic| (nic.name, "is the NIC that the node booted from".to_owned())));
    }
    let routed = default_routes(tree).into_iter().map(|interface| {
        let reason = format!("carries the default route ({interface})");
        (interface, reason)
    });
    let addressed = by_interface(tree).into_iter().filter_map(|(interface, addresses)| {
        let address = addresses.iter().find(|address| is_assigned(address))?;
        let reason = format!("has the address {address} ({interface})");
        Some((interface, reason))
    });
    for (interface, reason) in routed.chain(addressed) {
        let mut names = BTreeSet::new();
        add_stack(tree, &interface, MAX_STACK, &mut names);
        found.extend(names.into_iter().map(|name| (name, reason.clone())));
    }
    found
}

/// Returns false for link-local addresses, which every interface has.
fn is_assigned(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
    }
}

fn add_stack(tree: &Tree, interface: &str, depth: u32, found: &mut BTreeSet<String>) {
    if depth == 0 || !found.insert(interface.to_owned()) {
        return;
    }
    for entry in tree.list(&format!("/sys/class/net/{interface}")) {
        if let Some(lower) = entry.strip_prefix("lower_") {
            add_stack(tree, lower, depth - 1, found);
        }
    }
}

/// Parses `BOOTIF=01-aa-bb-cc-dd-ee-ff` of the kernel command line.
fn boot_mac(tree: &Tree) -> Option<MacAddr> {
    let line = tree.read("/proc/cmdline")?;
    let value =
        line.split_ascii_whitespace().rev().find_map(|word| word.strip_prefix("BOOTIF="))?;
    value.strip_prefix("01-").unwrap_or(value).replace('-', ":").parse().ok()
}

fn default_routes(tree: &Tree) -> BTreeSet<String> {
    let v4 = routes(tree).into_iter().filter(Route::is_default).map(|route| route.interface);
    let v6 = tree.read("/proc/net/ipv6_route").unwrap_or_default();
    let v6 = v6.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let net = fields.next()?;
        let prefix = fields.next()?;
        let default = prefix == "00" && net.bytes().all(|c| c == b'0');
        fields.next_back().filter(|interface| default && *interface != "lo").map(str::to_owned)
    });
    v4.chain(v6).filter(|name| is_file_name(name)).collect()
}
