//! What an attacker has: a place on the wire, an address, TLS, a key of their own, and whatever
//! they found.

use crate::world::{CENTRAL, DEADLINE, World};
use futures_util::{SinkExt as _, StreamExt as _};
use meshd_proto::{
    EnrolResponse, Facts, FromAgent, FromCentral, Hello, LINK_PATH, PENDING_PATH, PendingHello,
    PendingReply, RENEW_PATH, SERVER_NAME, Ticket, VERSION,
};
use meshd_types::{BootSessionId, NodeId};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject as _,
    },
};
use serde_json::{Value, json};
use std::{fs, future::Future, net::Ipv4Addr, sync::Arc};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};

pub const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 66);
/// A session that nobody opened.
const NO_SESSION: [u8; 12] = [9; 12];

pub type Tls = TlsStream<tokio::net::TcpStream>;

/// A key, and a certificate for it if there is one.
pub struct Identity {
    pub key: KeyPair,
    pub certificate_pem: Option<String>,
}

impl Identity {
    pub fn new() -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Identity { key, certificate_pem: None }
    }

    pub fn csr(&self) -> String {
        CertificateParams::default().serialize_request(&self.key).unwrap().pem().unwrap()
    }
}

/// A ticket that an operator made for the machine of this number.
pub fn ticket(world: &World, number: u8) -> Ticket {
    let uuid = format!("4c010203-0405-0607-0809-0a0b0c0d0e{number:02x}");
    serde_json::from_value(world.json(&["token", "create", "--uuid", &uuid])).unwrap()
}

/// What an agent sends for a ticket.
pub fn enrolment(ticket: &Ticket, csr_pem: &str) -> Value {
    let node = ticket.boot.node;
    let session = ticket.boot.session;
    // Exposed to whoever stole it.
    let token = ticket.boot.token.as_ref().expect("a token").expose();
    json!({ "version": VERSION, "node": node, "session": session, "token": token, "csr_pem": csr_pem })
}

/// Somebody on the wire.
pub struct Attacker<'a> {
    world: &'a World,
    roots_pem: String,
    /// Where its connections come from.
    from: Ipv4Addr,
}

impl<'a> Attacker<'a> {
    /// With [`STRANGER`] beside the addresses that are there, trusting the site's authority.
    pub fn new(world: &'a World) -> Self {
        Self::at(world, STRANGER)
    }

    /// The same with another address.
    pub fn at(world: &'a World, from: Ipv4Addr) -> Self {
        world.nodes.ip(&["address", "replace", &format!("{from}/24"), "dev", "eth0"]).unwrap();
        Attacker {
            world,
            roots_pem: fs::read_to_string(world.path("state/ca/ca.pem")).unwrap(),
            from,
        }
    }

