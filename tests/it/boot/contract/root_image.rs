//! A machine whose profile has an image of kind `root`: what it is given, and its report of a failed
//! boot.

use crate::world::{
    IMAGE_KIND, World,
    dhcp::As,
    eventually,
    node::{PxeNode, Script},
    stderr, unpack,
};
use meshd_image::catalog::agent::sample_agent;
use meshd_types::Architecture;
use serde_json::Value;
use std::{env, fs, process::Command};

/// Tests of theft and replay: modules whose machines boot.
const REPLAYED: [&str; 5] = ["arp_theft", "boot_lan", "boot_theft", "sessions", "tokens"];
/// Fewer tests than these modules have: a filter that matches none passes, too.
const LEAST_REPLAYED: usize = 40;

fn done(world: &World, args: &[&str]) {
    let output = world.meshd(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
}

fn world() -> World {
    let mut world = World::prepared("auto");
    world.write_root_image("tiny");
    let profile = "[profiles.tiny]\nimage = \"tiny\"\noverlays = [\"base\", \"agent\"]\n\
        writable = \"64M\"\n[profiles.compute]";
    world.edit_site("[profiles.compute]", profile);
    world.edit_site("profile = \"discovery\"", "profile = \"tiny\"");
    world.start();
    world
}

fn overlay_of(machine: &PxeNode<'_>, script: &Script) -> Value {
    let url = script.overlay().unwrap_or_else(|| panic!("{script:?}"));
    let answer = machine.get(&url).unwrap();
    assert_eq!(answer.status, 200, "{script:?}");
    let again = machine.get(&url).unwrap();
    assert_ne!(again.status, 200, "the capability is spent");
    let (config, overlay) = unpack::stage1(&answer.body);
    let boot: Value = serde_json::from_slice(&overlay["etc/meshd/boot.json"].1).unwrap();
    assert_eq!(boot["session"], config["session"]);
    assert!(boot["token"].is_string(), "policy auto gives a token");
    assert!(overlay.contains_key("etc/systemd/system/mesh-agent.service"), "{:?}", overlay.keys());
    assert!(!overlay.contains_key("sbin/mesh-init") && !overlay.contains_key("etc/apk/world"));
    assert_eq!(overlay["etc/machine-id"].1.len(), "0123456789abcdef0123456789abcdef\n".len());
    config
}

#[test]
fn machine_id_is_that_of_the_node_at_each_boot() {
    let world = world();
    let machine_id = |number: u8| PxeNode::new(&world, number).boot()["etc/machine-id"].1.clone();
    let first = machine_id(1);
    assert_eq!(machine_id(1), first, "after a reboot");
    assert_ne!(machine_id(2), first, "another node");
}

/// The same tests, unchanged, in another process.
#[test]
fn theft_and_replay_tests_pass_on_nodes_with_a_root_image() {
    let mut tests = Command::new(env::current_exe().unwrap());
    tests.args(REPLAYED.map(|module| format!("attack::{module}::")));
    // They wait most of the time.
    tests.arg("--test-threads=5").env(IMAGE_KIND, "root");
    let output = tests.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", stderr(&output));
    let passed = text.split_once("test result: ok. ").map(|(_, rest)| rest).unwrap_or_default();
    let passed = passed.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
    assert!(passed >= LEAST_REPLAYED, "{text}");
}

#[test]
fn root_image_is_delivered_and_its_failure_is_in_the_timeline() {
    let world = world();
    done(&world, &["check"]);
    let machine = PxeNode::new(&world, 1);
    let script = machine.power_on().unwrap();
    assert!(script.0.contains(" rdinit=/meshd/stage1 ") && !script.0.contains("apkovl="));
    let loaded: Vec<String> = script.urls();
    assert_eq!(loaded.len(), 3, "{loaded:?}");
    for url in &loaded[..2] {
        assert_eq!(machine.get(url).unwrap().status, 200, "{url}");
    }
    let config = overlay_of(&machine, &script);
    machine.dhcp(As::Os);
    assert_eq!(config["upper_bytes"], 64 << 20);
    let root = machine.get(config["root"]["urls"][0].as_str().unwrap()).unwrap();
    assert_eq!(
        (root.status, root.body.len() as u64),
        (200, config["root"]["size"].as_u64().unwrap())
    );

    let failed = format!(
        "{}?session={}&reason=mount%20squashfs",
        config["failed_url"].as_str().unwrap(),
        config["session"].as_str().unwrap()
    );
    assert!(machine.get(&failed).unwrap().status < 300);
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let timeline = eventually("the fetch of the root is recorded", || {
        let timeline = world.json(&["node", "timeline", &id, "-o", "json"]);
        let text = timeline.to_string();
        if text.contains("\"root\"") { Ok(timeline) } else { Err(text) }
    });
    assert_eq!(timeline["failure"], "mount squashfs");
    for never in ["modloop", "packages"] {
        assert!(!timeline["stages"].to_string().contains(never), "{timeline}");
    }
    let log = world.meshd(&["node", "logs", &id]);
    assert_eq!(String::from_utf8_lossy(&log.stdout), "stage1: FAILED: mount squashfs\n");
}

/// The drivers are no part of the version: the image has the same bytes.
#[test]
fn nic_is_accepted_once_the_manifest_lists_its_driver() {
    let world = world();
    let manifest = world.path("state/blobs/images/tiny.json");
    let machine = PxeNode::new(&world, 1);
    let boots = |driver: &str| {
        let mut changed: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
        changed["parts"]["nic_drivers"] = [driver].into();
        fs::write(&manifest, changed.to_string()).unwrap();
        done(&world, &["reload"]);
        eventually("a boot session", || {
            machine.dhcp(As::Ipxe);
            let url = format!("{}&nic_hex=01-80-86-10-0e", machine.script_url());
            let script = machine.get(&url).unwrap().text();
            if script.contains("# refusal no_session") { Err(script) } else { Ok(script) }
        })
    };
    for _ in 0..2 {
        let refused = boots("1af4:*");
        assert!(refused.contains("# refusal nic_driver_missing"), "{refused}");
        let script = boots("8086:100e");
        assert!(script.contains(" rdinit=/meshd/stage1 "), "{script}");
    }
}

#[test]
fn node_pinned_to_a_root_image_boots_it_with_its_writable_layer() {
    let world = world();
    let machine = PxeNode::new(&world, 1);
    overlay_of(&machine, &machine.power_on().unwrap());
    let node = world.node();
    let id = node["id"].as_str().unwrap().to_owned();
    let generation = node["generation"].as_str().unwrap().to_owned();
    eventually("the generation is archived and pinned", || {
        let pinned = world.meshd(&["node", "pin", &id, "--generation", &generation]);
        if pinned.status.success() { Ok(()) } else { Err(stderr(&pinned)) }
    });
    world.edit_site("writable = \"64M\"", "writable = \"128M\"");
    done(&world, &["reload"]);
    let config = overlay_of(&machine, &machine.ipxe().unwrap());
    assert_eq!(config["upper_bytes"], 64 << 20, "that of the pinned generation");
}

/// The servers of the site come first, and the central node last.
#[test]
fn tethered_profile_is_delivered_with_all_servers_of_its_root() {
    let world = world();
    let machine = PxeNode::new(&world, 1);
    let ram = overlay_of(&machine, &machine.power_on().unwrap());
    assert!(ram["mode"].is_null() && ram["root"]["urls"].as_array().unwrap().len() == 1);
    world.edit_site("writable = \"64M\"", "writable = \"64M\"\nroot_mode = \"tethered\"");
    let servers = "[boot]\nroot_servers = [\"10.9.0.2:80\", \"10.9.0.3:8080\"]";
    world.edit_site("[boot]", servers);
    done(&world, &["check"]);
    done(&world, &["reload"]);
    let config = overlay_of(&machine, &machine.ipxe().unwrap());
    assert_eq!(config["mode"], "tethered");
    let path = format!("/blob/{}/root", config["root"]["digest"].as_str().unwrap());
    let urls = config["root"]["urls"].as_array().unwrap();
    assert_eq!(urls[..2], ["10.9.0.2:80", "10.9.0.3:8080"].map(|at| format!("http://{at}{path}")));
    assert_eq!(urls[2], ram["root"]["urls"][0], "the central node");
}

/// A node in mode ram needs its root no more.
#[test]
fn root_of_a_tethered_node_is_served_while_the_node_runs() {
    for (mode, status) in [("ram", 404), ("tethered", 200)] {
        let world = world();
        let changed = format!("root_mode = \"{mode}\"");
        world.edit_site("writable = \"64M\"", &changed);
        done(&world, &["reload"]);
        let machine = PxeNode::new(&world, 1);
        let script = machine.power_on().unwrap();
        let (config, overlay) =
            unpack::stage1(&machine.get(&script.overlay().unwrap()).unwrap().body);
        let root = config["root"]["urls"][0].as_str().unwrap();
        machine.dhcp(As::Os);
        let _agent = machine.start_agent(&overlay);
        let id = world.node()["id"].as_str().unwrap().to_owned();
        eventually("the agent is linked", || {
            let timeline = world.json(&["node", "timeline", &id, "-o", "json"]).to_string();
            if timeline.contains("\"link\"") { Ok(()) } else { Err(timeline) }
        });
        assert_eq!(machine.get(root).unwrap().status, 200, "current");
        world.edit_site(&changed, "");
        world.edit_site("image = \"tiny\"", "image = \"small\"");
        done(&world, &["reload"]);
        assert_eq!(machine.get(root).unwrap().status, status, "{mode}");
    }
}

/// Stage 1 is part of the generation: a later one is not delivered with it.
#[test]
fn stage_1_of_the_generation_is_delivered_after_it_was_replaced() {
    let world = world();
    let machine = PxeNode::new(&world, 1);
    let former = fs::read(world.path("stage1")).unwrap();
    let later = sample_agent(Architecture::X86_64, b"later");
    let program_of = |script: &Script| {
        unpack::stage1_program(&machine.get(&script.overlay().unwrap()).unwrap().body)
    };
    let script = machine.power_on().unwrap();
    fs::write(world.path("stage1"), &later).unwrap();
    done(&world, &["reload"]);
    assert!(program_of(&script) == former, "its script was rendered before");
    let node = world.node();
    let [id, generation] = ["id", "generation"].map(|key| node[key].as_str().unwrap());
    eventually("the generation is archived and pinned", || {
        let pinned = world.meshd(&["node", "pin", id, "--generation", generation]);
        if pinned.status.success() { Ok(()) } else { Err(stderr(&pinned)) }
    });
    assert!(program_of(&machine.ipxe().unwrap()) == former, "that of the pinned generation");
    done(&world, &["node", "pin", id, "--off"]);
    assert!(program_of(&machine.ipxe().unwrap()) == later);
}
