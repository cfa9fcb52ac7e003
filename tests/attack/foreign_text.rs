//! Attack: names from requests and files that forge lines of the log and of the terminal.

use crate::world::{World, stderr};
use std::fs;

/// The begin of the line that the attacker wants the operator to read.
const FORGED: &str = "2026-01-01T00:00:00.000000Z  INFO forged: ordered actor=uid:0";

fn assert_not_forged(place: &str, text: &str) {
    assert!(text.contains("forged: ordered"), "{place} does not show the name: {text}");
    assert!(text.lines().all(|line| !line.starts_with(FORGED)), "{place}: {text}");
}

#[test]
fn foreign_text_adds_no_line_to_log_or_terminal() {
    let mut world = World::prepared("auto");
    let name = format!("x\n{FORGED}");
    let text = fs::read_to_string(&world.site).unwrap();
    let (before, rest) = text.split_once("overlays_dir = \"").unwrap();
    let (_, rest) = rest.split_once('"').unwrap();
    let folder = world.path("overlays/wrong/rootfs");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("../overlay.toml"), "").unwrap();
    // The name has a control character: a fault that names the file.
    fs::write(folder.join(name.replace('/', "-")), "").unwrap();
    fs::write(&world.site, format!("{before}overlays_dir = \"overlays\"{rest}")).unwrap();
    let checked = world.meshd(&["check"]);
    assert_not_forged("a fault", &stderr(&checked));

    fs::write(&world.site, text).unwrap();
    world.start();
    let refused = world.meshd(&["node", "show", &name]);
    assert_not_forged("a refusal", &stderr(&refused));
    assert_not_forged("the log", &world.log_text());
}
