//! Console input: every byte that an operator sends reaches the guest, in order, at the guest's
//! pace.

use super::{
    central::{Machine, add, create, reaches, world},
    console::Console,
    guest::{Guest, HELLO, Node},
    linux,
};
use crate::world::node::PxeNode;
use meshd_types::Digest;

/// Bytes of the large paste: four times the capacity of a terminal frame.
const PASTE: usize = 64 * 1024;

/// Returns text in which a missing, repeated or moved byte is visible: numbered lines.
fn text(bytes: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|line: u32| {
        format!("{line:06} ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789\r").into_bytes()
    });
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

    let mut console = Console::open(&world, "one");
    console.shows(HELLO);
    // More than the FIFO of 16 bytes of the guest's UART, in one piece.
    let line = text(64);
    console.types(&line);
    console.until("a line in one piece", |received| received.ends_with(&echoed(&line)));
    let paste = text(PASTE);
    console.types(&paste);
    console.until("a paste in one piece", |received| received.ends_with(&echoed(&paste)));
    console.leave();
}

#[test]
fn linux_guest_receives_every_byte_of_lines_and_of_a_64_kib_paste() {
    let world = world();
    let mut machine = Machine::new(&world, &PxeNode::new(&world, 1).boot());
    machine.start();
    world.wait_for_phase("online");
    linux::create(&world, "one");
    reaches(&machine, "one", "running");

    let mut console = Console::open(&world, "one");
    console.shows(linux::PROMPT);
    // As an operator did when 18 letters and the Enter were lost.
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz";
    console.types(format!("echo {letters}\r").as_bytes());
    console.shows(&format!("\r\n{letters}\r\n"));
    console.types(b"echo again $((6 * 7))\r");
    console.shows("\r\nagain 42\r\n");

    // The terminal passes bytes on as they come; the guest says what it has received.
    let paste = text(PASTE);
    console.types(
        format!("stty raw -echo; echo re''ady; head -c {PASTE} | sha256sum; stty sane\r")
            .as_bytes(),
    );
    console.shows("ready\n");
    console.types(&paste);
    console.shows(&Digest::of(&paste).to_string());
    console.leave();
}
