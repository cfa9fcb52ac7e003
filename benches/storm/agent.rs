//! A machine's agent: the real one's mind, with sockets that have the machine's own address, and
//! facts that are made up.

use crate::{
    Storm, fabric, fault::Fault, frame::AGENT_PORT, http, machine::Machine as Host,
    overlay::Opened, tally::Step,
};
use futures_util::{SinkExt as _, StreamExt as _};
use meshd_agent::link_state::{Effect, Event, LinkStateMachine, Now, Validity};
use meshd_proto::{
    Check, CheckReport, CheckStatus, EnrolRequest, EnrolResponse, Facts, FromAgent, Heartbeat,
    Hello, NicFacts, SERVER_NAME,
};
use meshd_types::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    ClientConfig,
    client::{Resumption, WebPkiServerVerifier},
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject as _,
    },
};
use serde::Serialize;
use std::{
    collections::VecDeque,
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep_until, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Bytes, Message, client::IntoClientRequest as _, protocol::WebSocketConfig},
};

/// As the real agent's.
const CALL: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Whom all machines trust, read from the first overlay.
pub struct Trust {
    provider: Arc<CryptoProvider>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl Trust {
    /// Reads the site's authority.
    pub fn new(roots_pem: &str) -> Result<Self, Fault> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in chain(roots_pem) {
            roots.add(certificate).map_err(|error| agent(&error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
                .build();
        Ok(Trust { provider, verifier: verifier.map_err(|error| agent(&error))? })
    }
}

fn agent(error: &dyn std::error::Error) -> Fault {
    Fault::Agent(error.to_string())
}

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

struct Agent<'a> {
    storm: &'a Storm,
    host: &'a mut Host,
    opened: Opened,
    key: KeyPair,
    certificate: Vec<CertificateDer<'static>>,
    link: Option<Box<Socket>>,
    /// Its checks were sent once.
    linked: bool,
}

/// Runs until it is dropped. A fault is one that the real agent would not survive either.
pub async fn run(storm: &Storm, host: &mut Host, opened: Opened) -> Result<(), Fault> {
    host.begin(Step::Enrol);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| agent(&error))?;
    let mut machine = LinkStateMachine::new(opened.config.node, opened.boot.token.is_some(), None);
    let mut agent =
        Agent { storm, host, opened, key, certificate: Vec::new(), link: None, linked: false };
    let started = Instant::now();
    let mut events = VecDeque::new();
    loop {
        let event = match events.pop_front() {
            Some(event) => event,
            None => agent.next(machine.deadline().map(|at| started + at)).await,
        };
        if let Event::ConnectionLost(why) | Event::Refused(why) = &event {
            storm.tally.repeated(format!("agent, {}: {why}", machine.state()), 1);
        }
        let mut random = [0; 4];
        // Without randomness the pauses of all machines are alike, and nothing worse.
        let _ = getrandom::fill(&mut random);
        let now = Now { timer: started.elapsed(), wall: wall() };
        for effect in machine.handle(now, u32::from_ne_bytes(random), event) {
            events.extend(agent.perform(effect).await);
        }
    }
}

fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

impl Agent<'_> {
    async fn next(&mut self, due: Option<Instant>) -> Event {
        let timer = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let incoming = tokio::select! {
            () = timer => return Event::Timer,
            incoming = async {
                match &mut self.link {
                    Some(link) => link.next().await,
                    None => std::future::pending().await,
                }
            } => incoming,
        };
        match incoming {
            Some(Ok(Message::Text(text))) => {
                serde_json::from_str(&text).map_or(Event::KeepAlive, Event::Message)
            }
            Some(Ok(Message::Close(_))) | None => self.lost("the link was closed"),
            Some(Ok(_)) => Event::KeepAlive,
            Some(Err(error)) => self.lost(&error.to_string()),
        }
    }

