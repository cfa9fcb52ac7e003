//! Tests of the admin API over a real socket.

mod catalog;
mod conformance;
mod document;
mod event_stream;
mod guesses;
mod orders;
mod revoked;
mod series;
mod vm_details;

use super::{ApiState, Listening, Socket, bind, run, transport::auth::Failures};
use crate::metrics::Metrics;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use meshd_api::{
    CORRELATION_HEADER, ErrorView, EventView, Finding, KEY_HEADER, NodeView, REPLAYED_HEADER,
    TimelineView,
};
use meshd_central::{Central, Parts, Shared, SystemClock, SystemEntropy};
use meshd_image::catalog::{Catalog, read_overlays};
use meshd_model::fleet::{Actor, BootSession, Event, EventKind, Fingerprint, Node, Stage};
use meshd_store::{Store, StoreError};
use meshd_trust::CertificateAuthority;
use meshd_types::{Basis, BootSessionId, MacAddr, NodeId, Timestamp};
use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::watch,
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// A central node with one machine, and its admin API.
struct Fixture {
    central: Shared,
    node: NodeId,
    socket: PathBuf,
    stop: CancellationToken,
    server: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let text = include_str!("../../../site.toml");
        let mut site = meshd_config::parse(
            text,
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../site.toml")),
        )
        .unwrap_or_else(|faults| panic!("{faults}"));
        site.state_dir = folder.path().to_owned();
        let overlays = read_overlays(&site.overlays_dir).expect("the overlays that ship are valid");
        let authority = CertificateAuthority::load_or_create(
            &folder.path().join("ca"),
            "rack-a",
            at(1_700_000_000_000),
        );
        let central = Central::new(Parts {
            commit: "unknown",
            site: Arc::new(site),
            catalog: Catalog::new(Vec::new(), overlays),
            loaders: BTreeMap::new(),
            agent_binary: Bytes::new(),
            store: Store::open(&folder.path().join("store")).expect("a new store"),
            authority: authority.expect("a new authority"),
            clock: Box::new(SystemClock),
            entropy: Box::new(SystemEntropy),
            lan: Box::new(meshd_central::NoLan),
        });
        let node = populate(&central).await;
        let socket = folder.path().join("admin.sock");
        let stop = CancellationToken::new();
        let bound: Socket = bind(&socket).expect("a free path");
        let boot_address = watch::Sender::new(Ipv4Addr::new(10, 77, 0, 1)).subscribe();
        let listening =
            Listening { socket: bound, https: None, connections: super::MAX_CONNECTIONS };
        let server = tokio::spawn(run(
            central.clone(),
            listening,
            boot_address,
            Metrics::install(),
            stop.clone(),
        ));
        Fixture { central, node, socket, stop, server, _folder: folder }
    }

    /// Returns the state of a second instance of the API, for requests without the socket.
    fn api_state(&self) -> ApiState {
        ApiState {
            central: self.central.clone(),
            boot_address: watch::Sender::new(Ipv4Addr::LOCALHOST).subscribe(),
            https_fingerprint: None,
            metrics: Metrics::install(),
            shutdown: self.stop.clone(),
            failures: Failures::default(),
            tasks: TaskTracker::new(),
        }
    }

    async fn request(
        &self,
        method: &str,
        path: &str,
        body: &str,
        headers: &[(&'static str, &str)],
    ) -> hyper::Response<Incoming> {
        let stream = UnixStream::connect(&self.socket).await.expect("it listens");
        let handshake =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.expect("it speaks HTTP");
        tokio::spawn(async move { drop(connection.await) });
        let request = Request::builder().method(method).uri(path).header("host", "meshd");
        let request = request.header("content-type", "application/json");
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Full::new(body.to_owned().into())).expect("a request");
        sender.send_request(request).await.expect("an answer")
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> hyper::Response<Incoming> {
        self.request(method, path, body, &[]).await
    }

    async fn get<T: serde::de::DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> (StatusCode, T) {
        let response = self.send(method, path, body).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
        let text = String::from_utf8_lossy(&bytes);
        (
            status,
            serde_json::from_slice(&bytes)
                .unwrap_or_else(|error| panic!("{path}: {error}: {text}")),
        )
    }

    /// Sends a POST request with extra headers. Returns the status, whether the response was
    /// replayed, and the body.
    async fn order(
        &self,
        path: &str,
        body: &str,
        headers: &[(&'static str, &str)],
    ) -> (u16, bool, serde_json::Value) {
        let response = self.request("POST", path, body, headers).await;
        let correlation =
            response.headers().get(CORRELATION_HEADER).expect("each answer is named").clone();
        let status = response.status().as_u16();
        let again = response.headers().contains_key(REPLAYED_HEADER);
        let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
        let value: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        if let Some(own) = value.get("correlation_id").filter(|_| !again) {
            assert_eq!(own, correlation.to_str().expect("plain"));
        }
        (status, again, value)
    }

    async fn record(&self, detail: &str) {
        let event =
            Event::new(self.central.now(), Actor::Central, EventKind::ProfileChosen, detail)
                .of_node(self.node);
        let commit = self.central.store().commit(|tx| {
            tx.event(event);
            Ok::<_, StoreError>(())
        });
        commit.await.expect("stored");
    }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

async fn populate(central: &Shared) -> NodeId {
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let mut boot = BootSession::open(BootSessionId([7; 12]), mac, Stage::Dhcp, at(1_000));
    boot.mark(Stage::Script, at(3_000));
    let mut node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at(1_000));
    (boot.node, node.boot) = (Some(node.id), Some(boot.id));
    let id = node.id;
    let stored = central.store().commit(|tx| {
        tx.put_session(boot);
        tx.put_node(node);
        Ok::<_, StoreError>(())
    });
    stored.await.expect("stored");
    id
}

#[tokio::test]
async fn node_is_listed_approved_and_assigned_a_profile() {
    let fixture = Fixture::start().await;
    let (_, nodes) = fixture.get::<Vec<NodeView>>("GET", "/v1/nodes", "").await;
    assert_eq!(
        (nodes[0].id, nodes[0].profile.as_str(), nodes[0].assigned),
        (fixture.node, "discovery", false)
    );
    let path = format!("/v1/nodes/{}", nodes[0].name);
    let (status, node) = fixture.get::<NodeView>("POST", &format!("{path}/approve"), "null").await;
    assert_eq!((status, node.phase.as_str()), (StatusCode::OK, "approved"));
    let assign = format!("{path}/assign-profile");
    let (_, node) = fixture.get::<NodeView>("POST", &assign, r#"{"profile":"compute"}"#).await;
    assert_eq!((node.profile.as_str(), node.assigned), ("compute", true));
    let (_, boot) = fixture.get::<TimelineView>("GET", &format!("{path}/timeline"), "").await;
    assert_eq!((boot.stages.len(), boot.boots.len()), (2, 1));
    assert!(boot.total_ms > 2_000, "the time of an unfinished boot runs: {}", boot.total_ms);
    let named = format!("{path}/timeline?session={}", boot.session);
    let (_, by_session) = fixture.get::<TimelineView>("GET", &named, "").await;
    assert_eq!((by_session.session, by_session.stages), (boot.session, boot.stages));
}

#[tokio::test]
async fn socket_serves_metrics_and_doctor() {
    let fixture = Fixture::start().await;
    let response = fixture.send("GET", "/metrics", "").await;
    assert!(
        response.headers()["content-type"]
            .to_str()
            .is_ok_and(|kind| kind.starts_with("text/plain"))
    );
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("meshd_nodes{phase=\"discovered\"} 1"), "{text}");
    let (_, findings) = fixture.get::<Vec<Finding>>("GET", "/v1/doctor", "").await;
    assert!(findings.iter().any(|finding| finding.check == "quarantine"), "{findings:?}");
}

#[tokio::test]
async fn refusals_have_code_message_and_hint() {
    let fixture = Fixture::start().await;
    let node = fixture.node;
    for (method, path, body, status, code) in [
        ("GET", "/v1/nodes/nobody".to_owned(), "", 404, "no_node"),
        (
            "POST",
            format!("/v1/nodes/{node}/assign-profile"),
            r#"{"profile":"gone"}"#,
            409,
            "no_profile",
        ),
        (
            "POST",
            format!("/v1/nodes/{node}/assign-profile"),
            r#"{"profile":"../x"}"#,
            400,
            "bad_request",
        ),
        ("POST", format!("/v1/nodes/{node}/assign-profile"), "{", 400, "bad_request"),
        ("POST", format!("/v1/nodes/{node}/reboot"), "null", 409, "not_linked"),
        ("POST", format!("/v1/nodes/{node}/release"), "null", 409, "unlawful"),
        (
            "GET",
            format!("/v1/nodes/{node}/timeline?session={}", "0".repeat(24)),
            "",
            404,
            "not_found",
        ),
        ("GET", format!("/v1/nodes/{node}/timeline?session=x"), "", 400, "bad_request"),
        ("GET", format!("/v1/overlay/{node}"), "", 409, "render_failed"),
        ("GET", "/v1/events?limit=many".to_owned(), "", 400, "bad_request"),
        ("GET", "/v1/events?since=3".to_owned(), "", 400, "bad_request"),
        ("DELETE", "/v1/nodes".to_owned(), "", 405, "bad_method"),
        ("GET", "/nodes".to_owned(), "", 404, "not_found"),
    ] {
        let (found, error) = fixture.get::<ErrorView>(method, &path, body).await;
        assert_eq!(
            (found.as_u16(), error.code.as_str()),
            (status, code),
            "{path} {body}: {error:?}"
        );
        assert!(!error.message.is_empty() && error.correlation_id.len() == 16, "{error:?}");
    }
    let (_, error) = fixture
        .get::<ErrorView>(
            "POST",
            &format!("/v1/nodes/{node}/assign-profile"),
            r#"{"profile":"gone"}"#,
        )
        .await;
    assert!(
        error.hint.contains("compute") && error.hint.contains("discovery"),
        "it says which exist: {error:?}"
    );
}

#[tokio::test]
async fn oversized_body_is_refused() {
    let fixture = Fixture::start().await;
    let body = format!(r#"{{"profile":"{}"}}"#, "x".repeat(64 * 1024));
    let path = format!("/v1/nodes/{}/assign-profile", fixture.node);
    let (status, _) = fixture.get::<ErrorView>("POST", &path, &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn event_follower_gets_past_events_new_events_and_end_at_shutdown() {
    let fixture = Fixture::start().await;
    fixture.record("before").await;
    let mut body = fixture.send("GET", "/v1/events?follow=true", "").await.into_body();
    fixture.record("after").await;
    let mut text = Vec::new();
    while text.iter().filter(|byte| **byte == b'\n').count() < 2 {
        let frame =
            tokio::time::timeout(Duration::from_secs(60), body.frame()).await.expect("in time");
        text.extend_from_slice(
            frame.expect("not the end").expect("sound").data_ref().expect("data"),
        );
    }
    let lines: Vec<EventView> = text
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let details: Vec<&str> = lines.iter().map(|event| event.detail.as_str()).collect();
    assert_eq!(details, ["before", "after"]);
    assert_eq!((lines[0].kind.as_str(), lines[0].node), ("profile_chosen", Some(fixture.node)));
    fixture.stop.cancel();
    let end = tokio::time::timeout(Duration::from_secs(60), body.frame())
        .await
        .expect("the stream ends with meshd");
    assert!(end.is_none(), "{end:?}");
    fixture.server.await.expect("no panic");
    assert!(!fixture.socket.exists(), "the socket is removed at shutdown");
}

#[tokio::test]
async fn malformed_request_on_socket_affects_no_other_client() {
    let fixture = Fixture::start().await;
    let mut stream = UnixStream::connect(&fixture.socket).await.expect("it listens");
    stream.write_all(b"\x16\x03\x01 no HTTP at all\r\n\r\n").await.expect("written");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let (status, _) = fixture.get::<Vec<NodeView>>("GET", "/v1/nodes", "").await;
    assert_eq!(status, StatusCode::OK);
}
