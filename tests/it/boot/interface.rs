//! The interface of a segment changes while meshd serves. The clients are programs of others.

use crate::world::{CENTRAL, World, eventually, node::PxeNode, write_program};
use meshd_lab::Namespace;
use std::{
    net::Ipv4Addr,
    path::Path,
    process::{Command, Stdio},
};

/// Address of the HTTPS listener, on an interface of its own.
const ADMIN: &str = "10.88.0.1";

/// A site with all listeners.
fn prepared() -> World {
    let world = World::prepared("auto");
    let more = format!(
        "[metrics]\naddress = \"{CENTRAL}\"\nport = 9109\n[admin.https]\naddress = \"{ADMIN}\"\nport = 8444\n[enroll]"
    );
    world.edit_site("[enroll]", &more);
    make_admin_interface(&world);
    world.nodes.ip(&["address", "add", "10.77.0.50/24", "dev", "eth0"]).unwrap();
    world
}

fn make_admin_interface(world: &World) {
    world.central.ip(&["link", "add", "adm0", "type", "veth", "peer", "name", "adm1"]).unwrap();
    world.central.ip(&["address", "add", &format!("{ADMIN}/24"), "dev", "adm0"]).unwrap();
    for end in ["adm0", "adm1"] {
        world.central.ip(&["link", "set", end, "up"]).unwrap();
    }
}

/// Makes both ends of the wire again, as a script of the network would: link, address, state.
fn make_wire(world: &World) {
    let peer = ["type", "veth", "peer", "name", "eth0", "netns", world.nodes.name()];
    world.central.ip(&[&["link", "add", "br0"][..], &peer].concat()).unwrap();
    world.central.ip(&["address", "add", &format!("{CENTRAL}/24"), "dev", "br0"]).unwrap();
    world.central.ip(&["link", "set", "br0", "up"]).unwrap();
    world.nodes.ip(&["address", "add", "10.77.0.50/24", "dev", "eth0"]).unwrap();
    world.nodes.ip(&["link", "set", "eth0", "up"]).unwrap();
}

/// Runs a program in a namespace; `Err` with its output if it fails.
fn run(inside: &Namespace, program: &str, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = inside.spawn(&mut command).unwrap().wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{program} {args:?}: {text}")) }
}

/// Uses every service of the segment at an address once.
fn use_services(world: &World, address: &str) -> Result<(), String> {
    let script = world.path("udhcpc.sh");
    write_program(&script, "#!/bin/sh\n[ \"$1\" != bound ] || echo \"server $serverid\"\n");
    let script = script.to_str().unwrap();
    let leased = run(
        &world.nodes,
        "udhcpc",
        &["-f", "-q", "-n", "-i", "eth0", "-s", script, "-t", "3", "-T", "1"],
    )?;
    if !leased.contains(&format!("server {address}")) {
        return Err(leased);
    }
    let curl =
        |url: &str| run(&world.nodes, "curl", &["-sS", "-f", "-m", "5", "-o", "/dev/null", url]);
    curl(&format!("tftp://{address}/undionly.kpxe"))?;
    curl(&format!("http://{address}:8080/healthz"))?;
    let ca = world.path("state/ca/ca.pem");
    let agent = format!("{address}:8443");
    let name = "central.meshd.internal";
    let verify = [
        "-CAfile",
        ca.to_str().unwrap(),
        "-verify_return_error",
        "-verify_hostname",
        name,
        "-brief",
    ];
    run(
        &world.nodes,
        "timeout",
        &[&["5", "openssl", "s_client", "-connect", &agent], &verify[..]].concat(),
    )?;
    run(&world.nodes, "rdisc6", &["-1", "-r", "1", "-w", "1000", "eth0"]).map(drop)
}

fn all_services_answer(world: &World, when: &str) {
    eventually(when, || {
        use_services(world, CENTRAL)?;
        run(
            &world.nodes,
            "curl",
            &["-sS", "-f", "-m", "5", &format!("http://{CENTRAL}:9109/metrics")],
        )?;
        run(&world.central, "curl", &["-sS", "-k", "-m", "5", &format!("https://{ADMIN}:8444/")])?;
        Ok(())
    });
}

#[test]
fn services_answer_after_their_interface_was_made_again() {
    let mut world = prepared();
    world.start();
    all_services_answer(&world, "at the start");
    world.central.ip(&["link", "set", "br0", "down"]).unwrap();
    world.central.ip(&["link", "set", "br0", "up"]).unwrap();
    all_services_answer(&world, "down and up");
    world.central.ip(&["address", "del", &format!("{CENTRAL}/24"), "dev", "br0"]).unwrap();
    world.central.ip(&["address", "add", &format!("{CENTRAL}/24"), "dev", "br0"]).unwrap();
    all_services_answer(&world, "address removed and added");
    for _ in 0..2 {
        world.central.ip(&["link", "del", "br0"]).unwrap();
        world.central.ip(&["link", "del", "adm0"]).unwrap();
        make_wire(&world);
        make_admin_interface(&world);
        all_services_answer(&world, "deleted and made again");
    }
    world.central.ip(&["link", "set", "br0", "down"]).unwrap();
    world.central.ip(&["link", "set", "br0", "address", "52:54:00:00:0b:0b", "up"]).unwrap();
    all_services_answer(&world, "another Ethernet address");
    assert!(world.stop().success(), "it still stops");
}

