//! Answers of the API of sites with up to 10,000 nodes. The tests in Chromium use them, too.

use meshd_model::fleet::{Condition, Phase, Severity};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Nodes of one rack.
const RACK: usize = 40;
const AT: &str = "2026-01-01T00:00:00Z";

/// Returns the nodes of a site. Of a large one, three are broken: the nodes 123, 456 and 789.
pub fn nodes(count: usize) -> Vec<Value> {
    (1..=count).map(node).collect()
}

fn needs_attention(node: &Value) -> bool {
    let phase: Phase = serde_json::from_value(node["phase"].clone()).expect("a phase");
    let conditions: Vec<Condition> =
        serde_json::from_value(node["conditions"].clone()).expect("conditions");
    Severity::of(phase, &conditions).needs_attention()
}

fn node(number: usize) -> Value {
    let condition =
        |kind: &str, detail: &str| json!([{ "kind": kind, "since": AT, "detail": detail }]);
    let (phase, conditions) = match number {
        123 => ("offline", json!([])),
        456 => ("degraded", condition("check_failed", "gpu: 7 of 8 devices answer")),
        789 => ("online", condition("capability_replayed", "by 10.77.3.9")),
        _ if number.is_multiple_of(199) => ("booting", json!([])),
        _ if number.is_multiple_of(311) => ("maintenance", json!([])),
        _ if number.is_multiple_of(45) => {
            ("online", condition("reboot_required", "generation 7d1"))
        }
        _ => ("online", json!([])),
    };
    let boot = (phase == "booting").then(|| {
        json!({ "session": "0".repeat(24), "stage": "kernel", "stage_at": AT, "opened_at": AT, "stages": [] })
    });
    let rack = format!("a{:02}", (number - 1) / RACK + 1);
    let row = format!("r{}", number / 500 + 1);
    json!({
        "id": format!("{:08x}", number * 2_654_435_761 % (1 << 32)), "name": format!("gpu-{number:04}"),
        "profile": if number.is_multiple_of(10) { "storage" } else { "compute" }, "assigned": true,
        "phase": phase, "conditions": conditions, "address": format!("10.77.{}.{}", number / 250, number % 250 + 1),
        "mac": format!("02:00:00:00:{:02x}:{:02x}", number >> 8, number & 255), "model": "Supermicro SYS-421GE",
        "serial": format!("SN-{number:05}"), "segment": "rack-net", "memory": 2_u64 << 40, "gpus": 8, "generation": null, "next_generation": null,
        "last_seen": AT, "boot": boot, "labels": { "rack": rack, "row": row }, "revision": format!("{number:016x}"),
    })
}

/// The answer of the API of a site with these nodes, and the number of all rows; `None` for
/// another path.
pub fn answer(nodes: &[Value], path: &str, query: &str) -> Option<(Value, usize)> {
    let answer = match path {
        "/v1/nodes" => return Some(select(nodes, query)),
        "/v1/status" => status(nodes),
        _ => series(path.strip_prefix("/v1/series/")?, nodes.len()),
    };
    Some((answer, 1))
}

fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// A day with one dip.
fn series(name: &str, nodes: usize) -> Value {
    let point = |step: i32| {
        let dip = (30.0 - f64::from((step - 90).abs()) * 3.0).max(0.0);
        json!({ "at": format!("2026-01-01T{:02}:{}0:00Z", step / 6, step % 6), "value": nodes as f64 - dip })
    };
    let unit = if name == "memory" { "bytes" } else { "nodes" };
    json!({ "name": name, "unit": unit, "step_s": 600, "from": AT, "to": "2026-01-02T00:00:00Z",
        "points": (0..144).map(point).collect::<Vec<_>>() })
}

/// The nodes that a query selects by phase or attention, at most its limit, and the number of all.
fn select(nodes: &[Value], query: &str) -> (Value, usize) {
    let phases = parameter(query, "phase").map(|text| text.replace("%2C", ","));
    let has_phase = |node: &&Value| {
        let phase = node["phase"].as_str().unwrap_or_default();
        phases.as_ref().is_none_or(|phases| phases.split(',').any(|other| other == phase))
    };
    let is_for_all = parameter(query, "attention").is_none();
    let is_found = |node: &&Value| has_phase(node) && (is_for_all || needs_attention(node));
    let found: Vec<_> = nodes.iter().filter(is_found).collect();
    let limit = parameter(query, "limit").and_then(|limit| limit.parse().ok());
    let shown = found.iter().copied().take(limit.unwrap_or(usize::MAX));
    (shown.cloned().collect(), found.len())
}

/// The status of a site with these nodes and without other problems.
fn status(nodes: &[Value]) -> Value {
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes {
        *phases.entry(node["phase"].as_str().expect("text")).or_default() += 1;
    }
    let offline = phases.get("offline").copied().unwrap_or_default();
    let attention = nodes.iter().filter(|node| needs_attention(node)).count();
    let warning = json!({ "check": "offline", "status": "warn", "found": format!("{offline} node is offline"), "next": "look at it" });
    json!({ "site": "hall-2", "version": "1", "pid": 1, "ready": true, "nodes": nodes.len(), "phases": phases, "attention": attention,
        "units": { "ready": 7960, "total": 8000 }, "warnings": if offline > 0 { vec![warning] } else { vec![] } })
}

/// The newest events as lines of JSON.
pub fn events() -> String {
    let event = |seq: usize, number: usize, kind: &str, condition: Option<&str>| {
        let id = node(number)["id"].clone();
        let event = json!({ "seq": seq, "at": AT, "kind": kind, "condition": condition, "node": id, "session": null, "actor": "node", "detail": "" });
        format!("{event}\n")
    };
    let failed = event(5, 456, "check_failed", Some("check_failed"));
    let boots = (1..=4).map(|seq| event(seq, seq * 199, "boot_started", None));
    std::iter::once(failed).chain(boots).collect()
}
