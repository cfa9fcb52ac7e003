//! Somebody with a machine of their own on the boot LAN speaks DHCP, ARP and HTTP in the name of
//! another machine. Their frames have their own Ethernet source address: docs/security.md says what
//! forging that needs.

use super::boot_lan::{STRANGER_MAC, stranger};
use super::client::Identity;
use crate::{
    boot::sessions::rig::{Machine, Rig},
    world::{
        World,
        dhcp::{self, As},
        eventually,
        node::{PxeNode, Script},
        single_orders::SingleOrders as _,
    },
};
use meshd_central::{DhcpChange, DhcpExchange};
use meshd_model::fleet::{ConditionKind, DhcpClient, Phase, Stage};
use meshd_types::{MacAddr, NodeId, SystemUuid};
use std::{net::Ipv4Addr, time::Duration};

/// An address of the pool that nobody has.
const FREE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 109);
const SERVER: [u8; 4] = [10, 77, 0, 1];
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const RELEASE: u8 = 7;

/// The stranger sends a DHCP packet in the victim's name.
fn forge(world: &World, victim: &PxeNode<'_>, kind: u8, options: &[(u8, Vec<u8>)]) {
    let packet = dhcp::packet(victim.mac, victim.uuid, As::Ipxe, kind, options);
    let send = || dhcp::client().send_to(&packet, (Ipv4Addr::BROADCAST, 67)).unwrap();
    stranger(world).host().inside(send).unwrap();
}

/// The alarm of a DHCP message that the stranger forged names the stranger's card.
fn wait_for_alarm(world: &World, message: &str) {
    let expected = format!("{STRANGER_MAC} sent a DHCP {message} in the name of");
    eventually(&format!("an alarm says: {expected}"), || {
        let events = world.events("boot_impersonated");
        let found = events
            .iter()
            .any(|event| event["detail"].as_str().is_some_and(|text| text.contains(&expected)));
        if found { Ok(()) } else { Err(format!("{events:?}")) }
    });
}

/// What was tried and succeeded before: decline the victim's lease, request a free address in its
/// name, ask its script from there.
fn steal(world: &World, victim: &PxeNode<'_>) {
    if let Some(leased) = victim.address.get() {
        let server = (54, SERVER.to_vec());
        forge(world, victim, DECLINE, &[(50, leased.octets().to_vec()), server.clone()]);
        wait_for_alarm(world, "Decline");
        forge(world, victim, RELEASE, &[server]);
    }
    forge(world, victim, REQUEST, &[(50, FREE.octets().to_vec())]);
    wait_for_alarm(world, "Request");
    for address in [Some(FREE), victim.address.get()].into_iter().flatten() {
        assert_no_script(world, victim, address);
    }
}

