//! The whole chain over real sockets: DHCP, TFTP, script, blobs, overlay, enrolment, link, with a
//! fake machine and a real agent.

use crate::world::{
    World,
    dhcp::As,
    eventually,
    node::{Agent, Overlay, PxeNode},
    stderr,
};
use serde_json::Value;

fn words(node: &Value) -> Vec<String> {
    let stages = node["boot"]["stages"].as_array().cloned().unwrap_or_default();
    stages.iter().filter_map(|mark| mark["stage"].as_str().map(str::to_owned)).collect()
}

fn token_of(overlay: &Overlay) -> Option<String> {
    let boot: Value = serde_json::from_slice(&overlay["etc/meshd/boot.json"].1).unwrap();
    boot["token"].as_str().map(str::to_owned)
}

#[test]
fn machine_boots_to_online_and_leaves_no_token_behind() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    assert_eq!(overlay["etc/meshd/boot.json"].0 & 0o777, 0o600, "the token is for root alone");
    let boot: Value = serde_json::from_slice(&overlay["etc/meshd/boot.json"].1).unwrap();
    assert_eq!(boot["http_port"], 8080, "tasks are kept from it");
    let token = token_of(&overlay).expect("policy auto gives a token");
    let agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    // Machines need time between what they fetch and what they do next, and meshd notes meanwhile
    // that it was fetched; the fake one does not.
    const FETCHED: [&str; 6] = ["initramfs", "kernel", "loader", "modloop", "overlay", "packages"];
    let node = eventually("all is noted", || {
        let node = world.node();
        if words(&node).len() == 13 { Ok(node) } else { Err(node.to_string()) }
    });
    let (mut fetched, asked): (Vec<_>, Vec<_>) =
        words(&node).into_iter().partition(|stage| FETCHED.contains(&stage.as_str()));
    fetched.sort_unstable();
    assert_eq!(fetched, FETCHED);
    assert_eq!(asked, ["dhcp", "ipxe_dhcp", "script", "os_dhcp", "enrolled", "link", "online"]);
    for key in [
        "id",
        "name",
        "profile",
        "phase",
        "conditions",
        "address",
        "mac",
        "generation",
        "last_seen",
        "boot",
    ] {
        assert!(node.get(key).is_some(), "{key} in {node}");
    }
    let left = std::fs::read_to_string(agent.file("boot.json")).unwrap();
    assert!(!left.contains(&token), "the agent removed its token");
    let state = world.state_bytes();
    assert!(
        !state.windows(token.len()).any(|window| window == token.as_bytes()),
        "the token is in no store and no log"
    );
    let timeline = world.json(&["node", "timeline", node["id"].as_str().unwrap(), "-o", "json"]);
    assert_eq!(timeline["stages"].as_array().map(Vec::len), Some(13), "{timeline}");
}

#[test]
fn unknown_machine_has_no_token_and_comes_online_once_approved() {
    let world = World::new("approve");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    assert_eq!(token_of(&overlay), None);
    let _agent = machine.start_agent(&overlay);
    let node = world.wait_for_phase("discovered");
    let id = node["id"].as_str().unwrap();
    eventually("the agent waits", || {
        let facts = world.json(&["node", "show", id, "-o", "json"])["facts"].clone();
        if facts.is_null() { Err("no facts yet".to_owned()) } else { Ok(()) }
    });
    assert!(world.meshd(&["node", "approve", id]).status.success());
    world.wait_for_phase("online");
}

#[test]
fn unknown_profile_is_refused_with_the_list_of_profiles() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    machine.power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let refused = world.meshd(&["node", "assign-profile", &id, "computer"]);
    let message = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("compute") && message.contains("discovery"), "{message}");
}

#[test]
fn reboot_applies_the_assigned_profile() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let agent = machine.start_agent(&overlay);
    let before = world.wait_for_phase("online");
    let id = before["id"].as_str().unwrap();
    let assigned = world.meshd(&["node", "assign-profile", id, "compute", "--reboot"]);
    assert!(assigned.status.success(), "{}", String::from_utf8_lossy(&assigned.stderr));
    drop(agent);
    let overlay = machine.boot();
    assert!(overlay.contains_key("etc/motd"), "the overlay motd is in it");
    let _agent = machine.start_agent(&overlay);
    let after = world.wait_for_phase("online");
    assert_eq!(after["profile"], "compute");
    assert_ne!(after["generation"], before["generation"]);
    assert_ne!(after["boot"]["session"], before["boot"]["session"]);
    assert_eq!(after["conditions"], serde_json::json!([]), "no reboot is required any more");
}

/// Where the central node is killed, in the order of the chain.
const STAGES: [&str; 7] = ["dhcp", "loader", "script", "kernel", "overlay", "enrolled", "link"];

#[test]
fn meshd_killed_at_any_boot_stage_still_brings_machine_online() {
    for stage in STAGES {
        let mut world = World::new("auto");
        let (address, _agent) = walk_with_a_kill(&mut world, stage);
        let node = world.wait_for_phase("online");
        assert_eq!(node["address"], address, "killed at {stage}: the lease was acknowledged");
        assert_eq!(
            world.events("discovered").len(),
            1,
            "killed at {stage}: one machine, discovered once"
        );
    }
}

