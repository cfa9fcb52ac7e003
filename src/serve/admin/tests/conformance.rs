//! Fetches every route of a populated rack and validates each answer against the OpenAPI document
//! with Python's `jsonschema`, which shares no code with the server.

use super::*;
use meshd_config::vm::VmTemplates;
use meshd_model::{
    bisections::Bisection,
    fleet::{Condition, ConditionKind, DeliveredGeneration, Generation, History, Lease, Phase},
    rollouts::{Rollout, RolloutNode},
    work::{Vm, container::Container, task::Task},
};
use meshd_types::{Digest, SystemUuid};
use serde_json::{Value, json};
use std::{collections::BTreeSet, process::Command};

/// Prints one line for each contradiction between the answers and the document in the folder of its
/// argument.
const VALIDATE: &str = r#"
import json, sys
from jsonschema import Draft202012Validator
folder = sys.argv[1]
document = json.load(open(folder + "/document.json"))
for answer in json.load(open(folder + "/answers.json")):
    name = answer["method"] + " " + answer["url"] + " " + str(answer["status"])
    responses = document["paths"][answer["path"]][answer["method"].lower()]["responses"]
    response = responses.get(str(answer["status"]), responses["default"])
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    media = answer["media"].split(";")[0]
    if media not in response.get("content", {}):
        print(name, "has the media type", media)
        continue
    schema = response["content"][media].get("schema")
    if schema is None or not media.endswith("json"):
        continue
    texts = answer["body"].splitlines() if "ndjson" in media else [answer["body"]]
    for text in texts:
        for error in Draft202012Validator({**schema, "components": document["components"]}).iter_errors(json.loads(text)):
            print(name, "/".join(map(str, error.absolute_path)), error.message[:200])
"#;
/// A stream, and WebSockets: their answers have no end.
const ENDLESS: [&str; 7] = [
    "/v1/containers/{container}/exec",
    "/v1/events/stream",
    "/v1/vms/{vm}/console",
    "/v1/vms/{vm}/shell",
    "/v1/nodes/{node}/console",
    "/v1/nodes/{node}/shell",
    "/v1/tasks/{task}/input",
];
const TASK: &str = "00000000";
const ROLLOUT: &str = "0a0b0c0d";
const BISECTION: &str = "0a0b0c0e";
const VM: &str = "77010203-0405-0607-0809-0a0b0c0d0e01";
const UNIT: &str = "0000:41:00.0";

/// Answers that were received.
#[derive(Default)]
struct Answers {
    all: Vec<Value>,
    /// Routes with a successful answer.
    succeeded: BTreeSet<String>,
}

impl Answers {
    async fn send(
        &mut self,
        fixture: &Fixture,
        (method, path): (&str, &str),
        url: &str,
        body: &str,
    ) -> u16 {
        let response = fixture.send(method, url, body).await;
        let status = response.status().as_u16();
        let media = response
            .headers()
            .get("content-type")
            .map(|value| value.to_str().expect("plain").to_owned());
        let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
        let body = String::from_utf8_lossy(&bytes);
        if status == 200 {
            self.succeeded.insert(format!("{method} {path}"));
        }
        self.all.push(
            json!({ "method": method, "path": path, "url": url, "status": status, "media": media, "body": body }),
        );
        status
    }

