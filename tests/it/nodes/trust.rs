//! The certificate authority and tickets in use: a rotation under way, a node that was away, a
//! machine that is not netbooted.

use crate::world::{World, eventually, node::PxeNode, stderr};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

/// The root that is active, and how many nodes stand on it.
fn active(world: &World) -> (String, u64) {
    let roots = world.json(&["ca", "show", "-o", "json"]);
    let active =
        roots.as_array().unwrap().iter().find(|root| root["active"] == true).unwrap().clone();
    (active["root"].as_str().unwrap().to_owned(), active["nodes"].as_u64().unwrap())
}

fn rotate(world: &World, grace: &str) {
    let rotated = world.meshd(&["ca", "rotate", "--grace", grace, "--yes"]);
    assert!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
}

#[test]
fn ca_rotation_is_followed_by_running_agent_without_phase_change() {
    let mut world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let agent = machine.start_agent(&machine.boot());
    world.wait_for_phase("online");
    let (old, nodes) = active(&world);
    assert_eq!(nodes, 1);
    let phases = world.events("phase").len();
    rotate(&world, "1h");
    let (new, _) = active(&world);
    assert_ne!(old, new);
    eventually("the node stands on the new root", || {
        let nodes = active(&world).1;
        if nodes == 1 { Ok(()) } else { Err(format!("{nodes} nodes\n{}", agent.log())) }
    });
    eventually("the agent keeps both roots", || {
        let learned = fs::read_to_string(agent.file("state/roots.json"))
            .map_err(|error| error.to_string())?;
        if learned.matches("BEGIN CERTIFICATE").count() == 2 { Ok(()) } else { Err(learned) }
    });
    assert_eq!(world.events("phase").len(), phases, "it was online all the while");
    assert_eq!(
        world.node()["conditions"],
        serde_json::json!([]),
        "another authority is no other generation"
    );
    drop(agent);
    // Whoever was off while the roots changed, and boots with neither, gets both.
    world.kill();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let boot = String::from_utf8_lossy(&overlay["etc/meshd/boot.json"].1).into_owned();
    assert_eq!(boot.matches("BEGIN CERTIFICATE").count(), 2);
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
}

#[test]
fn node_that_missed_ca_rotation_reports_stale_ca_until_reboot() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    rotate(&world, "0s");
    // It has fetched its overlay before: it knows the old root alone, and its token is good.
    let agent = machine.start_agent(&overlay);
    eventually("the agent says so", || {
        let log = agent.log();
        if log.contains("stale_ca") && log.contains("reboot this node") { Ok(()) } else { Err(log) }
    });
    eventually("the central node shows it", || {
        let node = world.node();
        if node["conditions"].to_string().contains("stale_ca") {
            Ok(())
        } else {
            Err(node.to_string())
        }
    });
    let token: Value = serde_json::from_slice(&fs::read(agent.file("boot.json")).unwrap()).unwrap();
    assert!(token["token"].is_string(), "nothing was sent to whoever that is");
    drop(agent);
    let _agent = machine.start_agent(&machine.boot());
    let node = world.wait_for_phase("online");
    assert!(!node["conditions"].to_string().contains("stale_ca"), "{node}");
}

