//! Guests in network namespaces, their ports on bridges of a node that is one too: what they reach
//! on a real kernel.

use super::*;
use crate::fake::{FakeMachine, NetworkNamespace, in_namespace, run};
use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStdout, Command, Stdio},
};

#[test]
fn networks_and_addresses_of_node_and_central_node_are_blocked() {
    let fake = FakeMachine::new("", &[]);
    let none = [0; 4];
    let mask = [255, 255, 255, 0];
    fake.routes(&[
        ("eth0", none, none, [10, 77, 0, 1]),
        ("eth0", [10, 77, 0, 0], mask, none),
        ("ib0", [10, 8, 0, 0], mask, none),
        ("mesh-nat0", [172, 30, 0, 0], mask, none),
        ("eth0", [10, 9, 0, 0], mask, [10, 77, 0, 3]),
    ]);
    fake.file("etc/resolv.conf", "nameserver 10.77.0.2\n");
    let context = firewall_context(&fake.tree, Some(Ipv4Addr::new(10, 66, 0, 1)));
    assert_eq!(
        (context.dns, context.blocked_hosts),
        (vec![Ipv4Addr::new(10, 77, 0, 2)], vec![Ipv4Addr::new(10, 66, 0, 1)])
    );
    let blocked: Vec<String> =
        context.blocked_networks.iter().map(|(net, bits)| format!("{net}/{bits}")).collect();
    assert_eq!(
        blocked,
        [
            "10.8.0.0/24",
            "10.66.0.1/32",
            "10.77.0.0/24",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "224.0.0.0/3"
        ]
    );
}

const GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
const NODE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
const CENTRAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Another machine of the boot LAN.
const OTHER_MACHINE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
/// A host behind the boot LAN.
const INTERNET: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const SITE_MAC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x10]);

fn is_in_namespace(test: &str) -> bool {
    in_namespace(&format!("networks::firewall::guest::tests::{test}"))
}

/// A host in a network namespace with one NIC.
struct Host(NetworkNamespace);

impl Host {
    /// `port` is the node's end of the veth pair.
    fn new(port: &str, bridge: &str, mac: MacAddr, address: Ipv4Addr, gateway: Ipv4Addr) -> Self {
        let namespace = NetworkNamespace::new();
        let peer = format!("{port}x");
        run(
            "ip",
            &[
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                &peer,
                "netns",
                &namespace.pid(),
            ],
        );
        run("ip", &["link", "set", port, "master", bridge, "up"]);
        namespace.ip(&["link", "set", &peer, "name", "eth"]);
        namespace.ip(&["link", "set", "lo", "up"]);
        let host = Host(namespace);
        host.set_addresses(mac, address, gateway);
        host
    }

    fn set_addresses(&self, mac: MacAddr, address: Ipv4Addr, gateway: Ipv4Addr) {
        self.0.ip(&["addr", "flush", "dev", "eth"]);
        self.0.ip(&["link", "set", "eth", "address", &mac.to_string()]);
        self.0.ip(&["addr", "add", &format!("{address}/24"), "dev", "eth"]);
        self.0.ip(&["link", "set", "eth", "up"]);
        self.0.ip(&["route", "replace", "default", "via", &gateway.to_string()]);
    }

    fn reaches(&self, address: Ipv4Addr) -> bool {
        answers(&["nsenter", "-t", &self.0.pid(), "-n"], address)
    }
}

/// Returns true if a connection is refused: nothing listens on the port.
fn answers(prefix: &[&str], address: Ipv4Addr) -> bool {
    let call = format!("exec 3<>/dev/tcp/{address}/9");
    let all = [prefix, &["timeout", "2", "bash", "-c", &call]].concat();
    let ran = Command::new(all[0]).args(&all[1..]).env("LC_ALL", "C").output().expect("it runs");
    ran.status.success() || String::from_utf8_lossy(&ran.stderr).contains("refused")
}

fn mac(last: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, last])
}

fn private(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 30, 0, last)
}

