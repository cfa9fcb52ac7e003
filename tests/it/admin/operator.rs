//! What a new operator tries: verbs from another folder, a site file with mistakes in it, nodes
//! that are held at a generation. The real program answers.

use super::https::Office;
use crate::world::{World, dhcp::As, eventually, node::PxeNode, stderr};
use serde_json::Value;
use std::{
    fs,
    process::{Command, Output, Stdio},
};

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

fn names(all: &Value, key: &str) -> Vec<String> {
    all.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap().to_owned()).collect()
}

/// Verbs run in the folder of this repository, whose site.toml is another site.
#[test]
fn remote_verbs_read_server_data_or_report_local_files() {
    let office = Office::open();
    let viewer = office.token("eyes", "viewer");
    let ask = |args: &[&str]| office.ask(&viewer, args);
    assert_eq!(
        names(&json(&ask(&["profile", "list", "-o", "json"])), "name"),
        ["compute", "discovery"]
    );
    assert_eq!(json(&ask(&["profile", "show", "compute", "-o", "json"]))["image"], "small");
    assert_eq!(names(&json(&ask(&["image", "list", "-o", "json"])), "name"), ["small"]);
    let overlays = json(&ask(&["overlay", "list", "-o", "json"]));
    let motd =
        overlays.as_array().unwrap().iter().find(|overlay| overlay["name"] == "motd").unwrap();
    assert_eq!(motd["profiles"], serde_json::json!(["compute"]), "profiles of the server");
    for args in [&["profile", "list"][..], &["image", "list"], &["overlay", "list"]] {
        assert!(!stderr(&ask(args)).contains("site.toml"), "{args:?}");
    }
    let doctor = ask(&["doctor", "-o", "json"]);
    let checks = names(&json(&doctor), "check");
    assert!(
        checks.contains(&"meshd".to_owned()) && checks.contains(&"reload".to_owned()),
        "{checks:?}"
    );
    for local in ["site", "loaders", "agent", "overlays", "disk", "clock"] {
        assert!(!checks.contains(&local.to_owned()), "{local} is of this machine: {checks:?}");
    }
    // What only files tell says that it is local.
    let local = stderr(&ask(&["profile", "show", "compute", "--resolved"]));
    assert!(local.contains("local files are read, site.toml"), "{local}");
}

#[test]
fn site_file_syntax_error_refuses_reload_and_no_other_verb() {
    let world = World::new("approve");
    let whole = fs::read_to_string(&world.site).unwrap();
    fs::write(&world.site, format!("[nonsense\n{whole}")).unwrap();
    printed(&world.meshd(&["node", "list"]));
    let status = printed(&world.meshd(&["status"]));
    assert!(status.contains("site file: 1 fault, so the next reload is refused"), "{status}");
    assert!(status.contains("site.toml:1"), "{status}");
    let doctor = world.meshd(&["doctor", "-o", "json"]);
    let findings = json(&doctor);
    let of =
        |name: &str| findings.as_array().unwrap().iter().find(|one| one["check"] == name).cloned();
    assert_eq!(of("site file").expect("the file is spoken of")["status"], "warn", "{findings}");
    assert_eq!(of("meshd").expect("meshd is spoken of")["status"], "ok", "{findings}");
    let refused = world.meshd(&["reload"]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("site.toml:1"),
        "{}",
        stderr(&refused)
    );
    // A reload that was refused keeps no machine from booting.
    let status = printed(&world.meshd(&["status"]));
    assert!(status.contains("warning  reload: refused"), "{status}");
    // The mistake is in the very line that names the socket.
    fs::write(&world.site, whole.replace("socket = \"admin.sock\"", "socket = \"admin.sock"))
        .unwrap();
    let lost = stderr(&world.meshd(&["node", "list"]));
    assert!(
        lost.contains("cannot find the admin socket") && lost.contains("--socket FILE"),
        "{lost}"
    );
    let socket = world.path("admin.sock");
    printed(&world.meshd(&["--socket", socket.to_str().unwrap(), "node", "list"]));
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    let elsewhere = command.current_dir("/").env("MESHD_SOCKET", &socket).args(["node", "list"]);
    printed(&elsewhere.stdin(Stdio::null()).output().unwrap());
}

