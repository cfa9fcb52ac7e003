//! The alert rules and the dashboard of docs/monitoring, with a real Prometheus that reads a real
//! meshd.

use crate::world::{World, eventually, node::PxeNode, program::Program};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const PROMETHEUS: &str = "10.77.0.1:9090";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn promtool(args: &[&str]) -> String {
    let ran = Command::new("promtool").args(args).output().unwrap();
    let output_text =
        format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "promtool {args:?}: {output_text}");
    output_text
}

/// Expressions of all panels of the dashboard.
fn dashboard() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_slice(&fs::read(file("docs/monitoring/dashboard.json")).unwrap()).unwrap();
    let targets = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Expressions of all alerts.
fn alerts() -> Vec<String> {
    let text = fs::read_to_string(file("docs/monitoring/alerts.yml")).unwrap();
    text.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(str::to_owned).collect()
}

/// Words of an expression that begin with `meshd_`, without the suffixes of histograms.
fn metrics(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("meshd_")).map(|word| word.trim_end_matches("_bucket"))
}

/// The result of an expression, one sample a line.
fn query(world: &World, expression: &str) -> Result<String, String> {
    let mut command = Command::new("promtool");
    command.args(["query", "instant", &format!("http://{PROMETHEUS}"), expression]);
    let ran = world.central.spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())).unwrap();
    let ran = ran.wait_with_output().unwrap();
    let output_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if ran.status.success() { Ok(output_text(&ran.stdout)) } else { Err(output_text(&ran.stderr)) }
}

/// A meshd with its metrics on its boot LAN, and a Prometheus beside it.
fn monitored() -> (World, Program) {
    let mut world = World::prepared("auto");
    world.edit_site("[enroll]", "[metrics]\naddress = \"10.77.0.1\"\n[enroll]");
    world.start();
    let configuration = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n\
         - job_name: meshd\n  static_configs: [{{targets: ['10.77.0.1:9109']}}]\n",
        file("docs/monitoring/alerts.yml").display()
    );
    fs::write(world.path("prometheus.yml"), configuration).unwrap();
    let args = [
        format!("--config.file={}", world.path("prometheus.yml").display()),
        format!("--storage.tsdb.path={}", world.path("prometheus").display()),
        format!("--web.listen-address={PROMETHEUS}"),
    ];
    let prometheus =
        Program::start(&world, &world.central, "prometheus", &args.each_ref().map(String::as_str));
    (world, prometheus)
}

#[test]
fn alert_rules_are_valid_and_fire() {
    promtool(&["check", "rules", file("docs/monitoring/alerts.yml").to_str().unwrap()]);
    promtool(&["test", "rules", file("tests/golden/alerts_test.yml").to_str().unwrap()]);
}

#[test]
fn alert_and_panel_names_metrics_that_meshd_exports() {
    let exported: String = ["describe", "gauges", "workload_gauges", "process", "observe"]
        .iter()
        .map(|name| fs::read_to_string(file(&format!("src/serve/metrics/{name}.rs"))).unwrap())
        .collect();
    let expressions = [alerts(), dashboard()].concat();
    let named: BTreeSet<&str> =
        expressions.iter().flat_map(|expression| metrics(expression)).collect();
    assert!(named.len() > 20, "{named:?}");
    let unknown: Vec<_> =
        named.iter().filter(|name| !exported.contains(&format!("\"{name}\""))).collect();
    assert!(unknown.is_empty(), "meshd exports none of {unknown:?}");
}

#[test]
fn prometheus_reads_every_expression_from_meshd() {
    let (world, _prometheus) = monitored();
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    eventually("Prometheus has read the page", || {
        let up = query(&world, "sum(meshd_nodes{phase=\"online\"})")?;
        if up.contains("=> 1 ") { Ok(()) } else { Err(up) }
    });
    for expression in [alerts(), dashboard()].concat() {
        query(&world, &expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    }
    // Gauges have a series for each state from the start, so that an alert on one is not silently
    // without data.
    let states = [
        "meshd_nodes{phase=\"offline\"}",
        "meshd_nodes{phase=\"quarantined\"}",
        "meshd_nodes{phase=\"degraded\"}",
        "meshd_node_conditions{condition=\"boot_impersonated\"}",
        "meshd_node_conditions{condition=\"capability_replayed\"}",
        "meshd_vms{state=\"failed\"}",
        "meshd_slots{state=\"failed\"}",
        "meshd_slots{state=\"cleanup_blocked\"}",
        "meshd_tasks{state=\"running\"}",
        "meshd_units{state=\"ready\"}",
        "meshd_dhcp_other_servers",
        "meshd_unknown_nodes / meshd_unknown_nodes_limit",
        "meshd_http_response_bytes_total{api=\"boot\"} > 0",
    ];
    for expression in states {
        let found = query(&world, expression).unwrap();
        assert!(!found.trim().is_empty(), "{expression} has no series");
    }
    let firing = query(&world, "ALERTS{alertstate=\"firing\",severity=\"critical\"}").unwrap();
    assert!(firing.trim().is_empty(), "{firing}");
}

/// Values of a series of the last day, the oldest first.
fn series(world: &World, name: &str) -> Vec<(String, f64)> {
    let series = world.json(&["series", "show", name, "-o", "json"]);
    let points = series["points"].as_array().unwrap().iter();
    points
        .map(|point| (point["at"].as_str().unwrap().to_owned(), point["value"].as_f64().unwrap()))
        .collect()
}

/// Waits for the first sample of a daemon.
fn sampled(world: &World) -> Vec<(String, f64)> {
    eventually("a sample is taken", || match series(world, "memory") {
        points if points.is_empty() => Err("no point".to_owned()),
        points => Ok(points),
    })
}

#[test]
fn time_series_survive_kill_9_and_a_torn_file() {
    let mut world = World::new("auto");
    let first = sampled(&world);
    assert!(first[0].1 > 1e6, "the memory of the process: {first:?}");
    let list = world.json(&["series", "list", "-o", "json"]);
    let nodes = list.as_array().unwrap().iter().find(|series| series["name"] == "nodes_online");
    assert_eq!(nodes.unwrap()["newest"], 0.0, "{list}");
    world.kill();
    // A sample of the first minute, and half a sample after it: a write that a power failure tore.
    let file = world.path("state/series/site");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, [&whole[..], &whole[whole.len() - 40..]].concat()).unwrap();
    world.start();
    let after = sampled(&world);
    assert_eq!(after[0].0, first[0].0, "the sample before the kill is kept: {after:?}");
    let kept = fs::read(&file).unwrap();
    assert!(kept.starts_with(&whole[..whole.len() / 2]), "the names are the same");
    world.kill();
    // Nothing of it is readable, and meshd starts.
    fs::write(&file, [0xff; 4096]).unwrap();
    world.start();
    eventually("the file is written anew", || {
        sampled(&world);
        let bytes = fs::read(&file).unwrap();
        if bytes.starts_with(&[0xff; 4]) { Err("it is the old one".to_owned()) } else { Ok(()) }
    });
    world.stop();
}
