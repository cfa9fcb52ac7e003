//! Somebody behind a real relay (isc-dhcp-relay, systemd-networkd), on another port of it than the
//! machine in whose name they speak. meshd does not see their Ethernet address: the relay agent information (option
//! 82) tells the two apart.

use super::{
    boot_lan::{STRANGER_MAC, stranger as local_stranger},
    boot_theft::claim,
};
use crate::world::{
    CENTRAL, World,
    dhcp::{self, As},
    eventually,
    node::{PxeNode, Script},
    program::Program,
};
use serde_json::Value;
use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
};

const RELAY: &str = "10.88.0.1";
pub const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
/// The router's card on the central node's network: the site names it.
pub const ROUTER_MAC: &str = "52:54:00:00:00:fe";
/// The stranger's own address: on the far network, leased to nobody.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 66);
const FREE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 109);
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;

/// systemd-networkd as the relay at `down0`: isc-dhcp-relay cannot have a remote ID. Its `/run` has
/// this network alone, and a read-only `/sys` tells it that there is no udev. systemd 252 sets an
/// address that is there already again and again.
const NETWORKD: &str = "set -e
ip address flush dev down0
mount -t sysfs -o ro sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/network
install -d -o systemd-network -g systemd-network /run/systemd/netif /run/systemd/netif/links /run/systemd/netif/leases
printf '%s' \"$1\" >/run/systemd/network/down0.network
exec env SYSTEMD_LOG_TARGET=console SYSTEMD_LOG_LEVEL=debug /lib/systemd/systemd-networkd";

/// Makes a network with these ports of the router: `port0`, `port1`.
fn connect_far_network(world: &World, ports: &[&str]) {
    let router = &world.nodes;
    for number in ports {
        let down = format!("down{number}");
        let port = format!("port{number}");
        router.ip(&["link", "add", &down, "type", "veth", "peer", "name", &port]).unwrap();
        router.ip(&["address", "add", &format!("{RELAY}/24"), "dev", &down]).unwrap();
        router.ip(&["link", "set", &down, "up"]).unwrap();
        router.ip(&["link", "set", &port, "up"]).unwrap();
    }
    router.ip(&["address", "add", &format!("{ROUTER}/24"), "dev", "eth0"]).unwrap();
    router.inside(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap().unwrap();
    world.central.ip(&["route", "add", "10.88.0.0/24", "via", &ROUTER.to_string()]).unwrap();
}

/// Starts a relay with this remote ID.
fn start_networkd(world: &World, remote_id: &str) -> Program {
    let network = format!(
        "[Match]\nName=down0\n[Network]\nAddress={RELAY}/24\nDHCPServer=yes\n\
         LinkLocalAddressing=no\nIPv6AcceptRA=no\n[DHCPServer]\nRelayTarget={CENTRAL}\nBindToInterface=no\n\
         RelayAgentCircuitId=string:Gi1/0/7\nRelayAgentRemoteId=string:{remote_id}\n"
    );
    let args = ["--mount", "--propagation", "private", "sh", "-c", NETWORKD, "sh", &network];
    let relay = Program::start(world, &world.nodes, "unshare", &args);
    relay.says("DHCPv4 server: STARTED", 1);
    relay
}

/// A network with two ports behind a relay that has these further options: `port0` for the victim,
/// `port1` for the stranger.
fn far_network(world: &World, options: &[&str]) -> Program {
    connect_far_network(world, &["0", "1"]);
    // Both ports are one network: the kernel finds the victim by the route of the first port.
    world.nodes.ip(&["route", "add", &STRANGER.to_string(), "dev", "down1"]).unwrap();
    let interfaces = ["-iu", "eth0", "-id", "down0", "-id", "down1", CENTRAL];
    let args = [&["-4", "-d", "--no-pid", "-a"][..], options, &interfaces].concat();
    Program::start(world, &world.nodes, "dhcrelay", &args)
}

pub fn far_world() -> (World, Program) {
    far_world_with("")
}

/// The same with this line in its segment.
fn far_world_with(line: &str) -> (World, Program) {
    let mut world = prepared("auto", line);
    let relay = far_network(&world, &[]);
    world.start();
    (world, relay)
}

/// A site with the segment behind the relay, which has this line.
fn prepared(policy: &str, line: &str) -> World {
    let world = World::prepared(policy);
    world.nodes.ip(&["link", "set", "eth0", "address", ROUTER_MAC]).unwrap();
    let segment = format!(
        "[[segment]]\nrelay = \"{RELAY}\"\nrelay_mac = [\"{ROUTER_MAC}\"]\nrange = \"10.88.0.100-10.88.0.110\"\nrouter = \"{RELAY}\"\n{line}\n[enroll]"
    );
    world.edit_site("[enroll]", &segment);
    world
}

/// The stranger at the other port, with an address of its own.
fn stranger(world: &World) -> PxeNode<'_> {
    world.host_on(STRANGER_MAC, "port1");
    let thief = PxeNode { mac: STRANGER_MAC, ..PxeNode::new(world, 1) };
    let host = thief.host();
    host.ip(&["address", "replace", &format!("{STRANGER}/24"), "dev", "eth0"]).unwrap();
    host.ip(&["route", "replace", "default", "via", RELAY]).unwrap();
    thief.address.set(Some(STRANGER));
    thief
}

