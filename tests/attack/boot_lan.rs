//! A stranger on the boot network who knows a machine's UUID, serial and MAC: no capability, no
//! token, and an alarm each time.

use super::arp_theft::proxy_world;
use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    world::{
        CENTRAL, World, dhcp::As, eventually, node::PxeNode, receive,
        single_orders::SingleOrders as _,
    },
};
use meshd_central::{DhcpChange, DhcpExchange};
use meshd_model::fleet::{DhcpClient, Fingerprint, Node, Phase, Stage, Verb};
use meshd_store::{AuditFilter, StoreError};
use meshd_types::{Basis, MacAddr};
use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::Duration,
};

/// The stranger's address; the machine's own is leased.
const STRANGER: &str = "10.77.0.66";
/// The stranger's network card.
pub const STRANGER_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x66, 0x66, 0x66]);

/// The stranger's machine: its own network card, and an address that was leased to nobody.
pub fn stranger(world: &World) -> PxeNode<'_> {
    let machine = PxeNode { mac: STRANGER_MAC, ..PxeNode::new(world, 1) };
    let host = machine.host();
    host.ip(&["address", "replace", &format!("{STRANGER}/24"), "dev", "eth0"]).unwrap();
    machine
}

/// Asks for the machine's script from another machine.
fn ask_as_stranger(world: &World, machine: &PxeNode<'_>, alarms: usize) {
    let answer = stranger(world).get(&machine.script_url()).unwrap().text();
    assert!(answer.starts_with("#!ipxe"), "even a stranger is answered in iPXE");
    assert!(!answer.contains("/overlay/"), "no capability: {answer}");
    assert_eq!(world.events("boot_impersonated").len(), alarms, "an alarm each time");
}

#[test]
fn cloned_identity_gets_no_boot_before_during_and_after_boot() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    ask_as_stranger(&world, &machine, 1);

    let script = machine.power_on().unwrap();
    ask_as_stranger(&world, &machine, 2);
    machine.dhcp(As::Os);

    let overlay = machine.load(&script).unwrap();
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    ask_as_stranger(&world, &machine, 3);
    machine.dhcp(As::Os);
    world.wait_for_phase("online");
}

#[test]
fn cloned_uuid_of_online_node_is_a_collision_even_after_restart() {
    let mut world = World::new("auto");
    let overlay = PxeNode::new(&world, 1).boot();
    let _agent = PxeNode::new(&world, 1).start_agent(&overlay);
    world.wait_for_phase("online");
    for restart in [false, true] {
        if restart {
            world.kill();
            world.start();
        }
        let other =
            PxeNode { mac: "52:54:00:00:00:02".parse().unwrap(), ..PxeNode::new(&world, 1) };
        let answer = other.power_on().unwrap();
        assert!(answer.overlay().is_none(), "restart {restart}: {}", answer.0);
        assert!(answer.0.contains("id_collision"), "restart {restart}: {}", answer.0);
        // The wire has two machines' addresses now; the first one asks for its own again.
        PxeNode::new(&world, 1).dhcp(As::Os);
    }
    let node = world.wait_for_phase("online");
    assert_eq!(node["mac"], "52:54:00:00:00:01", "the first machine is untouched");
}

#[test]
fn node_without_link_is_protected_through_kill_and_restart_of_meshd() {
    let mut world = World::new("auto");
    let overlay = PxeNode::new(&world, 1).boot();
    let mut agent = PxeNode::new(&world, 1).start_agent(&overlay);
    world.wait_for_phase("online");
    agent.cut_power();
    PxeNode::new(&world, 1).host().ip(&["address", "flush", "dev", "eth0"]).unwrap();
    for is_restarted in [false, true] {
        if is_restarted {
            world.kill();
            world.start();
        }
        let node = PxeNode::new(&world, 1);
        let other_nic =
            PxeNode { mac: "52:54:00:00:00:02".parse().unwrap(), ..PxeNode::new(&world, 1) };
        let other_uuid = PxeNode { uuid: PxeNode::new(&world, 9).uuid, ..PxeNode::new(&world, 1) };
        for (thief, refusal) in [
            (other_nic, "id_collision"),
            (other_uuid, "id_collision"),
            // With the node's own MAC address and UUID.
            (node, "recently_online"),
        ] {
            let script = thief.ipxe().unwrap();
            let is_refused = script.0.contains(refusal) && script.overlay().is_none();
            assert!(is_refused, "restarted: {is_restarted}, {refusal}: {}", script.0);
        }
    }
    assert_eq!(world.node()["phase"], "online");
}

