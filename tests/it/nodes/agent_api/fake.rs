//! A made-up central node with real tokens and certificates, and a node that speaks the protocol by
//! hand.

use futures_util::{SinkExt as _, StreamExt as _, stream};
use meshd_central::{AgentApiError, LanClient, LinkCommand};
use meshd_proto::{
    EnrolRequest, EnrolResponse, FromAgent, FromCentral, Hello, LINK_PATH, PendingHello,
    PendingReply, RenewRequest, SERVER_NAME, VERSION, Welcome,
};
use meshd_serve::{
    agent::{self, AgentBackend, PendingReplies},
    bind::{self, Service},
};
use meshd_trust::{CertificateAuthority, Peer, TokenRecord, TrustError, enrol_token};
use meshd_types::{BootSessionId, Digest, NodeId, Timestamp};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};
use std::{
    collections::HashMap,
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};
use tokio_util::sync::CancellationToken;

pub const NODE: &str = "0123abcd";
/// Silence after which this central node gives a link up: longer than any of this takes on a busy
/// machine.
const OFFLINE_AFTER: Duration = Duration::from_secs(600);
pub const LIMIT: Duration = Duration::from_secs(120);

pub async fn deadline<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LIMIT, future).await.expect("it takes too long")
}

pub fn key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key")
}

pub fn csr(key: &KeyPair) -> String {
    CertificateParams::default().serialize_request(key).expect("a request").pem().expect("PEM")
}

/// What the agent API reported to the central node.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Up(Box<Hello>),
    Message(FromAgent),
    Down,
    Waits(NodeId),
}

/// The central node's side.
pub struct Central {
    authority: Arc<CertificateAuthority>,
    clock: Mutex<Timestamp>,
    tokens: Mutex<HashMap<Digest, TokenRecord>>,
    seen: Mutex<Vec<Seen>>,
    changed: Notify,
    links: Mutex<Vec<mpsc::Sender<LinkCommand>>>,
    approved: watch::Sender<bool>,
    revoked: watch::Sender<bool>,
    offline_after: Duration,
}

struct Waiting {
    central: Arc<CertificateAuthority>,
    hello: PendingHello,
    approved: watch::Receiver<bool>,
    told: bool,
    now: Timestamp,
}

impl Waiting {
    async fn next(&mut self) -> PendingReply {
        if !std::mem::replace(&mut self.told, true) {
            return PendingReply::Waiting { reason: "nobody has decided".into() };
        }
        self.approved.wait_for(|approved| *approved).await.expect("the fake lives");
        let issued = self
            .central
            .issue_node(&self.hello.csr_pem, self.hello.node, self.now)
            .expect("issued");
        PendingReply::Approved(issued.response(self.now))
    }
}

impl Central {
    fn see(&self, seen: Seen) {
        self.seen.lock().expect("not poisoned").push(seen);
        self.changed.notify_waiters();
    }

    fn now(&self) -> Timestamp {
        *self.clock.lock().expect("not poisoned")
    }

    fn issue(&self, csr: &str, node: NodeId) -> Result<EnrolResponse, AgentApiError> {
        let issued = self.authority.issue_node(csr, node, self.now());
        Ok(issued
            .map_err(|error| AgentApiError::BadRequest(error.to_string()))?
            .response(self.now()))
    }
}

impl AgentBackend for Central {
    type Link = u64;

    fn tls(&self) -> Arc<rustls::ServerConfig> {
        self.authority.server_config()
    }

    fn identify(&self, certificate: &[u8]) -> Result<Peer, TrustError> {
        self.authority.identify(certificate, self.now())
    }

    fn accepts_certificate(&self, _: &Peer) -> bool {
        true
    }

    async fn wait_until_revoked(&self, _: NodeId) {
        self.revoked.subscribe().wait_for(|revoked| *revoked).await.expect("the fake lives");
    }

    async fn record_distrust(&self, _: &LanClient) {}

    async fn record_stale_certificate(&self, _: NodeId, _: IpAddr) {}

    fn offline_after(&self) -> Duration {
        self.offline_after
    }

    async fn enrol(
        &self,
        request: EnrolRequest,
        _: LanClient,
    ) -> Result<EnrolResponse, AgentApiError> {
        let issued = self.authority.issue_node(&request.csr_pem, request.node, self.now());
        let issued = issued.map_err(|error| AgentApiError::BadRequest(error.to_string()))?;
        let mut tokens = self.tokens.lock().expect("not poisoned");
        let record = tokens
            .get_mut(&enrol_token::hash(request.token.expose()))
            .ok_or(AgentApiError::Unauthorized)?;
        let redeemed = record.redeem(request.node, request.session, issued.key, self.now());
        redeemed.map_err(|_| AgentApiError::Unauthorized)?;
        Ok(issued.response(self.now()))
    }

