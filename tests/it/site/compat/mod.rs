//! Files of an older meshd keep working: site file, store, backup, and the messages of its agent.
//! tests/compat/README.md says which.

mod record;

use crate::world::World;
use meshd_config::vm::parse;
use meshd_proto::{EnrolRequest, FromAgent, FromCentral, PendingHello, PendingReply};
use meshd_types::SystemUuid;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Passphrase of the backup.
const KEY: &str = "rack.key";
/// What the older meshd answered of its store.
const ANSWERS: &str = "answers.json";
/// What its agent and it said to each other.
const MESSAGES: &str = "messages.json";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/compat")
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder().join(name)).unwrap()).unwrap()
}

/// Keys whose values follow from the first program of Alpine nodes, which meshd brings since: each
/// profile has another generation.
const OF_PROGRAM: [&str; 2] = ["generation", "next_generation"];

/// Where `new` does not say what `old` said. What only `new` says is no difference: programs ignore
/// keys that they do not know.
fn differences(at: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, old) in old {
                if OF_PROGRAM.contains(&key.as_str()) {
                    continue;
                }
                differences(
                    &format!("{at}.{key}"),
                    old,
                    new.get(key).unwrap_or(&Value::Null),
                    found,
                );
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (number, (old, new)) in old.iter().zip(new).enumerate() {
                differences(&format!("{at}[{number}]"), old, new, found);
            }
        }
        (old, new) if old == new => {}
        (old, new) => found.push(format!("{at}: {old} is {new} now")),
    }
}