#[test]
fn running_node_reenrols_on_order_after_rotation_without_grace() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let agent = machine.start_agent(&machine.boot());
    let before = world.wait_for_phase("online");
    let rotation = world.meshd(&["ca", "rotate", "--enrol-again", "--yes"]);
    assert_eq!(rotation.status.code(), Some(1), "a grace time makes it needless");
    let (old, _) = active(&world);
    let rotation = world.meshd(&["ca", "rotate", "--grace", "0s", "--enrol-again", "--yes"]);
    assert!(rotation.status.success(), "{}", String::from_utf8_lossy(&rotation.stderr));
    let (new, _) = active(&world);
    assert_ne!(old, new);
    eventually("the node stands on the new root", || {
        let nodes = active(&world).1;
        if nodes == 1 { Ok(()) } else { Err(format!("{nodes} nodes\n{}", agent.log())) }
    });
    let links = |node: &Value| {
        let stages = node["boot"]["stages"].as_array().cloned().unwrap_or_default();
        stages.iter().find(|stage| stage["stage"] == "link").map(|stage| stage["count"].clone())
    };
    let node = eventually("it is linked again", || {
        let node = world.node();
        let is_back = links(&node) == Some(2.into()) && node["phase"] == "online";
        if is_back { Ok(node) } else { Err(node.to_string()) }
    });
    assert_eq!(node["boot"]["session"], before["boot"]["session"], "it did not boot");
    assert_eq!(node["conditions"], serde_json::json!([]), "nothing is wrong with it");
    let learned = fs::read_to_string(agent.file("state/roots.json")).unwrap();
    assert_eq!(learned.matches("BEGIN CERTIFICATE").count(), 1, "it trusts the new root alone");
    let kept: Value = serde_json::from_slice(&fs::read(agent.file("boot.json")).unwrap()).unwrap();
    assert!(kept["token"].is_null(), "the token is used up");
}

/// An agent on a machine that is not netbooted.
fn run_agent(world: &World, folder: &Path) -> Child {
    fs::create_dir_all(folder.join("root")).unwrap();
    let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-agent"));
    command
        .arg("run")
        .arg("--token-file")
        .arg(folder.join("ticket"))
        .arg("--state-dir")
        .arg(folder.join("state"));
    command.arg("--root").arg(folder.join("root")).args(["--reboot", "/bin/true"]);
    world.nodes.spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log)).unwrap()
}

