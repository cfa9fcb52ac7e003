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
    time::{Duration, Instant},
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

/// Sends a request for a loader from each of these addresses and new ports, for this time.
fn flood_requests(addresses: &[Ipv4Addr], time: Duration) -> usize {
    let (end, mut sent) = (Instant::now() + time, 0);
    for address in addresses.iter().cycle() {
        if Instant::now() >= end {
            break;
        }
        let socket = UdpSocket::bind((*address, 0)).unwrap();
        socket.send_to(b"\0\x01undionly.kpxe\0octet\0", (CENTRAL, 69)).unwrap();
        sent += 1;
        // Some 1,500 a second.
        std::thread::park_timeout(Duration::from_micros(500));
    }
    sent
}

#[test]
fn tftp_serves_machine_while_requests_come_from_invented_addresses() {
    let world = World::new("auto");
    world.nodes.ip(&["address", "replace", "10.77.0.67/24", "dev", "eth0"]).unwrap();
    let (central, own): (Ipv4Addr, Ipv4Addr) = (CENTRAL.parse().unwrap(), [10, 77, 0, 67].into());
    let fetch = || {
        let begun = Instant::now();
        let read = world.nodes.inside(|| tftp::get(central, "undionly.kpxe", Some(own))).unwrap();
        assert_eq!(read.unwrap().len(), 70_001);
        begun.elapsed()
    };
    fetch();
    let (host, addresses) = silent_stranger(&world);
    let mut slowest = Duration::ZERO;
    std::thread::scope(|scope| {
        let flood = scope
            .spawn(|| host.inside(|| flood_requests(&addresses, Duration::from_secs(6))).unwrap());
        while !flood.is_finished() {
            slowest = slowest.max(fetch());
        }
        let sent = flood.join().unwrap();
        assert!(sent > 4000, "{sent} requests are no flood");
    });
    slowest = slowest.max(fetch());
    assert!(slowest < Duration::from_secs(1), "a transfer took {slowest:?}");
}

/// Asks for options (DHCPINFORM) from each of these addresses, and as a relay with each, for this
/// time.
fn flood_informs(addresses: &[Ipv4Addr], time: Duration) -> usize {
    let (end, mut sent) = (Instant::now() + time, 0);
    let inform = |options: &[(u8, Vec<u8>)]| {
        dhcp::packet(STRANGER_MAC, SystemUuid([7; 16]), As::Os, 8, options)
    };
    // Link selection (RFC 3527) names the network behind the relay.
    let mut relayed = inform(&[(82, vec![5, 4, 10, 88, 0, 1])]);
    let relay = UdpSocket::bind(("10.77.0.66", 67)).unwrap();
    for address in addresses.iter().cycle() {
        if Instant::now() >= end {
            break;
        }
        let client = UdpSocket::bind((*address, 68)).unwrap();
        client.send_to(&inform(&[]), (CENTRAL, 67)).unwrap();
        relayed[24..28].copy_from_slice(&address.octets());
        relay.send_to(&relayed, (CENTRAL, 67)).unwrap();
        sent += 2;
        std::thread::park_timeout(Duration::from_millis(2));
    }
    sent
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
    let (mut asked, mut served) = (0, 0);
    std::thread::scope(|scope| {
        let flood = scope
            .spawn(|| host.inside(|| flood_informs(&addresses, Duration::from_secs(6))).unwrap());
        let (mac, uuid) = (victim.mac, victim.uuid);
        let attempt = || dhcp::attempt(&dhcp::client(), mac, uuid, As::Firmware(0)).is_some();
        while !flood.is_finished() {
            asked += 1;
            served += usize::from(victim.host().inside(attempt).unwrap());
            // Below the rate limit of a machine.
            std::thread::park_timeout(Duration::from_millis(100));
        }
        let sent = flood.join().unwrap();
        assert!(sent > 1000, "{sent} requests are no flood");
    });
    assert!(served * 4 >= asked * 3, "{served} of {asked} exchanges were served");
}

/// Sends router solicitations of invented nodes for some seconds.
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
frames = [frame() for _ in range(500)]
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))
sent, end = 0, time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for _ in range(30):
        link.send(frames[sent % len(frames)])
        sent += 1
    time.sleep(0.005)
print(sent)
"#;

#[test]
fn router_solicitation_is_answered_while_invented_nodes_solicit() {
    let world = World::new("auto");
    // The addresses of both ends are tried for a second before they may be used.
    eventually("an answer", || match ask(&world) {
        (true, _) => Ok(()),
        (false, text) => Err(text),
    });
    let host = stranger(&world).host();
    let (mut asked, mut answered) = (0, 0);
    let solicit = || {
        let mac = STRANGER_MAC.to_string();
        Command::new("python3").args(["-c", SOLICIT, &mac, "12"]).output().unwrap()
    };
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| host.inside(solicit).unwrap());
        while !flood.is_finished() {
            asked += 1;
            answered += usize::from(ask(&world).0);
        }
        let output = flood.join().unwrap();
        let sent = String::from_utf8_lossy(&output.stdout).trim().parse::<usize>();
        let sent = sent.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        assert!(sent > 6000, "{sent} solicitations are no flood");
    });
    // Those before the flood begins are quick, and many.
    assert!(answered * 10 >= asked * 9, "{answered} of {asked} solicitations were answered");
}
