//! Secrets of overlays: in the overlay of one boot of a node that somebody approved, and nowhere
//! else; a changed one is another generation.

use crate::world::{World, eventually, node::PxeNode, stderr};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

const FIRST: &str = "correct-horse-battery-staple";
const SECOND: &str = "tr0ub4dor-and-3";

/// A site whose default profile has an overlay with a secret.
fn world(policy: &str) -> World {
    let world = World::prepared(policy);
    let overlays = world.path("overlays");
    for name in ["base", "agent", "motd"] {
        copy(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays").join(name),
            &overlays.join(name),
        );
    }
    let keyed = overlays.join("keyed");
    fs::create_dir_all(keyed.join("rootfs/etc")).unwrap();
    let manifest = "description = \"x\"\n[variables.key]\ntype = \"text\"\nsecret = true\n[files.\"/etc/keyed\"]\nmode = \"0600\"\n";
    fs::write(keyed.join("overlay.toml"), manifest).unwrap();
    fs::write(keyed.join("rootfs/etc/keyed.j2"), "{{ node.id }} {{ vars.key }}\n").unwrap();
    let site = fs::read_to_string(world.path("site.toml")).unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays");
    let site = site
        .replace(&shipped.display().to_string(), "overlays")
        .replace("[\"base\", \"agent\"]", "[\"base\", \"agent\", \"keyed\"]");
    fs::write(world.path("site.toml"), site + "[secrets]\nkey = { file = \"key\" }\n").unwrap();
    write_secret(&world, FIRST);
    world
}

fn write_secret(world: &World, value: &str) {
    fs::write(world.path("key"), format!("{value}\n")).unwrap();
    fs::set_permissions(world.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// What meshd says of the overlay of the one node.
fn shown(world: &World, words: &[&str]) -> Vec<u8> {
    let output = world.meshd(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    [output.stdout, output.stderr].concat()
}

#[test]
fn secret_is_only_in_the_overlay_of_an_approved_node() {
    let mut world = world("approve");
    world.start();
    let unapproved = PxeNode::new(&world, 1).boot();
    assert!(!unapproved.contains_key("etc/keyed"), "nobody has approved it");
    assert!(unapproved.values().all(|(_, content)| !holds(content, FIRST)));
    let node = world.node();
    let id = node["id"].as_str().unwrap();
    let before = node["generation"].clone();

    shown(&world, &["node", "approve", id]);
    let overlay = PxeNode::new(&world, 1).boot();
    let (mode, content) = &overlay["etc/keyed"];
    assert_eq!(
        (*mode, String::from_utf8_lossy(content).into_owned()),
        (0o600, format!("{id} {FIRST}\n"))
    );
    assert_ne!(world.node()["generation"], before, "without its secrets it was another boot");

    let placeholder =
        String::from_utf8(shown(&world, &["overlay", "cat", id, "/etc/keyed"])).unwrap();
    assert!(placeholder.contains(&format!("{id} [secret key]")), "{placeholder}");
    let archive = world.path("shown.tar.gz");
    shown(&world, &["overlay", "render", id, "--out", archive.to_str().unwrap()]);
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(
        &mut flate2::read::MultiGzDecoder::new(&fs::read(archive).unwrap()[..]),
        &mut unpacked,
    )
    .unwrap();
    assert!(holds(&unpacked, "[secret key]") && !holds(&unpacked, FIRST));
    for words in [
        ["overlay", "show", "keyed", "-o", "json"].as_slice(),
        &["overlay", "diff", id, "--profile", "compute"],
        &["overlay", "cat", "--profile", "discovery", "/etc/keyed"],
        &["check", "-o", "json"],
    ] {
        assert!(!holds(&shown(&world, words), FIRST), "{words:?}");
    }
    assert!(!holds(&world.state_bytes(), FIRST), "neither in the store nor in the log");
}

#[test]
fn changed_secret_is_read_without_restart_as_a_new_generation() {
    let mut world = world("auto");
    world.start();
    PxeNode::new(&world, 1).boot();
    let node = world.node();
    let id = node["id"].as_str().unwrap();
    let first = node["generation"].as_str().unwrap();
    assert_eq!(next_generation(&world, id), first, "the same secret, the same generation");
    world.kill();
    world.start();
    assert_eq!(next_generation(&world, id), first, "the key of the marks is kept");
    write_secret(&world, SECOND);
    let second = eventually("the new secret makes another generation", || {
        let next = next_generation(&world, id);
        if next == first { Err(next) } else { Ok(next) }
    });
    let (_, content) = &PxeNode::new(&world, 1).boot()["etc/keyed"];
    assert!(holds(content, SECOND) && !holds(content, FIRST));
    assert_eq!(world.node()["generation"], second);
}

/// The generation that the node would boot now.
fn next_generation(world: &World, id: &str) -> String {
    let out = world.path("next.tar.gz");
    let message =
        String::from_utf8(shown(world, &["overlay", "render", id, "--out", out.to_str().unwrap()]))
            .unwrap();
    message.rsplit_once("generation ").expect("it says so").1.trim().to_owned()
}

#[test]
fn secret_readable_by_others_stops_startup_and_is_not_printed() {
    let world = world("auto");
    fs::set_permissions(world.path("key"), fs::Permissions::from_mode(0o644)).unwrap();
    let message = world.serve_and_fail();
    assert!(
        message.contains("may be read by others (mode 0644)") && message.contains("chmod 600"),
        "{message}"
    );
    let checked = world.meshd(&["check"]);
    let message = stderr(&checked);
    assert!(!checked.status.success() && message.contains("may be read by others"), "{message}");
    assert!(!message.contains(FIRST), "{message}");
}