    /// Runs something where the attacker is.
    pub fn run<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        self.world
            .nodes
            .inside(|| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    tokio::time::timeout(DEADLINE, work).await.expect("it takes too long")
                })
            })
            .unwrap()
    }

    pub async fn dial(&self, identity: &Identity) -> std::io::Result<Tls> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.from, 0).into())?;
        let central: Ipv4Addr = CENTRAL.parse().unwrap();
        let stream = socket.connect((central, 8443).into()).await?;
        let name = ServerName::try_from(SERVER_NAME).unwrap();
        TlsConnector::from(Arc::new(self.tls(identity))).connect(name, stream).await
    }

    fn tls(&self, identity: &Identity) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(self.roots_pem.as_bytes()) {
            roots.add(root.unwrap()).unwrap();
        }
        let config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .with_root_certificates(roots);
        match &identity.certificate_pem {
            None => config.with_no_client_auth(),
            Some(pem) => {
                let chain = CertificateDer::pem_slice_iter(pem.as_bytes())
                    .map(|one| one.unwrap())
                    .collect();
                let key =
                    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.key.serialize_der()));
                config.with_client_auth_cert(chain, key).unwrap()
            }
        }
    }

    /// Status and body of a raw request; nothing if the connection was refused before an answer.
    pub async fn exchange(&self, identity: &Identity, request: &str) -> Option<(u16, String)> {
        Self::ask(self.dial(identity).await.ok()?, request).await
    }

    async fn ask(mut stream: Tls, request: &str) -> Option<(u16, String)> {
        stream.write_all(request.as_bytes()).await.ok()?;
        // What the socket did not take at once stays with TLS until it is flushed.
        stream.flush().await.ok()?;
        let mut answer = Vec::new();
        // Without a TLS close-notify the end is an error; what came before it counts.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((
            status,
            answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default(),
        ))
    }

    pub async fn post(
        &self,
        identity: &Identity,
        path: &str,
        body: &Value,
    ) -> Option<(u16, String)> {
        self.exchange(identity, &posted(path, body)).await
    }

    pub async fn get(&self, identity: &Identity, path: &str) -> Option<(u16, String)> {
        self.exchange(identity, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await
    }

    /// Enrols with a ticket as its rightful owner would.
    pub fn enrol(&self, ticket: &Ticket) -> Identity {
        let mut identity = Identity::new();
        let answer = self.run(self.post(
            &identity,
            meshd_proto::ENROL_PATH,
            &enrolment(ticket, &identity.csr()),
        ));
        let (status, body) = answer.expect("an answer");
        assert_eq!(status, 200, "{body}");
        let response: EnrolResponse = serde_json::from_str(&body).unwrap();
        identity.certificate_pem = Some(response.certificate_pem);
        identity
    }

    /// What the link route and renewal answer to an identity, before anything else is said.
    pub fn link_status(&self, identity: &Identity) -> (u16, String) {
        let renewal = json!({ "version": VERSION, "csr_pem": identity.csr() });
        self.run(async {
            let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                           sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
            let link = self.exchange(identity, &format!("GET {LINK_PATH} HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n")).await;
            let (status, body) = link.unwrap_or_default();
            assert_ne!(status, 101, "it may have a link");
            let renewed = self.post(identity, RENEW_PATH, &renewal).await;
            assert_eq!(renewed.map(|(status, _)| status).unwrap_or_default(), status, "renewal and link agree");
            (status, body)
        })
    }

    /// Waits for approval as a node of this boot, and returns the first reply.
    pub async fn wait_as(&self, node: NodeId, session: BootSessionId) -> Option<PendingReply> {
        let identity = Identity::new();
        let stream = self.dial(&identity).await.unwrap();
        let url = format!("wss://{SERVER_NAME}{PENDING_PATH}");
        let (mut socket, _) = client_async(url, stream).await.unwrap();
        let csr_pem = identity.csr();
        let facts = Facts::default();
        let hello = PendingHello { version: VERSION, node, session, csr_pem, facts };
        let hello = serde_json::to_string(&hello).unwrap();
        socket.send(Message::Text(hello.into())).await.unwrap();
        serde_json::from_str(socket.next().await?.ok()?.to_text().ok()?).ok()
    }

    /// Opens a link and says hello in a node's name.
    pub async fn hello(&self, identity: &Identity, node: NodeId, session: BootSessionId) -> Link {
        self.hello_of(identity, node, session, Facts::default()).await
    }

    /// The same, telling this of the machine.
    pub async fn hello_of(
        &self,
        identity: &Identity,
        node: NodeId,
        session: BootSessionId,
        facts: Facts,
    ) -> Link {
        let stream = self.dial(identity).await.unwrap();
        let (socket, _) =
            client_async(format!("wss://{SERVER_NAME}{LINK_PATH}"), stream).await.unwrap();
        let mut link = Link(socket);
        let hello = Hello { version: VERSION, node, session, facts };
        link.say(&FromAgent::Hello(Box::new(hello))).await;
        link
    }
}

/// A session ID that is no node's.
pub fn no_session() -> BootSessionId {
    BootSessionId(NO_SESSION)
}

/// A link that is spoken by hand.
pub struct Link(WebSocketStream<Tls>);

impl Link {
    pub async fn say(&mut self, message: &FromAgent) {
        self.0.send(Message::Text(serde_json::to_string(message).unwrap().into())).await.unwrap();
    }

    /// The next message, or `None` at the end.
    pub async fn hear(&mut self) -> Option<FromCentral> {
        loop {
            match self.0.next().await? {
                Ok(Message::Text(text)) => return serde_json::from_str(&text).ok(),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}

fn posted(path: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
}
