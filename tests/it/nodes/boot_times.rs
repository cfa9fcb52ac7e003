//! Where the time of a boot goes, with the real daemon: the packets of a machine with four NICs of
//! which the third boots, an order to its BMC, and delays that the test makes.

use super::power::{order, seen_machine, world_with};
use crate::world::{
    World,
    dhcp::{self, As},
    eventually,
    node::PxeNode,
};
use serde_json::Value;
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV6, UdpSocket},
    time::{Duration, Instant},
};

/// Time for which a NIC that does not boot tries. The shortest delay that counts is 5 seconds: a
/// busy machine may record the first packet late, and the next NIC's at once.
const TRIES_FOR: Duration = Duration::from_secs(8);

/// Another NIC of a machine.
fn nic<'a>(machine: &PxeNode<'a>, number: u8) -> PxeNode<'a> {
    let other = PxeNode::new(machine.world, number);
    PxeNode { uuid: machine.uuid, serial: machine.serial.clone(), ..other }
}

/// Sends DISCOVERs and takes no offer, as a NIC whose loader does not start.
fn try_in_vain(nic: &PxeNode<'_>) {
    let begun = Instant::now();
    eventually("the firmware gives the NIC up", || {
        send_discover(nic, As::Firmware(7), 0);
        if begun.elapsed() > TRIES_FOR { Ok(()) } else { Err("it tries".to_owned()) }
    });
}

/// Sends a DISCOVER of a client that has asked for so many seconds.
fn send_discover(nic: &PxeNode<'_>, program: As, secs: u16) {
    let mut packet = dhcp::packet(nic.mac, nic.uuid, program, 1, &[]);
    packet[8..10].copy_from_slice(&secs.to_be_bytes());
    let send = || dhcp::client().send_to(&packet, (Ipv4Addr::BROADCAST, 67)).unwrap();
    nic.host().inside(send).unwrap();
}

/// Sends DHCPv6 solicitations of firmware until IPv6 has cost enough time. The link-local address is
/// usable after a second.
fn try_ipv6(nic: &PxeNode<'_>) {
    let solicit = [&[1, 1, 2, 3][..], &[0, 1, 0, 4, 0, 1, 2, 3], &[0, 61, 0, 2, 0, 7]].concat();
    let send = || {
        let socket = UdpSocket::bind(("::", 546))?;
        let index = rustix::net::netdevice::name_to_index(&socket, "eth0")?;
        let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
        socket.send_to(&solicit, SocketAddrV6::new(servers, 547, 0, index))
    };
    let enable = || std::fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "0");
    nic.host().inside(enable).unwrap().unwrap();
    let mut begun = None;
    eventually("the firmware gives IPv6 up", || {
        let sent = nic.host().inside(send).unwrap();
        sent.map_err(|error| error.to_string())?;
        let begun = *begun.get_or_insert_with(Instant::now);
        if begun.elapsed() > TRIES_FOR { Ok(()) } else { Err("it tries".to_owned()) }
    });
}

fn delay<'a>(times: &'a Value, kind: &str) -> &'a Value {
    let delays = times["delays"].as_array().unwrap();
    let found = delays.iter().find(|delay| delay["kind"] == kind);
    found.unwrap_or_else(|| panic!("{kind} in {times}"))
}

fn boot_times(world: &World, node: &str) -> Value {
    world.json(&["boot-times", node, "-o", "json"])
}

#[test]
fn third_of_four_nics_and_an_injected_delay_are_named_with_their_order() {
    let (world, bench) = world_with("command", "approve");
    let machine = seen_machine(&world, 3, "gpu001");
    let mut booted = false;
    let (code, text) = order(&world, &["node", "power", "on", "gpu001"], || {
        if booted || bench.read(&format!("power-{}", machine.mac)).trim() != "on" {
            return;
        }
        booted = true;
        try_ipv6(&nic(&machine, 1));
        try_in_vain(&nic(&machine, 1));
        try_in_vain(&nic(&machine, 2));
        // The switch port of the third NIC forwards after 31 s.
        send_discover(&machine, As::Firmware(0), 31);
        machine.boot();
    });
    assert!(booted && code == Some(0), "{code:?} {text}");

    let times = boot_times(&world, "gpu001");
    assert_eq!(
        (&times["mac"], &times["order"]),
        (&machine.mac.to_string().into(), &"power on".into())
    );
    let steps: Vec<&str> = times["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|step| step["step"].as_str())
        .collect();
    assert_eq!(steps[..3], ["firmware", "attempts", "dhcp"], "{times}");
    let others = delay(&times, "other_nic");
    let detail = others["detail"].as_str().unwrap();
    assert!(others["cost_ms"].as_u64() > Some(10_000), "both NICs: {others}");
    for (number, named) in [(1, true), (2, true), (4, false)] {
        let mac = nic(&machine, number).mac.to_string();
        assert_eq!(detail.contains(&mac), named, "{detail}");
    }
    assert!(others["setting"].as_str().unwrap().contains("boot order"), "{others}");
    let ipv6 = delay(&times, "other_protocol");
    assert_eq!(ipv6["step"], "firmware");
    assert!(ipv6["detail"].as_str().unwrap().contains("IPv6 on NIC 52:54:00:00:00:01"), "{ipv6}");
    let port = delay(&times, "lost_discovers");
    assert_eq!((&port["step"], &port["cost_ms"]), (&"dhcp".into(), &31_000.into()));
    assert!(port["setting"].as_str().unwrap().contains("edge port"), "{port}");

    let text = world.meshd(&["boot-times", "gpu001"]);
    let text = String::from_utf8(text.stdout).unwrap();
    for part in ["STAGE", "OWN MEDIAN", "other_nic costs", "lost_discovers costs 31.0s in dhcp"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let all = world.json(&["boot-times", "-o", "json"]);
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all}");
    let overview = String::from_utf8(world.meshd(&["boot-times", "gpu*"]).stdout).unwrap();
    assert!(overview.contains("lost_discovers"), "the largest cost: {overview}");
}
