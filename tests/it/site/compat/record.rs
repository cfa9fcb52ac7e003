//! Records files like those of tests/compat: of this version in each run of the tests, of another
//! one with `make record-compat`.

use super::{ANSWERS, KEY, MESSAGES};
use crate::{
    work::tasks::rig::Rig,
    work::vms::central::{self, Machine},
    world::{World, eventually, node::PxeNode},
};
use serde_json::{Value, json};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn done(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A site with addresses of VMs.
fn site() -> World {
    let world = central::prepared("approve");
    world.edit_site(
        "[http]",
        "[[vms.pool]]\nbridge = \"br0\"\nrange = \"10.77.0.210-10.77.0.220\"\n[http]",
    );
    world
}

/// Something of everything that a store keeps.
fn fill(rig: &Rig) {
    let world = &rig.world;
    let node = |number: usize| rig.machines[number].id.as_str();
    let run = ["task", "run", "--group", "pair", "--launcher", "none"];
    for script in ["echo hello from $MESHD_RANK", "echo failed >&2; exit 3"] {
        world.meshd(&[&run[..], &["--", "/bin/sh", "-c", script]].concat());
    }
    let sleeping = done(world, &[&run[..], &["--detach", "--", "/bin/sleep", "1000"]].concat());
    rig.until_state(&sleeping, "running");
    done(world, &["task", "cancel", &sleeping, "--reason", "enough"]);
    rig.until_state(&sleeping, "cancelled");

    done(world, &["node", "set", node(0), "kvm_nested=true", "--reason", "eight ranks"]);
    done(world, &["node", "assign-profile", node(0), "compute"]);
    world.edit_site("overlays = [\"motd\"]", "overlays = [\"motd\"]\nkernel_args = [\"quiet\"]");
    done(world, &["reload"]);

    for (name, role) in [("dashboard", "viewer"), ("ci", "operator"), ("gone", "admin")] {
        done(world, &["api-token", "create", name, "--role", role]);
    }
    done(world, &["api-token", "revoke", "gone", "--yes"]);
    done(world, &["token", "create", node(1), "--ttl", "7d"]);

    virtual_machines(world);
    // One that boots and waits for approval, one that is approved and never enrols, one that is
    // rejected.
    for number in 3..6 {
        let machine = PxeNode::new(world, number);
        world.host_on(machine.mac, "switch");
        let overlay = machine.boot();
        let id = done(world, &["id", "--uuid", &machine.uuid.to_string()])
            .lines()
            .next()
            .unwrap()
            .to_owned();
        match number {
            3 => {
                let _agent = machine.start_agent(&overlay);
                eventually("it asks for approval, with its facts", || {
                    let node = world.json(&["node", "show", &id, "-o", "json"]);
                    if node["facts"].is_null() { Err(node.to_string()) } else { Ok(()) }
                });
            }
            4 => drop(done(world, &["node", "approve", &id])),
            _ => drop(done(world, &["node", "reject", &id, "--reason", "not ours", "--yes"])),
        }
    }
    done(world, &["node", "maintenance", node(1), "--reason", "new memory"]);
}

/// A node that could run them, and two that are not started.
fn virtual_machines(world: &World) {
    let disk = world.path("root.qcow2");
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2"])
        .arg(&disk)
        .arg("16M")
        .status();
    assert!(made.unwrap().success());
    let digest = done(world, &["volume", "add", disk.to_str().unwrap(), "--name", "root"]);
    let machine = PxeNode::new(world, 1);
    world.host_on(machine.mac, "switch");
    let id = done(world, &["id", "--uuid", &machine.uuid.to_string()])
        .lines()
        .next()
        .unwrap()
        .to_owned();
    let mut host = Machine::new(world, &machine.boot());
    host.start();
    let is_in = |phase: &str| {
        eventually(phase, || {
            let shown = world.json(&["node", "show", &id, "-o", "json"]);
            if shown["phase"] == phase { Ok(()) } else { Err(shown.to_string()) }
        });
    };
    is_in("discovered");
    done(world, &["node", "approve", &id]);
    is_in("online");
    for name in ["vm-1", "vm-2"] {
        let text = format!(
            "name = \"{name}\"\nvcpus = 1\nmemory = \"64M\"\nallow_tcg = true\n\
             [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
        );
        let file = world.path("vm.toml");
        fs::write(&file, text).unwrap();
        done(world, &["vm", "create", "-f", file.to_str().unwrap(), "--node", &id]);
    }
}

/// What an operator asks; answers that change by themselves are not among them.
const QUESTIONS: [&[&str]; 10] = [
    &["node", "list"],
    &["vm", "list"],
    &["task", "list"],
    &["slot", "list"],
    &["volume", "list"],
    &["api-token", "list"],
    &["token", "list"],
    &["profile", "list"],
    &["profile", "history", "compute"],
    &["audit"],
];

fn answers(world: &World) -> Value {
    let mut answers = serde_json::Map::new();
    let mut ask = |args: &[&str]| {
        answers.insert(args.join(" "), world.json(&[args, &["-o", "json"]].concat()));
    };
    QUESTIONS.iter().for_each(|args| ask(args));
    let nodes = world.json(&["node", "list", "-o", "json"]);
    for node in nodes.as_array().unwrap() {
        ask(&["node", "show", node["id"].as_str().unwrap()]);
    }
    let events = done(world, &["events", "--limit", "10000", "-o", "json"]);
    let events: Vec<Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    json!({ "answers": answers, "events": events })
}

/// The first message of each kind, as `[who, message]`.
fn messages(recorded: &Path) -> Vec<Value> {
    let text = fs::read_to_string(recorded).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let lines = text.lines().filter_map(|line| {
        let (who, message) = line.split_once(' ')?;
        let message: Value = serde_json::from_str(message).unwrap();
        let kind = message["kind"].as_str().unwrap_or_default().to_owned();
        let section =
            [&message["entry"], &message["state"]].into_iter().find(|section| section.is_object());
        let word = |key: &str| section?[key].as_str().map(str::to_owned);
        let desired = section.and_then(|section| section["desired_state"]["state"].as_str());
        let part = (word("section"), word("update"), desired.map(str::to_owned));
        let keys: Vec<String> = message.as_object()?.keys().cloned().collect();
        seen.insert((who.to_owned(), kind, part, keys)).then(|| json!([who, message]))
    });
    lines.collect()
}

/// Without `MESHD_COMPAT_OUT` the files go to a folder that is removed afterwards.
#[test]
fn recorded_files_are_complete() {
    let scratch = tempfile::tempdir().unwrap();
    let files =
        env::var_os("MESHD_COMPAT_OUT").map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    fs::create_dir_all(&files).unwrap();
    let mut rig = Rig::of(site());
    fill(&rig);
    rig.machines.clear();
    let world = &mut rig.world;
    eventually("no node is online", || {
        let nodes = world.json(&["node", "list", "-o", "json"]);
        let is_up = |node: &Value| node["phase"] == "online" || node["phase"] == "degraded";
        if nodes.as_array().unwrap().iter().any(is_up) { Err(nodes.to_string()) } else { Ok(()) }
    });
    let recorded = answers(world);
    // No machine of the test has units, so there are no slots.
    for question in
        QUESTIONS.map(|words| words.join(" ")).iter().filter(|question| *question != "slot list")
    {
        let answer = recorded["answers"][question]
            .as_array()
            .unwrap_or_else(|| panic!("{question} is no list"));
        assert!(!answer.is_empty(), "nothing is recorded for {question}");
    }
    fs::write(files.join(ANSWERS), serde_json::to_vec(&recorded).unwrap()).unwrap();
    let backup = files.join("rack.backup");
    let key = files.join(KEY);
    let _ = fs::remove_file(&backup);
    fs::write(&key, "test passphrase, no secret\n").unwrap();
    done(
        world,
        &[
            "backup",
            "create",
            backup.to_str().unwrap(),
            "--key-file",
            key.to_str().unwrap(),
            "--blobs",
        ],
    );
    done(
        world,
        &["backup", "verify", backup.to_str().unwrap(), "--key-file", key.to_str().unwrap()],
    );
    assert!(world.stop().success());
    let parts = ["site.toml", "state", "overlays", "images", "loaders", "agent"];
    let parts = parts.into_iter().filter(|part| world.path(part).exists());
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(world.path("")).arg("-czf").arg(files.join("site.tar.gz")).args(parts);
    assert!(tar.status().unwrap().success());
    if let Some(recorded) = env::var_os("MESHD_RECORD") {
        let text = serde_json::to_string_pretty(&messages(Path::new(&recorded))).unwrap();
        fs::write(files.join(MESSAGES), text + "\n").unwrap();
    }
}