    async fn renew(
        &self,
        peer: &Peer,
        request: RenewRequest,
    ) -> Result<EnrolResponse, AgentApiError> {
        self.issue(&request.csr_pem, peer.node)
    }

    async fn wait_for_approval(
        &self,
        hello: PendingHello,
        _: LanClient,
    ) -> Result<PendingReplies, AgentApiError> {
        self.see(Seen::Waits(hello.node));
        let central = Arc::clone(&self.authority);
        let approved = self.approved.subscribe();
        let waiting = Waiting { central, hello, approved, told: false, now: self.now() };
        let next = |mut waiting: Waiting| async move {
            let reply = waiting.next().await;
            Some((reply, waiting))
        };
        Ok(stream::unfold(waiting, next).boxed())
    }

    async fn link_up(
        &self,
        _: &Peer,
        hello: Hello,
        _: IpAddr,
        commands: mpsc::Sender<LinkCommand>,
    ) -> Result<(u64, Welcome), AgentApiError> {
        let link = {
            let mut links = self.links.lock().expect("not poisoned");
            links.push(commands);
            links.len() as u64
        };
        self.see(Seen::Up(Box::new(hello)));
        Ok((link, Welcome { version: VERSION, heartbeat_s: 1, now: Some(self.now()), logs: false }))
    }

    async fn link_message(
        &self,
        _: u64,
        message: FromAgent,
    ) -> Result<Option<FromCentral>, AgentApiError> {
        let reply = match &message {
            FromAgent::ActionDone { id, .. } => Some(FromCentral::Acknowledged { id: *id }),
            FromAgent::Renew { csr_pem } => {
                Some(FromCentral::Certificate(self.issue(csr_pem, NODE.parse().expect("an ID"))?))
            }
            _ => None,
        };
        self.see(Seen::Message(message));
        Ok(reply)
    }

    async fn link_down(&self, _: u64) {
        self.see(Seen::Down);
    }
}

/// A running agent API.
pub struct Fake {
    pub address: SocketAddr,
    pub ca_pem: String,
    pub authority: Arc<CertificateAuthority>,
    central: Arc<Central>,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Fake {
    pub async fn start() -> Self {
        Self::start_with(OFFLINE_AFTER, meshd_trust::NODE_CERT_LIFE).await
    }

    /// One that gives up a link after this silence, and whose certificates live so long.
    pub async fn start_with(offline_after: Duration, life: Duration) -> Self {
        Self::start_within(agent::AgentLimits::default(), offline_after, life).await
    }

    /// One with room for 64 connections: 16 that arrive, 8 that wait, and 40 of nodes.
    pub async fn start_small() -> Self {
        Self::start_within(
            agent::AgentLimits { connections: 64, ..Default::default() },
            OFFLINE_AFTER,
            meshd_trust::NODE_CERT_LIFE,
        )
        .await
    }

    pub async fn start_within(
        limits: agent::AgentLimits,
        offline_after: Duration,
        life: Duration,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let since = std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .expect("after 1970");
        let now = Timestamp::from_millis(since.as_millis() as i64);
        let authority =
            CertificateAuthority::load_or_create(dir.path(), "test", now).expect("an authority");
        let authority = Arc::new(authority.with_node_life(life));
        let central = Arc::new(Central {
            authority: Arc::clone(&authority),
            clock: Mutex::new(now),
            tokens: Mutex::default(),
            seen: Mutex::default(),
            changed: Notify::new(),
            links: Mutex::default(),
            approved: watch::channel(false).0,
            revoked: watch::channel(false).0,
            offline_after,
        });
        let listener = bind::tcp(Service::Agent, None, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shutdown = CancellationToken::new();
        let running =
            tokio::spawn(agent::run(limits, Arc::clone(&central), listener, shutdown.clone()));
        let ca_pem = authority.roots_pem().to_owned();
        Fake { address, ca_pem, authority, central, shutdown, running, _dir: dir }
    }

    pub fn now(&self) -> Timestamp {
        self.central.now()
    }

    /// Long enough ago that what was issued then has expired.
    pub fn long_ago(&self) -> Timestamp {
        Timestamp::from_millis(self.now().millis() - 30 * 86_400_000)
    }

    pub fn node(&self) -> NodeId {
        NODE.parse().expect("a node ID")
    }

    pub fn advance(&self, span: Duration) {
        let mut clock = self.central.clock.lock().expect("not poisoned");
        *clock = clock.after(span);
    }

    /// A token for [`NODE`] in session 01...
    pub fn mint(&self, life: Duration) -> String {
        let mut random = [0; 32];
        getrandom::fill(&mut random).expect("random");
        let (text, hash) = enrol_token::mint(random);
        let record =
            TokenRecord::new(hash, self.node(), BootSessionId([1; 12]), self.now().after(life));
        self.central.tokens.lock().expect("not poisoned").insert(hash, record);
        text.expose().clone()
    }

    pub fn approve(&self) {
        self.central.approved.send_replace(true);
    }

    /// Takes back the credentials of every node.
    pub fn revoke(&self) {
        self.central.revoked.send_replace(true);
    }

    /// Gives the newest link more to say than its connection takes while nobody reads.
    pub fn flood(&self) {
        let newest =
            self.central.links.lock().expect("not poisoned").last().cloned().expect("a link");
        let goodbye =
            || FromCentral::Goodbye { reason: "x".repeat(512 * 1024), retry_after_s: None };
        let sent =
            (0..64).take_while(|_| newest.try_send(LinkCommand::Send(goodbye())).is_ok()).count();
        assert!(sent >= 48, "{sent} messages");
    }

    /// Sends a command to the newest link.
    pub async fn command(&self, command: LinkCommand) {
        let newest =
            self.central.links.lock().expect("not poisoned").last().cloned().expect("a link");
        newest.send(command).await.expect("it listens");
    }

    pub async fn probe(&self) -> oneshot::Receiver<()> {
        let (answer, answered) = oneshot::channel();
        self.command(LinkCommand::Probe(answer)).await;
        answered
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.central.seen.lock().expect("not poisoned").clone()
    }

    pub fn forget_seen(&self) {
        self.central.seen.lock().expect("not poisoned").clear();
    }

    pub async fn wait(&self, wanted: impl Fn(&[Seen]) -> bool) {
        let reached = tokio::time::timeout(LIMIT, async {
            loop {
                let changed = self.central.changed.notified();
                if wanted(&self.seen()) {
                    return;
                }
                changed.await;
            }
        });
        assert!(reached.await.is_ok(), "seen only {:?}", self.seen());
    }

    pub fn with_certificate(&self, certificate_pem: &str, key: &KeyPair) -> ClientConfig {
        let chain = vec![CertificateDer::from_pem_slice(certificate_pem.as_bytes()).expect("PEM")];
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).expect("PEM"))
            .expect("a root");
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("1.3")
            .with_root_certificates(roots)
            .with_client_auth_cert(
                chain,
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )
            .expect("they fit")
    }

