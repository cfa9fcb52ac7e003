//! Tests of connections whose token is revoked or downgraded.

use super::*;
use crate::{
    admin::{
        router,
        routes::vms::consoles::carry,
        transport::{
            auth::From,
            caller::Caller,
            connection::{AdminConnection, serve_connection},
        },
    },
    connections::limiter::{ConnectionLimiter, Source},
};
use axum::{Router, extract::WebSocketUpgrade, http::Extensions, routing::get};
use hyper_util::service::TowerToHyperService;
use meshd_central::{ConsoleFrame, ConsoleSession};
use meshd_trust::Role;
use meshd_types::ApiTokenName;
use std::sync::Mutex;
use tokio::{
    io::{DuplexStream, duplex},
    sync::mpsc,
};

/// More than the time that a revoked token has for a last answer.
const SOON: Duration = Duration::from_secs(3);
/// Capacity of the wire in bytes.
const WIRE: usize = 256;

/// A client with a token, and the server's side of its connection.
struct TokenClient {
    wire: DuplexStream,
    served: JoinHandle<()>,
    name: ApiTokenName,
}

impl TokenClient {
    /// Sends a request with a new token of this role.
    async fn send(fixture: &Fixture, role: Role, request: &str, body: &str) -> Self {
        let name: ApiTokenName = format!("{role}").parse().expect("a name");
        let context =
            fixture.central.env.own_audit_context(meshd_model::fleet::Verb::ApiTokenCreate);
        let (text, _) = fixture
            .central
            .admin
            .create_api_token(name.clone(), role, None, &context)
            .await
            .expect("made");
        let (mut wire, end) = duplex(WIRE);
        let from = std::net::IpAddr::from([10, 78, 0, 2]);
        let permit = ConnectionLimiter::new("test", 8).enter(Source::Address(from)).await;
        let mut origin = Extensions::new();
        origin.insert(From(from));
        let router = router::router(fixture.api_state());
        let connection = AdminConnection::new(permit);
        let central = fixture.central.clone();
        let stop = fixture.stop.clone();
        let served =
            tokio::spawn(serve_connection(end, router, origin, connection.clone(), central, stop));
        let head =
            format!("{request} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n", text.expose());
        let head = format!("{head}content-type: application/json\r\n{body}");
        wire.write_all(head.as_bytes()).await.expect("it listens");
        tokio::time::timeout(Duration::from_secs(60), connection.has_caller())
            .await
            .expect("in time");
        TokenClient { wire, served, name }
    }

    async fn end_by_revocation(self, fixture: &Fixture) -> DuplexStream {
        let context =
            fixture.central.env.own_audit_context(meshd_model::fleet::Verb::ApiTokenRevoke);
        fixture.central.admin.revoke_api_token(self.name, &context).await.expect("revoked");
        tokio::time::timeout(SOON, self.served)
            .await
            .expect("the connection ends")
            .expect("no panic");
        self.wire
    }

    async fn answer(mut self) -> String {
        let mut text = vec![0; 4096];
        let mut length = 0;
        while !String::from_utf8_lossy(&text[..length]).contains("correlation_id") {
            let read =
                tokio::time::timeout(Duration::from_secs(60), self.wire.read(&mut text[length..]))
                    .await;
            length += read.expect("in time").expect("an answer");
        }
        String::from_utf8_lossy(&text[..length]).into_owned()
    }
}

#[tokio::test]
async fn unread_stream_ends_when_token_is_revoked() {
    let fixture = Fixture::start().await;
    for n in 0..20 {
        fixture.record(&format!("{n} {}", "x".repeat(200))).await;
    }
    let mut client =
        TokenClient::send(&fixture, Role::Viewer, "GET /v1/events?follow=true", "\r\n").await;
    // The answer has begun; from here on the client reads nothing, and the server waits for it.
    assert_eq!(client.wire.read_u8().await.expect("an answer"), b'H');
    let mut wire = client.end_by_revocation(&fixture).await;
    let mut rest = Vec::new();
    wire.read_to_end(&mut rest).await.expect("the end");
    assert!(rest.len() <= WIRE, "no more than was on the wire: {}", rest.len());
}

