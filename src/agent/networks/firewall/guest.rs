//! Firewall of guests: tables `meshd-guests` of the families netdev and inet.
//!
//! Each port has a chain that sees every frame of its guest before the bridge does. It drops frames
//! with another guest's MAC address or address, VLANs, IPv6, other protocols, and what a DHCP or
//! boot server or a router would send. The table `inet` denies guests of the private network the
//! node's services and networks.

use super::nftables::{
    BatchMessage, CREATE, FAMILY, FORWARD_HOOK, ICMP, INET, INPUT_NAME, IPV4_FAMILY, NETDEV,
    NEW_CHAIN, OUTPUT_NAME, PRIORITY, PROTOCOL, TCP, UDP, append_rule, attribute, commit,
    expr::{Base, accept, bytes, bytes_in, drop, known_connection, meta, not_bytes, not_bytes_in},
    fingerprints, interface, nested, replace_table, text,
};
use crate::{
    networks::settings,
    system::{self, Route, Tree},
};
use meshd_proto::{InterfaceName, PRIVATE_BRIDGE_MAC, Subnet};
use meshd_types::{Digest, MacAddr, failpoint};
use std::{io, net::Ipv4Addr};

/// Name of both tables.
const TABLE: &str = "meshd-guests";
// Hooks of linux/netfilter.h.
const INGRESS: u32 = 0;
const INPUT: u32 = 1;
const ARP_TYPE: [u8; 2] = [0x08, 0x06];
const IPV4_TYPE: [u8; 2] = [0x08, 0x00];
const BROADCAST: [u8; 6] = [0xff; 6];
const DHCP_CLIENT_TO_SERVER: [u8; 4] = [0, 68, 0, 67];
const DHCP_SERVER: [u8; 2] = [0, 67];
const DNS: [u8; 2] = [0, 53];
/// Source ports of servers: DHCP, TFTP, proxy DHCP, DHCPv6.
const SERVER_PORTS: [u16; 4] = [67, 69, 4011, 547];
/// Destination ports that only servers and relays use: DHCP server, DHCP client, proxy DHCP, DHCPv6
/// client and server.
const ANSWERED_PORTS: [u16; 5] = [67, 68, 4011, 546, 547];
/// ICMP messages of routers: redirect, router advertisement.
const ROUTER_MESSAGES: [u8; 2] = [5, 9];
/// Mask of the fragment offset in the IPv4 header.
const FRAGMENT_OFFSET: [u8; 2] = [0x1f, 0xff];

/// A port of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPort {
    /// Name of the TAP device.
    pub name: String,
    pub mac: MacAddr,
    /// A guest without address may only request one by DHCP.
    pub address: Option<Ipv4Addr>,
    pub bridge: InterfaceName,
    /// The guest may communicate with other guests on this bridge that allow it too.
    pub peers: bool,
}

/// Network address and prefix length.
pub type Network = (Ipv4Addr, u8);

/// Addresses of the node and its networks that the rules need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallContext {
    /// Bridge of the private network. Its guests are denied the node's services and networks, even
    /// while the node has no address in it, or the overlay no longer enables it.
    pub bridge: InterfaceName,
    /// Address of the node in the private network.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers of the node.
    pub dns: Vec<Ipv4Addr>,
    /// Networks that guests of the private network must not reach: those of the node, the central
    /// node.
    pub blocked_networks: Vec<Network>,
    /// Addresses that no guest may reach: the central node's and the node's.
    pub blocked_hosts: Vec<Ipv4Addr>,
    /// MAC addresses of the node's other bridges.
    pub bridges: Vec<MacAddr>,
}

struct Chain {
    family: u8,
    name: String,
    hook: u32,
    /// Device of an ingress chain.
    device: Option<String>,
    drops_by_default: bool,
    rules: Vec<Vec<u8>>,
}

/// Replaces both tables atomically.
pub fn isolate(ports: &[GuestPort], context: &FirewallContext) -> io::Result<()> {
    let mut batch: Vec<BatchMessage> =
        [NETDEV, INET].into_iter().flat_map(|family| replace_table(family, TABLE)).collect();
    let fingerprint = fingerprint(ports, context);
    for chain in chains(ports, context) {
        batch.push((chain.family, NEW_CHAIN, CREATE, declaration(&chain)));
        let rules = chain
            .rules
            .iter()
            .map(|rule| append_rule(chain.family, TABLE, &chain.name, rule, &fingerprint));
        batch.extend(rules);
    }
    commit(&batch)
}