#[test]
fn machine_without_netboot_joins_by_ticket_and_restarts_without_it() {
    let world = World::new("approve");
    let dir = tempfile::tempdir().unwrap();
    world.nodes.ip(&["address", "replace", "10.77.0.50/24", "dev", "eth0"]).unwrap();
    let ticket = dir.path().join("ticket");
    let uuid = "4c010203-0405-0607-0809-0a0b0c0d0eff";
    let made = world.meshd(&["token", "create", "--uuid", uuid, "--out", ticket.to_str().unwrap()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(fs::metadata(&ticket).unwrap().permissions().mode() & 0o777, 0o600);
    let text: Value = serde_json::from_slice(&fs::read(&ticket).unwrap()).unwrap();
    assert_eq!(text["boot"]["http_port"], 8080);
    let token = text["boot"]["token"].as_str().unwrap().to_owned();
    for run in 0..2 {
        let mut agent = run_agent(&world, dir.path());
        let node = eventually(&format!("run {run}: online"), || {
            let nodes = world.json(&["node", "list", "-o", "json"]);
            let node = nodes[0].clone();
            let log = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            if node["phase"] == "online" {
                Ok(node)
            } else {
                Err(format!("{nodes}\n{log}\n{}", world.log_text()))
            }
        });
        assert_eq!(node["address"], "10.77.0.50", "{node}");
        let id = node["id"].as_str().unwrap();
        for verb in ["maintenance", "resume"] {
            let done = world.meshd(&["node", verb, id]);
            assert!(done.status.success(), "{verb}: {}", stderr(&done));
        }
        assert_eq!(
            world.node()["phase"],
            "online",
            "its checks passed, and it has no boot session"
        );
        agent.kill().unwrap();
        agent.wait().unwrap();
        assert!(!ticket.exists(), "it was taken in");
        let kept = fs::read_to_string(dir.path().join("state/boot.json")).unwrap();
        assert!(!kept.contains(&token), "and the token is gone once it was used");
        if run == 0 {
            eventually("it is offline", || {
                let phase = world.node()["phase"].clone();
                if phase == "offline" { Ok(()) } else { Err(phase.to_string()) }
            });
        }
    }
    let used = world.json(&["token", "list", "-o", "json"]);
    assert_eq!(used[0]["used_from"], "10.77.0.50", "{used}");
}

#[test]
fn revoked_ticket_node_raises_no_alarm_and_joins_by_a_new_ticket() {
    let world = World::new("approve");
    let dir = tempfile::tempdir().unwrap();
    world.nodes.ip(&["address", "replace", "10.77.0.50/24", "dev", "eth0"]).unwrap();
    let ticket = dir.path().join("ticket");
    let create_ticket = |basis: &[&str]| {
        let out = ["--out", ticket.to_str().unwrap()];
        let made = world.meshd(&[&["token", "create"], basis, &out].concat());
        assert!(made.status.success(), "{}", stderr(&made));
    };
    let log = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    create_ticket(&["--uuid", "4c010203-0405-0607-0809-0a0b0c0d0eff"]);
    let mut agent = run_agent(&world, dir.path());
    let id = world.wait_for_phase("online")["id"].as_str().unwrap().to_owned();

    let revoked = world.meshd(&["ca", "revoke", &id, "--yes"]);
    assert!(revoked.status.success(), "{}", stderr(&revoked));
    let refused = eventually("the agent waits in vain", || {
        let refused = world.events("enrol_refused");
        let last = refused.last().map(|event| event["detail"].to_string()).unwrap_or_default();
        if last.contains("no boot session") { Ok(last) } else { Err(format!("{last}\n{}", log())) }
    });
    assert!(refused.contains("10.77.0.50"), "{refused}");
    eventually("the agent names the remedy", || {
        if log().contains("meshd token create") { Ok(()) } else { Err(log()) }
    });
    assert!(!log().contains("node approve"), "the node is approved: {}", log());
    assert_eq!(world.events("boot_impersonated").len(), 0, "it was never netbooted");
    assert_eq!(world.node()["conditions"], serde_json::json!([]));

    agent.kill().unwrap();
    agent.wait().unwrap();
    create_ticket(&[&id]);
    let mut agent = run_agent(&world, dir.path());
    world.wait_for_phase("online");
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[test]
fn ticket_is_created_without_a_site_file_and_denied_uuid_is_refused() {
    let mut world = World::prepared("auto");
    let denied = "99999999-0000-4000-8000-000000000001";
    world.edit_site("[defaults]", &format!("[identity]\ndeny_uuids = [\"{denied}\"]\n[defaults]"));
    world.start();
    let elsewhere = tempfile::tempdir().unwrap();
    let create = |uuid: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.current_dir(elsewhere.path()).arg("--socket").arg(world.path("admin.sock"));
        command.args(["token", "create", "--uuid", uuid]).output().unwrap()
    };
    let made = create("99999999-0000-4000-8000-000000000002");
    assert!(made.status.success(), "{}", stderr(&made));
    let ticket: Value = serde_json::from_slice(&made.stdout).unwrap();
    let token = ticket["boot"]["token"].as_str().unwrap().as_bytes();
    assert!(
        !world.state_bytes().windows(token.len()).any(|bytes| bytes == token),
        "only its hash is stored"
    );
    let listed = world.json(&["token", "list", "-o", "json"]);
    let at =
        |key: &str| listed[0][key].as_str().unwrap().parse::<meshd_types::Timestamp>().unwrap();
    assert_eq!(at("expires_at").since(at("created_at")).as_secs(), 3600, "{listed}");
    let refused = create(denied);
    assert!(
        !refused.status.success() && stderr(&refused).contains("the site denies the UUID"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn agent_of_an_online_node_listens_on_no_port() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let _agent = machine.start_agent(&machine.boot());
    world.wait_for_phase("online");
    let mut command = Command::new("ss");
    let inside = machine.host().spawn(command.arg("-Hlntup").stdout(Stdio::piped())).unwrap();
    let listed = String::from_utf8(inside.wait_with_output().unwrap().stdout).unwrap();
    assert!(!listed.contains("mesh-agent"), "{listed}");
}
