//! Last night's backup on a new machine: the rack boots from it, and nobody notices.

use crate::world::{
    World, eventually,
    node::{Overlay, PxeNode},
    stderr,
};
use meshd_proto::BootPart;
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

fn done(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The site's authority, as an overlay brings it.
fn roots(overlay: &Overlay) -> String {
    let part: BootPart = serde_json::from_slice(&overlay["etc/meshd/boot.json"].1).unwrap();
    part.roots_pem.expect("the roots")
}

/// What a machine and its operator would notice.
const STAYS: [&str; 7] = ["id", "name", "profile", "address", "mac", "generation", "conditions"];

/// Runs age, which asks for the passphrase at a terminal.
const AGE: &str = "
import os, pty, sys
def answer(terminal):
    text = os.read(terminal, 1024)
    if b'passphrase' in text:
        os.write(terminal, b'correct horse battery staple\\n')
    return text
sys.exit(os.waitstatus_to_exitcode(pty.spawn(['age', '-d', '-o', sys.argv[2], sys.argv[1]], answer)))
";

fn age_decrypts(world: &World, file: &str) {
    let archive = world.path("decrypted.tar.gz");
    let decrypted = Command::new("python3").args(["-c", AGE, file]).arg(&archive).output().unwrap();
    assert!(decrypted.status.success(), "{decrypted:?}");
    let listed = Command::new("tar").arg("-tzf").arg(archive).output().unwrap();
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        names.lines().any(|name| name == "site.toml") && names.ends_with("manifest.json\n"),
        "{names}"
    );
}

/// The old machine is no more.
fn burn_down(world: &mut World) {
    world.kill();
    for name in ["state", "site.toml", "admin.sock"] {
        let path = world.path(name);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }
}

#[test]
fn backup_restored_on_new_machine_keeps_nodes_online_and_booting() {
    let mut world = World::new("approve");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let agent = machine.start_agent(&overlay);
    let id = world.wait_for_phase("discovered")["id"].as_str().unwrap().to_owned();
    done(&world, &["node", "approve", &id]);
    world.wait_for_phase("online");
    done(&world, &["node", "set", &id, "mpi_slots=8"]);
    let before = eventually("what it runs is known", || {
        let node = world.wait_for_phase("online");
        if node["generation"].is_null() { Err(node.to_string()) } else { Ok(node) }
    });
    let authority = roots(&overlay);

    let file = world.path("rack.backup");
    let key = world.path("backup.key");
    let file = file.to_str().unwrap();
    let key = key.to_str().unwrap();
    fs::write(key, "correct horse battery staple\n").unwrap();
    fs::write(world.path("state/generations/.archive.json.swp"), "an editor was here").unwrap();
    let made = world.meshd(&["backup", "create", file, "--key-file", key, "--blobs"]);
    let out = String::from_utf8_lossy(&made.stdout);
    assert!(made.status.success() && out.contains("every digest is correct"), "{}", stderr(&made));
    assert_eq!(
        stderr(&made),
        "warning: not in the backup: state/generations/.archive.json.swp: it is no file of meshd\n",
        "it holds all files of meshd"
    );
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(done(&world, &["backup", "verify", file]).contains("the SHA-256 is correct"));
    age_decrypts(&world, file);
    done(&world, &["node", "set", &id, "mpi_slots=9"]);
    let again = world.meshd(&["backup", "create", file, "--key-file", key]);
    assert!(!again.status.success() && stderr(&again).contains("exists"), "{}", stderr(&again));

    burn_down(&mut world);
    let rack = world.path("rack");
    let into = rack.to_str().unwrap();
    fs::write(world.path("wrong.key"), "some other long passphrase").unwrap();
    let wrong = world.path("wrong.key");
    let refused = world.meshd(&[
        "backup",
        "restore",
        file,
        "--into",
        into,
        "--key-file",
        wrong.to_str().unwrap(),
    ]);
    assert!(!refused.status.success() && stderr(&refused).contains("key"), "{}", stderr(&refused));
    let restored = done(&world, &["backup", "restore", file, "--into", into, "--key-file", key]);
    assert!(restored.contains("1 node,"), "{restored}");
    let refused = world.meshd(&["backup", "restore", file, "--into", into, "--key-file", key]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("not empty"),
        "{}",
        stderr(&refused)
    );

    // Programs and loaders are no state: they are installed on the new machine.
    for program in ["agent", "stage1"] {
        fs::copy(world.path(program), rack.join(program)).unwrap();
    }
    fs::rename(world.path("loaders"), rack.join("loaders")).unwrap();
    world.site = rack.join("site.toml");
    world.start();
    let after = world.wait_for_phase("online");
    for what in STAYS {
        assert_eq!(after[what], before[what], "{what}");
    }
    let shown = world.json(&["node", "show", &id, "-o", "json"]);
    assert_eq!(shown["vars"]["mpi_slots"], 8, "as of the moment of the backup");
    assert_eq!(world.events("restored").len(), 1);

    // And it boots as before: same address, same authority, same generation.
    drop(agent);
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    assert_eq!(roots(&overlay), authority);
    let _agent = machine.start_agent(&overlay);
    let booted = eventually("it boots from the new machine", || {
        let node = world.node();
        let is_new = node["boot"]["session"] != before["boot"]["session"];
        if node["phase"] == "online" && is_new {
            Ok(node)
        } else {
            Err(format!("{node}\n{}", world.log_text()))
        }
    });
    assert_eq!((&booted["id"], &booted["address"]), (&before["id"], &before["address"]));
    assert_eq!(world.events("discovered").len(), 1, "one machine, discovered once");
}

#[test]
fn backup_without_meshd_or_with_weak_key_leaves_no_file() {
    let world = World::prepared("auto");
    let file = world.path("b");
    let key = world.path("k");
    let args = ["backup", "create", file.to_str().unwrap(), "--key-file", key.to_str().unwrap()];
    fs::write(&key, "hunter2").unwrap();
    let short = world.meshd(&args);
    assert!(stderr(&short).contains("openssl rand"), "{}", stderr(&short));
    fs::write(&key, "correct horse battery staple").unwrap();
    let down = world.meshd(&args);
    assert!(stderr(&down).contains("is meshd running?"), "{}", stderr(&down));
    let left: Vec<_> =
        ["b", "b.part"].iter().filter(|name| Path::new(&world.path(name)).exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}
