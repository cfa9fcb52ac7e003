//! Hostlists and wildcards wherever a command takes nodes, and in the admin API.

use crate::world::{World, node::PxeNode, stderr};
use serde_json::{Value, json};
use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

/// Three machines that were seen, with these names.
fn three() -> World {
    let world = World::prepared("approve");
    let mut site = std::fs::read_to_string(&world.site).unwrap();
    for (number, name) in [(1, "gpu001"), (2, "gpu002"), (3, "cpu1")] {
        site +=
            &format!("[[reservation]]\nmac = \"52:54:00:00:00:0{number}\"\nname = \"{name}\"\n");
    }
    std::fs::write(&world.site, site).unwrap();
    let mut world = world;
    world.start();
    (1..=3).for_each(|number| drop(PxeNode::new(&world, number).ipxe().unwrap()));
    world
}

fn names(world: &World, args: &[&str]) -> Vec<String> {
    let nodes = world.json(&[&["node", "list"], args, &["-o", "json", "--sort", "name"]].concat());
    let name = |node: &Value| node["name"].as_str().unwrap().to_owned();
    nodes.as_array().unwrap().iter().map(name).collect()
}

fn phases(world: &World) -> Vec<String> {
    let nodes = world.json(&["node", "list", "-o", "json", "--sort", "name"]);
    let phase = |node: &Value| node["phase"].as_str().unwrap().to_owned();
    nodes.as_array().unwrap().iter().map(phase).collect()
}

/// Runs a command and returns its standard error and exit code.
fn run(world: &World, args: &[&str]) -> (Option<i32>, String) {
    let output = world.meshd(args);
    (output.status.code(), stderr(&output))
}

