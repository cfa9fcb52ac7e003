//! Lists for scripts, verbs of other programs, and completion of names in bash.

use crate::world::{World, node::PxeNode, program, stderr};
use serde_json::Value;
use std::process::{Command, Output};

fn stdout(output: Output) -> String {
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A machine `gpu001` that was seen, and `gpu002` that is expected.
fn two() -> World {
    let world = World::new("approve");
    for (mac, name) in [("52:54:00:00:00:01", "gpu001"), ("52:54:00:00:00:02", "gpu002")] {
        let added = ["node", "add", "--mac", mac, "--name", name, "--label", "rack=a"];
        assert!(world.meshd(&added).status.success());
    }
    PxeNode::new(&world, 1).ipxe().unwrap();
    world
}

#[test]
fn lists_have_formats_for_scripts() {
    let world = two();
    let inventory = world.json(&["node", "list", "-o", "ansible"]);
    let exported = world.json(&["node", "export", "--format", "ansible"]);
    assert_eq!(inventory["all"]["children"], exported["all"]["children"]);
    assert!(inventory["all"]["hosts"]["gpu001"]["ansible_host"].is_string(), "{inventory}");
    let list = |args: &[&str]| stdout(world.meshd(args));
    assert_eq!(list(&["node", "list", "--expected", "-o", "name"]), "gpu002\n");
    let csv = list(&["node", "list", "--expected", "-o", "csv", "--no-headers"]);
    assert_eq!(csv, "52:54:00:00:00:02,gpu002,,,rack=a,,,,\n");
    let wide = list(&["node", "list", "--expected", "-o", "wide"]);
    assert!(wide.starts_with("MAC  ") && wide.contains("BMC_DRIVER"), "{wide}");

    assert!(world.meshd(&["node", "approve", "gpu001"]).status.success());
    let all = list(&["operation", "list"]);
    let bare = list(&["operation", "list", "--no-headers"]);
    assert!(all.starts_with("ID ") && all.ends_with(&bare) && bare.lines().count() == 1, "{all}");
    assert_eq!(list(&["operation", "list", "--since", "1h", "--no-headers"]).lines().count(), 1);
    let future = ["--since", "9999-01-01T00:00:00Z", "--no-headers"];
    assert_eq!(list(&[&["operation", "list"][..], &future].concat()), "");
    assert_eq!(list(&["events", "--since", "9999-01-01T00:00:00Z"]), "");
    assert!(list(&["events", "--since", "1h"]).contains("discovered"));
    assert_eq!(list(&[&["audit"][..], &future].concat()), "");
    assert!(list(&["audit", "--since", "1h"]).contains("approve"));
    let wrong = world.meshd(&["events", "--since", "yesterday"]);
    assert!(wrong.status.code() == Some(2) && stderr(&wrong).contains("such as 2h"), "{wrong:?}");
}

#[test]
fn verbs_of_other_programs_run_with_a_note() {
    let world = two();
    let shown = world.meshd(&["get", "node", "gpu001", "-o", "json"]);
    let note = stderr(&shown);
    assert!(note.contains("this runs `meshd --site") || note.contains("meshd node show"), "{note}");
    let node: Value = serde_json::from_str(&stdout(shown)).unwrap();
    assert_eq!(node["name"], "gpu001");
    let deleted = world.meshd(&["node", "delete", "gpu001"]);
    let text = stderr(&deleted);
    assert!(deleted.status.code() == Some(1) && text.contains("Remove"), "it asks: {text}");
    let deleted = world.meshd(&["delete", "node", "gpu001", "--yes"]);
    assert!(deleted.status.success(), "{}", stderr(&deleted));
    let unknown = world.meshd(&["node", "destroy", "gpu001"]);
    let text = stderr(&unknown);
    assert!(unknown.status.code() == Some(2) && text.contains("'remove'"), "{text}");
}

#[test]
fn bash_completes_names_of_the_running_site() {
    let world = two();
    let script = r#"
set -e
source <("$meshd" completions bash)
completed() {
    COMP_WORDS=("$meshd" --site "$site" "$@")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _meshd
    echo "$* -> ${COMPREPLY[*]}"
}
completed node show gpu
completed node drain gpu001,g
completed node show x
completed node appr
completed node list --labe
completed node list -o w
complete -p meshd
"#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).env("meshd", program(env!("CARGO_BIN_EXE_meshd")));
    // A busy machine takes longer than a user waits.
    bash.env("MESHD_COMPLETION", "120");
    let output = bash.env("site", &world.site).output().unwrap();
    let text = stdout(output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "node show gpu -> gpu001 gpu002",
            "node drain gpu001,g -> gpu001,gpu001 gpu001,gpu002",
            "node show x -> ",
            "node appr -> approve",
            "node list --labe -> --labels",
            "node list -o w -> wide",
            "complete -o bashdefault -o default -F _meshd meshd",
        ]
    );
    // Without a running meshd, completion is silent.
    let mut world = world;
    world.kill();
    let silent = world.meshd(&["complete", "--", "node", "show", "g"]);
    assert!(silent.status.success() && silent.stdout.is_empty() && silent.stderr.is_empty());
}