/// Boots one machine and kills the central node right after a stage. Gives the address that was
/// leased, and the agent.
fn walk_with_a_kill(world: &mut World, stage: &str) -> (String, Agent) {
    let strike = |world: &mut World, now: &str| {
        if now == stage {
            world.kill();
            world.start();
        }
    };
    let address = PxeNode::new(world, 1).dhcp(As::Firmware(0)).address.to_string();
    strike(world, "dhcp");
    assert!(PxeNode::new(world, 1).tftp("undionly.kpxe").is_ok());
    strike(world, "loader");
    let script = PxeNode::new(world, 1).ipxe().unwrap();
    strike(world, "script");
    assert_eq!(
        PxeNode::new(world, 1).get(&script.urls()[0]).unwrap().status,
        200,
        "a blob needs no memory of before"
    );
    strike(world, "kernel");
    // A capability does not survive a restart; the script tells iPXE to ask for another one.
    let loaded = PxeNode::new(world, 1).load(&script);
    let overlay = loaded.unwrap_or_else(|_| PxeNode::new(world, 1).retry_from_ipxe());
    strike(world, "overlay");
    let agent = PxeNode::new(world, 1).start_agent(&overlay);
    for awaited in ["enrolled", "link"] {
        if stage == awaited {
            eventually(awaited, || {
                let node = world.node();
                if words(&node).iter().any(|word| word == awaited) {
                    Ok(())
                } else {
                    Err(node.to_string())
                }
            });
        }
        strike(world, awaited);
    }
    (address, agent)
}

#[test]
fn startup_error_names_cause_and_remedy() {
    let mut world = World::prepared("auto");
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    let refuses = |world: &World, site: String, words: &[&str]| {
        std::fs::write(world.path("site.toml"), site).unwrap();
        let message = world.serve_and_fail();
        assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
        assert!(!message.contains("panicked"), "{message}");
    };
    refuses(&world, site.replace("\"br0\"", "\"eth9\""), &["eth9"]);
    refuses(
        &world,
        site.replace("loaders_dir = \"loaders\"", "loaders_dir = \"nothing\""),
        &["undionly.kpxe", "ipxe"],
    );
    refuses(
        &world,
        site.replace("binary = \"agent\"", "binary = \"nothing\""),
        &["agent", "make build"],
    );
    for (program, cause) in
        [("/bin/ls", "dynamically linked"), ("site.toml", "no 64-bit ELF program")]
    {
        let foreign = site.replace("binary = \"agent\"", &format!("binary = \"{program}\""));
        refuses(&world, foreign, &["cannot use the agent", program, cause, "make build"]);
    }
    refuses(
        &world,
        site.replace("port = 8080", "port = \"http\"\ncolour = 1"),
        &["port", "colour"],
    );
    std::fs::write(world.path("site.toml"), &site).unwrap();
    world.start();
    assert!(
        world.serve_and_fail().contains("another meshd"),
        "a second daemon on one store or port"
    );
    assert!(world.stop().success(), "SIGTERM is a clean end");
}

#[test]
fn machine_without_built_image_waits_in_ipxe_and_then_boots() {
    let mut world = World::prepared("auto");
    std::fs::remove_dir_all(world.path("state/blobs")).unwrap();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let refused = machine.power_on().unwrap();
    assert!(refused.overlay().is_none());
    assert!(refused.0.contains("meshd image build small"), "{}", refused.0);
    assert!(
        refused.0.contains("chain") && refused.0.contains("sleep"),
        "it waits and asks again: {}",
        refused.0
    );
    world.write_image();
    let overlay = eventually("the built image is seen", || {
        let script = machine.ipxe().map_err(|error| error.to_string())?;
        machine.load(&script).map_err(|error| error.to_string())
    });
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
}

#[test]
fn damaged_blob_is_never_served() {
    let mut world = World::prepared("auto");
    let blobs = world.path("state/blobs/sha256");
    for blob in std::fs::read_dir(blobs).unwrap().flatten() {
        let mut bytes = std::fs::read(blob.path()).unwrap();
        bytes[1000] ^= 1;
        std::fs::write(blob.path(), bytes).unwrap();
    }
    world.start();
    let refused = PxeNode::new(&world, 1).power_on().unwrap();
    assert!(refused.urls().is_empty(), "{}", refused.0);
}

#[test]
fn changed_agent_file_is_reloaded_and_unusable_one_is_refused() {
    use meshd_image::catalog::agent::sample_agent;
    use meshd_types::Architecture;
    let mut world = World::prepared("auto");
    world.start();
    std::fs::write(world.path("agent"), "#!/bin/sh\n").unwrap();
    eventually("the reload is refused", || match world.events("reload_refused").len() {
        1.. => Ok(()),
        count => Err(count.to_string()),
    });
    let reloads = world.events("reloaded").len();
    std::fs::write(world.path("agent"), sample_agent(Architecture::X86_64, b"another build"))
        .unwrap();
    eventually("the new agent is taken", || match world.events("reloaded").len() {
        now if now > reloads => Ok(()),
        count => Err(count.to_string()),
    });
}
