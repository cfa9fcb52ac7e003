//! Lists of the admin API by pages, filters, fields and entity tags, and the search. The real
//! program answers at its socket.

use crate::world::{World, node::PxeNode};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

struct Answered {
    status: u16,
    /// Status line and headers, in lower case.
    head: String,
    body: String,
}

impl Answered {
    fn header(&self, name: &str) -> Option<String> {
        self.head
            .lines()
            .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.head, self.body))
    }

    fn names(&self) -> Vec<String> {
        self.json()
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Asks at the socket; one request, one connection.
fn ask(world: &World, path: &str, header: &str) -> Answered {
    let mut socket = UnixStream::connect(world.path("admin.sock")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!("GET {path} HTTP/1.0\r\nHost: meshd\r\nConnection: close\r\n{header}\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answered { status, head: head.to_lowercase(), body: body.to_owned() }
}

fn get(world: &World, path: &str) -> Answered {
    let answer = ask(world, path, "");
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer
}

/// Five machines that were seen, named web-1 to web-5; two of them are approved.
fn five() -> World {
    let world = World::new("approve");
    for number in 1..=5 {
        PxeNode::new(&world, number).ipxe().unwrap();
        let nodes = world.json(&["node", "list", "-o", "json"]);
        let new = nodes
            .as_array()
            .unwrap()
            .iter()
            .find(|node| node["name"].as_str().unwrap().starts_with("node-"));
        let id = new.unwrap()["id"].as_str().unwrap();
        let name = format!("web-{number}");
        assert!(world.meshd(&["node", "rename", id, &name]).status.success());
    }
    assert!(world.meshd(&["node", "approve", "web-2", "web-4"]).status.success());
    world
}

#[test]
fn node_pages_contain_each_node_once_and_filters_apply_to_all_pages() {
    let world = five();
    for (query, expected) in [
        ("sort=name", vec!["web-1", "web-2", "web-3", "web-4", "web-5"]),
        ("sort=-name", vec!["web-5", "web-4", "web-3", "web-2", "web-1"]),
        ("sort=name&phase=approved", vec!["web-2", "web-4"]),
        ("sort=name&q=EB-3", vec!["web-3"]),
        ("sort=name&profile=compute", vec![]),
    ] {
        let mut seen = Vec::new();
        let mut after = String::new();
        loop {
            let page = get(&world, &format!("/v1/nodes?{query}&limit=2{after}"));
            assert_eq!(page.header("x-total-count"), Some(expected.len().to_string()), "{query}");
            assert!(page.names().len() <= 2, "{query}");
            seen.extend(page.names());
            let Some(next) = page.header("x-next-cursor") else { break };
            after = format!("&after={next}");
        }
        assert_eq!(seen, expected, "{query}");
    }
    let whole = get(&world, "/v1/nodes");
    assert_eq!(
        whole.json(),
        world.json(&["node", "list", "-o", "json"]),
        "without parameters all nodes are answered"
    );
    assert_eq!(whole.header("x-next-cursor"), None);
}

#[test]
fn selected_fields_have_an_entity_tag_that_changes_with_the_node() {
    let world = five();
    let path = "/v1/nodes?fields=name,phase&sort=name";
    let first = get(&world, path);
    let row = first.json()[0].clone();
    let keys: BTreeSet<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["name", "phase"].into());
    let tag = first.header("etag").unwrap();
    let again = ask(&world, path, &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(
        (again.status, again.body.as_str(), again.header("etag")),
        (304, "", Some(tag.clone()))
    );
    assert!(world.meshd(&["node", "approve", "web-1"]).status.success());
    let changed = ask(&world, path, &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((changed.status, changed.json()[0]["phase"].as_str()), (200, Some("approved")));
    for list in ["vms", "tasks", "events?sort=seq&limit=2", "audit?sort=seq&limit=2"] {
        let tag = get(&world, &format!("/v1/{list}")).header("etag").unwrap();
        assert_eq!(
            ask(&world, &format!("/v1/{list}"), &format!("If-None-Match: {tag}\r\n")).status,
            304,
            "{list}"
        );
    }
}

#[test]
fn invalid_parameter_of_a_list_is_refused_by_its_name() {
    let world = World::new("approve");
    for (path, name) in [
        ("nodes?limit=0", "limit"),
        ("nodes?after=junk", "after"),
        ("nodes?sort=age", "sort"),
        ("nodes?colour=red", "colour"),
        ("nodes?label=A%20b", "label"),
        ("nodes?q=x", "q"),
        ("vms?state=asleep", "state"),
        ("tasks?fields=secret", "fields"),
        ("events?kind=party", "kind"),
        ("events?follow=true&sort=seq", "sort"),
        ("audit?actor=nobody", "actor"),
        ("audit?limit=-1", "limit"),
        ("search", "q"),
        ("search?q=%00%00", "q"),
    ] {
        let answer = ask(&world, &format!("/v1/{path}"), "");
        let error = answer.json();
        assert_eq!(
            (answer.status, error["code"].as_str()),
            (400, Some("bad_request")),
            "{path}: {error}"
        );
        assert!(
            error["message"].as_str().unwrap().contains(&format!("`{name}`")),
            "{path}: {error}"
        );
    }
}

#[test]
fn log_pages_contain_each_record_once_in_both_directions() {
    let world = five();
    let lines = |body: &str| -> Vec<Value> {
        body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    for (log, whole) in [
        ("events", lines(&get(&world, "/v1/events?limit=10000").body)),
        ("audit", get(&world, "/v1/audit?limit=10000").json().as_array().unwrap().clone()),
    ] {
        assert!(whole.len() > 5, "{log}: {whole:?}");
        for sort in ["seq", "-seq"] {
            let mut seen = Vec::new();
            let mut after = String::new();
            loop {
                let page = get(&world, &format!("/v1/{log}?sort={sort}&limit=3{after}"));
                let rows = if log == "events" {
                    lines(&page.body)
                } else {
                    page.json().as_array().unwrap().clone()
                };
                assert!(rows.len() <= 3, "{log}");
                seen.extend(rows);
                let Some(next) = page.header("x-next-cursor") else { break };
                after = format!("&after={next}");
            }
            if sort == "-seq" {
                seen.reverse();
            }
            // Records that were written meanwhile are beyond those of the whole list.
            seen.truncate(whole.len());
            assert_eq!(seen, whole, "{log} by {sort}");
        }
    }
    let renamed = get(&world, "/v1/events?q=WEB-3&kind=renamed&fields=seq,kind");
    let rows = lines(&renamed.body);
    assert!(
        rows.len() == 1 && rows[0]["kind"] == "renamed" && rows[0].get("detail").is_none(),
        "{rows:?}"
    );
}

#[test]
fn search_finds_node_by_name_mac_and_id_and_list_filters_nodes() {
    let world = five();
    let node = world.json(&["node", "show", "web-3", "-o", "json"]);
    for text in [node["id"].as_str().unwrap(), node["mac"].as_str().unwrap(), "WEB-3"] {
        let found = world.json(&["search", text, "-o", "json"]);
        let hits = found["hits"].as_array().unwrap();
        assert_eq!(
            (hits[0]["kind"].as_str(), &hits[0]["id"]),
            (Some("node"), &node["id"]),
            "{text}: {found}"
        );
    }
    let all = world.json(&["search", "web-", "-o", "json"]);
    assert_eq!(all["total"], 5, "{all}");
    let table = String::from_utf8(world.meshd(&["search", "web-3"]).stdout).unwrap();
    assert!(table.contains("KIND") && table.contains("web-3"), "{table}");
    let none = world.meshd(&["search", "nowhere"]);
    assert!(
        none.status.success()
            && String::from_utf8_lossy(&none.stderr).contains("nothing contains `nowhere`")
    );
    assert_eq!(world.meshd(&["search", "x"]).status.code(), Some(1));
    let listed = |args: &[&str]| -> Vec<String> {
        let nodes = world.json(&[&["node", "list", "-o", "json"], args].concat());
        nodes
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(listed(&["--phase", "approved", "--sort", "-name"]), ["web-4", "web-2"]);
    assert_eq!(listed(&["--find", "eb-5"]), ["web-5"]);
    assert!(listed(&["--condition", "boot_loop,drift"]).is_empty());
    assert!(listed(&["--attention"]).is_empty());
    assert!(world.meshd(&["node", "quarantine", "web-5", "--yes"]).status.success());
    assert_eq!(listed(&["--attention"]), ["web-5"]);
    assert_eq!(get(&world, "/v1/status").json()["attention"], 1);
    let refused = world.meshd(&["node", "list", "--sort", "age"]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("`sort`")
    );
}

#[test]
fn profile_diff_of_unknown_revision_is_refused() {
    let world = five();
    let newest =
        world.json(&["profile", "history", "compute", "-o", "json"])[0]["generation"].clone();
    let newest = newest.as_str().unwrap();
    let same = get(&world, &format!("/v1/profiles/compute/diff?from={newest}&to={newest}")).json();
    assert_eq!(same, serde_json::json!({ "changed": {}, "files": {} }));
    for (query, status) in [
        (format!("from={newest}&to=%3Cscript%3E"), 404),
        (format!("from=&to={newest}"), 404),
        (format!("from={newest}"), 400),
        (format!("from={newest}&to={newest}&x=1"), 400),
    ] {
        assert_eq!(
            ask(&world, &format!("/v1/profiles/compute/diff?{query}"), "").status,
            status,
            "{query}"
        );
    }
}

#[test]
fn overlay_files_are_listed_and_shown_without_credentials() {
    let world = five();
    let files = get(&world, "/v1/overlay/web-3/files").json();
    let find =
        |path: &str| files.as_array().unwrap().iter().find(|file| file["path"] == path).cloned();
    let hostname = find("/etc/hostname").unwrap_or_else(|| panic!("{files}"));
    assert!(hostname.get("text").is_none() && hostname["mode"] == "0644", "{hostname}");
    let one = get(&world, "/v1/overlay/web-3/files?path=/etc/hostname").json();
    assert_eq!((one.as_array().unwrap().len(), &one[0]["text"]), (1, &"web-3\n".into()), "{one}");
    // The credentials of a boot are made when it is delivered.
    assert_eq!(ask(&world, "/v1/overlay/web-3/files?path=/etc/meshd/boot.json", "").status, 404);
    assert_eq!(ask(&world, "/v1/overlay/web-3/files?paths=/etc", "").status, 400);
}