/// Declines the victim's lease, requests another address in its name, exchanges whole DHCP with its
/// chaddr, and asks for its script.
fn steal(world: &World, victim: &PxeNode<'_>, when: &str) {
    let thief = stranger(world);
    let alarms = alarms(world);
    let leased = victim.address.get().expect("an address");
    let mac = victim.mac;
    let uuid = victim.uuid;
    let answered = thief.host().inside(|| {
        let socket = dhcp::client();
        let server = (54, vec![10, 77, 0, 1]);
        let forged = [
            (DECLINE, vec![(50, leased.octets().to_vec()), server]),
            (REQUEST, vec![(50, FREE.octets().to_vec())]),
        ];
        for (kind, options) in forged {
            let packet = dhcp::packet(mac, uuid, As::Ipxe, kind, &options);
            socket.send_to(&packet, (Ipv4Addr::BROADCAST, 67)).unwrap();
        }
        dhcp::attempt(&socket, mac, uuid, As::Ipxe)
    });
    assert!(answered.unwrap().is_none(), "{when}: meshd gave the stranger the victim's address");
    let script = thief.get(&victim.script_url()).unwrap().text();
    assert!(
        Script(script.clone()).overlay().is_none(),
        "{when}: the stranger got a boot: {script}"
    );
    eventually("an alarm", || {
        if self::alarms(world) > alarms { Ok(()) } else { Err(world.log_text()) }
    });
}

fn alarms(world: &World) -> usize {
    let count = |kind: &str| {
        world.events(kind).iter().map(|event| event["count"].as_u64().unwrap_or(1)).sum::<u64>()
    };
    usize::try_from(count("relay_port_changed") + count("boot_impersonated")).unwrap()
}

#[test]
fn forged_dhcp_from_another_relay_port_steals_no_boot() {
    let (world, _relay) = far_world();
    let victim = PxeNode::new(&world, 1);
    world.host_on(victim.mac, "port0");
    let overlay = victim.boot();
    let agent = victim.start_agent(&overlay);
    world.wait_for_phase("online");
    let leased = victim.address.get();
    steal(&world, &victim, "while it is online");
    drop(agent);
    steal(&world, &victim, "before its next boot");
    let script = eventually("a script", || {
        let script = victim.power_on().map_err(|error| error.to_string())?;
        if script.overlay().is_some() { Ok(script) } else { Err(script.0) }
    });
    steal(&world, &victim, "during its boot");
    let overlay = victim.load(&script).expect("the victim loads what its script named");
    let _agent = victim.start_agent(&overlay);
    world.wait_for_phase("online");
    assert_eq!(victim.dhcp(As::Os).address, leased.unwrap(), "the victim keeps its address");
    let node = world.node();
    let conditions = node["conditions"].as_array().cloned().unwrap_or_default();
    let alarm = conditions.iter().find(|condition| condition["kind"] == "relay_port_changed");
    assert!(
        alarm.is_some_and(|alarm| alarm["detail"]
            .as_str()
            .is_some_and(|text| text.contains("down1"))),
        "{conditions:?}"
    );
}