#[tokio::test]
async fn proxy_session_boots_only_from_address_of_its_dhcp_request() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    let observation = |address| DhcpExchange {
        mac: MacAddr([0x52, 0x54, 0, 0, 0, 1]),
        client: DhcpClient::Ipxe,
        uuid: None,
        arch: None,
        is_discover: false,
        secs: 0,
        address,
        lease: None,
        discovered: true,
        relay_port: None,
        is_relayed: false,
        bmc: None,
    };
    let own = std::mem::replace(&mut machine.address, STRANGER.parse().unwrap());
    // A stranger hears its DISCOVER, which has no address in it, then its REQUEST.
    for (address, alarms) in [(None, 1), (Some(own), 2)] {
        rig.central
            .boot
            .apply_dhcp_changes(&[DhcpChange::Exchange(observation(address))])
            .await
            .unwrap();
        rig.clock.turn(Duration::from_secs(120));
        machine.ask_script().await;
        assert!(machine.script.contains("# refusal no_session"), "{address:?}: {}", machine.script);
        assert_eq!(rig.events("boot_impersonated").len(), alarms, "an alarm each time");
    }
    machine.address = own;
    machine.ask_script().await;
    assert!(machine.script.contains("/overlay/"), "the machine itself boots: {}", machine.script);
}

