//! The log of a node's boot, with the real daemon, the real agent and the real program.

mod netconsole;

use crate::world::{CENTRAL, World, eventually, node::PxeNode, stderr};
use std::{fs, io::Write as _, net::UdpSocket};

fn logs(world: &World, arguments: &[&str]) -> String {
    let output = world.meshd(&[&["node", "logs"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    text.into_owned()
}

fn until_logged(world: &World, node: &str, line: &str) -> String {
    eventually("the line is stored", || {
        let text = logs(world, &[node]);
        if text.contains(line) { Ok(text) } else { Err(text) }
    })
}

#[test]
fn system_log_is_stored_whole_sanitized_and_survives_a_kill() {
    let mut world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let agent = machine.start_agent(&overlay);
    let log = agent.file("root/var/log/messages");
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    fs::write(&log, "first line\n\u{1b}]0;title\u{7}and <b>markup</b>\n").unwrap();
    let node = world.wait_for_phase("online")["id"].as_str().unwrap().to_owned();
    let text = until_logged(&world, &node, "markup");
    assert_eq!(text, "first line\nand <b>markup</b>\n");
    let raw = logs(&world, &[&node, "--raw"]);
    assert_eq!(raw, "first line\n\u{1b}]0;title\u{7}and <b>markup</b>\n");
    assert_eq!(
        logs(&world, &[&node, "--source", "kernel"]),
        "",
        "the machine of this test has no /dev/kmsg"
    );

    drop(machine);
    world.kill();
    world.start();
    let mut file = fs::File::options().append(true).open(&log).unwrap();
    file.write_all(b"after the restart\n").unwrap();
    let text = until_logged(&world, &node, "after the restart");
    assert!(
        text.starts_with("first line\n") && text.lines().count() == 3,
        "each line once: {text}"
    );

    let output = world.meshd(&["node", "logs", &node, "--session", "000000000000000000000000"]);
    let message = stderr(&output);
    assert!(!output.status.success() && message.contains("no such boot on record"), "{message}");
}

#[test]
fn boot_failure_reason_is_accepted_only_from_the_booting_machine() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let other = PxeNode::new(&world, 2);
    machine.boot();
    let session = world.events("boot_started")[0]["session"].as_str().unwrap().to_owned();
    other.dhcp(crate::world::dhcp::As::Firmware(0));
    let url = |session: &str| {
        format!("http://{CENTRAL}:8080/boot/failed?session={session}&reason=%6eo%20packages%0a")
    };
    assert_eq!(other.get(&url(&session)).unwrap().status, 404, "another machine");
    assert_eq!(
        machine.get(&url("000000000000000000000000")).unwrap().status,
        404,
        "another session"
    );
    assert_eq!(machine.head(&url(&session)).unwrap().status, 200);
    assert!(world.events("boot_failed").is_empty());

    assert_eq!(machine.get(&url(&session)).unwrap().status, 200);
    let events = world.events("boot_failed");
    assert_eq!(
        (events.len(), &events[0]["detail"], &events[0]["session"]),
        (1, &"no packages".into(), &session.into())
    );
    let node = events[0]["node"].as_str().unwrap();
    assert_eq!(logs(&world, &[node]), "mesh-init: FAILED: no packages\n");
    let timeline = world.json(&["node", "timeline", node, "-o", "json"]);
    assert_eq!(
        (&timeline["result"], &timeline["failure"]),
        (&"failed".into(), &"no packages".into()),
        "{timeline}"
    );

    // The reason is shown until a later boot comes online.
    machine.boot();
    let text = String::from_utf8(world.meshd(&["node", "timeline", node]).stdout).unwrap();
    assert!(text.contains("the boot before failed:\n  no packages\n"), "{text}");
}

#[test]
fn kernel_message_by_udp_is_in_the_log_of_its_machine_once() {
    let mut world = World::prepared("auto");
    world.edit_site("[boot]", "[boot]\nnetconsole_port = 6666");
    world.start();
    let machine = PxeNode::new(&world, 1);
    let stranger = PxeNode::new(&world, 2);
    let script = machine.ipxe().unwrap();
    assert!(script.0.contains(" meshd.netconsole=6666"), "{}", script.0);
    stranger.dhcp(crate::world::dhcp::As::Firmware(0));
    let send = |from: &PxeNode<'_>, packet: &str| {
        let sent = from.host().inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:6665").unwrap();
            socket.send_to(packet.as_bytes(), (CENTRAL, 6666)).unwrap();
        });
        sent.unwrap();
    };
    // A machine without a boot script is no node: its message is dropped.
    send(&stranger, "6,1,1000000,-;of a stranger\n");
    // A netconsole repeats the kernel's messages, the command line among them.
    let url = "http://10.77.0.1:8080/overlay/00112233445566778899aabbccddeeff/apkovl";
    let (first, second) = url.split_at(40);
    send(&machine, &format!("6,0,1,-,ncfrag=0/{};{first}", url.len()));
    send(&machine, &format!("6,0,1,-,ncfrag=40/{};{second}", url.len()));
    send(&machine, "6,1,1000000,-,ncfrag=0/25;Kernel panic:");
    send(&machine, "6,1,1000000,-,ncfrag=13/25; no \u{1b}[2Jinit");
    send(&machine, "6,2,1500000,-;Rebooting\n SUBSYSTEM=x\n");
    let nodes = world.json(&["node", "list", "-o", "json"]);
    let mac = machine.mac.to_string();
    let node = nodes.as_array().unwrap().iter().find(|node| node["mac"] == mac.as_str()).unwrap();
    let text = until_logged(&world, node["id"].as_str().unwrap(), "Rebooting");
    let (line, rest) = text.split_once('\n').unwrap();
    assert_eq!(line, "[    0.000001] http://10.77.0.1:8080/overlay/.../apkovl");
    assert_eq!(rest, "[    1.000000] Kernel panic: no init\n[    1.500000] Rebooting\n");
}
