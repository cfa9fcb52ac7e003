//! Tests of container messages: text form, round trips, and rejected values.

use super::*;
use crate::{
    FromAgent, FromCentral, MAX_MESSAGE, NodeReport, NodeSpec, SectionReport, SpecEntry,
    json_element_limit,
    task::{MAX_ARG_BYTES, MAX_ARGS},
};
use meshd_types::Digest;
use serde_json::json;
use std::collections::BTreeMap;

fn spec() -> ReplicaSpec {
    ReplicaSpec {
        run: 1,
        image: Digest([7; 32]),
        image_size: 4096,
        argv: vec!["/bin/server".to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
        working_dir: "/".to_owned(),
        uid: 1000,
        gid: 1000,
        cpu_millis: 500,
        memory_mib: 64,
        scratch_mib: 16,
        ports: vec![PublishedPort { node: 8080, container: 80 }],
        mounts: vec![mount("/srv/data")],
        restart: ContainerRestart::OnFailure { max: 5 },
        health: Some(HealthCheck {
            probe: HealthProbe::Http { port: 80, path: "/health".to_owned() },
            interval_seconds: 10,
            timeout_seconds: 2,
            failures: 3,
            start_seconds: 5,
        }),
        stop_seconds: 10,
    }
}

fn mount(path: &str) -> ReplicaMount {
    ReplicaMount { volume: Digest([8; 32]), size: 4096, path: path.to_owned() }
}

fn replica() -> ReplicaId {
    "web.0".parse().expect("a replica")
}

#[test]
fn replica_has_one_text_form() {
    for text in ["web.0", "web.63", "a.b.7"] {
        let id: ReplicaId = text.parse().expect(text);
        assert_eq!(id.to_string(), text);
    }
    let wrong = ["", "web", "web.", "web.64", "web.00", "web.+1", "web.-1", ".0", "../x.0", "A.0"];
    for text in wrong {
        assert!(text.parse::<ReplicaId>().is_err(), "{text:?}");
    }
}

#[test]
fn order_and_report_of_a_replica_round_trip_as_messages() {
    let desired_state = ContainerDesiredState::Run(Box::new(spec()));
    let entry = SpecEntry::Containers(ContainerEntry { replica: replica(), desired_state });
    let order = FromCentral::Spec(NodeSpec { generation: 2, entry });
    let wire = serde_json::to_value(&order).expect("plain");
    assert_eq!(wire["entry"]["section"], "containers");
    assert_eq!(wire["entry"]["replica"], "web.0");
    let health = json!({
        "probe": "http", "port": 80, "path": "/health",
        "interval_seconds": 10, "timeout_seconds": 2, "failures": 3, "start_seconds": 5,
    });
    assert_eq!(wire["entry"]["desired_state"]["health"], health);
    assert_eq!(wire["entry"]["desired_state"]["state"], "run");
    let mount = json!({ "volume": Digest([8; 32]), "size": 4096, "path": "/srv/data" });
    assert_eq!(wire["entry"]["desired_state"]["mounts"], json!([mount]));
    let text = wire.to_string();
    assert_eq!(json_element_limit::read::<FromCentral>(text.as_bytes()), Ok(order));

    for (state, wire) in [
        (ReplicaState::Fetching { percent: 7 }, json!({ "state": "fetching", "percent": 7 })),
        (ReplicaState::Running { healthy: None }, json!({ "state": "running" })),
        (
            ReplicaState::Waiting { code: 1, out_of_memory: false },
            json!({ "state": "waiting", "code": 1 }),
        ),
        (
            ReplicaState::Waiting { code: 137, out_of_memory: true },
            json!({ "state": "waiting", "code": 137, "out_of_memory": true }),
        ),
        (
            ReplicaState::Failed { kind: ContainerFault::PortInUse, detail: "8080".to_owned() },
            json!({ "state": "failed", "kind": "port_in_use", "detail": "8080" }),
        ),
    ] {
        let mut report = json!({ "replica": "web.0", "run": 1, "restarts": 0 });
        report.as_object_mut().expect("a record").extend(wire.as_object().cloned().expect("one"));
        let replicas = vec![ReplicaReport { replica: replica(), run: 1, restarts: 0, state }];
        let state = SectionReport::Containers(ContainerUpdate::All { replicas });
        let message = FromAgent::Report(NodeReport { observed: 2, state });
        let state = json!({ "section": "containers", "update": "all", "replicas": [report] });
        let wire = json!({ "kind": "report", "observed": 2, "state": state });
        assert_eq!(serde_json::to_value(&message).expect("plain"), wire);
        assert_eq!(serde_json::from_value::<FromAgent>(wire).expect("its own text"), message);
    }
}

#[test]
fn fault_of_a_later_version_is_read_as_unknown() {
    let wire = json!({ "state": "failed", "kind": "later", "detail": "x" });
    let read: ReplicaState = serde_json::from_value(wire).expect("a state");
    assert!(matches!(read, ReplicaState::Failed { kind: ContainerFault::Unknown, .. }));
}

/// Makes one value of a specification wrong.
type Change = fn(&mut ReplicaSpec);

#[test]
fn value_out_of_bounds_is_named_with_its_key() {
    assert_eq!(spec().faults(), []);
    let port = PublishedPort { node: 8080, container: 81 };
    let wrong: [(&str, Change); 14] = [
        ("argv", |spec| spec.argv.clear()),
        ("argv", |spec| spec.argv = vec!["x".to_owned(); MAX_ARGS + 1]),
        ("env", |spec| drop(spec.env.insert("A".to_owned(), "x".repeat(MAX_ENV_BYTES)))),
        ("env", |spec| drop(spec.env.insert("A=B".to_owned(), String::new()))),
        ("env", |spec| drop(spec.env.insert("A".to_owned(), "\0".to_owned()))),
        ("working_dir", |spec| "relative".clone_into(&mut spec.working_dir)),
        ("cpu", |spec| spec.cpu_millis = 0),
        ("memory", |spec| {
            spec.memory_mib = 1;
            spec.scratch_mib = 1;
        }),
        ("scratch", |spec| spec.scratch_mib = 65),
        ("restart", |spec| spec.restart = ContainerRestart::OnFailure { max: 0 }),
        ("stop_seconds", |spec| spec.stop_seconds = 601),
        ("ports", |spec| spec.ports[0].node = 0),
        ("health.path", |spec| {
            let health = spec.health.as_mut().expect("a check");
            health.probe = HealthProbe::Http { port: 80, path: "/a\r\nX: y".to_owned() };
        }),
        ("health.failures", |spec| spec.health.as_mut().expect("a check").failures = 0),
    ];
    for (key, change) in wrong {
        let mut spec = spec();
        change(&mut spec);
        let keys: Vec<_> = spec.faults().into_iter().map(|fault| fault.key).collect();
        assert_eq!(keys, [key]);
    }
    let mut twice = spec();
    twice.ports.push(port);
    assert_eq!(twice.faults().len(), 1);
}

#[test]
fn refused_variable_is_named_by_position_and_not_quoted() {
    for (name, value) in [("my secret", "x"), ("my\0secret", "\0"), ("9secret", "")] {
        let mut spec = spec();
        spec.env.insert(name.to_owned(), value.to_owned());
        let faults = spec.faults();
        assert!(!faults.is_empty() && faults.iter().all(|fault| fault.message.contains(" of 2 ")));
        assert!(!format!("{faults:?}").contains("secret"), "{faults:?}");
    }
}

#[test]
fn path_of_a_mount_is_a_plain_folder_outside_the_folders_of_the_node() {
    let faults = |paths: &[&str]| {
        let mounts = paths.iter().map(|path| mount(path)).collect();
        let faults = ReplicaSpec { mounts, ..spec() }.faults();
        assert!(faults.iter().all(|fault| fault.key == "mounts" && !fault.hint.is_empty()));
        faults.len()
    };
    let longest = format!("/{}", ["x".repeat(255).as_str(); 4].join("/"));
    let long = format!("{longest}x");
    for paths in [&["/a", "/b", "/ab"][..], &["/etc/site.d"], &["/devices", "/..a"], &[&longest]] {
        assert_eq!(faults(paths), 0, "{paths:?}");
    }
    let wrong = [
        "",
        "/",
        "a",
        "./a",
        "/a/",
        "/a//b",
        "/a/./b",
        "/a/..",
        "/../a",
        "/a b",
        "/a\n",
        "/a\0",
        "/proc",
        "/proc/sys",
        "/dev/shm",
        "/sys",
        &long,
    ];
    for path in wrong {
        assert_eq!(faults(&[path]), 1, "{path:?}");
    }
    for paths in [["/a", "/a"], ["/a", "/a/b"], ["/a/b/c", "/a/b"]] {
        assert_eq!(faults(&paths), 1, "{paths:?}");
    }
    let many: Vec<String> = (0..=MAX_MOUNTS).map(|index| format!("/m{index}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!((faults(&many), faults(&many[1..])), (1, 0));
}

#[test]
fn largest_order_fits_into_a_message() {
    let mut spec = spec();
    // Characters that JSON writes as six bytes.
    spec.argv = vec!["\u{1}".repeat(MAX_ARG_BYTES)];
    spec.env = BTreeMap::from([("A".to_owned(), "\u{1}".repeat(MAX_ENV_BYTES - 1))]);
    let path = |index| format!("/{index}{}", "/\u{e9}".repeat(300));
    spec.mounts = (0..MAX_MOUNTS).map(|index| mount(&path(index))).collect();
    assert_eq!(spec.faults(), []);
    let desired_state = ContainerDesiredState::Run(Box::new(spec));
    let entry = SpecEntry::Containers(ContainerEntry { replica: replica(), desired_state });
    let text = serde_json::to_string(&FromCentral::Spec(NodeSpec { generation: 1, entry }));
    assert!(text.expect("plain").len() < MAX_MESSAGE);
}