#[test]
fn overlay_faults_are_reported_with_site_file_faults() {
    let world = World::prepared("auto");
    let text = fs::read_to_string(&world.site).unwrap();
    let (before, rest) = text.split_once("overlays_dir = \"").unwrap();
    let (_, rest) = rest.split_once('"').unwrap();
    let overlay = world.path("overlays/wrong");
    fs::create_dir_all(overlay.join("rootfs")).unwrap();
    fs::write(overlay.join("overlay.toml"), "colour = \"blue\"\n").unwrap();
    for (what, rest) in
        [("a fault", format!("{rest}\n[surprise]\n")), ("no TOML", format!("{rest}\n[surprise\n"))]
    {
        fs::write(&world.site, format!("{before}overlays_dir = \"overlays\"{rest}")).unwrap();
        let message = stderr(&world.meshd(&["check"]));
        assert!(
            message.contains("site.toml:") && message.contains("overlays/wrong/overlay.toml"),
            "{what}: {message}"
        );
        let message = world.serve_and_fail();
        assert!(
            message.contains("site.toml:") && message.contains("overlays/wrong/overlay.toml"),
            "{what}: {message}"
        );
    }
}

#[test]
fn pin_and_rollback_of_node_are_shown_by_every_verb() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    let id = world.wait_for_phase("online")["id"].as_str().unwrap().to_owned();
    eventually("what it runs is kept", || {
        let all = world.json(&["node", "history", &id, "-o", "json"]);
        let kept = all.as_array().is_some_and(|all| {
            all.iter().all(|one| one["archived"] == true && one["runs"] == true)
        });
        if kept { Ok(()) } else { Err(all.to_string()) }
    });
    let table = printed(&world.meshd(&["events", "--kind", "phase", "--node", &id]));
    assert!(table.contains(&format!(" ({id})  phase")), "{table}");
    let phases = printed(&world.meshd(&["events", "--kind", "phase", "--node", &id, "-o", "json"]));
    assert!(
        phases.contains("\"to\":\"online\"") && !phases.contains("degraded"),
        "a boot fails nothing: {phases}"
    );

    printed(&world.meshd(&["node", "pin", &id]));
    assert!(printed(&world.meshd(&["node", "list"])).contains("pinned to"));
    let assigned = world.meshd(&["node", "assign-profile", &id, "compute"]);
    assert!(stderr(&assigned).contains("as long as it is pinned"), "{}", stderr(&assigned));
    let diff = printed(&world.meshd(&["node", "diff", &id]));
    assert!(diff.contains("pinned to") && diff.contains("no difference"), "{diff}");
    printed(&world.meshd(&["node", "pin", &id, "--off"]));
    assert!(!printed(&world.meshd(&["node", "list"])).contains("pinned to"));

    // A profile beside a node is rendered for that node.
    let diff = world.meshd(&["overlay", "diff", &id, "--profile", "discovery"]);
    let text = printed(&diff);
    let notes = stderr(&diff);
    assert!(notes.contains(&format!("node {id} with profile discovery")), "{notes}");
    assert!(
        !text.contains("00000000") && !text.contains("etc/hostname") && text.contains("/etc/motd"),
        "{text}"
    );

    // Another revision of the profile, and back.
    printed(&world.meshd(&["node", "assign-profile", &id, "discovery"]));
    world.edit_site(
        "overlays = [\"base\", \"agent\"]",
        "overlays = [\"base\", \"agent\", \"motd\"]",
    );
    printed(&world.meshd(&["reload"]));
    eventually("the new revision is known", || {
        let all = world.json(&["profile", "history", "discovery", "-o", "json"]);
        if all.as_array().is_some_and(|all| all.len() > 1) { Ok(()) } else { Err(all.to_string()) }
    });
    printed(&world.meshd(&["profile", "rollback", "discovery"]));
    assert!(printed(&world.meshd(&["node", "list"])).contains("profile rolled back to"));
    assert!(printed(&world.meshd(&["node", "diff", &id])).contains("profile rolled back to"));
    let assigned = stderr(&world.meshd(&["node", "assign-profile", &id, "discovery"]));
    assert!(assigned.contains("rolled back to"), "{assigned}");
}

