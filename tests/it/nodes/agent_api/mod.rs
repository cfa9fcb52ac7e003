//! The agent API and the agent, over loopback TLS, with a made-up central node behind them.

mod fake;
mod agent;
mod containers;
mod drain_hooks;

use fake::{Fake, LIMIT, Node, Seen, deadline};
use futures_util::{SinkExt as _, StreamExt as _};
use meshd_proto::{ErrorBody, FromAgent, FromCentral, Heartbeat, PendingHello, RenewRequest};
use meshd_serve::agent::AgentLimits;
use meshd_trust::CertificateAuthority;
use meshd_types::BootSessionId;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::tungstenite::Message;

/// TLS of a client that trusts an authority, with these versions.
fn client(ca_pem: &str, versions: &[&'static rustls::SupportedProtocolVersion]) -> ClientConfig {
    use rustls::pki_types::pem::PemObject as _;
    let mut roots = RootCertStore::empty();
    let root = rustls::pki_types::CertificateDer::from_pem_slice(ca_pem.as_bytes()).expect("PEM");
    roots.add(root).expect("a root");
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

async fn dial(address: SocketAddr, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(meshd_proto::SERVER_NAME).expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await
}

/// Sends raw HTTP and reads all of the answer.
async fn exchange(stream: &mut TlsStream<TcpStream>, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("sent");
    // What the socket did not take at once stays with TLS until it is flushed.
    stream.flush().await.expect("sent");
    let mut answer = Vec::new();
    // Without a TLS close-notify the end is an error; what came before it counts.
    let _ = deadline(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn ask(fake: &Fake, request: &str) -> String {
    let mut stream =
        dial(fake.address, client(&fake.ca_pem, &[&rustls::version::TLS13])).await.expect("TLS");
    exchange(&mut stream, request).await
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn upgrade(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

fn enrol(node: &str, session: &str, token: &str, csr_pem: &str) -> String {
    let body = serde_json::json!({ "version": 1, "node": node, "session": session, "token": token, "csr_pem": csr_pem });
    post(meshd_proto::ENROL_PATH, &body.to_string())
}

#[tokio::test]
async fn token_failures_all_return_401_with_one_body() {
    let fake = Fake::start().await;
    let session = "01".repeat(12);
    let csr = fake::csr(&fake::key());
    let good = fake.mint(Duration::from_secs(900));
    let expired = fake.mint(Duration::ZERO);
    fake.advance(Duration::from_secs(1));
    let used = fake.mint(Duration::from_secs(900));
    assert!(
        ask(&fake, &enrol(fake::NODE, &session, &used, &csr)).await.starts_with("HTTP/1.1 200")
    );
    let mut answers = Vec::new();
    for (node, session, token) in [
        (fake::NODE, session.as_str(), "unknown".to_owned()),
        (fake::NODE, &session, "0".repeat(64)),
        (fake::NODE, &session, expired),
        (fake::NODE, &session, used),
        ("0000000z", &session, good.clone()),
        (fake::NODE, &"02".repeat(12), good),
    ] {
        let answer = ask(&fake, &enrol(node, session, &token, &fake::csr(&fake::key()))).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 401"), "{head}");
        answers.push(body.to_owned());
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    let body: ErrorBody = serde_json::from_str(&answers[0]).expect("JSON");
    assert_eq!(body.code, "unauthorized");
    fake.stop().await;
}

#[tokio::test]
async fn foreign_route_or_missing_credential_is_refused() {
    let fake = Fake::start().await;
    let huge = "x".repeat(meshd_proto::MAX_MESSAGE + 1);
    for (request, status) in [
        ("GET /boot.ipxe HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 404),
        ("GET /v1/enrol HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), 404),
        (post(meshd_proto::RENEW_PATH, "{}"), 401),
        (upgrade(meshd_proto::LINK_PATH), 401),
        (format!("GET {} HTTP/1.1\r\nhost: x\r\n\r\n", meshd_proto::PENDING_PATH), 400),
        (post(meshd_proto::ENROL_PATH, "{"), 400),
        (post(meshd_proto::ENROL_PATH, &huge), 413),
        (
            enrol(fake::NODE, &"01".repeat(12), "t", "c").replace("\"version\":1", "\"version\":9"),
            400,
        ),
    ] {
        let answer = ask(&fake, &request).await;
        let line = request.lines().next().unwrap_or_default();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{line}: {}",
            answer.lines().next().unwrap_or("none")
        );
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        assert!(serde_json::from_str::<ErrorBody>(body).is_ok(), "{line}: {body}");
    }
    fake.stop().await;
}

#[tokio::test]
async fn tls_1_2_and_foreign_authorities_are_refused_on_both_sides() {
    let fake = Fake::start().await;
    let old = dial(fake.address, client(&fake.ca_pem, &[&rustls::version::TLS12])).await;
    assert!(old.expect_err("refused").to_string().contains("ProtocolVersion"));

    let dir = tempfile::tempdir().expect("a folder");
    let other = CertificateAuthority::load_or_create(dir.path(), "other", fake.now())
        .expect("an authority");
    let stranger = dial(fake.address, client(other.roots_pem(), &[&rustls::version::TLS13])).await;
    assert!(stranger.expect_err("refused").to_string().contains("UnknownIssuer"));

    // A certificate of another site: the handshake seems to pass, the first read tells.
    let key = fake::key();
    let issued = other.issue_node(&fake::csr(&key), fake.node(), fake.now()).expect("issued");
    let mut stream = dial(fake.address, fake.with_certificate(&issued.certificate_pem, &key))
        .await
        .expect("half of it");
    let answer = exchange(&mut stream, &upgrade(meshd_proto::LINK_PATH)).await;
    assert_eq!(answer, "");
    fake.stop().await;
}

#[tokio::test]
async fn expired_certificate_can_only_renew() {
    let fake = Fake::start().await;
    let key = fake::key();
    let issued =
        fake.authority.issue_node(&fake::csr(&key), fake.node(), fake.long_ago()).expect("issued");
    let connect = || dial(fake.address, fake.with_certificate(&issued.certificate_pem, &key));
    let answer =
        exchange(&mut connect().await.expect("TLS"), &upgrade(meshd_proto::LINK_PATH)).await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("stale_certificate"), "{answer}");
    let request = RenewRequest { version: meshd_proto::VERSION, csr_pem: fake::csr(&key) };
    let request = post(meshd_proto::RENEW_PATH, &serde_json::to_string(&request).expect("plain"));
    let answer = exchange(&mut connect().await.expect("TLS"), &request).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("BEGIN CERTIFICATE"), "{answer}");
    fake.stop().await;
}

#[tokio::test]
async fn link_that_breaks_protocol_or_is_silent_ends_and_is_reported_once() {
    let fake = Fake::start_with(Duration::from_secs(3), meshd_trust::NODE_CERT_LIFE).await;
    let key = fake::key();
    let issued =
        fake.authority.issue_node(&fake::csr(&key), fake.node(), fake.now()).expect("issued");
    for bad in [r#"{"kind":"nonsense"}"#, r#"{"kind":"heartbeat"}"#, "{"] {
        let mut node = Node::dial(&fake, &issued.certificate_pem, &key).await;
        node.say_text(bad).await;
        assert_eq!(node.end().await, None, "{bad}");
    }
    assert!(fake.seen().is_empty(), "none of these was a link");

    let mut node = Node::dial(&fake, &issued.certificate_pem, &key).await;
    node.hello("0000000z").await;
    assert!(
        matches!(node.hear().await, Some(FromCentral::Goodbye { reason, .. }) if reason.contains("0000000z"))
    );

    let mut node = Node::dial(&fake, &issued.certificate_pem, &key).await;
    node.hello(fake::NODE).await;
    node.say(&FromAgent::Heartbeat(Heartbeat::default())).await;
    assert!(matches!(node.hear().await, Some(FromCentral::Welcome(_))));
    fake.wait(|seen| {
        seen.iter().any(|seen| matches!(seen, Seen::Message(FromAgent::Heartbeat(_))))
    })
    .await;
    // It goes on reading nothing, so it answers no ping: a dead TCP connection, as the server sees
    // it.
    fake.wait(|seen| seen.contains(&Seen::Down)).await;
    assert_eq!(fake.seen().iter().filter(|seen| **seen == Seen::Down).count(), 1);
    fake.stop().await;
}

#[tokio::test]
async fn link_answers_probe_and_stop_sends_goodbye() {
    let fake = Fake::start().await;
    let key = fake::key();
    let issued =
        fake.authority.issue_node(&fake::csr(&key), fake.node(), fake.now()).expect("issued");
    let mut node = Node::dial(&fake, &issued.certificate_pem, &key).await;
    node.hello(fake::NODE).await;
    assert!(matches!(node.hear().await, Some(FromCentral::Welcome(_))));
    let answered = fake.probe().await;
    let (answered, ()) = tokio::join!(deadline(answered), node.pump());
    answered.expect("answered");
    let (goodbye, ()) = tokio::join!(node.hear(), fake.stop());
    assert!(
        matches!(goodbye, Some(FromCentral::Goodbye { retry_after_s: Some(_), .. })),
        "{goodbye:?}"
    );
}

#[tokio::test]
async fn link_of_revoked_node_ends_while_node_reads_nothing() {
    let fake = Fake::start().await;
    let key = fake::key();
    let issued =
        fake.authority.issue_node(&fake::csr(&key), fake.node(), fake.now()).expect("issued");
    let mut node = Node::dial(&fake, &issued.certificate_pem, &key).await;
    node.hello(fake::NODE).await;
    assert!(matches!(node.hear().await, Some(FromCentral::Welcome(_))));
    fake.flood();
    fake.revoke();
    // Far less than the time in which a silent link is given up.
    let down = tokio::time::timeout(LIMIT, fake.wait(|seen| seen.contains(&Seen::Down)));
    down.await.expect("at once");
    fake.stop().await;
}

#[test]
fn link_that_is_always_busy_ends_when_its_certificate_expires() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    runtime.block_on(async {
        let limits = AgentLimits { expiry_check: Duration::from_millis(50), ..Default::default() };
        let fake =
            Fake::start_within(limits, Duration::from_secs(60), meshd_trust::NODE_CERT_LIFE).await;
        let key = fake::key();
        let issued =
            fake.authority.issue_node(&fake::csr(&key), fake.node(), fake.now()).expect("issued");
        let mut node = Node::dial(&fake, &issued.certificate_pem, &key).await;
        node.hello(fake::NODE).await;
        assert!(matches!(node.hear().await, Some(FromCentral::Welcome(_))));
        let flood = tokio::spawn(async move { node.flood().await });
        fake.wait(|seen| {
            seen.iter().any(|seen| matches!(seen, Seen::Message(FromAgent::Heartbeat(_))))
        })
        .await;
        fake.advance(meshd_trust::NODE_CERT_LIFE * 2);
        let ended = tokio::time::timeout(LIMIT, flood).await;
        ended.expect("the link ends while its node sends").expect("no panic");
        fake.stop().await;
    });
}

#[tokio::test]
async fn waiting_node_is_served_despite_idle_connections() {
    let fake = Fake::start_small().await;
    let mut idle = Vec::new();
    for _ in 0..24 {
        let mut stream = dial(fake.address, client(&fake.ca_pem, &[&rustls::version::TLS13]))
            .await
            .expect("TLS");
        stream.write_all(upgrade(meshd_proto::PENDING_PATH).as_bytes()).await.expect("sent");
        stream.flush().await.expect("sent");
        idle.push(stream);
    }
    let waits = async {
        let stream = dial(fake.address, client(&fake.ca_pem, &[&rustls::version::TLS13]))
            .await
            .expect("TLS");
        let url = format!("wss://{}{}", meshd_proto::SERVER_NAME, meshd_proto::PENDING_PATH);
        let (mut socket, _) = tokio_tungstenite::client_async(url, stream)
            .await
            .map_err(|error| error.to_string())?;
        let version = meshd_proto::VERSION;
        let session = BootSessionId([1; 12]);
        let csr_pem = fake::csr(&fake::key());
        let hello = PendingHello {
            version,
            node: fake.node(),
            session,
            csr_pem,
            facts: Default::default(),
        };
        let hello = serde_json::to_string(&hello).expect("plain");
        socket.send(Message::Text(hello.into())).await.map_err(|error| error.to_string())?;
        socket.next().await.expect("an answer").map_err(|error| error.to_string())
    };
    let message = tokio::time::timeout(Duration::from_secs(20), waits)
        .await
        .expect("in time")
        .expect("a place");
    assert!(message.to_text().is_ok_and(|text| text.contains("waiting")), "{message:?}");
    drop(idle);
    fake.stop().await;
}
