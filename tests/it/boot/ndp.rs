//! IPv6 router solicitations of a real client.

use crate::world::{World, eventually};
use std::process::{Command, Stdio};

/// Sends one router solicitation. Returns whether an answer arrives in time, and the output of
/// rdisc6.
pub fn ask(world: &World, seconds: u32) -> (bool, String) {
    let mut command = Command::new("rdisc6");
    command
        .args(["-1", "-r", "1", "-w", &(seconds * 1000).to_string(), "eth0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = world.nodes.spawn(&mut command).unwrap().wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn router_solicitation_is_answered_unless_host_forwards_ipv6() {
    let world = World::new("auto");
    // The addresses of both ends are tried for a second before they may be used.
    eventually("rdisc6 has an answer", || {
        let (answered, text) = ask(&world, 1);
        let none = text.lines().any(|line| {
            line.starts_with("Router lifetime") && line.contains(" 0 (0x00000000) seconds")
        });
        if answered && none { Ok(()) } else { Err(text) }
    });
    let forward = |value: &str| {
        let path = "/proc/sys/net/ipv6/conf/br0/forwarding";
        world.central.inside(|| std::fs::write(path, value)).unwrap().unwrap();
    };
    forward("1");
    assert!(!ask(&world, 1).0, "a host that forwards leaves the answer to its routing daemon");
    forward("0");
    eventually("it speaks again when it no longer does", || {
        let (answered, text) = ask(&world, 1);
        if answered { Ok(()) } else { Err(text) }
    });
}