#[tokio::test]
async fn unread_console_ends_when_token_is_revoked() {
    let fixture = Fixture::start().await;
    let context = fixture.central.env.own_audit_context(meshd_model::fleet::Verb::ApiTokenCreate);
    let name: ApiTokenName = "desk".parse().expect("a name");
    let made =
        fixture.central.admin.create_api_token(name.clone(), Role::Operator, None, &context).await;
    let caller = Caller::with(made.expect("made").1);
    let ((show, output), (input, mut typing)) = (mpsc::channel(4), mpsc::channel(4));
    let session = Arc::new(Mutex::new(Some(ConsoleSession { output, input })));
    let central = fixture.central.clone();
    let stop = fixture.stop.clone();
    let console = get(async move |upgrade: WebSocketUpgrade| {
        let session = session.lock().expect("not poisoned").take().expect("once");
        upgrade.on_upgrade(async move |socket| {
            carry(socket, session, (&central, &caller), SOON, &stop).await
        })
    });
    let (wire, end) = duplex(WIRE);
    let router = TowerToHyperService::new(Router::new().route("/", console));
    let serving =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(end), router);
    tokio::spawn(serving.with_upgrades());
    let (socket, _) = tokio_tungstenite::client_async("ws://x/", wire).await.expect("upgraded");
    // The client reads nothing from here on. Four fit into the channel: with the fifth the server
    // waits for the client.
    for _ in 0..5 {
        show.send(ConsoleFrame::Bytes(vec![b'x'; 64 * 1024].into())).await.expect("it is shown");
    }
    fixture.central.admin.revoke_api_token(name, &context).await.expect("revoked");
    let ended = tokio::time::timeout(SOON, typing.recv()).await.expect("the console ends");
    assert!(ended.is_none() && show.is_closed());
    drop(socket);
}

#[tokio::test]
async fn upload_ends_without_effect_when_token_is_revoked() {
    let fixture = Fixture::start().await;
    let path = format!("POST /v1/nodes/{}/vars", fixture.node);
    let body = "content-length: 20\r\n\r\n{\"set\":{";
    let client = TokenClient::send(&fixture, Role::Operator, &path, body).await;
    let mut wire = client.end_by_revocation(&fixture).await;
    let _ = wire.write_all(b"\"a\":\"b\"}}   ").await;
    let (_, node) =
        fixture.get::<serde_json::Value>("GET", &format!("/v1/nodes/{}", fixture.node), "").await;
    assert_eq!(node["vars"], serde_json::json!({}), "{node}");
}

#[tokio::test]
async fn operator_cannot_set_kernel_argument_that_grants_root() {
    let fixture = Fixture::start().await;
    let path = format!("POST /v1/nodes/{}/boot-once", fixture.node);
    let order = async |role, arg: &str| {
        let body = format!(r#"{{"kernel_args":["quiet","{arg}"]}}"#);
        let body = format!("content-length: {}\r\n\r\n{body}", body.len());
        TokenClient::send(&fixture, role, &path, &body).await
    };
    // An order that is accepted keeps its connection open: its answer has no end.
    let answer = order(Role::Operator, "ssh_key=http://10.77.0.66/key").await.answer();
    let refused =
        tokio::time::timeout(Duration::from_secs(60), answer).await.expect("a refusal, which ends");
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    for part in ["`ssh_key=http://10.77.0.66/key`", "role operator", "ask an admin"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(
        fixture.central.store().read(|model| model
            .node(fixture.node)
            .is_some_and(|node| node.boot_override.is_none()))
    );
    let mut admin = order(Role::Admin, "ssh_key=http://10.77.0.66/key").await;
    let mut status = [0; 12];
    admin.wire.read_exact(&mut status).await.expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 200");
}

#[tokio::test]
async fn task_as_root_requires_admin_role() {
    let fixture = Fixture::start().await;
    let run = async |role| {
        let body = r#"{"group":"none","argv":["/bin/true"],"user":"root"}"#;
        let body = format!("content-length: {}\r\n\r\n{body}", body.len());
        let mut client = TokenClient::send(&fixture, role, "POST /v1/tasks", &body).await;
        let mut status = [0; 12];
        client.wire.read_exact(&mut status).await.expect("an answer");
        String::from_utf8_lossy(&status).into_owned()
    };
    assert_eq!(run(Role::Operator).await, "HTTP/1.1 403");
    // As far as the group, which there is not.
    assert_eq!(run(Role::Admin).await, "HTTP/1.1 404");
}
