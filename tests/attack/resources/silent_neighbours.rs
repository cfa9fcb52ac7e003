//! A machine on the boot LAN sends requests in the name of addresses that nobody answers for. The
//! kernel keeps the answers until it has found their receivers. Other machines are served meanwhile.

use crate::attack::boot_lan::{STRANGER_MAC, stranger};
use crate::{
    boot::ndp::ask,
    world::{
        CENTRAL, World,
        dhcp::{self, As},
        eventually,
        node::PxeNode,
        tftp,
    },
};
use meshd_lab::Namespace;
use meshd_types::SystemUuid;
use std::{
    net::{Ipv4Addr, UdpSocket},
    process::Command,
    time::Duration,
};

/// A machine with these addresses, which answers ARP for none of them.
fn silent_stranger(world: &World) -> (Namespace, Vec<Ipv4Addr>) {
    let attacker = stranger(world);
    // Its kernel knows the central node from now on.
    attacker.get(&attacker.script_url()).unwrap();
    let host = attacker.host();
    host.inside(|| std::fs::write("/proc/sys/net/ipv4/conf/eth0/arp_ignore", "8").unwrap())
        .unwrap();
    let addresses: Vec<Ipv4Addr> = (120..220).map(|last| [10, 77, 0, last].into()).collect();
    for address in &addresses {
        host.ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    }
    (host, addresses)
}

/// Requests of a flood. A busy machine takes longer for them.
const REQUESTS: usize = 9000;

/// Sends requests for a loader from each of these addresses in turn and new ports.
fn flood_requests(addresses: &[Ipv4Addr]) {
    for address in addresses.iter().cycle().take(REQUESTS) {
        let socket = UdpSocket::bind((*address, 0)).unwrap();
        socket.send_to(b"\0\x01undionly.kpxe\0octet\0", (CENTRAL, 69)).unwrap();
        // Some 1,500 a second.
        std::thread::park_timeout(Duration::from_micros(500));
    }
}

#[test]
fn tftp_serves_machine_while_requests_come_from_invented_addresses() {
    let world = World::new("auto");
    world.nodes.ip(&["address", "replace", "10.77.0.67/24", "dev", "eth0"]).unwrap();
    let (central, own): (Ipv4Addr, Ipv4Addr) = (CENTRAL.parse().unwrap(), [10, 77, 0, 67].into());
    let fetch = || {
        let read = world.nodes.inside(|| tftp::get(central, "undionly.kpxe", Some(own))).unwrap();
        assert_eq!(read.unwrap().len(), 70_001);
    };
    fetch();
    let (host, addresses) = silent_stranger(&world);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| host.inside(|| flood_requests(&addresses)).unwrap());
        while !flood.is_finished() {
            fetch();
        }
        flood.join().unwrap();
    });
    fetch();
    // Then all clients wait for the addresses that nobody answers for.
    let log = world.log_text();
    assert!(!log.contains("the send queue of the network is full"), "{log}");
}

/// Asks for options (DHCPINFORM) from each of these addresses in turn, and as a relay with each.
fn flood_informs(addresses: &[Ipv4Addr]) {
    let inform = |options: &[(u8, Vec<u8>)]| {
        dhcp::packet(STRANGER_MAC, SystemUuid([7; 16]), As::Os, 8, options)
    };
    // Link selection (RFC 3527) names the network behind the relay.
    let mut relayed = inform(&[(82, vec![5, 4, 10, 88, 0, 1])]);
    let relay = UdpSocket::bind(("10.77.0.66", 67)).unwrap();
    for address in addresses.iter().cycle().take(REQUESTS / 4) {
        let client = UdpSocket::bind((*address, 68)).unwrap();
        client.send_to(&inform(&[]), (CENTRAL, 67)).unwrap();
        relayed[24..28].copy_from_slice(&address.octets());
        relay.send_to(&relayed, (CENTRAL, 67)).unwrap();
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

#[test]
fn dhcp_serves_machine_while_replies_go_to_invented_addresses() {
    let mut world = World::prepared("auto");
    let segment =
        "[[segment]]\nrelay = \"10.88.0.1\"\nrange = \"10.88.0.100-10.88.0.110\"\n[enroll]";
    world.edit_site("[enroll]", segment);
    // A hundredth of the real queue, so that the flood need not be large.
    world.start_with(&[("MESHD_SEND_QUEUE", "65536".to_owned())]);
    let victim = PxeNode::new(&world, 1);
    victim.dhcp(As::Firmware(0));
    let (host, addresses) = silent_stranger(&world);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| host.inside(|| flood_informs(&addresses)).unwrap());
        while !flood.is_finished() {
            victim.dhcp(As::Firmware(0));
            // Below the rate limit of a machine.
            std::thread::park_timeout(Duration::from_millis(100));
        }
        flood.join().unwrap();
    });
    // The replies to all clients wait in one queue, and there was no room for one of them.
    let log = world.log_text();
    assert!(!log.contains("Resource temporarily unavailable"), "{log}");
}

/// Sends router solicitations of invented nodes.
const SOLICIT: &str = r#"
import os, socket, struct, sys, time
mac = bytes.fromhex(sys.argv[1].replace(":", ""))
routers = bytes.fromhex("ff02") + bytes(13) + b"\x02"
def frame():
    source = bytes.fromhex("fe80000000000000") + os.urandom(8)
    message = bytes([133, 0, 0, 0, 0, 0, 0, 0])
    words = struct.unpack("!24H", source + routers + struct.pack("!II", 8, 58) + message)
    total = sum(words)
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    message = message[:2] + struct.pack("!H", total ^ 0xffff) + message[4:]
    header = struct.pack("!IHBB", 6 << 28, 8, 58, 255)
    return bytes.fromhex("333300000002") + mac + b"\x86\xdd" + header + source + routers + message
# The neighbours of all network namespaces share one table of 1,024 places.
frames = [frame() for _ in range(150)]
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))
for pause in range(int(sys.argv[2])):
    for number in range(30):
        link.send(frames[(30 * pause + number) % len(frames)])
    time.sleep(0.005)
"#;

#[test]
fn router_solicitation_is_answered_while_invented_nodes_solicit() {
    let world = World::new("auto");
    // The addresses of both ends are tried for a second before they may be used.
    eventually("an answer", || match ask(&world, 1) {
        (true, _) => Ok(()),
        (false, text) => Err(text),
    });
    let host = stranger(&world).host();
    let mut asked = 0;
    let mut answered = 0;
    let solicit = || {
        let mac = STRANGER_MAC.to_string();
        // 60,000 of them.
        Command::new("python3").args(["-c", SOLICIT, &mac, "2000"]).output().unwrap()
    };
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| host.inside(solicit).unwrap());
        while !flood.is_finished() {
            asked += 1;
            // One answer goes to all nodes ten times a second.
            answered += usize::from(ask(&world, 10).0);
        }
        let output = flood.join().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    // The last one may be lost in the queue of a flood that then ends.
    assert!(answered + 1 >= asked, "{answered} of {asked} solicitations were answered");
}