#[test]
fn last_seen_of_node_does_not_move_back_on_quarantine() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    let linked = world.wait_for_phase("online");
    let id = linked["id"].as_str().unwrap().to_owned();
    // RFC 3339 in one form: texts are in the order of times.
    let seen = |node: &Value| node["last_seen"].as_str().unwrap().to_owned();
    let before = eventually("heartbeats are heard", || {
        let now = seen(&world.node());
        if now > seen(&linked) { Ok(now) } else { Err(now) }
    });
    printed(&world.meshd(&["node", "quarantine", &id, "--yes", "--reason", "a test"]));
    let after = seen(&world.node());
    assert!(after >= before, "{after} is before {before}");
}

#[test]
fn undeclared_variable_is_refused_with_a_suggestion() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    machine.ipxe().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let refused = world.meshd(&["node", "set", &id, "mpi_slot=8"]);
    let message = stderr(&refused);
    assert!(
        !refused.status.success() && message.contains("no overlay declares variable `mpi_slot`"),
        "{message}"
    );
    assert!(message.contains("did you mean `mpi_slots`?"), "{message}");
    printed(&world.meshd(&["node", "set", &id, "mpi_slots=8"]));
    assert_eq!(
        world.json(&["node", "show", &id, "-o", "json"])["vars"],
        serde_json::json!({ "mpi_slots": 8 })
    );
}

#[test]
fn events_are_filtered_by_kind_and_unknown_kind_is_refused() {
    let world = World::new("auto");
    PxeNode::new(&world, 1).ipxe().unwrap();
    let kinds = |args: &[&str]| {
        let text = printed(&world.meshd(&[&["events", "-o", "json"], args].concat()));
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events
            .map(|event| event["kind"].as_str().unwrap().to_owned())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert!(kinds(&[]).len() > 2);
    assert_eq!(Vec::from_iter(kinds(&["--kind", "stage"])), ["stage"]);
    assert_eq!(Vec::from_iter(kinds(&["--kind", "stage,discovered"])), ["discovered", "stage"]);
    let refused = world.meshd(&["events", "--kind", "stages"]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("did you mean `stage`?"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn default_netmask_is_that_of_the_interface() {
    let mut world = World::prepared("auto");
    let address = |verb, prefix| ["address", verb, prefix, "dev", "br0"];
    world.central.ip(&address("del", "10.77.0.1/24")).unwrap();
    world.central.ip(&address("add", "10.77.0.1/20")).unwrap();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let granted = machine.dhcp(As::Ipxe);
    assert_eq!(granted.options.get(&1).map(Vec::as_slice), Some(&[255, 255, 240, 0][..]));
}

#[test]
fn commands_in_hints_have_the_options_of_their_caller() {
    let world = World::new("approve");
    let site = world.site.display();
    let socket = world.path("admin.sock");
    let hint = |options: &[&str], environment: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.args(options).args(["token", "revoke", "nothing"]);
        command.envs(environment.iter().copied());
        stderr(&command.output().unwrap())
    };
    let site = site.to_string();
    let socket = socket.display().to_string();
    for (options, environment, shown) in [
        (vec!["--site", &site], vec![], format!("`meshd --site {site} token list`")),
        (vec!["--socket", &socket], vec![], format!("`meshd --socket {socket} token list`")),
        (vec![], vec![("MESHD_SITE", site.as_str())], "`meshd token list`".to_owned()),
    ] {
        let text = hint(&options, &environment);
        assert!(text.contains(&shown), "{shown}: {text}");
    }
}
