//! A machine on the boot LAN steals boots by ARP alone, with raw frames that all carry its own
//! Ethernet source: `arp_thief.py` describes the attack. `MESHD_ATTACK_ATTEMPTS` sets the number of
//! attempts of each attack. Many attempts are divided among sites that are attacked at once.
//!
//! | module | content |
//! | --- | --- |
//! | `frames` | frames written by hand |
//! | `tags` | frames with VLAN tags |

mod frames;
mod tags;

use super::{
    boot_lan::{STRANGER_MAC, stranger},
    boot_theft::ask_briefly,
    client::Attacker,
    node_reports::Compromised,
    relayed::{ROUTER, ROUTER_MAC, far_world},
};
use crate::world::{
    CENTRAL, World, dhcp,
    dhcp::As,
    eventually,
    node::{Overlay, PxeNode, Script},
    program::Program,
};
use meshd_proto::Facts;
use meshd_types::MacAddr;
use serde_json::Value;
use std::{net::Ipv4Addr, process::Command};

const FREE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 109);
/// The stranger's own address.
const OWN: &str = "10.77.0.66";

/// Attempts of each attack.
fn attempts() -> usize {
    std::env::var("MESHD_ATTACK_ATTEMPTS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Runs an attack with all attempts: at most eight sites at once, with 50 attempts or more each.
fn in_sites(attack: impl Fn(usize) + Sync) {
    let sites = (attempts() / 50).clamp(1, 8);
    let share = attempts().div_ceil(sites);
    std::thread::scope(|scope| {
        (0..sites).for_each(|_| {
            scope.spawn(|| attack(share));
        });
    });
}

/// What the thief claims: the address of its TCP segments, and the address that it claims by ARP,
/// with the owner of that.
#[derive(Clone, Copy)]
struct Claim {
    source: Ipv4Addr,
    claimed: Ipv4Addr,
    owner: MacAddr,
}

impl Claim {
    fn of(victim: &PxeNode<'_>) -> Self {
        let address = victim.address.get().expect("an address");
        Claim { source: address, claimed: address, owner: victim.mac }
    }
}

fn arguments(world: &World, mode: &str, claim: Claim, url: &str, attempts: usize) -> Vec<String> {
    let script = world.path("arp_thief.py");
    std::fs::write(&script, include_str!("arp_thief.py")).unwrap();
    let path = url.strip_prefix(&format!("http://{CENTRAL}:8080")).expect("a URL of the boot API");
    let Claim { source, claimed, owner } = claim;
    let words = [
        mode,
        "eth0",
        &source.to_string(),
        CENTRAL,
        OWN,
        &claimed.to_string(),
        &owner.to_string(),
        "8080",
        path,
    ];
    let words = words.into_iter().map(str::to_owned);
    [script.display().to_string()].into_iter().chain(words).chain([attempts.to_string()]).collect()
}

/// Attempts so many thefts. Each gets nothing, and raises one alarm that names the thief's Ethernet
/// address.
fn steal(world: &World, count: usize, claim: Claim, url: &str, when: &str) {
    let before = alarms(world);
    let thief = stranger(world);
    let arguments = arguments(world, "theft", claim, url, count);
    let output =
        thief.host().inside(|| Command::new("python3").args(arguments).output().unwrap()).unwrap();
    assert!(output.status.success(), "{when}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), count, "{when}");
    for line in text.lines() {
        let attempt: Value = serde_json::from_str(line).unwrap();
        assert_nothing_stolen(attempt["text"].as_str().unwrap(), when);
    }
    eventually(&format!("{when}: one alarm for each of {count} attempts"), || {
        match alarms(world) - before {
            raised if raised == count => Ok(()),
            raised => Err(format!("{raised}: {:?}", world.events("boot_impersonated").last())),
        }
    });
}

fn assert_nothing_stolen(answer: &str, when: &str) {
    let body = answer.split_once("\r\n\r\n").map_or(answer, |(_, body)| body);
    let is_refused =
        body.is_empty() || body.contains("# refusal") || answer.starts_with("HTTP/1.1 404");
    assert!(is_refused && !answer.contains("/overlay/"), "{when}: the thief got {answer}");
}

/// Alarms that name the thief.
fn alarms(world: &World) -> usize {
    let events = world.events("boot_impersonated");
    let named = events
        .iter()
        .filter(|event| event["detail"].as_str().unwrap().contains(&STRANGER_MAC.to_string()));
    named.map(|event| usize::try_from(event["count"].as_u64().unwrap_or(1)).unwrap()).sum()
}

pub(super) fn proxy_world() -> World {
    proxy_world_of("auto")
}

fn proxy_world_of(policy: &str) -> World {
    let mut world = World::prepared(policy);
    let authoritative =
        "mode = \"authoritative\"\nrange = \"10.77.0.100-10.77.0.110\"\nlease = \"1h\"\n";
    world.edit_site(authoritative, "mode = \"proxy\"\n");
    world.start();
    world
}

/// iPXE of a machine whose address another server leases.
fn boot_by_proxy(victim: &PxeNode<'_>) -> Script {
    let own = Ipv4Addr::new(10, 77, 0, 100);
    victim.host().ip(&["address", "replace", &format!("{own}/24"), "dev", "eth0"]).unwrap();
    victim.address.set(Some(own));
    eventually("the victim boots", || {
        victim.take_address(own);
        let script = victim.script().map_err(|error| error.to_string())?;
        if script.overlay().is_some() { Ok(script) } else { Err(script.0) }
    })
}

/// Fetches what a script names.
fn load(victim: &PxeNode<'_>, script: &Script, is_proxy: bool) -> std::io::Result<Overlay> {
    if !is_proxy {
        return victim.load(script);
    }
    let fetch = |url: &String| {
        let answer = victim.get(url)?;
        let is_ok = answer.status == 200;
        is_ok.then_some(answer.body).ok_or_else(|| std::io::Error::other(url.clone()))
    };
    for url in script.urls().iter().filter(|url| !url.contains("/overlay/")) {
        fetch(url)?;
    }
    let body = fetch(&script.overlay().expect("a capability"))?;
    Ok(crate::world::unpack::overlay(&body))
}

/// Boots until the victim has its overlay, as its firmware does: a connection whose port the thief
/// used in the last minute ends.
fn boot_in_spite_of_it(victim: &PxeNode<'_>, is_proxy: bool) -> Overlay {
    eventually("the victim boots", || {
        let script = if is_proxy { Ok(boot_by_proxy(victim)) } else { victim.ipxe() };
        let overlay = script.and_then(|script| load(victim, &script, is_proxy));
        overlay.map_err(|error| error.to_string())
    })
}

/// Thefts before, during and after a boot: of a victim that is silent, one that answers, and a node
/// that is online.
fn attack_boot(world: &World, is_proxy: bool, attempts: usize) {
    let steal = |claim, url: &str, when| steal(world, attempts, claim, url, when);
    let victim = PxeNode::new(world, 1);
    let url = victim.script_url();
    steal(Claim { source: FREE, claimed: FREE, owner: victim.mac }, &url, "before the boot");
    let script = if is_proxy { boot_by_proxy(&victim) } else { victim.power_on().unwrap() };
    let overlay_url = script.overlay().expect("a capability");
    victim.host().ip(&["link", "set", "eth0", "down"]).unwrap();
    steal(Claim::of(&victim), &url, "silent victim, script");
    steal(Claim::of(&victim), &overlay_url, "silent victim, overlay");
    victim.host().ip(&["link", "set", "eth0", "up"]).unwrap();
    steal(Claim::of(&victim), &url, "victim that answers, script");
    steal(Claim::of(&victim), &overlay_url, "victim that answers, overlay");
    let overlay = boot_in_spite_of_it(&victim, is_proxy);
    steal(Claim::of(&victim), &url, "after the overlay");
    let _agent = victim.start_agent(&overlay);
    world.wait_for_phase("online");
    steal(Claim::of(&victim), &url, "online node");
    assert_eq!(world.node()["phase"], "online");
}

#[test]
fn arp_theft_gets_nothing_in_authoritative_mode() {
    in_sites(|attempts| attack_boot(&World::new("auto"), false, attempts));
}

#[test]
fn arp_theft_gets_nothing_in_proxy_mode() {
    in_sites(|attempts| attack_boot(&proxy_world(), true, attempts));
}

/// The stranger takes an address in a DHCP exchange of its own, and asks for the boot of its own
/// machine from there.
fn boot_from(world: &World, address: Ipv4Addr) -> Option<String> {
    let thief = stranger(world);
    thief.host().ip(&["address", "replace", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    thief.address.set(Some(address));
    thief.open_session_at(address);
    let answer = ask_briefly(&thief, &thief.script_url());
    thief.host().ip(&["address", "flush", "dev", "eth0"]).unwrap();
    answer
}

/// One alarm names the stranger and the owner of the address, which is not bound to the stranger.
fn assert_claim_refused(world: &World, answer: Option<String>, owner: &str) {
    let answer = answer.expect("an answer");
    assert!(answer.contains("# refusal no_session") && !answer.contains("/overlay/"), "{answer}");
    assert_eq!(pins(world), "", "nothing is bound");
    let events = world.events("boot_impersonated");
    let names = |event: &Value| {
        let detail = event["detail"].as_str().unwrap();
        detail.contains(&STRANGER_MAC.to_string()) && detail.contains(owner)
    };
    assert!(events.iter().any(names), "{events:?}");
}

#[test]
fn address_of_another_machine_is_not_bound_to_machine_that_takes_it() {
    let world = proxy_world();
    let victim = PxeNode::new(&world, 2);
    let own = Ipv4Addr::new(10, 77, 0, 100);
    victim.host().ip(&["address", "add", &format!("{own}/24"), "dev", "eth0"]).unwrap();
    let answer = boot_from(&world, own);
    assert_claim_refused(&world, answer, &victim.mac.to_string());
    assert!(boot_by_proxy(&victim).overlay().is_some(), "the owner boots");
}

#[test]
fn address_of_silent_router_is_not_bound_to_machine_that_takes_it() {
    let world = proxy_world();
    world.central.ip(&["route", "add", "default", "via", &ROUTER.to_string()]).unwrap();
    let answer = boot_from(&world, ROUTER);
    assert_claim_refused(&world, answer, "a router or server");
}

#[test]
fn silent_address_is_bound_only_to_an_approved_machine() {
    let world = proxy_world_of("approve");
    let silent = Ipv4Addr::new(10, 77, 0, 100);
    let answer = boot_from(&world, silent).expect("an answer");
    assert!(answer.contains("/overlay/"), "it boots to wait for approval: {answer}");
    assert_eq!(pins(&world), "", "nothing is bound");
    let id = world.node()["id"].as_str().unwrap().to_owned();
    assert!(world.meshd(&["node", "approve", &id]).status.success());
    boot_from(&world, silent).expect("an answer");
    let bound = format!("{silent} dev br0 lladdr {STRANGER_MAC}");
    assert!(pins(&world).contains(&bound), "{}", pins(&world));
    assert!(world.meshd(&["node", "quarantine", &id, "--yes"]).status.success());
    eventually("the address is free", || match pins(&world) {
        pins if pins.is_empty() => Ok(()),
        pins => Err(pins),
    });
}

/// The stranger says that it takes the offer of a DHCP server, whose address is that of the victim.
fn name_as_server(world: &World, victim: Ipv4Addr) {
    let thief = stranger(world);
    let options = [(50, FREE.octets().to_vec()), (54, victim.octets().to_vec())];
    let takes = dhcp::packet(thief.mac, thief.uuid, As::Ipxe, 3, &options);
    thief
        .host()
        .inside(|| dhcp::client().send_to(&takes, (Ipv4Addr::BROADCAST, 67)).unwrap())
        .unwrap();
    eventually("the victim's address is that of a server", || {
        let shown = world.json(&["dhcp", "show", "-o", "json"]);
        let servers = shown.to_string();
        if servers.contains(&format!("\"address\":\"{victim}\"")) { Ok(()) } else { Err(servers) }
    });
}

#[test]
fn address_named_as_dhcp_server_is_bound_to_its_machine() {
    let world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    let address = victim.dhcp(As::Os).address;
    name_as_server(&world, address);
    victim.power_on().unwrap();
    assert!(
        pins(&world).contains(&format!("{address} dev br0 lladdr {}", victim.mac)),
        "{}",
        pins(&world)
    );
    let world = proxy_world();
    let victim = PxeNode::new(&world, 1);
    name_as_server(&world, Ipv4Addr::new(10, 77, 0, 100));
    assert!(boot_by_proxy(&victim).overlay().is_some());
    assert_eq!(world.events("boot_impersonated").len(), 0, "the victim raises no alarm");
}

#[test]
fn arp_theft_before_the_first_script_gets_nothing() {
    in_sites(|attempts| {
        let world = proxy_world();
        let victim = PxeNode::new(&world, 1);
        let own = Ipv4Addr::new(10, 77, 0, 100);
        victim.address.set(Some(own));
        victim.open_session_at(own);
        // The victim has no address yet, so nobody else answers for it.
        let url = victim.script_url();
        steal(&world, attempts, Claim::of(&victim), &url, "between DHCP and script");
        assert!(boot_by_proxy(&victim).overlay().is_some(), "the victim boots");
    });
}

#[test]
fn arp_theft_of_relayed_boot_gets_nothing() {
    in_sites(attack_relayed_boot);
}

fn attack_relayed_boot(attempts: usize) {
    let (world, _relay) = far_world();
    let steal = |claim, url: &str, when| steal(&world, attempts, claim, url, when);
    let victim = PxeNode::new(&world, 1);
    world.host_on(victim.mac, "port0");
    let url = victim.script_url();
    let script = victim.power_on().unwrap();
    let address = victim.address.get().expect("an address");
    let claim = Claim { source: address, claimed: ROUTER, owner: ROUTER_MAC.parse().unwrap() };
    let routed = format!("{ROUTER}/24");
    // A router that is silent, and one that answers.
    world.nodes.ip(&["address", "del", &routed, "dev", "eth0"]).unwrap();
    steal(claim, &url, "silent router, script");
    steal(claim, &script.overlay().expect("a capability"), "silent router, overlay");
    world.nodes.ip(&["address", "add", &routed, "dev", "eth0"]).unwrap();
    steal(claim, &url, "router that answers");
    let overlay = victim.boot();
    let _agent = victim.start_agent(&overlay);
    world.wait_for_phase("online");
    steal(claim, &url, "online node");
}

#[test]
fn answers_are_not_drawn_away_by_arp() {
    in_sites(|attempts| draw_answers_away(attempts * 10));
}

fn draw_answers_away(requests: usize) {
    let world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    victim.power_on().unwrap();
    let thief = stranger(&world);
    let arguments = arguments(&world, "drain", Claim::of(&victim), &victim.script_url(), 0);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let drain = Program::start(&world, &thief.host(), "python3", &arguments);
    drain.says("ready", 1);
    let url = victim.script_url();
    for _ in 0..requests {
        // An answer that was drawn away reaches the victim late or never.
        let ask =
            || Command::new("curl").args(["--silent", "--max-time", "2", &url]).output().unwrap();
        victim.host().inside(ask).unwrap();
        let drawn = drain.log_text();
        assert!(!drawn.contains("text"), "the thief read an answer: {drawn}");
    }
}

/// Entries of the central node's neighbour table that ARP does not change.
fn pins(world: &World) -> String {
    let list = || {
        Command::new("ip").args(["-4", "neighbour", "show", "nud", "permanent"]).output().unwrap()
    };
    String::from_utf8(world.central.inside(list).unwrap().stdout).unwrap()
}

#[test]
fn address_is_bound_during_boot_and_free_after_stop_or_crash() {
    let mut world = World::new("auto");
    let victim = PxeNode::new(&world, 1);
    victim.power_on().unwrap();
    let bound = format!("{} dev br0 lladdr {}", victim.address.get().unwrap(), victim.mac);
    assert!(pins(&world).contains(&bound), "{}", pins(&world));
    world.kill();
    assert!(pins(&world).contains(&bound), "nobody removed it");
    world.start();
    assert_eq!(pins(&world), "", "left behind by an earlier run");
    PxeNode::new(&world, 1).power_on().unwrap();
    assert!(pins(&world).contains(&bound), "{}", pins(&world));
    assert!(world.stop().success());
    assert_eq!(pins(&world), "", "meshd has stopped");
}

#[test]
fn link_from_address_of_another_machine_does_not_bind_it() {
    let world = proxy_world();
    let victim = PxeNode::new(&world, 2);
    let address = Ipv4Addr::new(10, 77, 0, 100);
    victim.host().ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    let node = Compromised::of(Attacker::at(&world, address), &world, 1);
    let link = node.attacker.run(node.link(Facts::default()));
    eventually("an alarm names both", || {
        let events = world.events("boot_impersonated");
        let names = |event: &Value| {
            event["detail"]
                .as_str()
                .unwrap()
                .contains(&format!("from {address}, the address of {}", victim.mac))
        };
        if events.iter().any(names) { Ok(()) } else { Err(format!("{events:?}")) }
    });
    assert_eq!(pins(&world), "");
    drop(link);
}