fn site(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

/// A node with two bridges, the central node, and two guests on each bridge.
struct TestNetwork {
    central: Host,
    private: [Host; 2],
    site: [Host; 2],
    ports: Vec<GuestPort>,
}

impl TestNetwork {
    fn new() -> Self {
        let network = InterfaceName::private_bridge();
        let private_bridge = network.as_str();
        for (bridge, mac, address) in
            [(private_bridge, PRIVATE_BRIDGE_MAC, GATEWAY), ("br0", SITE_MAC, NODE)]
        {
            run("ip", &["link", "add", bridge, "type", "bridge"]);
            run("ip", &["link", "set", bridge, "address", &mac.to_string(), "up"]);
            run("ip", &["addr", "add", &format!("{address}/24"), "dev", bridge]);
        }
        let central = Host::new("lan0", "br0", MacAddr([2, 0, 0, 0, 0, 1]), CENTRAL, NODE);
        central.0.ip(&["addr", "add", &format!("{OTHER_MACHINE}/24"), "dev", "eth"]);
        central.0.ip(&["addr", "add", &format!("{INTERNET}/32"), "dev", "lo"]);
        run("ip", &["route", "add", "default", "via", &CENTRAL.to_string()]);
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("written");
        let guest = |bridge: &str, last: u8, address, gateway| {
            Host::new(&format!("p{last}"), bridge, mac(last), address, gateway)
        };
        let port = |bridge: &str, last: u8, address| GuestPort {
            name: format!("p{last}"),
            mac: mac(last),
            address: Some(address),
            bridge: bridge.parse().expect("a name"),
            peers: false,
        };
        TestNetwork {
            central,
            private: [9, 10].map(|last| guest(private_bridge, last, private(last), GATEWAY)),
            site: [51, 52].map(|last| guest("br0", last, site(last), CENTRAL)),
            ports: [9, 10]
                .map(|last| port(private_bridge, last, private(last)))
                .into_iter()
                .chain([51, 52].map(|last| port("br0", last, site(last))))
                .collect(),
        }
    }

    fn isolate(&self) {
        let context = FirewallContext {
            bridge: InterfaceName::private_bridge(),
            gateway: Some(GATEWAY),
            dns: Vec::new(),
            blocked_networks: vec![(site(0), 24)],
            blocked_hosts: vec![CENTRAL, NODE, GATEWAY],
            bridges: vec![SITE_MAC],
        };
        isolate(&self.ports, &context).expect("the kernel does it");
        assert!(is_current(&self.ports, &context).expect("readable"));
        assert!(!is_current(&self.ports[1..], &context).expect("readable"), "other ports");
    }
}

#[test]
fn guests_reach_no_service_of_their_node() {
    if !is_in_namespace("guests_reach_no_service_of_their_node") {
        return;
    }
    let network = TestNetwork::new();
    let guest = &network.private[0];
    assert!(
        guest.reaches(GATEWAY) && guest.reaches(NODE) && guest.reaches(INTERNET),
        "nothing is filtered yet"
    );
    network.isolate();
    assert!(!guest.reaches(GATEWAY) && !guest.reaches(NODE));
    assert!(guest.reaches(INTERNET), "beyond the networks of the node");
}

#[test]
fn guests_of_the_private_network_reach_neither_boot_lan_nor_central_node() {
    if !is_in_namespace("guests_of_the_private_network_reach_neither_boot_lan_nor_central_node") {
        return;
    }
    let network = TestNetwork::new();
    let guest = &network.private[0];
    assert!(guest.reaches(CENTRAL) && guest.reaches(OTHER_MACHINE), "nothing is filtered yet");
    network.isolate();
    assert!(!guest.reaches(CENTRAL) && !guest.reaches(OTHER_MACHINE) && !guest.reaches(site(51)));
    assert!(guest.reaches(INTERNET));
}

#[test]
fn guest_uses_only_its_addresses_and_reaches_only_allowed_peers() {
    if !is_in_namespace("guest_uses_only_its_addresses_and_reaches_only_allowed_peers") {
        return;
    }
    let mut network = TestNetwork::new();
    assert!(
        network.private[0].reaches(private(10)) && network.site[0].reaches(site(52)),
        "nothing is filtered yet"
    );
    assert!(network.site[0].reaches(CENTRAL) && network.site[0].reaches(NODE));
    network.isolate();
    assert!(network.site[0].reaches(OTHER_MACHINE), "it is on the site's network");
    assert!(!network.site[0].reaches(CENTRAL) && !network.site[0].reaches(NODE));
    assert!(!network.private[0].reaches(private(10)) && !network.site[0].reaches(site(52)));
    // Both guests must allow peers.
    network.ports[0].peers = true;
    network.isolate();
    assert!(!network.private[0].reaches(private(10)));
    network.ports.iter_mut().for_each(|port| port.peers = true);
    network.isolate();
    assert!(network.private[0].reaches(private(10)) && network.site[0].reaches(site(52)));
    // Another address, another MAC address, both of another guest.
    for (mac, address) in [(mac(9), private(77)), (mac(77), private(9)), (mac(10), private(10))] {
        network.private[0].set_addresses(mac, address, GATEWAY);
        assert!(!network.private[0].reaches(INTERNET), "{mac} {address}");
    }
    for (mac, address) in [(mac(51), site(77)), (mac(77), site(51)), (mac(51), CENTRAL)] {
        network.site[0].set_addresses(mac, address, CENTRAL);
        assert!(!network.site[0].reaches(OTHER_MACHINE), "{mac} {address}");
    }
    network.private[0].set_addresses(mac(9), private(9), GATEWAY);
    assert!(network.private[0].reaches(INTERNET));
}

/// Frames of a guest, each as a client of another network would accept it. Prints nothing; the
/// victim listens.
const FRAMES: &str = include_str!("guest_frames.py");

impl Host {
    fn python(&self, script: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.pid(), "-n", "python3", "-c", script]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

/// Starts a script and waits for its first line.
fn start(command: &mut Command) -> (Child, BufReader<ChildStdout>) {
    let mut child = command.spawn().expect("python3 starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("readable");
    assert_eq!(line, "ready\n");
    (child, out)
}

/// Returns the names of the frames of a guest that a machine of the boot LAN received.
fn received_frames(network: &TestNetwork) -> Vec<String> {
    let guest = &network.ports[2];
    let mac = network.central.0.mac("eth");
    let (mut victim, mut out) =
        start(&mut network.central.python(FRAMES, &["listen", &guest.mac.to_string()]));
    let sent = network.site[0]
        .python(FRAMES, &["send", &guest.mac.to_string(), &mac, &site(51).to_string()])
        .status();
    assert!(sent.expect("python3 runs").success());
    let mut received = String::new();
    out.read_to_string(&mut received).expect("readable");
    assert!(victim.wait().expect("it ends").success());
    received.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn boot_server_frames_of_a_guest_are_dropped() {
    if !is_in_namespace("boot_server_frames_of_a_guest_are_dropped") {
        return;
    }
    let network = TestNetwork::new();
    let all = received_frames(&network);
    for frame in ["dhcp", "high-port", "priority-tag", "vlan", "fragment", "proxy", "ra", "end"] {
        assert!(
            all.iter().any(|name| name == frame),
            "nothing is filtered yet: {frame} of {all:?}"
        );
    }
    network.isolate();
    assert_eq!(received_frames(&network), ["udp", "ping", "fragmented", "end"]);
}

#[test]
fn machine_gets_no_lease_from_a_guest() {
    if !is_in_namespace("machine_gets_no_lease_from_a_guest") {
        return;
    }
    let network = TestNetwork::new();
    let guest = network.ports[2].mac.to_string();
    let server = include_str!("guest_dhcp_server.py");
    let (mut server, _out) =
        start(&mut network.site[0].python(server, &[&guest, &site(51).to_string()]));
    let has_lease = || {
        let mut client = Command::new("nsenter");
        client.args([
            "-t",
            &network.central.0.pid(),
            "-n",
            "busybox",
            "udhcpc",
            "-f",
            "-q",
            "-n",
            "-i",
            "eth",
        ]);
        client.args(["-t", "3", "-T", "1", "-s", "/bin/true"]);
        client.output().expect("udhcpc runs").status.success()
    };
    let without = has_lease();
    network.isolate();
    let with = has_lease();
    server.kill().and_then(|()| server.wait()).expect("killed");
    assert!(without, "nothing is filtered yet");
    assert!(!with, "a guest gave an address to a machine of the boot LAN");
}