#[test]
fn services_follow_their_interface_to_a_new_address() {
    let mut world = prepared();
    world.edit_site(&format!("[metrics]\naddress = \"{CENTRAL}\"\nport = 9109\n"), "");
    world.start();
    eventually("at the start", || use_services(&world, CENTRAL));
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    expect_finding(&world, "server address", "ok");
    world.central.ip(&["address", "add", "10.77.0.9/24", "dev", "br0"]).unwrap();
    eventually("a second address changes nothing", || use_services(&world, CENTRAL));
    world.central.ip(&["address", "del", &format!("{CENTRAL}/24"), "dev", "br0"]).unwrap();
    // The kernel removes the second address of a network with its first.
    let _ = world.central.ip(&["address", "add", "10.77.0.9/24", "dev", "br0"]);
    eventually("at the new address", || use_services(&world, "10.77.0.9"));
    let ticket =
        world.meshd(&["token", "create", "--uuid", "3f9a1c0e-0000-4000-8000-000000000001"]);
    let ticket = String::from_utf8_lossy(&ticket.stdout).into_owned();
    assert!(
        ticket.contains("10.77.0.9") && !ticket.contains(CENTRAL),
        "a machine with the ticket calls it: {ticket}"
    );
    expect_finding(&world, "server address", "warn");
}

/// Adds a wire with the server address of the first one. Another server leases its addresses.
fn add_second_wire(world: &World) {
    let peer = ["type", "veth", "peer", "name", "eth1", "netns", world.nodes.name()];
    world.central.ip(&[&["link", "add", "br1"][..], &peer].concat()).unwrap();
    world.central.ip(&["address", "add", "10.99.0.1/24", "dev", "br1"]).unwrap();
    world.central.ip(&["link", "set", "br1", "up"]).unwrap();
    world.nodes.ip(&["link", "set", "eth1", "up"]).unwrap();
    let segment = format!(
        "[[segment]]\ninterface = \"br1\"\naddress = \"{CENTRAL}\"\nmode = \"proxy\"\n[enroll]"
    );
    world.edit_site("[enroll]", &segment);
}

#[test]
fn connection_is_observed_on_the_interface_of_its_listener() {
    let mut world = World::prepared("auto");
    add_second_wire(&world);
    world.start();
    let machine = PxeNode::new(&world, 1);
    let host = world.host_on(machine.mac, "eth1");
    let own = Ipv4Addr::new(10, 99, 0, 100);
    host.ip(&["address", "add", &format!("{own}/24"), "dev", "eth0"]).unwrap();
    host.ip(&["route", "add", CENTRAL, "dev", "eth0"]).unwrap();
    machine.address.set(Some(own));
    machine.open_session_at(own);
    let script = machine.script().unwrap();
    assert!(script.overlay().is_some(), "{}", script.0);
    let overlay = machine.get(&script.overlay().unwrap()).unwrap();
    assert_eq!(overlay.status, 200, "{}", overlay.head);
    assert!(
        world.events("boot_impersonated").is_empty(),
        "{:?}",
        world.events("boot_impersonated")
    );
}

/// The line of a check in `meshd doctor`.
fn doctor(world: &World, check: &str) -> Result<String, String> {
    let program = env!("CARGO_BIN_EXE_meshd");
    let text = match run(
        &world.central,
        program,
        &["--site", world.site.to_str().unwrap(), "doctor", "-o", "json"],
    ) {
        Ok(text) | Err(text) => text,
    };
    let json = text.find("[\n").map(|at| &text[at..]).unwrap_or_default();
    let mut findings = serde_json::Deserializer::from_str(json).into_iter::<serde_json::Value>();
    let findings = findings.next().and_then(Result::ok).unwrap_or_default();
    let found = findings.as_array().into_iter().flatten().find(|finding| finding["check"] == check);
    found.map(ToString::to_string).ok_or(text)
}

fn expect_finding(world: &World, check: &str, status: &str) {
    eventually(&format!("{check} is {status}"), || {
        let found = doctor(world, check)?;
        if found.contains(&format!("\"status\":\"{status}\"")) { Ok(()) } else { Err(found) }
    });
}

#[test]
fn deaf_service_is_reported_by_doctor_and_healthz() {
    let mut world = prepared();
    world.start();
    for check in ["DHCP on br0", "TFTP on br0", "HTTP on br0", "agent API on br0"] {
        expect_finding(&world, check, "ok");
    }
    let rules = world.path("deaf.nft");
    std::fs::write(
        &rules,
        "table inet deaf { chain in { type filter hook input priority 0; udp dport 69 drop; }\n}\n",
    )
    .unwrap();
    run(&world.central, "nft", &["-f", Path::to_str(&rules).unwrap()]).unwrap();
    expect_finding(&world, "TFTP on br0", "fail");
    let healthz = format!("http://{CENTRAL}:8080/healthz");
    let answer =
        run(&world.nodes, "curl", &["-sS", "-m", "60", "-w", "%{http_code}", &healthz]).unwrap();
    assert!(answer.contains("TFTP on br0: no answer") && answer.ends_with("503"), "{answer}");
    run(&world.central, "nft", &["delete", "table", "inet", "deaf"]).unwrap();
    expect_finding(&world, "TFTP on br0", "ok");
    run(&world.nodes, "curl", &["-sS", "-f", "-m", "60", &healthz]).unwrap();
    world.central.ip(&["link", "del", "br0"]).unwrap();
    for check in ["DHCP on br0", "TFTP on br0", "HTTP on br0", "agent API on br0"] {
        expect_finding(&world, check, "fail");
    }
}
