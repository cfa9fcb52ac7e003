//! Rows of the requirements that the real program has to prove.

use crate::{
    admin::https::{ADMIN, Office},
    world::{
        CENTRAL, World,
        dhcp::{As, client, packet},
        node::PxeNode,
    },
};
use meshd_types::{MacAddr, SystemUuid};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
};

#[test]
fn ob3_error_has_code_message_and_correlation_id_of_the_json_log() {
    let mut world = World::prepared("auto");
    world.log_json = true;
    world.start();
    let mut socket = UnixStream::connect(world.path("admin.sock")).unwrap();
    let request = "POST /v1/nodes/nobody/approve HTTP/1.1\r\nhost: meshd\r\ncontent-type: application/json\r\n\
                   content-length: 4\r\nconnection: close\r\n\r\nnull";
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    let body: Value =
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(body["code"], "no_node", "{body}");
    assert!(body["message"].as_str().is_some_and(|text| text.contains("nobody")), "{body}");
    let id = body["correlation_id"].as_str().unwrap_or_default().to_owned();
    assert!(id.len() == 16 && answer.contains(&format!("x-correlation-id: {id}")), "{answer}");
    let log = world.log_text();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    assert!(lines.iter().any(|line| line.to_string().contains(&id)), "{id} in {log}");
}

#[test]
fn ob4_status_shows_readiness_nodes_units_warnings_and_errors() {
    let world = World::new("approve");
    let status = world.json(&["status", "-o", "json"]);
    assert_eq!(
        (&status["ready"], &status["nodes"]),
        (&Value::Bool(true), &Value::from(0)),
        "{status}"
    );
    assert_eq!(status["units"]["total"], 0, "{status}");
    assert!(
        status["warnings"].is_array() && status["errors"].as_array().is_some_and(Vec::is_empty),
        "{status}"
    );
    let machine = PxeNode::new(&world, 1);
    machine.boot();
    let status = world.json(&["status", "-o", "json"]);
    assert_eq!(
        (&status["nodes"], &status["phases"]["discovered"]),
        (&Value::from(1), &Value::from(1)),
        "{status}"
    );
}

/// The verbs of `meshd help`, each with its path, and whether it prints data.
fn verbs(world: &World) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut open: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let output = world.meshd(&args);
        assert_eq!(output.status.code(), Some(0), "{path:?}");
        let help = String::from_utf8(output.stdout).unwrap();
        let below: Vec<&str> = match help.split_once("\nCommands:\n") {
            Some((_, list)) => list.lines().take_while(|line| !line.trim().is_empty()).collect(),
            None => Vec::new(),
        };
        let names = below.iter().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        for name in
            names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help")
        {
            open.push(path.iter().cloned().chain([name.to_owned()]).collect());
        }
        if below.is_empty() {
            found.push((path, help));
        }
    }
    found
}

#[test]
fn cl2_every_list_prints_json_and_every_verb_keeps_its_exit_codes() {
    let world = World::new("auto");
    let verbs = verbs(&world);
    assert!(verbs.len() > 60, "{}", verbs.len());
    let lists: Vec<_> =
        verbs.iter().filter(|(path, _)| path.last().is_some_and(|last| last == "list")).collect();
    assert!(lists.len() >= 8, "{lists:?}");
    for (path, _) in lists {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--json"]).collect();
        let value = world.json(&args);
        assert!(value.is_array(), "{args:?}: {value}");
    }
    for (path, help) in &verbs {
        let wrong: Vec<&str> =
            path.iter().map(String::as_str).chain(["--no-such-option"]).collect();
        assert_eq!(world.meshd(&wrong).status.code(), Some(2), "{path:?}: usage");
        if help.contains("--output <FORMAT>") {
            assert!(help.contains("--json"), "{path:?}");
        }
    }
    let docs = include_str!("../../../docs/operations/README.md");
    assert!(docs.contains("## Exit codes"), "they are documented");
}

#[test]
fn se1_admin_api_listens_on_no_network_by_default() {
    let world = World::new("auto");
    let pid = world.pid();
    let table = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap();
    let listening: BTreeSet<String> = table("tcp")
        .lines()
        .skip(1)
        .filter_map(|line| {
            line.split_whitespace().nth(1).filter(|_| line.contains(" 0A ")).map(str::to_owned)
        })
        .collect();
    // 10.77.0.1, ports 8080 and 8443: boot files and agents.
    let own = ["01004D0A:1F90", "01004D0A:20FB"].map(str::to_owned);
    assert_eq!(listening, own.into(), "TCP of the central node's network");
    assert_eq!(table("tcp6").lines().filter(|line| line.contains(" 0A ")).count(), 0);
    assert!(world.path("admin.sock").exists());
}

#[test]
fn se1_boot_ports_answer_no_request_from_another_network() {
    // A proxy segment behind a relay opens port 4011.
    let office = Office::open_with("[[segment]]\nrelay = \"10.99.0.1\"\nmode = \"proxy\"");
    let world = &office.world;
    let udp = std::fs::read_to_string(format!("/proc/{}/net/udp", world.pid())).unwrap();
    // In hexadecimal: 67, 69, 4011.
    assert!([":0043 ", ":0045 ", ":0FAB "].iter().all(|port| udp.contains(port)), "{udp}");
    office.desk.ip(&["route", "add", "10.77.0.0/24", "via", ADMIN]).unwrap();
    let mac = MacAddr([0x52, 0x54, 0, 0, 7, 8]);
    let uuid = SystemUuid([7; 16]);
    let stranger = office.desk.inside(client).unwrap();
    for address in [CENTRAL, ADMIN, "255.255.255.255"] {
        for port in [67, 4011] {
            for kind in [1, 3, 8] {
                let request =
                    packet(mac, uuid, As::Firmware(0), kind, &[(50, vec![10, 77, 0, 150])]);
                stranger.send_to(&request, (address, port)).unwrap();
            }
        }
        stranger.send_to(b"\0\x01undionly.kpxe\0octet\0", (address, 69)).unwrap();
    }
    // The same services answer on their own network, after they had the time to answer the
    // stranger.
    let machine = PxeNode::new(world, 1);
    machine.dhcp(As::Firmware(0));
    assert!(!machine.tftp("undionly.kpxe").unwrap().is_empty());
    stranger.set_nonblocking(true).unwrap();
    let nothing = stranger.recv(&mut [0; 2048]).expect_err("no port answers another network");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    let leases = world.json(&["dhcp", "leases", "--all", "-o", "json"]);
    assert!(!leases.to_string().contains("52:54:00:00:07:08"), "{leases}");
}

#[test]
fn bc9_unknown_machine_boots_discovery_without_a_credential() {
    let world = World::new("approve");
    let overlay = PxeNode::new(&world, 1).boot();
    assert_eq!(
        (&world.node()["phase"], &world.node()["profile"]),
        (&"discovered".into(), &"discovery".into())
    );
    let boot: Value = serde_json::from_slice(&overlay["etc/meshd/boot.json"].1).unwrap();
    assert!(boot["token"].is_null(), "{boot}");
    for (path, (_, bytes)) in &overlay {
        let text = String::from_utf8_lossy(bytes);
        assert!(!text.contains("PRIVATE KEY") && !path.ends_with("fstab"), "{path}");
    }
    assert!(world.events("certificate_issued").is_empty());
}
