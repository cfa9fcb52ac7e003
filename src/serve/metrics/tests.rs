//! Tests of the metrics page: valid text, no secrets, bounded labels.

use super::*;
use bytes::Bytes;
use meshd_central::{
    DhcpChange, DhcpExchange, Parts, SegmentHealth, Shared, SystemClock, SystemEntropy,
};
use meshd_image::catalog::Catalog;
use meshd_model::fleet::{Actor, DhcpClient, Event, EventKind, Stage};
use meshd_store::{EventFilter, Store};
use meshd_trust::CertificateAuthority;
use meshd_types::{MacAddr, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0xab, 0xcd, 0xef]);

async fn central(folder: &Path) -> Shared {
    let text = include_str!("../../../site.toml");
    let site = meshd_config::parse(
        text,
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../site.toml")),
    )
    .unwrap_or_else(|faults| panic!("{faults}"));
    let authority =
        CertificateAuthority::load_or_create(&folder.join("ca"), "rack-a", Timestamp::EPOCH);
    let central = Central::new(Parts {
        commit: "unknown",
        site: Arc::new(site),
        catalog: Catalog::new(Vec::new(), Default::default()),
        loaders: BTreeMap::new(),
        agent_binary: Bytes::new(),
        store: Store::open(&folder.join("store")).expect("a new store"),
        authority: authority.expect("a new authority"),
        clock: Box::new(SystemClock),
        entropy: Box::new(SystemEntropy),
        lan: Box::new(meshd_central::NoLan),
    });
    central.boot.report_segment(SegmentHealth {
        name: "br\"0".to_owned(),
        mode: meshd_config::DhcpMode::Authoritative,
        pool: Default::default(),
        other_servers: Vec::new(),
    });
    let seen = DhcpExchange {
        mac: MAC,
        client: DhcpClient::Firmware,
        uuid: None,
        arch: None,
        is_discover: true,
        secs: 0,
        address: Some([10, 77, 0, 123].into()),
        lease: None,
        discovered: true,
        relay_port: None,
        is_relayed: false,
        bmc: None,
    };
    central.boot.apply_dhcp_changes(&[DhcpChange::Exchange(seen)]).await.expect("stored");
    central
}

/// Name, labels and value of each sample; the types and helps that were announced.
struct Read {
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
    types: BTreeMap<String, String>,
    helps: BTreeSet<String>,
}

/// Reads the text format as its specification says; panics where it is broken.
fn read(text: &str) -> Read {
    let mut read = Read { samples: Vec::new(), types: BTreeMap::new(), helps: BTreeSet::new() };
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, said) = help.split_once(' ').expect("a help says something");
            assert!(said.len() > 10, "{line}");
            assert!(read.helps.insert(name.to_owned()), "{name} is described twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(
                read.types.insert(name.to_owned(), kind.to_owned()),
                None,
                "{name} has one type"
            );
        } else {
            read.samples.push(sample(line));
        }
    }
    read
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (head, value) = line.rsplit_once(' ').expect("a value");
    let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
    let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
    let labels = labels.strip_suffix('}').expect("labels end");
    let mut found = BTreeMap::new();
    let mut rest = labels;
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"").expect("a label has a value");
        let end = (0..after.len())
            .find(|at| after[*at..].starts_with('"') && !after[..*at].ends_with('\\'))
            .expect("a value ends");
        found.insert(label.to_owned(), after[..end].to_owned());
        rest = after[end + 1..].trim_start_matches(',');
    }
    (name.to_owned(), found, value)
}

/// The family that a sample belongs to.
fn family<'a>(read: &'a Read, name: &'a str) -> &'a str {
    let parts =
        ["_bucket", "_sum", "_count"].into_iter().filter_map(|part| name.strip_suffix(part));
    parts
        .into_iter()
        .find(|base| read.types.get(*base).is_some_and(|kind| kind == "histogram"))
        .unwrap_or(name)
}

