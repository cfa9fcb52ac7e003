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
/// Before chains of the distribution: what is dropped here nobody accepts.
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
    /// Its name on the node.
    pub name: String,
    /// The guest's MAC address.
    pub mac: MacAddr,
    /// The guest's address; without one it may only ask for it.
    pub address: Option<Ipv4Addr>,
    /// The bridge that it is a port of.
    pub bridge: String,
    /// It reaches, and is reached by, others on this bridge that say so too.
    pub peers: bool,
}

/// A network: its address and bits.
pub type Net = (Ipv4Addr, u8);

/// What surrounds the guests of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirewallContext {
    /// The node's own address in the private network.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers that guests of the private network are told.
    pub dns: Vec<Ipv4Addr>,
    /// Networks that no guest of the private network reaches: those that the node is in, the central node.
    pub closed: Vec<Net>,
    /// Addresses that no guest reaches: the central node's, the node's own.
    pub hosts: Vec<Ipv4Addr>,
    /// MAC addresses of the node's bridges of the site.
    pub bridges: Vec<MacAddr>,
    /// User IDs of machines, and the mask under which they are equal.
    pub users: (u32, u32),
}

struct Chain {
    family: u8,
    name: String,
    hook: u32,
    /// The device that it listens to.
    device: Option<String>,
    /// What no rule accepts is dropped.
    closed: bool,
    rules: Vec<Vec<u8>>,
}

/// Puts both tables there, in the place of those that were there: all of it or nothing.
///
/// # Errors
/// What the kernel says.
pub fn isolate(ports: &[GuestPort], around: &FirewallContext) -> io::Result<()> {
    let name = attribute(1, &text(TABLE));
    let mut orders: Vec<Order> = Vec::new();
    for family in [NETDEV, INET] {
        // The first is there so that there is one to be deleted.
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

/// Whether both tables are there as [`isolate`] writes them.
///
/// # Errors
/// What the kernel says.
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

/// What each rule carries so that it is known again.
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

/// What a guest may send.
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
        // Nor by the node, which would bring it there.
        rules.extend(other.address.map(|address| rule(&[ipv4(), bytes(Base::Network, 16, &address.octets()), drop()])));
    }
    // It asks for its address, and is the server of nobody.
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
            // Multicast and broadcast are heard by the node itself, too.
            rules.push(rule(&[ipv4(), bytes(Base::Link, 0, &BROADCAST), drop()]));
            rules.push(rule(&[own(), accept()]));
        }
    }
    rules
}

/// What of the node's own services the private network has: an address, an answer to ping, and what the node itself asked for.
fn input_rules(around: &FirewallContext) -> Vec<Vec<u8>> {
    let here = || meta(INPUT_NAME, &interface(BRIDGE));
    let mut rules = vec![
        [here(), meta(PROTOCOL, &[UDP]), bytes(Base::Transport, 2, &DHCP_SERVER), accept()].concat(),
        [here(), meta(FAMILY, &IPV4_FAMILY), meta(PROTOCOL, &[ICMP]), accept()].concat(),
        [here(), known_connection(true), accept()].concat(),
    ];
    if let Some(gateway) = around.gateway {
        // The node hears its own broadcasts; no guest shows this address.
        let own = bytes(Base::Network, 12, &gateway.octets());
        rules.push([here(), meta(FAMILY, &IPV4_FAMILY), own, accept()].concat());
    }
    rules.push([here(), drop()].concat());
    rules
}

/// What the node forwards of the private network: to name servers, and beyond the networks that it is in.
fn forward_rules(around: &FirewallContext) -> Vec<Vec<u8>> {
    let from = || meta(INPUT_NAME, &interface(BRIDGE));
    let to = || meta(OUTPUT_NAME, &interface(BRIDGE));
    let ipv4 = || meta(FAMILY, &IPV4_FAMILY);
    // Between peers, where the kernel shows bridged packets here, too: whom a guest reaches there its port has decided.
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

/// A name as the kernel compares it: all of its 16 bytes.
fn interface(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte);
    padded
}

/// What surrounds the guests of this node now.
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

/// The central node's address, as the overlay says it.
fn central(tree: &Tree) -> Option<Ipv4Addr> {
    let config: serde_json::Value = serde_json::from_str(&tree.text("/etc/meshd/agent.json")?).ok()?;
    config.get("central")?.as_str()?.parse().ok()
}

/// The networks that the node is in: routes of `/proc/net/route` without a gateway, but that of the private network. Total.
fn connected(table: &str) -> Vec<Subnet> {
    let has_gateway = |line: &&str| line.split_ascii_whitespace().nth(2).is_some_and(|gateway| gateway != "00000000");
    let direct: Vec<&str> = table.lines().filter(|line| !has_gateway(line)).collect();
    // Its first line is the heading, whose third word is no number.
    let routes = super::subnet::routes(&["", &direct.join("\n")].join("\n"), BRIDGE);
    routes.into_iter().filter(|net| net.bits() > 0).collect()
}

#[cfg(test)]
#[path = "guest_firewall_tests.rs"]
mod tests;
