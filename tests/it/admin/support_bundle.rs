//! `meshd support-bundle`: what is in the archive, and what is not.

use crate::world::{World, eventually, node::PxeNode, program, stderr};
use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let mut archive =
        tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(path).unwrap()));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        files.insert(name, text);
    }
    files
}

#[test]
fn support_bundle_has_site_and_node_without_secrets() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    let id = world.wait_for_phase("online")["id"].as_str().unwrap().to_owned();
    let token = world.meshd(&["api-token", "create", "ada", "--role", "viewer"]);
    let token = String::from_utf8(token.stdout).unwrap().trim().to_owned();
    assert!(token.len() > 20, "{token}");
    let path = world.path("bundle.tar.gz");
    let file = path.to_str().unwrap();

    let preview = world.meshd(&["support-bundle", file, "--preview"]);
    assert!(preview.status.success() && !path.exists());
    let listed = String::from_utf8(preview.stdout).unwrap();
    assert!(listed.contains("status.json") && listed.contains("events.jsonl"), "{listed}");

    let made = world.meshd(&["support-bundle", file, "--node", &id]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let files = unpacked(&path);
    let refused: Vec<_> = files
        .keys()
        .filter(|name| name.ends_with(".error") && !name.ends_with("diff.json.error"))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    assert!(files["meshd-support/nodes.json"].contains(&id));
    assert!(files[&format!("meshd-support/nodes/{id}/timeline.json")].contains("ipxe_dhcp"));
    assert!(files["meshd-support/audit.json"].contains("api-token-create"));
    assert!(files["meshd-support/metrics.txt"].contains("meshd_"));
    let boot = String::from_utf8(overlay["etc/meshd/boot.json"].1.clone()).unwrap();
    let boot: serde_json::Value = serde_json::from_str(&boot).unwrap();
    for secret in [token.as_str(), boot["token"].as_str().expect("a token")] {
        let holders: Vec<_> =
            files.iter().filter(|(_, text)| text.contains(secret)).map(|(name, _)| name).collect();
        assert!(holders.is_empty(), "{holders:?}");
    }

    let again = world.meshd(&["support-bundle", file]);
    assert!(
        !again.status.success() && String::from_utf8_lossy(&again.stderr).contains("cannot write")
    );
    let unknown = world.meshd(&["support-bundle", "--preview", "--node", "nowhere"]);
    assert!(!unknown.status.success(), "an unknown node");
}

#[test]
fn values_of_variables_and_arguments_are_in_no_event_and_no_bundle() {
    const SECRET: &str = "hunter2";
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let _agent = machine.start_agent(&machine.boot());
    let id = world.wait_for_phase("online")["id"].as_str().unwrap().to_owned();
    let set = world.meshd(&["node", "set", &id, &format!("slurm_cluster={SECRET}")]);
    assert!(set.status.success(), "{}", stderr(&set));
    let mut run = Command::new(program(env!("CARGO_BIN_EXE_meshd")));
    run.arg("--site").arg(&world.site).args(["node", "exec", &id, "--", "/bin/true", SECRET]);
    run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = run.spawn().unwrap();
    eventually("the task is on record", || {
        if world.events("task").is_empty() { Err(world.log_text()) } else { Ok(()) }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let detail = |kind: &str| world.events(kind)[0]["detail"].as_str().unwrap().to_owned();
    assert_eq!(detail("vars_changed"), "slurm_cluster");
    let path = world.path("bundle.tar.gz");
    let made = world.meshd(&["support-bundle", path.to_str().unwrap(), "--node", &id]);
    assert!(made.status.success(), "{}", stderr(&made));
    for (name, text) in unpacked(&path) {
        assert!(!text.contains(SECRET), "{name}: {text}");
    }
    let audit = world.json(&["audit", "-o", "json"]).to_string();
    assert!(audit.contains("/bin/true") && !audit.contains(SECRET), "{audit}");
}