#[test]
fn node_list_takes_hostlists_ids_and_wildcards() {
    let world = three();
    assert_eq!(names(&world, &["gpu[001-002]"]), ["gpu001", "gpu002"]);
    assert_eq!(names(&world, &["gpu[002],cpu?"]), ["cpu1", "gpu002"]);
    assert_eq!(names(&world, &["*"]), ["cpu1", "gpu001", "gpu002"]);
    assert_eq!(names(&world, &["gpu*", "cp"]), ["cpu1", "gpu001", "gpu002"]);
    let id = world.json(&["node", "show", "gpu001", "-o", "json"])["id"].clone();
    assert_eq!(names(&world, &[id.as_str().unwrap()]), ["gpu001"]);
    assert_eq!(names(&world, &["gpu*", "--find", "002"]), ["gpu002"]);
    let (code, text) = run(&world, &["node", "list", "gpu[001-004],x*"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("there are no nodes `gpu003`, `gpu004`, `x*`"), "{text}");
}

#[test]
fn order_to_a_hostlist_reaches_all_its_nodes_or_none() {
    let world = three();
    let (code, text) = run(&world, &["node", "approve", "gpu[001-003]", "cpu1"]);
    assert_eq!((code, text.contains("no node `gpu003`")), (Some(1), true), "{text}");
    assert_eq!(phases(&world), ["discovered"; 3], "nothing is done");
    let (code, text) = run(&world, &["node", "approve", "gpu[001-002]"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(phases(&world), ["discovered", "approved", "approved"]);
    for args in [
        &["node", "label", "gpu[001,002]", "rack=a"][..],
        &["node", "assign-profile", "gpu*", "compute"],
        &["node", "set", "gpu[001-002]", "kvm_nested=true"],
        &["node", "unset", "gpu[001-002]", "kvm_nested"],
        &["node", "boot-once", "gpu*", "--profile", "compute"],
        &["node", "rename", "cpu[1]", "cpu9"],
    ] {
        let (code, text) = run(&world, args);
        assert_eq!(code, Some(0), "{args:?}: {text}");
    }
    assert_eq!(names(&world, &["-l", "rack=a"]), ["gpu001", "gpu002"]);
    // The confirmation of several nodes is their number.
    let (code, text) = run(&world, &["node", "remove", "gpu[001-002]"]);
    assert!(code == Some(1) && text.contains("Type the number 2 to confirm"), "{text}");
    let (code, text) = run(&world, &["node", "remove", "gpu[001-002]", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(names(&world, &[]), ["cpu9"]);
}

#[test]
fn order_to_a_list_names_its_machines_that_have_not_booted() {
    let world = World::new("approve");
    let list = "mac,name\n52:54:00:00:00:01,n001\n52:54:00:00:00:02,n002\n";
    std::fs::write(world.path("machines.csv"), list).unwrap();
    let file = world.path("machines.csv");
    let imported = world.meshd(&["node", "import", file.to_str().unwrap()]);
    assert!(imported.status.success(), "{}", stderr(&imported));
    PxeNode::new(&world, 1).ipxe().unwrap();
    let phase = || world.json(&["node", "show", "n001", "-o", "json"])["phase"].clone();
    let order = |words: &str| run(&world, &words.split(' ').collect::<Vec<_>>());
    // An unknown name is a mistake: nothing is done.
    let (code, text) = order("node approve n[001-003]");
    assert!(code == Some(1) && text.contains("there is no node `n003`"), "{text}");
    assert_eq!(phase(), "discovered");
    let (code, text) = order("node approve n[001-002]");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("n002: error: the machine has not booted yet"), "{text}");
    assert!(text.contains("approve: 1 of 2 nodes failed"), "{text}");
    assert_eq!(phase(), "approved");
    for words in ["node label n[001-002] rack=a", "node assign-profile n001 n002 compute"] {
        let (code, text) = order(words);
        assert!(code == Some(1) && text.contains("1 of 2 nodes failed"), "{words}: {text}");
    }
    // The second part of an order follows the first one.
    let (code, text) = order("node assign-profile --reboot --yes n001 n002 compute");
    assert!(code == Some(1) && text.contains("reboot: "), "{text}");
    assert!(text.contains("repeat the command for n002 after its first boot"), "{text}");
    // An order to nobody asks nothing.
    let (code, text) = order("node remove n[002]");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no machine of the list is a node") && !text.contains("?"), "{text}");
    let node = world.json(&["node", "show", "n001", "-o", "json"]);
    assert_eq!((&node["labels"]["rack"], &node["profile"]), (&"a".into(), &"compute".into()));
    let (code, text) = order("node label n* rack=b");
    assert_eq!(code, Some(0), "a wildcard names nodes only: {text}");
    PxeNode::new(&world, 2).ipxe().unwrap();
    let (code, text) = order("node approve n[001-002]");
    assert_eq!(code, Some(0), "both are nodes: {text}");
}

#[test]
fn commands_that_print_take_several_nodes() {
    let world = three();
    let shown = world.json(&["node", "show", "gpu[001-002]", "-o", "json"]);
    let names: Vec<&str> =
        shown.as_object().unwrap().values().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2, "{shown}");
    let output = world.meshd(&["node", "timeline", "gpu*"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("# gpu001 (") && text.contains("# gpu002 ("), "{text}");
    let (code, text) = run(&world, &["node", "rename", "gpu[001-002]", "x"]);
    assert!(code == Some(1) && text.contains("names 2 nodes"), "{text}");
}

#[test]
fn malformed_hostlist_is_a_usage_error_in_every_command() {
    let world = three();
    for (list, part) in [
        ("gpu[1-1000000]", "names too many nodes"),
        ("gpu[", "`[` without `]`"),
        ("gpu[3-1]", "backwards"),
        ("gpu[a-c]", "no range of numbers"),
    ] {
        for args in [
            &["node", "list", list][..],
            &["node", "show", list],
            &["node", "approve", list],
            &["node", "drain", "cpu1", list],
            &["node", "label", list, "a=b"],
            &["node", "set", list, "a=b"],
            &["node", "unset", list, "a"],
            &["node", "assign-profile", list, "compute"],
            &["node", "exec", list, "--", "true"],
        ] {
            let (code, text) = run(&world, args);
            assert_eq!((code, text.contains(part)), (Some(2), true), "{args:?}: {text}");
        }
    }
}

#[test]
fn api_takes_a_hostlist_for_lists_and_orders() {
    let world = three();
    let (status, list) = request(&world, "GET", "/v1/nodes?nodes=gpu%5B001-002%5D", "");
    assert_eq!((status, list.as_array().unwrap().len()), (200, 2), "{list}");
    let (status, error) = request(&world, "GET", "/v1/nodes?nodes=gpu%5B002-003%5D", "");
    assert_eq!((status, &error["code"]), (404, &json!("no_node")), "{error}");
    let approve = |hostlist: &str| {
        request(
            &world,
            "POST",
            "/v1/bulk/nodes/approve",
            &json!({ "hostlist": hostlist }).to_string(),
        )
    };
    let (status, error) = approve("gpu[001-003]");
    assert_eq!(status, 404, "{error}");
    assert_eq!(phases(&world), ["discovered"; 3]);
    let (status, done) = approve("gpu*");
    assert_eq!((status, &done["failed"]), (200, &json!(0)), "{done}");
    assert_eq!(phases(&world), ["discovered", "approved", "approved"]);
    assert_eq!(approve("gpu[1-1000000]").0, 400);
    let both = json!({ "hostlist": "gpu*", "nodes": [{ "id": "0123abcd" }] }).to_string();
    let (status, error) = request(&world, "POST", "/v1/bulk/nodes/approve", &both);
    assert_eq!(status, 400, "{error}");
}

/// Sends a request to the socket of the admin API.
fn request(world: &World, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut socket = UnixStream::connect(world.path("admin.sock")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: meshd\r\nConnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}")))
}