#[tokio::test]
async fn metrics_page_is_valid_bounded_and_free_of_machine_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = Metrics::install();
    let central = central(folder.path()).await;
    for (_, event) in
        central.store().events(EventFilter { limit: 100, ..EventFilter::default() }).expect("read")
    {
        observe::count(&central, &event);
    }
    let strange = Event::new(
        central.now(),
        Actor::Stranger,
        EventKind::EnrolRefused,
        "token abc from 10.77.0.123",
    );
    observe::count(&central, &strange);
    count_request(
        "admin",
        "/v1/nodes/{node}",
        &axum::response::IntoResponse::into_response("12345"),
    );
    let text = metrics.page(&central);
    let read = read(&text);
    for (name, labels, value) in &read.samples {
        let family = family(&read, name);
        assert!(name.starts_with("meshd_"), "{name}");
        assert!(
            read.types.contains_key(family) && read.helps.contains(family),
            "{name} has no type or help"
        );
        assert!(value.is_finite(), "{name} {value}");
        for (label, value) in labels {
            let known = [
                "le",
                "kind",
                "stage",
                "state",
                "phase",
                "condition",
                "segment",
                "result",
                "reason",
                "code",
            ];
            let known = known
                .iter()
                .chain(&["missing", "api", "route", "status", "version", "commit", "cause"]);
            assert!(
                known.clone().any(|known| known == label),
                "{name} has the label {label}={value}"
            );
        }
    }
    for secret in [MAC.to_string().as_str(), "10.77.0.123", "abc"] {
        assert!(!text.contains(secret), "{secret} is in it");
    }
    let value = |wanted: &str, labels: &[(&str, &str)]| {
        let is = |sample: &&(String, BTreeMap<String, String>, f64)| {
            sample.0 == wanted
                && labels
                    .iter()
                    .all(|(label, value)| sample.1.get(*label).is_some_and(|is| is == value))
        };
        read.samples.iter().find(is).unwrap_or_else(|| panic!("{wanted} {labels:?} in\n{text}")).2
    };
    assert!(value("meshd_boot_stage_seconds_count", &[("stage", "dhcp")]) >= 1.0);
    assert!(value("meshd_boots_started_total", &[]) >= 1.0);
    assert!(value("meshd_store_commit_seconds_count", &[]) >= 1.0);
    assert!(value("meshd_process_resident_memory_bytes", &[]) > 1e6);
    assert_eq!(value("meshd_boots", &[("state", "booting"), ("stage", "dhcp")]), 1.0);
    assert_eq!(
        value("meshd_nodes", &[("phase", "online")]),
        0.0,
        "a phase without a node is there too"
    );
    assert_eq!(value("meshd_dhcp_pool_size_addresses", &[("segment", "br\\\"0")]), 0.0);
}

#[tokio::test]
async fn replayed_event_is_counted_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let central = central(folder.path()).await;
    let recorder = recorder();
    let handle = recorder.handle();
    // A local recorder belongs to this thread: the events are handed over as the observer does, in
    // its order and twice.
    metrics::with_local_recorder(&recorder, || {
        let events = central
            .store()
            .events(EventFilter { limit: 100, ..EventFilter::default() })
            .expect("read");
        let mut last = None;
        for (seq, event) in events.iter().chain(&events) {
            observe::count_new(&central, &mut last, *seq, event);
        }
    });
    let read = read(&format!("{}\n", handle.render()));
    let stages: Vec<f64> = read
        .samples
        .iter()
        .filter(|(name, labels, _)| {
            name == "meshd_boot_stage_seconds_count"
                && labels.get("stage").is_some_and(|stage| stage == Stage::Dhcp.as_str())
        })
        .map(|(.., value)| *value)
        .collect();
    assert_eq!(stages, [1.0]);
}

#[test]
fn metrics_in_source_are_all_described() {
    let described = describe::COUNTERS.iter().chain(&describe::GAUGES).chain(&describe::HISTOGRAMS);
    let described: BTreeSet<&str> = described.map(|(name, _)| *name).collect();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    let mut named = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            for kind in ["counter", "gauge", "histogram"] {
                let opens = format!("metrics::{kind}!(");
                for (at, _) in text.match_indices(&opens) {
                    let rest = text[at + opens.len()..].trim_start();
                    let Some(name) = rest.strip_prefix('"').and_then(|rest| rest.split('"').next())
                    else {
                        continue;
                    };
                    named += 1;
                    assert!(
                        described.contains(name),
                        "{name} of {} has no line in describe.rs",
                        path.display()
                    );
                }
            }
        }
    }
    assert!(named > 5, "the sources were read");
}