#[test]
fn forged_router_address_gets_no_boot_of_relayed_machines() {
    let (world, _relay) = far_world();
    let victim = PxeNode::new(&world, 1);
    world.host_on(victim.mac, "port0");
    victim.power_on().unwrap();
    let leased = victim.address.get().expect("an address");
    // On the central node's own network. The worst case: the router is silent, so nobody else
    // answers for its address.
    world.nodes.ip(&["address", "del", &format!("{ROUTER}/24"), "dev", "eth0"]).unwrap();
    let thief = local_stranger(&world);
    let host = thief.host();
    host.ip(&["address", "add", &format!("{ROUTER}/24"), "dev", "eth0"]).unwrap();
    thief.address.set(Some(ROUTER));
    claim(&thief);
    host.ip(&["address", "add", &format!("{leased}/32"), "dev", "eth0"]).unwrap();
    thief.address.set(Some(leased));
    // meshd ends the connection when it sees the stranger's frames.
    let script = thief.get(&victim.script_url()).map(|answer| answer.text()).unwrap_or_default();
    assert!(Script(script.clone()).overlay().is_none(), "the stranger got a boot: {script}");
    let named = |event: &Value| {
        event["detail"].as_str().is_some_and(|text| text.contains(&STRANGER_MAC.to_string()))
    };
    eventually("an alarm names the stranger's card", || {
        let events = world.events("boot_impersonated");
        if events.iter().any(named) { Ok(()) } else { Err(format!("{events:?}")) }
    });
}

/// Sends a DHCP request of a machine behind the relay from this host and port to the central node,
/// by unicast past the relay, with this address as the relay's.
fn pose_as_relay(host: &PxeNode<'_>, port: u16, relay: Ipv4Addr, machine: &PxeNode<'_>) {
    let wanted = (50, vec![10, 88, 0, 100 + machine.mac.0[5]]);
    let mut packet = dhcp::packet(machine.mac, machine.uuid, As::Ipxe, REQUEST, &[wanted]);
    packet[24..28].copy_from_slice(&relay.octets());
    let send = || UdpSocket::bind((STRANGER, port))?.send_to(&packet, (CENTRAL, 67));
    host.host().inside(send).unwrap().unwrap();
}

/// The machine has a boot session.
fn has_session(world: &World, machine: &PxeNode<'_>) -> bool {
    let mac = machine.mac.to_string();
    world.events("boot_started").iter().any(|event| event.to_string().contains(&mac))
}

#[test]
fn machine_that_poses_as_relay_opens_no_session_and_raises_an_alarm() {
    let (world, _relay) = far_world();
    let poser = stranger(&world);
    let named = [(2, STRANGER), (3, RELAY.parse().unwrap())]
        .map(|(number, relay)| (PxeNode::new(&world, number), relay));
    for (machine, relay) in &named {
        pose_as_relay(&poser, 67, *relay, machine);
        let expected = format!("{STRANGER} relayed a DHCP request of {}", machine.mac);
        eventually(&format!("an alarm says: {expected}"), || {
            let events = world.events("boot_impersonated");
            let is_said = |event: &Value| {
                event["detail"].as_str().is_some_and(|text| text.contains(&expected))
            };
            if events.iter().any(is_said) { Ok(()) } else { Err(format!("{events:?}")) }
        });
        assert!(!has_session(&world, machine), "with the relay address {relay}");
    }
}

#[test]
fn relayed_dhcp_from_port_of_unprivileged_programs_opens_no_session() {
    // A relay at this address, so that the port alone decides.
    let (world, _relay) = far_world_with(&format!("redundant_relays = [\"{STRANGER}\"]"));
    let program = stranger(&world);
    let relay: Ipv4Addr = RELAY.parse().unwrap();
    let named = PxeNode::new(&world, 2);
    let relayed = PxeNode::new(&world, 3);
    pose_as_relay(&program, 0, relay, &named);
    pose_as_relay(&program, 67, relay, &relayed);
    eventually("a session of the packet from port 67", || {
        if has_session(&world, &relayed) {
            Ok(())
        } else {
            Err(format!("{:?}\n{}", world.events("boot_started"), world.log_text()))
        }
    });
    assert!(!has_session(&world, &named), "the earlier packet opened a session");
    assert!(
        world.log_text().contains("relays from port 67"),
        "the drop is logged: {}",
        world.log_text()
    );
}

