//! Console input: every byte that an operator sends reaches the guest, in order, at the guest's pace.

use super::{
    central::{Machine, add, create, reaches, world},
    guest::{Guest, HELLO, Node},
};
use crate::world::{eventually, node::PxeNode};
use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

/// Bytes of the large paste: four times the capacity of a terminal frame.
const PASTE: usize = 64 * 1024;

/// Returns text in which a missing, repeated or moved byte is visible: numbered lines.
fn text(bytes: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|line: u32| format!("{line:06} ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789\r").into_bytes());
    lines.take(bytes).collect()
}

/// Returns what [`Guest::Echo`] writes for typed bytes.
fn echoed(typed: &[u8]) -> Vec<u8> {
    typed.iter().map(|byte| byte + 1).collect()
}

#[test]
fn console_paste_of_64_kib_reaches_guest_complete_and_in_order() {
    let world = world();
    let guests = Node::new();
    let digest = add(&world, &guests, Guest::Echo, "echo");
    let mut machine = Machine::new(&world, &PxeNode::new(&world, 1).boot());
    machine.start();
    world.wait_for_phase("online");
    create(&world, "one", &digest);
    reaches(&machine, "one", "running");

    let mut console = Command::new(env!("CARGO_BIN_EXE_meshd"));
    console.arg("--site").arg(&world.site).args(["vm", "console", "one"]);
    let mut console = console.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut keys, mut shown) = (console.stdin.take().unwrap(), console.stdout.take().unwrap());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = shown.read(&mut bytes) {
            hears.lock().unwrap().extend_from_slice(&bytes[..length]);
        }
    });
    let shows = |what: &str, wanted: &[u8]| {
        eventually(what, || {
            let heard = heard.lock().unwrap();
            let tail = String::from_utf8_lossy(&heard[heard.len().saturating_sub(80)..]).into_owned();
            if heard.ends_with(wanted) { Ok(()) } else { Err(format!("{} bytes, the last {tail:?}", heard.len())) }
        });
    };
    shows("the guest speaks", HELLO.as_bytes());
    // More than the FIFO of 16 bytes of the guest's UART, in one piece.
    let line = text(64);
    keys.write_all(&line).unwrap();
    shows("a line in one piece", &echoed(&line));
    let paste = text(PASTE);
    keys.write_all(&paste).unwrap();
    shows("a paste in one piece", &echoed(&paste));
    keys.write_all(b"\x1d").unwrap();
    let status = eventually("the console is left", || console.try_wait().unwrap().ok_or("it runs".to_owned()));
    assert!(status.success());
    reader.join().unwrap();
}
