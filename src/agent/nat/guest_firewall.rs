//! Firewall of guests: nftables tables `meshd-guests` of the families netdev and inet.
//!
//! Each port has a chain that sees every frame of its guest before the bridge does, and drops what it does not know: frames with another
//! guest's MAC address or address, VLANs, IPv6, other protocols. The table `inet` keeps guests of the private network from the node's own
//! services and from the networks that the node is in, and programs of machines from every network.

use super::{
    BRIDGE, BRIDGE_MAC, Subnet,
    netlink::{
        APPEND, CREATE, DELETE_TABLE, INET, NETDEV, NEW_CHAIN, NEW_RULE, NEW_TABLE, Order, attribute, commit, marks,
        nested,
        step::{Base, accept, bytes, bytes_in, drop, known_connection, meta, meta_in, not_bytes},
        text,
    },
};
use crate::system::{self, Tree};
use meshd_types::{Digest, MacAddr, fail};
use std::{io, net::Ipv4Addr};

/// Name of both tables.
const TABLE: &str = "meshd-guests";
/// Before the chains of the distribution, which therefore cannot accept what is dropped here.
const PRIORITY: i32 = -10;

// Hooks and keys of linux/netfilter.h and nf_tables.h.
const INGRESS: u32 = 0;
const INPUT: u32 = 1;
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;
const INPUT_NAME: u32 = 6;
const OUTPUT_NAME: u32 = 7;
const SOCKET_USER: u32 = 10;
const FAMILY: u32 = 15;
const PROTOCOL: u32 = 16;
const IPV4_FAMILY: [u8; 1] = [2];
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ARP_TYPE: [u8; 2] = [0x08, 0x06];
const IPV4_TYPE: [u8; 2] = [0x08, 0x00];
const BROADCAST: [u8; 6] = [0xff; 6];
const DHCP_CLIENT_TO_SERVER: [u8; 4] = [0, 68, 0, 67];
const DHCP_SERVER: [u8; 2] = [0, 67];
const DNS: [u8; 2] = [0, 53];

/// A port of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPort {
    /// Name of the TAP device.
    pub name: String,
    /// MAC address of the guest.
    pub mac: MacAddr,
    /// Address of the guest; without one it may only request it.
    pub address: Option<Ipv4Addr>,
    /// Bridge of the port.
    pub bridge: String,
    /// The guest may communicate with other guests on this bridge that allow it too.
    pub peers: bool,
}

/// Network address and prefix length.
pub type Net = (Ipv4Addr, u8);

/// Addresses of the node and its networks that the rules need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirewallContext {
    /// Address of the node in the private network.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers of the private network.
    pub dns: Vec<Ipv4Addr>,
    /// Networks that guests of the private network must not reach: those of the node, the central node.
    pub closed: Vec<Net>,
    /// Addresses that no guest may reach: the central node's and the node's.
    pub hosts: Vec<Ipv4Addr>,
    /// MAC addresses of the node's other bridges.
    pub bridges: Vec<MacAddr>,
    /// User IDs of VMs, as value and mask.
    pub users: (u32, u32),
}

struct Chain {
    family: u8,
    name: String,
    hook: u32,
    /// Device of an ingress chain.
    device: Option<String>,
    /// Drop by default.
    closed: bool,
    rules: Vec<Vec<u8>>,
}

/// Replaces both tables atomically.
///
/// # Errors
/// Error of the kernel.
pub fn isolate(ports: &[GuestPort], around: &FirewallContext) -> io::Result<()> {
    let name = attribute(1, &text(TABLE));
    let mut orders: Vec<Order> = Vec::new();
    for family in [NETDEV, INET] {
        // Creating the table first makes its deletion succeed.
        orders.push((family, NEW_TABLE, CREATE, name.clone()));
        orders.push((family, DELETE_TABLE, 0, name.clone()));
        orders.push((family, NEW_TABLE, CREATE, name.clone()));
    }
    let mark = mark(ports, around);
    for chain in chains(ports, around) {
        orders.push((chain.family, NEW_CHAIN, CREATE, declaration(&chain)));
        for rule in &chain.rules {
            let parts = [name.clone(), attribute(2, &text(&chain.name)), nested(4, rule), attribute(7, &mark)].concat();
            orders.push((chain.family, NEW_RULE, CREATE | APPEND, parts));
        }
    }
    commit(&orders)
}