    /// Returns the contradictions.
    fn contradictions(&self, document: &Value) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, value) in [("document", document), ("answers", &json!(self.all))] {
            std::fs::write(folder.path().join(format!("{name}.json")), value.to_string())
                .expect("written");
        }
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.unwrap_or_else(|| {
            PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cache")
        });
        let python = cache.join("meshd/python/bin/python3");
        let output = Command::new(&python).args(["-c", VALIDATE]).arg(folder.path()).output();
        let output = output
            .unwrap_or_else(|error| panic!("{}: {error}; run .ci/setup test", python.display()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn delivered(byte: u8) -> DeliveredGeneration {
    let delivered = json!({
        "generation": Generation(Digest([byte; 32])), "profile": "discovery", "image": "alpine-lab", "version": Digest([9; 32]),
        "delivered_at": at(4_000), "booted_at": at(5_000), "last_at": at(6_000),
    });
    serde_json::from_value(delivered).expect("a generation")
}

fn vm() -> Vm {
    let text = "name = \"vm-1\"\nvcpus = 2\nmemory = \"1G\"\n[[volume]]\nname = \"d\"\nformat = \"raw\"\ndisk = \"SN-1\"\n\
                [[nic]]\nbridge = \"br1\"\n";
    let vm = meshd_config::vm::parse(text, Path::new("vm.toml"))
        .unwrap_or_else(|faults| panic!("{faults}"));
    let request = vm
        .complete(&VmTemplates::new(), VM.parse().expect("a UUID"))
        .expect("it needs no template");
    Vm::new(request, None, at(7_000))
}

fn task(node: NodeId, user: &Value) -> Task {
    let task = json!({
        "id": TASK, "owner": "uid:0", "created_at": at(1_000), "started_at": at(2_000), "ended_at": at(3_000), "state": "failed",
        "spec": { "group": "pair", "argv": ["/bin/false"], "nodes": 1, "ranks_per_node": 1, "launcher": "none", "user": user },
        "end": { "state": "failed", "cause": "exited", "detail": "exit code 1", "node": node, "code": 1, "at": at(3_000) },
        "members": [{ "node": node, "session": BootSessionId([7; 12]), "address": "10.77.0.9", "state": "released", "code": 1 }],
    });
    serde_json::from_value(task).expect("a task")
}

/// A container with a replica that runs, and one that failed.
fn container(node: NodeId) -> Container {
    let spec = json!({ "run": 0, "image": Digest([3; 32]), "image_size": 4096, "argv": ["/bin/server"], "env": { "A": "b" },
        "working_dir": "/", "uid": 33, "gid": 33, "cpu_millis": 500, "memory_mib": 64, "scratch_mib": 16,
        "ports": [{ "node": 8080, "container": 80 }], "restart": { "when": "on_failure", "max": 3 }, "stop_seconds": 10,
        "health": { "probe": "http", "port": 80, "path": "/", "interval_seconds": 10, "timeout_seconds": 2, "failures": 3,
            "start_seconds": 0 } });
    let runs = json!({ "state": "running", "healthy": true });
    let failed = json!({ "state": "failed", "kind": "port_in_use", "detail": "8080" });
    let replica = |state: Value| {
        json!({ "run": 1, "placement": { "node": node, "since": at(1_000) },
        "last_report": { "run": 1, "restarts": 2, "state": state, "since": at(2_000) } })
    };
    let container = json!({ "name": "web", "image": "server", "arch": "x86_64", "spec": spec, "desired_state": "run",
        "owner": "uid:0", "created_at": at(1_000), "replicas": [replica(runs), replica(failed)] });
    serde_json::from_value(container).expect("a container")
}

/// A bisection that found its generation.
fn bisection(node: NodeId) -> Bisection {
    let [good, bad] = ["01", "02"].map(|byte| byte.repeat(32));
    let bisection = json!({ "id": BISECTION, "profile": "compute", "generations": [good, bad], "nodes": [node],
        "check": "jobs", "runs": 1, "verify": true, "node_timeout_s": 60, "soak_s": 1, "state": "done", "first_bad": bad,
        "by": { "actor": "uid:0", "verb": "bisect-start", "correlation_id": "0101010101010101" },
        "started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:01:00Z", "returning": ROLLOUT,
        "probes": [{ "index": 1, "node": node, "rollout": ROLLOUT, "verdict": "bad", "reason": "exit code 1" }], "before": {} });
    serde_json::from_value(bisection).expect("a bisection")
}

/// A rollout that has failed at its only node.
fn rollout(node: NodeId) -> (Rollout, RolloutNode) {
    let head = json!({ "id": ROLLOUT, "target": { "to": "reboot" }, "policy": { "floors": ["80%"] }, "state": "failed",
        "by": { "actor": "uid:0", "verb": "rollout-start", "correlation_id": "0101010101010101" }, "reason": "n1: silent",
        "started_at": at(1_000), "finished_at": at(2_000), "nodes": 1, "waves": 1, "clock_ms": 1000, "undoes": "0a0b0c0c" });
    let record = json!({ "rollout": ROLLOUT, "node": node, "name": "n1", "wave": 0, "stage": "failed", "reason": "silent",
        "began_at": at(1_000), "finished_at": at(2_000) });
    let head = serde_json::from_value(head).expect("a rollout");
    (head, serde_json::from_value(record).expect("a node of it"))
}

/// Fills the record of the node: a unit, failed checks, a condition, an override, a rival.
fn fill(node: &mut Node) {
    let unit = json!({ "group": 4, "state": "ready", "selected": [UNIT],
        "members": [{ "address": UNIT, "vendor": "10de", "device": "2335", "class": "0302" }] });
    node.facts =
        serde_json::from_value(json!({ "cpu": { "threads": 8 }, "units": [unit] })).expect("facts");
    node.phase = Phase::Quarantined;
    node.quarantine_reason = Some("a test".to_owned());
    let condition =
        Condition { kind: ConditionKind::Drift, since: at(2_000), detail: "differs".to_owned() };
    node.conditions.push(condition);
    let check = json!({ "name": "kvm", "status": "FAIL", "detail": "no /dev/kvm", "remediation": "enable it" });
    node.checks = vec![serde_json::from_value(check).expect("a check")];
    let evidence =
        json!({ "session": BootSessionId([7; 12]), "kernel_boot_id": "1", "at": at(3_000) });
    node.evidence = serde_json::from_value(evidence).expect("evidence");
    let once = json!({ "profile": "compute", "kernel_args": ["x"], "set_at": at(3_000) });
    node.boot_override = serde_json::from_value(once).expect("an override");
    let rival = json!({ "fingerprint": Fingerprint::default(), "mac": MacAddr([2, 0, 0, 0, 0, 2]), "address": "10.77.0.8",
        "since": at(1_000), "last": at(2_000) });
    node.conflicting_machines = vec![serde_json::from_value(rival).expect("a rival")];
    node.vars = serde_json::from_value(json!({ "a": true, "b": 7, "c": "x", "d": ["y"] }))
        .expect("variables");
    node.labels = serde_json::from_value(json!({ "rack": "a" })).expect("labels");
    node.pinned = Some(Generation(Digest([1; 32])));
    (node.generation, node.booted) = (node.pinned, Some(Generation(Digest([2; 32]))));
}

async fn populate_rack(fixture: &Fixture) {
    let node = fixture.node;
    let stored = fixture.central.store().commit(|tx| {
        tx.edit_node(node, fill);
        tx.edit_session(BootSessionId([7; 12]), |boot| {
            let wait = json!({ "code": "approval", "at": at(1_000), "last": at(2_000) });
            boot.waits = vec![serde_json::from_value(wait).expect("a wait")];
            let stall = json!({ "after": "script", "missing": "kernel", "since": at(3_000), "cause": "unknown", "ended": at(4_000) });
            boot.stalls = vec![serde_json::from_value(stall).expect("a stall")];
            boot.failure = Some("a package is missing".to_owned());
        });
        tx.put_history(node, History(vec![delivered(1), delivered(2)]));
        for (last, vm) in [(9, None), (10, Some(SystemUuid([7; 16])))] {
            let mac = MacAddr([2, 0, 0, 0, 0, last]);
            let address = Ipv4Addr::new(10, 77, 0, last);
            tx.put_lease(Lease { mac, address, expires_at: at(9_000), vm });
        }
        let (head, record) = rollout(node);
        tx.put_rollout(head);
        tx.put_rollout_node(record);
        tx.put_bisection(bisection(node));
        tx.put_vm(vm());
        tx.put_task(task(node, &json!({ "uid": 1000 })));
        tx.put_container(container(node));
        for kind in [EventKind::Raised { condition: ConditionKind::Drift }, EventKind::Stage { stage: Stage::Script }] {
            tx.event(Event::new(at(5_000), Actor::Node, kind, "it differs").of_node(node));
        }
        Ok::<_, StoreError>(())
    });
    stored.await.expect("stored");
}

/// Orders whose answers are validated. Some of them are refused.
const ORDERS: [(&str, &str, &str); 26] = [
    (
        "/v1/api-tokens/create",
        "/v1/api-tokens/create",
        r#"{"name":"eyes","role":"viewer","expires_in":3600}"#,
    ),
    ("/v1/tokens", "/v1/tokens", r#"{"basis":"mac:02:00:00:00:00:09"}"#),
    ("/v1/tokens/{token}/revoke", "/v1/tokens/none/revoke", "null"),
    ("/v1/nodes/{node}/release", "", "null"),
    ("/v1/nodes/{node}/approve", "", r#"{"moved":true}"#),
    ("/v1/nodes/{node}/label", "", r#"{"set":{"feed":"b"}}"#),
    ("/v1/nodes/{node}/vars", "", r#"{"set":{"kvm_nested":true}}"#),
    ("/v1/nodes/{node}/rename", "", r#"{"name":"n1"}"#),
    ("/v1/nodes/{node}/boot-once", "", r#"{"profile":"compute"}"#),
    ("/v1/nodes/{node}/pin", "", r#"{"off":true}"#),
    ("/v1/nodes/{node}/drain", "", ""),
    ("/v1/nodes/{node}/maintenance", "", "null"),
    ("/v1/nodes/{node}/doctor", "", "null"),
    ("/v1/nodes/{node}/reboot", "", "null"),
    ("/v1/nodes/{node}/revoke", "", "null"),
    ("/v1/slots/{node}/{unit}/approve", "", r#"{"mac":"02:00:00:00:00:77"}"#),
    ("/v1/slots/{node}/{unit}/disable", "", "null"),
    ("/v1/vms/{vm}/start", "", "null"),
    ("/v1/tasks/{task}/cancel", "", "null"),
    ("/v1/containers/{container}/stop", "", "null"),
    ("/v1/bulk/nodes/doctor", "/v1/bulk/nodes/doctor", r#"{"nodes":[]}"#),
    (
        "/v1/rollouts/plan",
        "/v1/rollouts/plan",
        r#"{"hostlist":"n1","target":{"to":"profile","profile":"compute"}}"#,
    ),
    ("/v1/rollouts", "/v1/rollouts", r#"{"label":"feed=b","target":{"to":"reboot"}}"#),
    ("/v1/bisections/{bisection}/abort", "/v1/bisections/0a0b0c0e/abort", "null"),
    ("/v1/reload", "/v1/reload", "null"),
    ("/v1/ca/rotate", "/v1/ca/rotate", "{}"),
];

/// Reads that have no successful answer here: the rack has no image, no agent, no BMC and no
/// archived generations.
const REFUSED: [&str; 9] = [
    "GET /v1/containers/{container}/logs",
    "GET /v1/nodes/{node}/diff",
    "GET /v1/nodes/{node}/firmware",
    "GET /v1/nodes/{node}/sel",
    "GET /v1/nodes/{node}/sensors",
    "GET /v1/overlay/{node}",
    "GET /v1/overlay/{node}/files",
    "GET /v1/profiles/{name}/diff",
    "GET /v1/vms/{vm}/logs",
];

#[tokio::test]
async fn answers_of_every_route_conform_to_the_openapi_document() {
    let fixture = Fixture::start().await;
    populate_rack(&fixture).await;
    let (_, document) = fixture.get::<Value>("GET", "/v1/openapi.json", "").await;
    let node = fixture.node.to_string();
    let real = |path: &str, name: &str| {
        let parts = [
            ("{node}", &*node),
            ("{task}", TASK),
            ("{rollout}", ROLLOUT),
            ("{bisection}", BISECTION),
            ("{vm}", VM),
            ("{container}", "web"),
            ("{unit}", UNIT),
            ("{name}", name),
        ];
        parts.iter().fold(path.to_owned(), |path, (part, value)| path.replace(part, value))
    };
    let mut answers = Answers::default();
    for (path, url, body) in ORDERS {
        let url = if url.is_empty() { real(path, "") } else { url.to_owned() };
        answers.send(&fixture, ("POST", path), &url, body).await;
    }
    let (_, operations) = fixture.get::<Vec<Value>>("GET", "/v1/operations", "").await;
    let operation = operations[0]["id"].as_str().expect("an ID");
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths.iter().filter(|(path, _)| !ENDLESS.contains(&path.as_str())) {
        let Some(described) = methods.get("get") else { continue };
        let named = match path.as_str() {
            path if path.starts_with("/v1/overlays") => "kvm-host",
            path if path.starts_with("/v1/series") => "nodes_online",
            _ => "discovery",
        };
        let url = match path.as_str() {
            "/v1/search" => "/v1/search?q=02".to_owned(),
            path => real(path, named).replace("{operation}", operation),
        };
        answers.send(&fixture, ("GET", path), &url, "").await;
        let parameters = described["parameters"].as_array().expect("parameters");
        if parameters.iter().any(|parameter| parameter["name"] == "fields") {
            let field = match path.as_str() {
                "/v1/events" | "/v1/audit" => "seq,detail",
                "/v1/bisections" | "/v1/operations" | "/v1/rollouts" | "/v1/tasks" => "id",
                "/v1/leases" => "mac",
                _ => "name",
            };
            let status =
                answers.send(&fixture, ("GET", path), &format!("{url}?fields={field}"), "").await;
            assert_eq!(status, 200, "{url}");
            assert_eq!(
                answers.send(&fixture, ("GET", path), &format!("{url}?limit=0"), "").await,
                400,
                "{url}"
            );
        }
        if !REFUSED.contains(&&*format!("GET {path}")) {
            assert!(answers.succeeded.contains(&format!("GET {path}")), "{:?}", answers.all.last());
        }
    }
    let timeline =
        fixture.get::<TimelineView>("GET", &format!("/v1/nodes/{node}/timeline"), "").await.1;
    let steps: Vec<_> = timeline
        .tasks
        .iter()
        .map(|step| (step.id.to_string(), step.start_ms, step.run_ms))
        .collect();
    assert_eq!(steps, [(TASK.to_owned(), Some(1_000), Some(1_000))]);
    let overlays = fixture.get::<Vec<Value>>("GET", "/v1/overlays", "").await.1;
    for overlay in overlays.iter().filter_map(|overlay| overlay["name"].as_str()) {
        answers
            .send(&fixture, ("GET", "/v1/overlays/{name}"), &format!("/v1/overlays/{overlay}"), "")
            .await;
    }
    for profile in ["compute", "vfio-host"] {
        let path = "/v1/profiles/{name}/settings";
        answers.send(&fixture, ("GET", path), &path.replace("{name}", profile), "").await;
    }
    let found = answers.contradictions(&document);
    assert!(found.is_empty(), "{found}");
}

#[tokio::test]
async fn every_error_response_is_json() {
    let fixture = Fixture::start().await;
    let node = fixture.node;
    let long = format!("\"{}\"", "x".repeat(crate::admin::MAX_BODY));
    let mut requests = vec![
        ("POST", format!("/v1/nodes/{node}/approve"), "{", 400),
        ("POST", format!("/v1/nodes/{node}/approve"), "[true]", 400),
        ("POST", "/v1/api-tokens/create".to_owned(), r#"["rr","viewer",60]"#, 400),
        ("POST", format!("/v1/nodes/{node}/assign-profile"), &long, 413),
        ("GET", format!("/v1/vms/{VM}/console"), "", 400),
        ("GET", "/v1/none".to_owned(), "", 404),
        ("PUT", "/v1/nodes".to_owned(), "", 405),
    ];
    for spec in meshd_api::routes::specs().filter(|spec| spec.path.contains('{')) {
        let parts =
            spec.path.split('/').map(|part| if part.starts_with('{') { "%ff" } else { part });
        let method = if spec.verb.is_some() { "POST" } else { "GET" };
        requests.push((method, parts.collect::<Vec<_>>().join("/"), "null", 400));
    }
    for (method, path, body, status) in requests {
        let response = fixture.send(method, &path, body).await;
        assert_eq!(
            response.headers()["content-type"],
            "application/json",
            "{method} {path}: {}",
            response.status()
        );
        let found = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
        let error: ErrorView =
            serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(!error.message.is_empty() && error.correlation_id.len() == 16, "{error:?}");
        assert_eq!(found, status, "{method} {path}: {error:?}");
    }
}

#[tokio::test]
async fn parameter_that_the_route_does_not_have_is_refused_on_every_route() {
    let fixture = Fixture::start().await;
    let node = fixture.node.to_string();
    for spec in meshd_api::routes::specs() {
        let parts = spec.path.split('/').map(|part| if part == "{node}" { &node } else { part });
        let path = parts.collect::<Vec<_>>().join("/");
        let method = if spec.verb.is_some() { "POST" } else { "GET" };
        let mut refused = vec![("nothing=1".to_owned(), "unknown parameter `nothing`".to_owned())];
        if let Some(name) = spec.query.first() {
            let message = format!("parameter `{name}` is given more than once");
            refused.push((format!("{name}=1&{name}=1"), message));
        }
        for (query, message) in refused {
            let path = format!("{path}?{query}");
            let (status, error) = fixture.get::<ErrorView>(method, &path, "null").await;
            let found = (status.as_u16(), error.code.as_str(), error.message.as_str());
            assert_eq!(found, (400, "bad_request", message.as_str()), "{method} {path}");
            assert!(!error.hint.is_empty(), "{method} {path}");
        }
    }
    let path = format!("/v1/nodes/{node}");
    assert_eq!(fixture.get::<NodeView>("GET", &path, "").await.1.phase.as_str(), "discovered");
}

#[tokio::test]
async fn order_with_a_precondition_is_refused_and_not_executed() {
    let fixture = Fixture::start().await;
    let path = format!("/v1/nodes/{}", fixture.node);
    for header in ["if-match", "if-none-match"] {
        let (status, _, error) =
            fixture.order(&format!("{path}/approve"), "null", &[(header, "\"x\"")]).await;
        assert_eq!((status, &error["code"]), (412, &"no_precondition".into()), "{error}");
    }
    assert_eq!(fixture.get::<NodeView>("GET", &path, "").await.1.phase.as_str(), "discovered");
    assert_eq!(
        fixture.request("GET", "/v1/nodes", "", &[("if-match", "\"x\"")]).await.status(),
        412
    );
    let known = fixture.request("GET", "/v1/nodes", "", &[("if-none-match", "*")]).await.status();
    assert_eq!(known, StatusCode::NOT_MODIFIED, "lists evaluate it");
}