#[tokio::test]
async fn automatic_approval_stops_after_flood_of_invented_machines() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut invented = Machine::new(&rig, 1);
    invented.boot(Stage::Script).await;
    let node = rig.node(invented.id());
    assert_eq!(node.phase, Phase::Booting);
    let filled = rig.central.store().commit(|tx| {
        for n in 1..20_100u32 {
            let mac = MacAddr([2, 1, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
            let basis = Basis::Mac(mac);
            let fingerprint = Fingerprint { macs: [mac].into(), ..Fingerprint::default() };
            tx.put_node(Node { id: basis.node_id(), basis, fingerprint, mac, ..node.clone() });
        }
        Ok::<_, StoreError>(())
    });
    filled.await.unwrap();
    let audited = || {
        rig.central
            .store()
            .audit(&AuditFilter { limit: 10, ..AuditFilter::default() })
            .unwrap()
            .len()
    };
    let before = audited();
    let mut next = Machine::new(&rig, 2);
    next.boot(Stage::Script).await;
    assert_eq!(
        (rig.node(next.id()).phase, audited()),
        (Phase::Discovered, before),
        "one more waits for an operator"
    );
    rig.central.nodes.approve(next.id(), &ordered(Verb::Approve)).await.unwrap();
    assert_eq!(rig.node(next.id()).phase, Phase::Approved);
}

#[test]
fn boot_session_refuses_second_node_identity() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    assert!(machine.power_on().unwrap().overlay().is_some());
    let other = PxeNode {
        uuid: PxeNode::new(&world, 7).uuid,
        address: machine.address.clone(),
        ..PxeNode::new(&world, 1)
    };
    assert!(other.script().unwrap().overlay().is_none(), "a second identity in the same session");
    assert_eq!(world.json(&["node", "list", "-o", "json"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn overlay_capability_serves_its_machine_once_and_no_other_host() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let script = machine.power_on().unwrap();
    let url = script.overlay().expect("a capability");

    assert_eq!(
        stranger(&world).get(&url).unwrap().status,
        404,
        "a capability from another address does not exist"
    );
    assert_eq!(world.events("capability_replayed").len(), 1);

    assert_eq!(machine.head(&url).unwrap().status, 200);
    assert_eq!(machine.head(&url).unwrap().status, 200, "HEAD never consumes it");
    assert_eq!(machine.get(&url).unwrap().status, 200);
    // The client has the last byte a moment before the server knows that it was written.
    eventually("it is spent", || match machine.get(&url).unwrap().status {
        410 => Ok(()),
        status => {
            assert_ne!(status, 200, "it is given once");
            Err(status.to_string())
        }
    });
    assert!(world.events("capability_replayed").len() >= 2);
    let invented = format!("http://10.77.0.1:8080/overlay/{}/overlay.cpio.gz", "0".repeat(32));
    assert_eq!(machine.get(&invented).unwrap().status, 404);
}

/// The stranger sends, before each acknowledgement of the victim, packets in its name: an ERROR,
/// acknowledgements of blocks that the victim does not have, and a request for another file from
/// the same port.
fn forge_during_transfer(world: &World, victim: &PxeNode<'_>) {
    let address = victim.address.get().unwrap();
    let requests: SocketAddr = format!("{CENTRAL}:69").parse().unwrap();
    let thief = stranger(world);
    // Its kernel knows the central node from now on, and does not draw the answers away by ARP.
    thief.get(&victim.script_url()).unwrap();
    thief
        .host()
        .inside(|| std::fs::write("/proc/sys/net/ipv4/conf/eth0/arp_ignore", "8").unwrap())
        .unwrap();
    thief.host().ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    let own = victim.host().inside(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    let port = own.local_addr().unwrap().port();
    let forged = thief.host().inside(|| UdpSocket::bind((address, port)).unwrap()).unwrap();

    own.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    own.send_to(b"\0\x01undionly.kpxe\0octet\0blksize\x001468\0", requests).unwrap();
    let mut next = 1u16;
    let mut size = 0;
    let mut buffer = [0; 2048];
    loop {
        let (length, server) = receive(&own, &mut buffer).expect("the transfer goes on");
        let number = match buffer[..length] {
            [0, 6, ..] => 0,
            [0, 3, high, low, ..] => u16::from_be_bytes([high, low]),
            ref other => panic!("{other:?}"),
        };
        for packet in [&b"\0\x05\0\0\0"[..], &[0, 4, 0, next as u8], &[0, 4, 0, next as u8 + 1]] {
            forged.send_to(packet, server).unwrap();
        }
        forged.send_to(b"\0\x01ipxe.efi\0octet\0", requests).unwrap();
        own.send_to(&[0, 4, 0, number as u8], server).unwrap();
        assert!(number <= next, "block {number} instead of {next}");
        if number == next {
            (next, size) = (next + 1, size + length - 4);
            if length < 1472 {
                break;
            }
        }
    }
    assert_eq!(size, 70_001);
    let expected = format!("{STRANGER_MAC} sent a packet from {address}");
    eventually(&format!("an alarm says: {expected}"), || {
        let events = world.events("boot_impersonated");
        let found = events
            .iter()
            .any(|event| event["detail"].as_str().is_some_and(|text| text.contains(&expected)));
        if found { Ok(()) } else { Err(format!("{events:?}")) }
    });
}

#[test]
fn forged_tftp_packets_disturb_no_transfer() {
    let world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    victim.dhcp(As::Firmware(0));
    forge_during_transfer(&world, &victim);
}

#[test]
fn forged_tftp_packets_disturb_no_transfer_in_proxy_mode() {
    let world = proxy_world();
    let victim = PxeNode::new(&world, 1);
    let own = Ipv4Addr::new(10, 77, 0, 100);
    victim.host().ip(&["address", "replace", &format!("{own}/24"), "dev", "eth0"]).unwrap();
    victim.address.set(Some(own));
    forge_during_transfer(&world, &victim);
}
