//! Commands for several nodes: labels, selectors, beginnings of names, and nodes that changed
//! meanwhile. The real program answers.

use crate::world::{World, eventually, node::PxeNode, stderr};
use serde_json::{Value, json};
use std::{
    fs,
    process::{Command, Output, Stdio},
};

/// What a command printed to standard error, and whether it succeeded.
fn status_and_stderr(output: &Output) -> (bool, String) {
    (output.status.success(), stderr(output))
}

fn done(world: &World, args: &[&str]) -> String {
    let (success, text) = status_and_stderr(&world.meshd(args));
    assert!(success, "{args:?}: {text}");
    text
}

fn refused(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    let (_, text) = status_and_stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    text
}

fn shown(world: &World, node: &str) -> Value {
    world.json(&["node", "show", node, "-o", "json"])
}

#[test]
fn watched_node_list_is_printed_again_after_a_change() {
    let (world, _) = three();
    let out = world.path("watched");
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    // The site comes from the environment.
    command.env("MESHD_SITE", &world.site).args(["node", "list", "--labels", "--watch"]);
    command.stdin(Stdio::null()).stdout(fs::File::create(&out).unwrap());
    let mut watching = command.spawn().unwrap();
    let printed = |text: &str| {
        eventually(text, || {
            let seen = fs::read_to_string(&out).unwrap();
            if seen.contains(text) { Ok(seen) } else { Err(seen) }
        })
    };
    assert!(!printed("discovered").contains("rack=a"));
    done(&world, &["node", "label", "n1", "rack=a"]);
    let seen = printed("rack=a");
    assert!(seen.matches("LABELS").count() >= 2, "the first list stays: {seen}");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

/// Three machines that were seen, named n1, n2 and m3.
fn three() -> (World, Vec<String>) {
    let world = World::new("approve");
    for (number, name) in [(1, "n1"), (2, "n2"), (3, "m3")] {
        PxeNode::new(&world, number).ipxe().unwrap();
        let nodes = world.json(&["node", "list", "-o", "json"]);
        let new = nodes
            .as_array()
            .unwrap()
            .iter()
            .find(|node| node["name"].as_str().unwrap().starts_with("node-"));
        done(&world, &["node", "rename", new.unwrap()["id"].as_str().unwrap(), name]);
    }
    let ids = ["n1", "n2", "m3"].map(|name| shown(&world, name)["id"].as_str().unwrap().to_owned());
    (world, ids.to_vec())
}

fn listed(world: &World, selector: &str) -> Vec<String> {
    let nodes = world.json(&["node", "list", "-l", selector, "-o", "json"]);
    let mut names: Vec<String> = nodes
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn labels_are_set_shown_selected_and_kept_over_a_restart() {
    let (mut world, _) = three();
    let message =
        done(&world, &["node", "label", "n1", "n2", "rack=a", "feed=1", "--reason", "moved in"]);
    assert!(message.contains("): labels feed=1 rack=a") && message.contains("n2 ("), "{message}");
    done(&world, &["node", "label", "n2", "feed=2"]);
    assert_eq!(listed(&world, "rack=a"), ["n1", "n2"]);
    assert_eq!(listed(&world, "rack=a,feed!=2"), ["n1"]);
    assert_eq!(listed(&world, "!rack"), ["m3"]);
    assert!(world.stop().success());
    world.start();
    assert_eq!(shown(&world, "n2")["labels"], json!({ "feed": "2", "rack": "a" }));
    let table = String::from_utf8(world.meshd(&["node", "list", "--labels"]).stdout).unwrap();
    assert!(table.contains("LABELS") && table.contains("feed=2 rack=a"), "{table}");
    done(&world, &["node", "label", "-l", "rack", "rack-"]);
    assert_eq!(listed(&world, "!rack"), ["m3", "n1", "n2"]);
    let events = world.events("labels_changed");
    assert_eq!(events.len(), 5, "one for each node that changed: {events:?}");
    assert_eq!(events[0]["by"]["reason"], "moved in");
    let audit = world.json(&["audit", "--node", "n2", "-o", "json"]);
    let verbs = audit.as_array().unwrap().iter().filter(|line| line["verb"] == "label").count();
    assert_eq!(verbs, 3, "{audit}");
    let message = refused(&world, &["node", "drain", "-l", "rack=z"]);
    assert!(message.contains("no node matches the selector `rack=z`"), "{message}");
    assert_eq!(world.meshd(&["node", "label", "n1", "Rack=a"]).status.code(), Some(2));
    assert_eq!(world.meshd(&["node", "label", "n1"]).status.code(), Some(2));
}

#[test]
fn name_prefix_selects_a_node_only_when_unambiguous() {
    let (world, ids) = three();
    assert_eq!(shown(&world, "m")["id"], ids[2].as_str());
    assert_eq!(shown(&world, &ids[0][..7])["id"], ids[0].as_str());
    for args in [&["node", "approve", "n"][..], &["node", "approve", "n", "m3"]] {
        let message = refused(&world, args);
        assert!(
            message.contains("`n` is ambiguous, 2 nodes match") && message.contains("(n1)"),
            "{args:?}: {message}"
        );
    }
    assert_eq!(shown(&world, "m3")["phase"], "discovered", "nothing was changed");
}

#[test]
fn taken_or_invalid_node_name_is_refused() {
    let (world, _) = three();
    let message = refused(&world, &["node", "rename", "n1", "m3"]);
    assert!(message.contains("has the name `m3`"), "{message}");
    let message = refused(&world, &["node", "rename", "n1", "N_1"]);
    assert!(message.contains("is not a host name"), "{message}");
    let message = done(&world, &["node", "rename", "n1", "web-1"]);
    assert!(message.contains("is named web-1") && message.contains("next boot"), "{message}");
    assert_eq!(world.events("renamed").last().unwrap()["detail"], "n1 -> web-1");
}

#[test]
fn order_for_several_nodes_is_previewed_confirmed_and_reported_each() {
    let (world, ids) = three();
    let preview = done(&world, &["node", "reject", "n1", "n2", "--dry-run"]);
    assert!(
        preview.contains("2 nodes would be changed")
            && preview.contains(&format!("n2 ({}, discovered)", ids[1])),
        "{preview}"
    );
    let question = refused(&world, &["node", "reject", "n1", "n2"]);
    assert!(
        question.contains(&format!("n1 ({}, discovered)", ids[0])) && question.contains("Reject?"),
        "{question}"
    );
    assert!(
        question.contains("aborted: confirm with --yes when there is no terminal"),
        "{question}"
    );
    assert_eq!(shown(&world, "n1")["phase"], "discovered");
    let message = done(&world, &["node", "approve", "n1", "n2"]);
    assert!(message.contains(&format!("n1 ({}) is approved", ids[0])), "{message}");
    // One of them cannot: the other one is changed.
    let message = refused(&world, &["node", "release", "n1", "m3"]);
    assert!(message.contains("release: 2 of 2 nodes failed"), "{message}");
    done(&world, &["node", "quarantine", "m3", "--yes"]);
    let message = refused(&world, &["node", "release", "n1", "m3"]);
    assert!(
        message.contains("release: 1 of 2 nodes failed") && message.contains(") is discovered"),
        "{message}"
    );
    let message = refused(&world, &["node", "resume", "n1", "n2"]);
    assert!(message.contains("resume: 2 of 2 nodes failed"), "{message}");
    let audit = world.json(&["audit", "--node", "n2", "-o", "json"]);
    let last = audit.as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["verb"], &last["outcome"]["refused"]),
        (&json!("resume"), &json!("unlawful")),
        "{last}"
    );
    let message = done(&world, &["node", "assign-profile", "n1", "n2", "compute"]);
    assert_eq!(message.matches("boots compute from its next boot on").count(), 2, "{message}");
    let message = done(&world, &["node", "remove", "n1", "n2", "m3", "--yes"]);
    assert_eq!(message.matches("is removed").count(), 3, "{message}");
}