    fn lost(&mut self, why: &str) -> Event {
        if self.link.take().is_some() && self.linked {
            self.host.begin(Step::Return);
        }
        Event::ConnectionLost(why.to_owned())
    }

    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Enrol => Some(
                self.enrol().await.unwrap_or_else(|fault| Event::ConnectionLost(fault.to_string())),
            ),
            Effect::OpenLink => Some(match self.open_link().await {
                Ok(link) => {
                    self.link = Some(Box::new(link));
                    Event::Connected
                }
                Err(fault) => Event::ConnectionLost(fault.to_string()),
            }),
            Effect::StoreCertificate(response) => {
                self.certificate = chain(&response.certificate_pem);
                None
            }
            Effect::Hello => {
                let node = self.opened.config.node;
                let session = self.opened.boot.session;
                let hello =
                    Hello { version: meshd_proto::VERSION, node, session, facts: self.facts() };
                self.say(&FromAgent::Hello(Box::new(hello))).await
            }
            Effect::Heartbeat => {
                let sent = self.say(&FromAgent::Heartbeat(Heartbeat::default())).await;
                sent.or(self.send(Message::Ping(Bytes::new())).await)
            }
            Effect::Send(message) => {
                let sent = self.say(&message).await;
                if sent.is_none() && matches!(message, FromAgent::Checks(_)) {
                    self.host.finish(Step::Link);
                    self.host.finish(Step::Return);
                    self.linked = true;
                }
                sent
            }
            Effect::RunChecks => {
                Some(Event::ChecksDone(CheckReport { checks: checks(), ..CheckReport::default() }))
            }
            Effect::Close => {
                self.link = None;
                None
            }
            Effect::ForgetToken => {
                self.opened.boot.token = None;
                None
            }
            // A storm is over long before a certificate is.
            Effect::OpenPending { reason } => {
                Some(Event::ConnectionLost(format!("it would have to be approved: {reason}")))
            }
            Effect::Renew
            | Effect::DropCertificate
            | Effect::StoreToken(_)
            | Effect::RequestRenewal
            | Effect::TrustRoots(_)
            | Effect::Deliver(_)
            | Effect::ReportSections
            | Effect::Reboot
            | Effect::WarmReboot => None,
        }
    }

    async fn enrol(&mut self) -> Result<Event, Fault> {
        let Some(token) = self.opened.boot.token.clone() else {
            return Ok(Event::Refused("there is no token".to_owned()));
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.key).and_then(|request| request.pem());
        let csr_pem = request.map_err(|error| agent(&error))?;
        let version = meshd_proto::VERSION;
        let node = self.opened.config.node;
        let session = self.opened.boot.session;
        let body = json(&EnrolRequest { version, node, session, token, csr_pem })?;
        let mut stream = self.tls().await?;
        let answer = http::exchange(
            &mut stream,
            "POST",
            SERVER_NAME,
            meshd_proto::ENROL_PATH,
            body.as_bytes(),
        )
        .await;
        let response: EnrolResponse = match answer {
            Err(Fault::Http(status)) if status == "status 401" => {
                return Ok(Event::Refused(status));
            }
            answer => serde_json::from_slice(&answer?).map_err(|error| agent(&error))?,
        };
        // Its life is only looked at by the machine itself.
        let _ = Validity::from_response(&response, wall());
        self.host.finish(Step::Enrol);
        self.host.begin(Step::Link);
        Ok(Event::Certified(response))
    }

    async fn open_link(&mut self) -> Result<Socket, Fault> {
        let request =
            format!("wss://{SERVER_NAME}{}", meshd_proto::LINK_PATH).into_client_request();
        let request = request.map_err(|error| agent(&error))?;
        let stream = self.tls().await?;
        let limits = WebSocketConfig::default()
            .read_buffer_size(4096)
            .max_message_size(Some(meshd_proto::MAX_MESSAGE));
        let opened = timeout(CALL, client_async_with_config(request, stream, Some(limits))).await?;
        opened.map(|(socket, _)| socket).map_err(|error| agent(&error))
    }

    async fn tls(&self) -> Result<TlsStream<TcpStream>, Fault> {
        let trust = self
            .storm
            .trust
            .get_or_try_init(|| async { Trust::new(&self.opened.roots_pem) })
            .await?;
        let config = ClientConfig::builder_with_provider(Arc::clone(&trust.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| agent(&error))?
            .with_webpki_verifier(Arc::clone(&trust.verifier));
        let mut config = if self.certificate.is_empty() {
            config.with_no_client_auth()
        } else {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
            config
                .with_client_auth_cert(self.certificate.clone(), key)
                .map_err(|error| agent(&error))?
        };
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(SERVER_NAME).map_err(|error| agent(&error))?;
        let handshake = async {
            let stream = fabric::connect(self.host.address, AGENT_PORT).await?;
            TlsConnector::from(Arc::new(config)).connect(name, stream).await
        };
        Ok(timeout(CALL, handshake).await??)
    }

    fn facts(&self) -> Facts {
        let mut facts = self.storm.facts.clone();
        let Host { mac, uuid, address, .. } = *self.host;
        facts.system.uuid = Some(uuid);
        facts.nics = vec![nic(mac, address)];
        facts.versions.session = Some(self.opened.boot.session);
        facts.versions.generation.clone_from(&self.opened.boot.generation);
        facts.versions.profile.clone_from(&self.opened.config.profile);
        facts
    }

    async fn say(&mut self, message: &FromAgent) -> Option<Event> {
        match json(message) {
            Ok(text) => self.send(Message::Text(text.into())).await,
            Err(fault) => Some(Event::ConnectionLost(fault.to_string())),
        }
    }

    async fn send(&mut self, message: Message) -> Option<Event> {
        let link = self.link.as_mut()?;
        match timeout(CALL, link.send(message)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(self.lost(&error.to_string())),
            Err(_) => Some(self.lost("a message did not leave in time")),
        }
    }
}

fn nic(mac: meshd_types::MacAddr, address: Ipv4Addr) -> NicFacts {
    NicFacts {
        name: "eth0".to_owned(),
        mac: Some(mac),
        carrier: true,
        speed_mbps: Some(25_000),
        driver: Some("ice".to_owned()),
        function: None,
        addresses: vec![address.into()],
    }
}

/// All pass, in the words of the real ones.
fn checks() -> Vec<Check> {
    let pass = |name: &str, detail: &str| Check {
        name: name.to_owned(),
        status: CheckStatus::Pass,
        detail: detail.to_owned(),
        remediation: String::new(),
        unproven: false,
    };
    vec![
        pass("services", "4 started"),
        pass("identity", "uuid"),
        pass("clock", "set"),
        pass("memory", "enough"),
    ]
}

fn json<T: Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|error| agent(&error))
}