/// Returns whether both tables match what [`isolate`] writes.
///
/// # Errors
/// Error of the kernel.
pub fn is_there(ports: &[GuestPort], around: &FirewallContext) -> io::Result<bool> {
    let (mark, chains) = (mark(ports, around), chains(ports, around));
    for family in [NETDEV, INET] {
        let wanted: usize = chains.iter().filter(|chain| chain.family == family).map(|chain| chain.rules.len()).sum();
        let found = marks(family, TABLE, None)?;
        if found.len() != wanted || found.iter().any(|found| *found != mark) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Fingerprint of a rule, stored in its user data.
fn mark(ports: &[GuestPort], around: &FirewallContext) -> Vec<u8> {
    text(&Digest::of(format!("{ports:?}{around:?}").as_bytes()).to_string())
}

fn declaration(chain: &Chain) -> Vec<u8> {
    let device = chain.device.as_ref().map(|device| attribute(3, &text(device))).unwrap_or_default();
    let hook = [attribute(1, &chain.hook.to_be_bytes()), attribute(2, &PRIORITY.to_be_bytes()), device].concat();
    let policy = u32::from(!chain.closed);
    let head = [attribute(1, &text(TABLE)), attribute(3, &text(&chain.name)), nested(4, &hook)];
    [head.concat(), attribute(5, &policy.to_be_bytes()), attribute(7, &text("filter"))].concat()
}

fn chains(ports: &[GuestPort], around: &FirewallContext) -> Vec<Chain> {
    let chain = |family, name: &str, hook, rules| {
        let (device, closed) = ((family == NETDEV).then(|| name.to_owned()), family == NETDEV);
        Chain { family, name: name.to_owned(), hook, device, closed, rules }
    };
    let mut all = Vec::new();
    if fail::defends("guest-ports") {
        all.extend(ports.iter().map(|port| chain(NETDEV, &port.name, INGRESS, port_rules(port, ports, around))));
    }
    if fail::defends("guest-node-services") {
        all.push(chain(INET, "input", INPUT, input_rules(around)));
    }
    if fail::defends("guest-fabric") {
        all.push(chain(INET, "forward", FORWARD, forward_rules(around)));
    }
    if fail::defends("vm-user-network") {
        let (user, mask) = around.users;
        let ours = meta_in(SOCKET_USER, &user.to_ne_bytes(), &mask.to_ne_bytes());
        all.push(chain(INET, "output", OUTPUT, vec![[ours, drop()].concat()]));
    }
    all
}

/// Rules for the frames of one guest.
fn port_rules(port: &GuestPort, ports: &[GuestPort], around: &FirewallContext) -> Vec<Vec<u8>> {
    let is_private = port.bridge == BRIDGE;
    let others = || ports.iter().filter(|other| other.bridge == port.bridge && other.mac != port.mac);
    let is_peer = |other: &&GuestPort| port.peers && other.peers;
    let rule = |steps: &[Vec<u8>]| steps.concat();
    let mut rules = vec![rule(&[not_bytes(Base::Link, 6, &port.mac.0), drop()])];
    let arp = || bytes(Base::Link, 12, &ARP_TYPE);
    let ipv4 = || bytes(Base::Link, 12, &IPV4_TYPE);
    for other in others().filter(|other| !is_peer(other)) {
        rules.push(rule(&[bytes(Base::Link, 0, &other.mac.0), drop()]));
        // Nor through the node, which would forward it.
        rules.extend(other.address.map(|address| rule(&[ipv4(), bytes(Base::Network, 16, &address.octets()), drop()])));
    }
    // A guest is a DHCP client and never a server.
    let dhcp = [ipv4(), bytes(Base::Network, 9, &[UDP]), bytes(Base::Transport, 0, &DHCP_CLIENT_TO_SERVER)].concat();
    for source in [Some(Ipv4Addr::UNSPECIFIED), port.address].into_iter().flatten() {
        rules.push(rule(&[dhcp.clone(), bytes(Base::Network, 12, &source.octets()), accept()]));
        let claims = [arp(), bytes(Base::Network, 8, &port.mac.0), bytes(Base::Network, 14, &source.octets())].concat();
        if is_private {
            let asked = around.gateway.into_iter().chain(port.address);
            for asked in asked.chain(others().filter(is_peer).filter_map(|other| other.address)) {
                rules.push(rule(&[claims.clone(), bytes(Base::Network, 24, &asked.octets()), accept()]));
            }
        } else {
            rules.push(rule(&[claims, accept()]));
        }
    }
    if let Some(address) = port.address {
        rules.push(rule(&[ipv4(), bytes(Base::Network, 9, &[UDP]), bytes(Base::Transport, 0, &DHCP_SERVER), drop()]));
        let own = || [ipv4(), bytes(Base::Network, 12, &address.octets())].concat();
        if is_private {
            for mac in [BRIDGE_MAC].into_iter().chain(others().filter(is_peer).map(|other| other.mac)) {
                rules.push(rule(&[own(), bytes(Base::Link, 0, &mac.0), accept()]));
            }
        } else {
            for server in &around.dns {
                for protocol in [UDP, TCP] {
                    let query = [bytes(Base::Network, 9, &[protocol]), bytes(Base::Transport, 2, &DNS)].concat();
                    rules.push(rule(&[own(), bytes(Base::Network, 16, &server.octets()), query, accept()]));
                }
            }
            for host in &around.hosts {
                rules.push(rule(&[ipv4(), bytes(Base::Network, 16, &host.octets()), drop()]));
            }
            for bridge in &around.bridges {
                rules.push(rule(&[ipv4(), bytes(Base::Link, 0, &bridge.0), drop()]));
            }
            // The node receives multicast and broadcast too.
            rules.push(rule(&[ipv4(), bytes(Base::Link, 0, &BROADCAST), drop()]));
            rules.push(rule(&[own(), accept()]));
        }
    }
    rules
}

/// Rules for the node's services: DHCP, ping, and answers to the node's own requests.
fn input_rules(around: &FirewallContext) -> Vec<Vec<u8>> {
    let here = || meta(INPUT_NAME, &interface(BRIDGE));
    let mut rules = vec![
        [here(), meta(PROTOCOL, &[UDP]), bytes(Base::Transport, 2, &DHCP_SERVER), accept()].concat(),
        [here(), meta(FAMILY, &IPV4_FAMILY), meta(PROTOCOL, &[ICMP]), accept()].concat(),
        [here(), known_connection(true), accept()].concat(),
    ];
    if let Some(gateway) = around.gateway {
        // The node receives its own broadcasts; no guest can use this address.
        let own = bytes(Base::Network, 12, &gateway.octets());
        rules.push([here(), meta(FAMILY, &IPV4_FAMILY), own, accept()].concat());
    }
    rules.push([here(), drop()].concat());
    rules
}

/// Rules for forwarding: name servers, and networks beyond those of the node.
fn forward_rules(around: &FirewallContext) -> Vec<Vec<u8>> {
    let from = || meta(INPUT_NAME, &interface(BRIDGE));
    let to = || meta(OUTPUT_NAME, &interface(BRIDGE));
    let ipv4 = || meta(FAMILY, &IPV4_FAMILY);
    // With br_netfilter, frames between peers pass here too; the ingress chain has already decided.
    let mut rules = vec![[from(), to(), accept()].concat(), [to(), known_connection(false), drop()].concat()];
    for server in &around.dns {
        for protocol in [UDP, TCP] {
            let query = [meta(PROTOCOL, &[protocol]), bytes(Base::Transport, 2, &DNS)].concat();
            rules.push([from(), ipv4(), bytes(Base::Network, 16, &server.octets()), query, accept()].concat());
        }
    }
    for (net, bits) in &around.closed {
        let mask = u32::MAX.checked_shl(32 - u32::from((*bits).min(32))).unwrap_or(0).to_be_bytes();
        rules.push([from(), ipv4(), bytes_in(Base::Network, 16, &net.octets(), &mask), drop()].concat());
    }
    rules.push([from(), ipv4(), accept()].concat());
    rules.push([from(), drop()].concat());
    rules
}

/// Pads an interface name to the kernel's 16 bytes.
fn interface(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
    padded
}

/// Reads the addresses and networks of this node.
pub fn firewall_context(tree: &Tree, users: (u32, u32)) -> FirewallContext {
    let resolver = tree.read("/etc/resolv.conf").unwrap_or_default();
    let dns: Vec<Ipv4Addr> = crate::nat::supervisor::name_servers(&resolver);
    let gateway = super::settings(tree).and_then(|settings| super::choose(tree, &settings)).map(Subnet::gateway);
    let mut hosts: Vec<Ipv4Addr> = system::local_addresses(tree);
    hosts.extend(central(tree));
    hosts.sort_unstable();
    hosts.dedup();
    let table = tree.read("/proc/net/route").unwrap_or_default();
    let connected = connected(&table).into_iter().map(|net| (net.net(), net.bits()));
    let reserved =
        [(Ipv4Addr::new(127, 0, 0, 0), 8), (Ipv4Addr::new(169, 254, 0, 0), 16), (Ipv4Addr::new(224, 0, 0, 0), 3)];
    let mut closed: Vec<Net> = hosts.iter().map(|host| (*host, 32)).chain(connected).chain(reserved).collect();
    closed.sort_unstable();
    closed.dedup();
    let is_bridge = |name: &String| name != BRIDGE && tree.has(&format!("/sys/class/net/{name}/bridge"));
    let mac = |name: String| tree.text(&format!("/sys/class/net/{name}/address"))?.parse().ok();
    let bridges = tree.list("/sys/class/net").into_iter().filter(is_bridge).filter_map(mac).collect();
    FirewallContext { gateway, dns, closed, hosts, bridges, users }
}

/// Returns the address of the central node from the overlay.
fn central(tree: &Tree) -> Option<Ipv4Addr> {
    let config: serde_json::Value = serde_json::from_str(&tree.text("/etc/meshd/agent.json")?).ok()?;
    config.get("central")?.as_str()?.parse().ok()
}

/// Parses the directly connected networks in `/proc/net/route`, except the private network.
fn connected(table: &str) -> Vec<Subnet> {
    let has_gateway = |line: &&str| line.split_ascii_whitespace().nth(2).is_some_and(|gateway| gateway != "00000000");
    let direct: Vec<&str> = table.lines().filter(|line| !has_gateway(line)).collect();
    // The first line is the heading.
    let routes = super::subnet::routes(&["", &direct.join("\n")].join("\n"), BRIDGE);
    routes.into_iter().filter(|net| net.bits() > 0).collect()
}

#[cfg(test)]
#[path = "guest_firewall_tests.rs"]
mod tests;
