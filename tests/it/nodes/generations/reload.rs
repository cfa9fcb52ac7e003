//! Site, overlays and images as one: live when all of it is sound, and refused with every reason
//! when it is not.

use super::{args, done, refused};
use crate::world::{World, eventually, node::PxeNode};
use std::fs;

/// A world with overlays of its own, to be edited.
pub fn world() -> World {
    let world = World::prepared("auto");
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/overlays");
    let copied = std::process::Command::new("cp")
        .args(["-r", shipped])
        .arg(world.path("overlays"))
        .status()
        .unwrap();
    assert!(copied.success());
    edit(&world, &format!("overlays_dir = \"{shipped}\""), "overlays_dir = \"overlays\"");
    world
}

/// Replaces some text of the site file.
pub fn edit(world: &World, from: &str, to: &str) {
    let text = fs::read_to_string(world.path("site.toml")).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    put(world, "site.toml", &text.replace(from, to));
}

/// Writes a file in one step: meshd may look at any moment.
pub fn put(world: &World, path: &str, text: &str) {
    fs::write(world.path("being-written"), text).unwrap();
    fs::rename(world.path("being-written"), world.path(path)).unwrap();
}

#[test]
fn revisions_of_an_edited_profile_are_listed_with_their_changes() {
    let mut world = world();
    world.start();
    let history = |count: usize| {
        eventually("its revisions", || {
            let all = world.json(&["profile", "history", "compute", "--changes", "-o", "json"]);
            if all.as_array().map(Vec::len) == Some(count) { Ok(all) } else { Err(all.to_string()) }
        })
    };
    assert!(history(1)[0]["changes"].is_null(), "the oldest one changed nothing");
    edit(&world, "[profiles.compute]", "[profiles.compute]\nkernel_args = [\"debug\"]");
    put(&world, "overlays/motd/rootfs/etc/motd.j2", "<b>changed</b>\n");
    fs::write(world.path("overlays/motd/rootfs/etc/note"), "new").unwrap();
    done(&world, &["reload"]);
    let all = history(2);
    let changes = &all[0]["changes"];
    let args = &changes["changed"]["kernel_args"];
    assert!(
        args[1].as_str().unwrap().contains("debug")
            && !args[0].as_str().unwrap_or("").contains("debug"),
        "{all}"
    );
    assert_eq!(changes["files"]["motd/rootfs/etc/motd.j2"], "changed", "{all}");
    assert_eq!(changes["files"]["motd/rootfs/etc/note"], "added", "{all}");
    let table =
        String::from_utf8(world.meshd(&["profile", "history", "compute", "--changes"]).stdout)
            .unwrap();
    assert!(
        table.contains("~ motd/rootfs/etc/motd.j2") && table.contains("+ motd/rootfs/etc/note"),
        "{table}"
    );
    assert!(table.contains("the oldest revision on record"), "{table}");
}

#[test]
fn reload_applies_edit_at_once_and_refuses_faulty_edit_as_a_whole() {
    let mut world = world();
    world.start();
    let machine = PxeNode::new(&world, 1);
    edit(&world, "[profiles.compute]", "[profiles.compute]\nkernel_args = [\"debug\"]");
    done(&world, &["reload"]);
    machine.power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    done(&world, &["node", "assign-profile", &id, "compute"]);
    assert!(args(&machine.ipxe().unwrap()).contains(&"debug".to_owned()));
    // A key of the site, a template and an overlay, all wrong.
    edit(&world, "\"debug\"", "\"init=/bin/sh\"");
    refused(
        &world,
        &["reload"],
        &["site.toml:", "profiles.compute.kernel_args[0]", "set by meshd itself"],
    );
    put(&world, "overlays/motd/rootfs/etc/motd.j2", "{{ node.nothing }}");
    edit(&world, "\"init=/bin/sh\"", "\"quiet\"");
    refused(&world, &["reload"], &["motd.j2", "nothing"]);
    assert!(
        args(&machine.ipxe().unwrap()).contains(&"debug".to_owned()),
        "the last good one is live as a whole"
    );
    let doctor = world.meshd(&["doctor"]);
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        found.contains("warn  reload") && found.contains("the last valid one is in use"),
        "{found}"
    );
    let events = eventually("it is on record", || {
        let events = world.events("reload_refused");
        if events.len() >= 2 { Ok(events) } else { Err(format!("{events:?}")) }
    });
    assert!(events[0]["detail"].as_str().unwrap().contains("kernel_args"), "{events:?}");
    put(&world, "overlays/motd/rootfs/etc/motd.j2", "hello {{ node.id }}\n");
    done(&world, &["reload"]);
    let script = machine.ipxe().unwrap();
    assert!(
        args(&script).contains(&"quiet".to_owned()) && !args(&script).contains(&"debug".to_owned())
    );
    let overlay = machine.load(&script).unwrap();
    assert_eq!(overlay["etc/motd"].1, format!("hello {id}\n").into_bytes());
    assert!(
        String::from_utf8_lossy(&world.meshd(&["doctor"]).stdout).contains("reload"),
        "it is sound again"
    );
}

#[test]
fn reload_applies_edits_and_names_keys_that_need_a_restart() {
    let mut world = world();
    world.start();
    edit(&world, "port = 8080", "port = 8081");
    edit(&world, "[profiles.compute]", "[profiles.compute]\nkernel_args = [\"debug\"]");
    let message = done(&world, &["reload"]);
    assert!(message.contains("needs a restart") && message.contains("http.port"), "{message}");
    let machine = PxeNode::new(&world, 1);
    machine.power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    done(&world, &["node", "assign-profile", &id, "compute"]);
    let script = machine.ipxe().unwrap();
    assert!(
        args(&script).contains(&"debug".to_owned()) && script.0.contains(":8080/"),
        "{}",
        script.0
    );
    let found = String::from_utf8_lossy(&world.meshd(&["doctor"]).stdout).into_owned();
    assert!(found.contains("http.port"), "{found}");
}

#[test]
fn group_is_shown_on_its_node_and_unknown_overlay_is_refused() {
    let mut world = world();
    world.start();
    let machine = PxeNode::new(&world, 1);
    machine.power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let group = format!(
        "[groups.pair]\nnodes = [\"{id}\", \"zzzzzzzz\"]\noverlays = [\"motd\"]\n[profiles.compute]"
    );
    edit(&world, "[profiles.compute]", &group);
    done(&world, &["reload"]);
    let shown = world.json(&["node", "show", &id, "-o", "json"]);
    assert_eq!(shown["groups"], serde_json::json!(["pair"]));
    edit(&world, "overlays = [\"motd\"]\n[profiles", "overlays = [\"modt\"]\n[profiles");
    refused(&world, &["reload"], &["modt", "motd"]);
}