/// Requests an address on a port with an option 82 of this content, until a boot session is open,
/// and asks for the script.
fn forge_port(world: &World, machine: &PxeNode<'_>, port: &str, content: &[u8]) {
    let address = Ipv4Addr::new(10, 88, 0, 105);
    world.host_on(machine.mac, port);
    let router_port = port.replace("port", "down");
    world.nodes.ip(&["route", "add", &address.to_string(), "dev", &router_port]).unwrap();
    let host = machine.host();
    host.ip(&["address", "replace", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    host.ip(&["route", "replace", "default", "via", RELAY]).unwrap();
    machine.address.set(Some(address));
    let options = [(50, address.octets().to_vec()), (82, content.to_vec())];
    let direct = dhcp::packet(machine.mac, machine.uuid, As::Ipxe, REQUEST, &options);
    let mut relayed = direct.clone();
    relayed[24..28].copy_from_slice(&RELAY.parse::<Ipv4Addr>().unwrap().octets());
    eventually("its boot session is open", || {
        let sent = host.inside(|| {
            let socket = dhcp::client();
            for packet in [&direct, &relayed] {
                socket.send_to(packet, (Ipv4Addr::BROADCAST, 67)).unwrap();
            }
        });
        sent.unwrap();
        if has_session(world, machine) { Ok(()) } else { Err(world.log_text()) }
    });
    machine.script().unwrap();
}

/// A site with a segment behind a relay, and a rule for machines with this criterion.
fn prepared_with_rule(criterion: &str) -> World {
    let world = prepared("approve", "");
    let rule = format!("[[enroll.rule]]\nname = \"rack-a\"\n{criterion}\nlabels = [\"rack=a\"]\n");
    let site = fs::read_to_string(&world.site).unwrap();
    fs::write(&world.site, site + rule.as_str()).unwrap();
    world
}

/// The record of a machine.
fn record(world: &World, machine: &PxeNode<'_>) -> Value {
    let nodes = world.json(&["node", "list", "-o", "json"]);
    let mac = machine.mac.to_string();
    let found = nodes.as_array().unwrap().iter().find(|node| node["mac"] == mac.as_str());
    found.unwrap_or_else(|| panic!("{mac} in {nodes}")).clone()
}

/// MAC addresses of the machines that the rule labelled.
fn labelled(world: &World) -> Vec<String> {
    let nodes = world.json(&["node", "list", "-l", "rack=a", "-o", "json"]);
    nodes.as_array().unwrap().iter().map(|node| node["mac"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn machine_that_writes_option_82_gets_no_rule_of_a_switch_port() {
    // By default, the relay replaces the option of a machine.
    for options in [&[][..], &["-m", "append"]] {
        let mut world = prepared_with_rule("circuit_ids = [\"down0\"]");
        let _relay = far_network(&world, options);
        world.start();
        let machine = PxeNode::new(&world, 1);
        let forger = PxeNode::new(&world, 2);
        world.host_on(machine.mac, "port0");
        // The rule approves its port.
        machine.boot();
        forge_port(&world, &forger, "port1", &[&[1, 5][..], b"down0"].concat());
        assert_eq!(record(&world, &forger)["phase"], "discovered", "{options:?}");
        assert_eq!(labelled(&world), [machine.mac.to_string()], "{options:?}");
    }
}

#[test]
fn rule_of_a_remote_id_approves_the_machines_of_this_switch_only() {
    let mut world = prepared_with_rule("remote_ids = [\"switch-a\"]");
    connect_far_network(&world, &["0"]);
    world.start();
    let [machine, other, forger] = [1, 2, 3].map(|number| PxeNode::new(&world, number));
    let relay = start_networkd(&world, "switch-a");
    world.host_on(machine.mac, "port0");
    machine.boot();
    drop(relay);
    let _relay = start_networkd(&world, "switch-b");
    world.host_on(other.mac, "port0");
    other.power_on().unwrap();
    // This relay appends its option to that of a machine.
    forge_port(&world, &forger, "port0", &[&[2, 8][..], b"switch-a"].concat());
    let ids = |machine| {
        let node = record(&world, machine);
        ["circuit_id", "remote_id"].map(|key| node[key].as_str().map(str::to_owned))
    };
    assert_eq!(ids(&machine), ["Gi1/0/7", "switch-a"].map(|id| Some(id.to_owned())));
    assert_eq!(ids(&other), ["Gi1/0/7", "switch-b"].map(|id| Some(id.to_owned())));
    assert_eq!(ids(&forger), [None, None]);
    for waiting in [&other, &forger] {
        assert_eq!(record(&world, waiting)["phase"], "discovered");
    }
    assert_eq!(labelled(&world), [machine.mac.to_string()]);
}