/// The stranger asks for the victim's script from an address, and gets a refusal.
fn assert_no_script(world: &World, victim: &PxeNode<'_>, address: Ipv4Addr) {
    let thief = stranger(world);
    let host = thief.host();
    host.ip(&["address", "replace", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    thief.address.set(Some(address));
    // The victim has the address too: whose answers arrive is a race, and an attempt that never
    // connects gets nothing either.
    if let Some(answer) =
        ask_briefly(&thief, &victim.script_url()).filter(|answer| answer.starts_with("#!ipxe"))
    {
        assert!(Script(answer.clone()).overlay().is_none(), "the stranger got a boot: {answer}");
    }
    host.ip(&["address", "del", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    thief.address.set(None);
}

/// One request that may find nobody.
pub fn ask_briefly(thief: &PxeNode<'_>, url: &str) -> Option<String> {
    claim(thief);
    let address = thief.address.get().expect("an address");
    let answer = thief.host().inside(|| {
        let mut command = std::process::Command::new("curl");
        command.args(["--silent", "--max-time", "15", "--interface", &address.to_string(), url]);
        command.output().expect("curl is installed")
    });
    let answer = String::from_utf8_lossy(&answer.unwrap().stdout).into_owned();
    (!answer.is_empty()).then_some(answer)
}

/// The stranger tells everybody by ARP that an address is its own, as `arping -U` does.
pub fn claim(thief: &PxeNode<'_>) {
    let address = thief.address.get().expect("an address").to_string();
    let mut command = std::process::Command::new("ip");
    // The kernel announces an address that is added while this is set.
    command.args([
        "netns",
        "exec",
        thief.host().name(),
        "sysctl",
        "-q",
        "-w",
        "net.ipv4.conf.eth0.arp_notify=1",
    ]);
    assert!(command.status().unwrap().success());
    let host = thief.host();
    host.ip(&["address", "del", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    host.ip(&["link", "set", "eth0", "down"]).unwrap();
    host.ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    host.ip(&["link", "set", "eth0", "up"]).unwrap();
}

/// The stranger has the victim's address. The worst case: the victim is silent, so nobody else
/// answers for it.
fn take_over_address<'w>(world: &'w World, victim: &PxeNode<'_>) -> PxeNode<'w> {
    let own = victim.address.get().unwrap();
    victim.host().ip(&["link", "set", "eth0", "down"]).unwrap();
    let thief = stranger(world);
    thief.host().ip(&["address", "replace", &format!("{own}/24"), "dev", "eth0"]).unwrap();
    thief.address.set(Some(own));
    claim(&thief);
    thief
}

/// An alarm stays until an operator clears it.
fn assert_alarm_persists(world: &World) {
    let node = world.wait_for_phase("online");
    let conditions = node["conditions"].as_array().cloned().unwrap_or_default();
    assert!(
        conditions.iter().any(|condition| condition["kind"] == "boot_impersonated"),
        "{conditions:?}"
    );
    let id = node["id"].as_str().unwrap().to_owned();
    let cleared = world.meshd(&["node", "approve", &id]);
    assert!(cleared.status.success(), "{}", String::from_utf8_lossy(&cleared.stderr));
    let conditions = world.node()["conditions"].as_array().cloned().unwrap_or_default();
    assert!(
        !conditions.iter().any(|condition| condition["kind"] == "boot_impersonated"),
        "{conditions:?}"
    );
}

#[test]
fn forged_dhcp_steals_no_boot_before_during_and_after_it() {
    let world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    steal(&world, &victim);
    let script = victim.power_on().unwrap();
    let leased = victim.address.get();
    steal(&world, &victim);
    let overlay = victim.load(&script).expect("the victim loads what its script named");
    steal(&world, &victim);
    let _agent = victim.start_agent(&overlay);
    world.wait_for_phase("online");
    steal(&world, &victim);
    assert_eq!(victim.dhcp(As::Os).address, leased.unwrap(), "the victim keeps its address");
    assert_alarm_persists(&world);
}

#[test]
fn forged_request_in_proxy_mode_steals_no_boot() {
    let mut world = World::prepared("auto");
    world.edit_site(
        "mode = \"authoritative\"\nrange = \"10.77.0.100-10.77.0.110\"\nlease = \"1h\"\n",
        "mode = \"proxy\"\n",
    );
    world.start();
    let victim = PxeNode::new(&world, 1);
    // Another server gives it this one.
    let own = Ipv4Addr::new(10, 77, 0, 100);
    victim.host().ip(&["address", "add", &format!("{own}/24"), "dev", "eth0"]).unwrap();
    victim.address.set(Some(own));
    eventually("the victim boots", || {
        victim.take_address(own);
        let script = victim.script().unwrap();
        if script.overlay().is_some() { Ok(()) } else { Err(script.0) }
    });
    forge(&world, &victim, REQUEST, &[(50, FREE.octets().to_vec())]);
    wait_for_alarm(&world, "Request");
    assert_no_script(&world, &victim, FREE);
    assert!(victim.script().unwrap().overlay().is_some(), "the victim still boots");
}

#[test]
fn arp_claim_of_an_address_gets_neither_script_nor_overlay() {
    let world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    let url = victim.power_on().unwrap().overlay().expect("a capability");
    let thief = take_over_address(&world, &victim);
    assert_eq!(ask_briefly(&thief, &victim.script_url()), None, "no connection");
    eventually("an alarm names the stranger's card", || {
        let events = world.events("boot_impersonated");
        let named = |event: &serde_json::Value| {
            event["detail"].as_str().unwrap().contains(&STRANGER_MAC.to_string())
        };
        if events.iter().any(named) { Ok(()) } else { Err(format!("{events:?}")) }
    });
    assert_eq!(ask_briefly(&thief, &url), None, "the overlay");
    thief.host().ip(&["address", "flush", "dev", "eth0"]).unwrap();
    let host = victim.host();
    host.ip(&["link", "set", "eth0", "up"]).unwrap();
    victim.address.set(None);
    let overlay = victim.retry_from_ipxe();
    assert!(!overlay.is_empty());
}

#[test]
fn arp_claim_of_an_address_gets_no_overlay() {
    let world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    let url = victim.power_on().unwrap().overlay().expect("a capability");
    let thief = take_over_address(&world, &victim);
    assert_eq!(ask_briefly(&thief, &url), None, "a capability that was read on the wire");
}

#[test]
fn token_from_another_machine_is_refused_and_stays_valid() {
    let world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    let overlay = victim.boot();
    let boot: serde_json::Value =
        serde_json::from_slice(&overlay["etc/meshd/boot.json"].1).unwrap();
    let attacker = super::client::Attacker::new(&world);
    let identity = Identity::new();
    let request = serde_json::json!({
        "version": meshd_proto::VERSION, "node": boot["node"], "session": boot["session"], "token": boot["token"],
        "csr_pem": identity.csr(),
    });
    let answer = attacker.run(attacker.post(&identity, meshd_proto::ENROL_PATH, &request));
    let (status, body) = answer.expect("an answer");
    assert_eq!(status, 401, "{body}");
    assert!(
        world.events("boot_impersonated").len() == 1,
        "{:?}",
        world.events("boot_impersonated")
    );
    let _agent = victim.start_agent(&overlay);
    world.wait_for_phase("online");
}

fn exchange_of(mac: MacAddr, address: Ipv4Addr, discovered: bool) -> DhcpChange {
    DhcpChange::Exchange(DhcpExchange {
        mac,
        client: DhcpClient::Ipxe,
        uuid: None,
        arch: None,
        is_discover: false,
        secs: 0,
        address: Some(address),
        lease: None,
        discovered,
        relay_port: None,
        is_relayed: false,
        bmc: None,
    })
}

#[tokio::test]
async fn address_change_without_a_discover_ends_the_boot_session() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut victim = Machine::new(&rig, 1);
    victim.boot(Stage::Script).await;
    let capability = victim.capability().to_owned();
    rig.central.boot.apply_dhcp_changes(&[exchange_of(victim.mac, FREE, false)]).await.unwrap();
    let own = std::mem::replace(&mut victim.address, FREE);
    victim.ask_script().await;
    assert!(victim.script.contains("# refusal no_session"), "{}", victim.script);
    assert!(rig.condition(victim.id(), ConditionKind::BootImpersonated).is_some(), "an alarm");
    let opened = rig.central.boot.probe_overlay(&capability, own).await;
    assert!(opened.is_err(), "what was given in the session is void");
    // The machine tries again, as its script says: a new exchange, a new session.
    victim.address = own;
    rig.central.boot.apply_dhcp_changes(&[exchange_of(victim.mac, own, true)]).await.unwrap();
    victim.ask_script().await;
    assert!(victim.script.contains("/overlay/"), "{}", victim.script);
}

#[tokio::test]
async fn alarm_survives_boots_and_only_an_operator_clears_it() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut victim = Machine::new(&rig, 1);
    victim.boot(Stage::Online).await;
    let own = std::mem::replace(&mut victim.address, FREE);
    victim.ask_script().await;
    victim.address = own;
    assert!(rig.condition(victim.id(), ConditionKind::BootImpersonated).is_some());
    rig.pass(Duration::from_secs(120)).await;
    victim.boot(Stage::Online).await;
    assert!(
        rig.condition(victim.id(), ConditionKind::BootImpersonated).is_some(),
        "a boot does not clear it"
    );
    rig.central
        .nodes
        .approve(
            victim.id(),
            &crate::boot::sessions::rig::ordered(meshd_model::fleet::Verb::Approve),
        )
        .await
        .unwrap();
    assert_eq!(rig.condition(victim.id(), ConditionKind::BootImpersonated), None);
}

/// A node that was online and has just lost its link.
async fn unlinked_node(rig: &Rig) -> Machine<'_> {
    let mut node = Machine::new(rig, 1);
    node.boot(Stage::Online).await;
    rig.central.links.link_down(node.link.expect("a link")).await;
    node
}

/// The thief asks for a script and is refused; the NIC stays that of node `id`.
async fn assert_refused(rig: &Rig, mut thief: Machine<'_>, id: NodeId) {
    thief.boot(Stage::Script).await;
    assert!(thief.script.contains("id_collision"), "{}", thief.script);
    assert!(rig.node(id).fingerprint.macs.contains(&thief.mac), "the card stays the node's");
}

/// A second machine with this machine's network card and another UUID.
fn impostor<'a>(rig: &'a Rig, victim: &Machine<'_>) -> Machine<'a> {
    Machine {
        mac: victim.mac,
        address: victim.address,
        uuid: SystemUuid([0x77; 16]),
        ..Machine::new(rig, 9)
    }
}

#[tokio::test]
async fn nic_of_recently_linked_node_is_not_taken_over() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let victim = unlinked_node(&rig).await;
    assert_refused(&rig, impostor(&rig, &victim), victim.id()).await;
}

#[tokio::test]
async fn nic_of_node_that_answers_arp_is_not_taken_over() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let victim = unlinked_node(&rig).await;
    // Longer than `offline_after`: only ARP tells that the node is there.
    rig.pass(Duration::from_secs(300)).await;
    assert_eq!(rig.node(victim.id()).phase, Phase::Offline);
    rig.wire.put(victim.address, victim.mac);
    // With the node's own address it would be the thief who answers.
    assert_refused(&rig, Machine { address: FREE, ..impostor(&rig, &victim) }, victim.id()).await;
}
