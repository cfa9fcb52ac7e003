//! Commands that end something ask first, with the nodes and their work: at a terminal and without
//! one.

use crate::world::{World, node::PxeNode, program, stderr};
use std::process::{Command, Stdio};

/// Runs a command at a terminal of its own, which Python's `pty` makes, and types one line. Prints
/// what the terminal showed.
const AT_TERMINAL: &str = r#"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
os.write(terminal, (sys.argv[1] + "\n").encode())
shown = b""
while True:
    try:
        piece = os.read(terminal, 4096)
    except OSError:
        break
    if not piece:
        break
    shown += piece
print(shown.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

fn typed(world: &World, line: &str, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("python3");
    command
        .args(["-c", AT_TERMINAL, line])
        .arg(program(env!("CARGO_BIN_EXE_meshd")))
        .arg("--site")
        .arg(&world.site);
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    (
        output.status.code(),
        format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output)),
    )
}

/// Two machines that were seen, without a link, named n1 and n2.
fn two() -> World {
    let world = World::new("approve");
    for (number, name) in [(1, "n1"), (2, "n2")] {
        PxeNode::new(&world, number).ipxe().unwrap();
        let nodes = world.json(&["node", "list", "-o", "json"]);
        let new = nodes
            .as_array()
            .unwrap()
            .iter()
            .find(|node| node["name"].as_str().unwrap().starts_with("node-"));
        let id = new.unwrap()["id"].as_str().unwrap().to_owned();
        assert!(world.meshd(&["node", "rename", &id, name]).status.success());
        assert!(world.meshd(&["node", "label", &id, "rack=a"]).status.success());
    }
    world
}

#[test]
fn reboot_of_several_nodes_wants_their_number_or_yes() {
    let world = two();
    let profile = || {
        let nodes = world.json(&["node", "list", "-o", "json"]);
        nodes[0]["profile"].as_str().unwrap().to_owned()
    };
    let assign = ["node", "assign-profile", "-l", "rack=a", "compute", "--reboot"];
    let orders: [&[&str]; 4] = [
        &["node", "reboot", "-l", "rack=a"],
        &["node", "reboot", "n1", "n2"],
        &assign,
        &["node", "drain", "n1", "n2", "--workloads", "stop"],
    ];
    for order in orders {
        let output = world.meshd(order);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{order:?}: {text}");
        assert!(
            text.contains("n1 (") && text.contains("n2 (") && text.contains("2 nodes: each "),
            "{text}"
        );
        assert!(text.contains("confirm with --yes when there is no terminal"), "{order:?}: {text}");
        for wrong in ["y", "yes", "1", ""] {
            let (code, shown) = typed(&world, wrong, order);
            assert_eq!(
                (code, shown.contains("error: aborted")),
                (Some(1), true),
                "{wrong}: {shown}"
            );
        }
    }
    assert_eq!(profile(), "discovery", "nothing was ordered");
    // Neither has a link: meshd receives the order and refuses the reboot.
    let (code, shown) = typed(&world, "2", &assign);
    assert!(code == Some(1) && shown.contains("reboot: 2 of 2 nodes failed"), "{shown}");
    assert_eq!(profile(), "compute");
    let yes = world.meshd(&["node", "reboot", "-l", "rack=a", "--yes"]);
    assert!(stderr(&yes).contains("reboot: 2 of 2 nodes failed"), "{}", stderr(&yes));
    // One idle node that the command names is not asked for.
    let one = world.meshd(&["node", "reboot", "n1"]);
    assert!(
        !stderr(&one).contains("--yes") && stderr(&one).contains("it has no link"),
        "{}",
        stderr(&one)
    );
}