fn same(at: &str, old: &Value, new: &Value) {
    let mut found = Vec::new();
    differences(at, old, new, &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn generations(history: &Value) -> Vec<Value> {
    history.as_array().into_iter().flatten().map(|entry| entry["generation"].clone()).collect()
}

/// The answers of the meshd of today to what the older one was asked, but for those that `is_other`
/// names. Events and audit records may follow; nothing that is gone by its time is compared.
fn answers_are_the_same(world: &World, is_other: impl Fn(&str) -> bool) {
    let recorded = json(ANSWERS);
    let mut found = Vec::new();
    for (question, old) in recorded["answers"].as_object().unwrap() {
        let args: Vec<&str> = question.split(' ').chain(["-o", "json"]).collect();
        if question == "token list" || is_other(question) {
            continue;
        }
        let mut new = world.json(&args);
        if question.starts_with("profile history ") {
            let [old, new] = [old, &new].map(generations);
            assert_eq!(new[1..], old, "{question}: what the profile was follows the new one");
            continue;
        }
        if let ("audit", Some(old), Value::Array(new)) =
            (question.as_str(), old.as_array(), &mut new)
        {
            new.truncate(old.len());
        }
        differences(question, old, &new, &mut found);
    }
    let output = world.meshd(&["events", "--limit", "10000", "-o", "json"]);
    let old = recorded["events"].as_array().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> =
        text.lines().take(old.len()).map(|line| serde_json::from_str(line).unwrap()).collect();
    differences("events", &recorded["events"], &events.into(), &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn old_site_file_with_every_key_is_valid() {
    let site =
        meshd_config::load(&folder().join("site.toml")).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(
        (site.name.as_str(), site.profiles.len(), site.reservations.len()),
        ("rack-a", 3, 2)
    );
    assert_eq!((site.http.port, site.agent.port, site.segments.len()), (8080, 8443, 3));
    let secrets: Vec<_> = site.secrets.values().map(|secret| secret.file.as_path()).collect();
    assert_eq!(secrets, [Path::new("/etc/meshd/secrets/munge.key")]);
}

#[test]
fn old_vm_file_with_every_key_is_valid() {
    let path = folder().join("vm.toml");
    let site =
        meshd_config::load(&folder().join("site.toml")).unwrap_or_else(|faults| panic!("{faults}"));
    let text = fs::read_to_string(&path).unwrap();
    let vm = parse(&text, &path).unwrap_or_else(|faults| panic!("{faults}"));
    let vm = vm.complete(&site.vms.rules.templates, SystemUuid([1; 16])).unwrap();
    assert_eq!((vm.spec.vcpus, vm.spec.volumes.len(), vm.spec.nics.len()), (8, 3, 2));
}

#[test]
fn old_store_opens_and_answers_as_before() {
    let mut world = World::prepared("approve");
    for part in ["state", "site.toml"] {
        let path = world.path(part);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }
    let archive = folder().join("site.tar.gz");
    let unpacked =
        Command::new("tar").arg("-C").arg(world.path("")).arg("-xzf").arg(archive).status();
    assert!(unpacked.unwrap().success());
    world.start();
    answers_are_the_same(&world, |_| false);
    // And it is written: what was read is not all that works.
    let node = world.json(&["node", "list", "-o", "json"])[0]["id"].as_str().unwrap().to_owned();
    let set = world.meshd(&["node", "set", &node, "kvm_ksm=true"]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    assert!(world.stop().success());
    world.start();
    assert_eq!(world.json(&["node", "show", &node, "-o", "json"])["vars"]["kvm_ksm"], true);
}

#[test]
fn old_backup_is_verified_and_restored() {
    let mut world = World::prepared("approve");
    let file = folder().join("rack.backup");
    let key = folder().join(KEY);
    let file = file.to_str().unwrap();
    let key = key.to_str().unwrap();
    let rack = world.path("rack");
    let done = |args: &[&str]| {
        let output = world.meshd(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    done(&["backup", "verify", file]);
    let verified = done(&["backup", "verify", file, "--key-file", key]);
    assert!(
        verified.contains("site world, made 20") && verified.contains("every digest is correct"),
        "{verified}"
    );
    done(&["backup", "restore", file, "--key-file", key, "--into", rack.to_str().unwrap()]);
    for part in ["agent", "stage1", "loaders"] {
        fs::rename(world.path(part), rack.join(part)).unwrap();
    }
    world.site = rack.join("site.toml");
    world.start();
    // Tokens are void after a restore, and no VM is started before its node reports it.
    answers_are_the_same(&world, |question| {
        question.contains("token") || question.starts_with("vm")
    });
    let vms = world.json(&["vm", "list", "-o", "json"]);
    same("vm list", &names(&json(ANSWERS)["answers"]["vm list"]), &names(&vms));
}

fn names(vms: &Value) -> Value {
    vms.as_array().unwrap().iter().map(|vm| vm["name"].clone()).collect()
}

/// What was said is read, and said again as it was.
fn is_read_as<T: DeserializeOwned + Serialize>(message: &Value) {
    let read: T = serde_json::from_value(message.clone())
        .unwrap_or_else(|error| panic!("{error}: {message}"));
    same("message", message, &serde_json::to_value(&read).unwrap());
}

#[test]
fn messages_of_the_previous_agent_are_read() {
    let messages = json(MESSAGES);
    let mut kinds = Vec::new();
    for message in messages.as_array().unwrap() {
        let who = message[0].as_str().unwrap();
        let message = &message[1];
        let kind = message["kind"].as_str().unwrap_or("request");
        match (who, kind) {
            ("agent", "request") => is_read_as::<PendingHello>(message),
            ("agent", _) => is_read_as::<FromAgent>(message),
            ("central", "waiting" | "approved" | "rejected") => is_read_as::<PendingReply>(message),
            ("central", _) => is_read_as::<FromCentral>(message),
            _ => is_read_as::<EnrolRequest>(message),
        }
        kinds.push(format!("{who} {kind}"));
    }
    for kind in [
        "agent hello",
        "agent heartbeat",
        "agent checks",
        "agent report",
        "central welcome",
        "central spec",
    ] {
        assert!(kinds.iter().any(|seen| seen == kind), "{kind}: {kinds:?}");
    }
}