    /// Stops, and proves that everything ends.
    pub async fn stop(self) {
        self.shutdown.cancel();
        deadline(self.running).await.expect("no panic");
    }
}

/// A node that speaks the link by hand.
pub struct Node(WebSocketStream<super::TlsStream<super::TcpStream>>);

impl Node {
    pub async fn dial(fake: &Fake, certificate_pem: &str, key: &KeyPair) -> Self {
        let stream = super::dial(fake.address, fake.with_certificate(certificate_pem, key))
            .await
            .expect("TLS");
        let (socket, _) = client_async(format!("wss://{SERVER_NAME}{LINK_PATH}"), stream)
            .await
            .expect("upgraded");
        Node(socket)
    }

    pub async fn say_text(&mut self, text: &str) {
        self.0.send(Message::Text(text.into())).await.expect("sent");
    }

    pub async fn say(&mut self, message: &FromAgent) {
        self.say_text(&serde_json::to_string(message).expect("plain")).await;
    }

    pub async fn hello(&mut self, node: &str) {
        let node = node.parse().expect("a node ID");
        let session = BootSessionId([1; 12]);
        self.say(&FromAgent::Hello(Box::new(Hello {
            version: VERSION,
            node,
            session,
            facts: Default::default(),
        })))
        .await;
    }

    /// The next message, or `None` at the end.
    pub async fn hear(&mut self) -> Option<FromCentral> {
        loop {
            match deadline(self.0.next()).await? {
                Ok(Message::Text(text)) => return serde_json::from_str(&text).ok(),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Sends heartbeats without a pause until the central node closes the connection.
    pub async fn flood(&mut self) {
        let heartbeat =
            serde_json::to_string(&FromAgent::Heartbeat(meshd_proto::Heartbeat::default()))
                .expect("plain");
        while self.0.feed(Message::Text(heartbeat.as_str().into())).await.is_ok() {}
    }

    pub async fn end(&mut self) -> Option<FromCentral> {
        self.hear().await
    }

    /// Reads one frame, and so answers a ping.
    pub async fn pump(&mut self) {
        let frame = deadline(self.0.next()).await.expect("open").expect("a frame");
        assert!(frame.is_ping(), "{frame:?}");
        self.0.flush().await.expect("the pong leaves");
    }
}