/// Returns whether both tables match what [`isolate`] writes.
pub fn is_current(ports: &[GuestPort], context: &FirewallContext) -> io::Result<bool> {
    let fingerprint = fingerprint(ports, context);
    let chains = chains(ports, context);
    for family in [NETDEV, INET] {
        let rules: usize = chains
            .iter()
            .filter(|chain| chain.family == family)
            .map(|chain| chain.rules.len())
            .sum();
        let found = fingerprints(family, TABLE, None)?;
        if found.len() != rules || found.iter().any(|found| *found != fingerprint) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn fingerprint(ports: &[GuestPort], context: &FirewallContext) -> Vec<u8> {
    text(&Digest::of(format!("{ports:?}{context:?}").as_bytes()).to_string())
}

fn declaration(chain: &Chain) -> Vec<u8> {
    let device =
        chain.device.as_ref().map(|device| attribute(3, &text(device))).unwrap_or_default();
    let hook =
        [attribute(1, &chain.hook.to_be_bytes()), attribute(2, &PRIORITY.to_be_bytes()), device]
            .concat();
    let policy = u32::from(!chain.drops_by_default);
    let head = [attribute(1, &text(TABLE)), attribute(3, &text(&chain.name)), nested(4, &hook)];
    [head.concat(), attribute(5, &policy.to_be_bytes()), attribute(7, &text("filter"))].concat()
}

fn chains(ports: &[GuestPort], context: &FirewallContext) -> Vec<Chain> {
    let chain = |family, name: &str, hook, rules| {
        let device = (family == NETDEV).then(|| name.to_owned());
        Chain {
            family,
            name: name.to_owned(),
            hook,
            device,
            drops_by_default: family == NETDEV,
            rules,
        }
    };
    let mut all = Vec::new();
    if failpoint::defends("guest-ports") {
        all.extend(
            ports
                .iter()
                .map(|port| chain(NETDEV, &port.name, INGRESS, port_rules(port, ports, context))),
        );
    }
    if failpoint::defends("guest-node-services") {
        all.push(chain(INET, "input", INPUT, input_rules(context)));
    }
    if failpoint::defends("guest-fabric") {
        all.push(chain(INET, "forward", FORWARD_HOOK, forward_rules(context)));
    }
    all
}

/// Rules for the frames of one guest.
fn port_rules(port: &GuestPort, ports: &[GuestPort], context: &FirewallContext) -> Vec<Vec<u8>> {
    let is_private = port.bridge == context.bridge;
    let others =
        || ports.iter().filter(|other| other.bridge == port.bridge && other.mac != port.mac);
    let is_peer = |other: &&GuestPort| port.peers && other.peers;
    let rule = |expressions: &[Vec<u8>]| expressions.concat();
    let mut rules = vec![rule(&[not_bytes(Base::Link, 6, &port.mac.0), drop()])];
    let arp = || bytes(Base::Link, 12, &ARP_TYPE);
    let ipv4 = || bytes(Base::Link, 12, &IPV4_TYPE);
    for other in others().filter(|other| !is_peer(other)) {
        rules.push(rule(&[bytes(Base::Link, 0, &other.mac.0), drop()]));
        // The node would forward a packet to the other guest's address.
        rules.extend(
            other.address.map(|address| {
                rule(&[ipv4(), bytes(Base::Network, 16, &address.octets()), drop()])
            }),
        );
    }
    // A guest is a DHCP client and never a server.
    let dhcp = [
        ipv4(),
        bytes(Base::Network, 9, &[UDP]),
        bytes(Base::Transport, 0, &DHCP_CLIENT_TO_SERVER),
    ]
    .concat();
    for source in [Some(Ipv4Addr::UNSPECIFIED), port.address].into_iter().flatten() {
        rules.push(rule(&[dhcp.clone(), bytes(Base::Network, 12, &source.octets()), accept()]));
        let arp_claim = [
            arp(),
            bytes(Base::Network, 8, &port.mac.0),
            bytes(Base::Network, 14, &source.octets()),
        ]
        .concat();
        if is_private {
            let targets = context.gateway.into_iter().chain(port.address);
            for target in targets.chain(others().filter(is_peer).filter_map(|other| other.address))
            {
                rules.push(rule(&[
                    arp_claim.clone(),
                    bytes(Base::Network, 24, &target.octets()),
                    accept(),
                ]));
            }
        } else {
            rules.push(rule(&[arp_claim, accept()]));
        }
    }
    if let Some(address) = port.address {
        rules.push(rule(&[
            ipv4(),
            bytes(Base::Network, 9, &[UDP]),
            bytes(Base::Transport, 0, &DHCP_SERVER),
            drop(),
        ]));
        let sends = [ipv4(), bytes(Base::Network, 12, &address.octets())].concat();
        let from_guest = || sends.clone();
        if is_private {
            let peers = others().filter(is_peer).map(|other| other.mac);
            for mac in std::iter::once(PRIVATE_BRIDGE_MAC).chain(peers) {
                rules
                    .extend(client_traffic(&[from_guest(), bytes(Base::Link, 0, &mac.0)].concat()));
            }
        } else {
            for server in &context.dns {
                for protocol in [UDP, TCP] {
                    let query =
                        [bytes(Base::Network, 9, &[protocol]), bytes(Base::Transport, 2, &DNS)]
                            .concat();
                    rules.push(rule(&[
                        from_guest(),
                        bytes(Base::Network, 16, &server.octets()),
                        query,
                        accept(),
                    ]));
                }
            }
            for host in &context.blocked_hosts {
                rules.push(rule(&[ipv4(), bytes(Base::Network, 16, &host.octets()), drop()]));
            }
            for bridge in &context.bridges {
                rules.push(rule(&[ipv4(), bytes(Base::Link, 0, &bridge.0), drop()]));
            }
            // The node receives multicast and broadcast too.
            rules.push(rule(&[ipv4(), bytes(Base::Link, 0, &BROADCAST), drop()]));
            rules.extend(client_traffic(&from_guest()));
        }
    }
    rules
}

/// Accepts what a client sends: neither DHCP nor boot servers nor routers are guests. A server's
/// reply is recognised by its destination port, because clients accept any source port. UDP is
/// accepted only if its ports are readable, or as a later fragment.
fn client_traffic(from_guest: &[u8]) -> Vec<Vec<u8>> {
    let protocol = |protocol: u8| bytes(Base::Network, 9, &[protocol]);
    let rule = |expressions: &[Vec<u8>]| [from_guest, &expressions.concat()].concat();
    if !failpoint::defends("guest-servers") {
        return vec![rule(&[accept()])];
    }
    let other_ports = |offset, ports: &[u16]| -> Vec<u8> {
        ports
            .iter()
            .flat_map(|port| not_bytes(Base::Transport, offset, &port.to_be_bytes()))
            .collect()
    };
    let other_types: Vec<u8> =
        ROUTER_MESSAGES.iter().flat_map(|kind| not_bytes(Base::Transport, 0, &[*kind])).collect();
    let is_later_fragment = not_bytes_in(Base::Network, 6, &[0, 0], &FRAGMENT_OFFSET);
    vec![
        rule(&[
            not_bytes(Base::Network, 9, &[UDP]),
            not_bytes(Base::Network, 9, &[ICMP]),
            accept(),
        ]),
        rule(&[
            protocol(UDP),
            other_ports(0, &SERVER_PORTS),
            other_ports(2, &ANSWERED_PORTS),
            accept(),
        ]),
        rule(&[protocol(ICMP), other_types, accept()]),
        rule(&[is_later_fragment, accept()]),
    ]
}

/// Rules for the node's services: DHCP, ping, and answers to the node's own requests.
fn input_rules(context: &FirewallContext) -> Vec<Vec<u8>> {
    let from_bridge = || meta(INPUT_NAME, &interface(context.bridge.as_str()));
    let mut rules = vec![
        [from_bridge(), meta(PROTOCOL, &[UDP]), bytes(Base::Transport, 2, &DHCP_SERVER), accept()]
            .concat(),
        [from_bridge(), meta(FAMILY, &IPV4_FAMILY), meta(PROTOCOL, &[ICMP]), accept()].concat(),
        [from_bridge(), known_connection(true), accept()].concat(),
    ];
    if let Some(gateway) = context.gateway {
        // The node receives its own broadcasts; no guest can use this address.
        let from_node = bytes(Base::Network, 12, &gateway.octets());
        rules.push([from_bridge(), meta(FAMILY, &IPV4_FAMILY), from_node, accept()].concat());
    }
    rules.push([from_bridge(), drop()].concat());
    rules
}

/// Rules for forwarding: name servers, and networks beyond those of the node.
fn forward_rules(context: &FirewallContext) -> Vec<Vec<u8>> {
    let from_bridge = || meta(INPUT_NAME, &interface(context.bridge.as_str()));
    let to_bridge = || meta(OUTPUT_NAME, &interface(context.bridge.as_str()));
    let ipv4 = || meta(FAMILY, &IPV4_FAMILY);
    // With br_netfilter, frames between peers pass here too; the ingress chain has already decided.
    let mut rules = vec![
        [from_bridge(), to_bridge(), accept()].concat(),
        [to_bridge(), known_connection(false), drop()].concat(),
    ];
    for server in &context.dns {
        for protocol in [UDP, TCP] {
            let query = [meta(PROTOCOL, &[protocol]), bytes(Base::Transport, 2, &DNS)].concat();
            rules.push(
                [
                    from_bridge(),
                    ipv4(),
                    bytes(Base::Network, 16, &server.octets()),
                    query,
                    accept(),
                ]
                .concat(),
            );
        }
    }
    for (net, bits) in &context.blocked_networks {
        let mask = Subnet::containing(*net, *bits).mask().octets();
        rules.push(
            [from_bridge(), ipv4(), bytes_in(Base::Network, 16, &net.octets(), &mask), drop()]
                .concat(),
        );
    }
    rules.push([from_bridge(), ipv4(), accept()].concat());
    rules.push([from_bridge(), drop()].concat());
    rules
}

/// Reads the addresses and networks of this node.
pub fn firewall_context(tree: &Tree, central: Option<Ipv4Addr>) -> FirewallContext {
    let bridge = InterfaceName::private_bridge();
    let dns = settings::name_servers(tree);
    let subnet =
        settings::private_network(tree).and_then(|spec| settings::choose_subnet(tree, &spec));
    let gateway = subnet.map(Subnet::gateway);
    let mut blocked_hosts: Vec<Ipv4Addr> = system::local_addresses(tree);
    blocked_hosts.extend(central);
    blocked_hosts.sort_unstable();
    blocked_hosts.dedup();
    let is_connected =
        |route: &Route| route.gateway.is_unspecified() && !route.mask.is_unspecified();
    let connected = settings::other_routes(tree, &bridge)
        .filter(is_connected)
        .map(|route| settings::destination(&route));
    let connected = connected.map(|subnet| (subnet.network(), subnet.bits()));
    let reserved = [
        (Ipv4Addr::new(127, 0, 0, 0), 8),
        (Ipv4Addr::new(169, 254, 0, 0), 16),
        (Ipv4Addr::new(224, 0, 0, 0), 3),
    ];
    let mut blocked_networks: Vec<Network> =
        blocked_hosts.iter().map(|host| (*host, 32)).chain(connected).chain(reserved).collect();
    blocked_networks.sort_unstable();
    blocked_networks.dedup();
    let is_bridge = |name: &String| {
        name != bridge.as_str() && tree.has(&format!("/sys/class/net/{name}/bridge"))
    };
    let mac = |name: String| tree.text(&format!("/sys/class/net/{name}/address"))?.parse().ok();
    let bridges =
        tree.list("/sys/class/net").into_iter().filter(is_bridge).filter_map(mac).collect();
    FirewallContext { bridge, gateway, dns, blocked_networks, blocked_hosts, bridges }
}

#[cfg(test)]
#[path = "guest_tests.rs"]
mod tests;
