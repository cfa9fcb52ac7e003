//! The link: receives messages, sends replies and commands, probes, and always reports its end.

use super::{
    AgentApi, AgentApiError, AgentBackend, AgentClient, AgentConnection, LinkCommand,
    message_rate::MessageClass,
    refusal::check_version,
    socket::{AgentSocket, Ended, SocketEvent},
};
use axum::extract::ws::WebSocket;
use bytes::Bytes;
use meshd_proto::{FromAgent, FromCentral, Hello};
use meshd_types::failpoint;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    time::{interval, timeout},
};

/// Maximum number of waiting commands per link. A full queue drops a command that its caller
/// repeats; only probes and requests of an operator wait.
const COMMANDS: usize = 64;
/// Maximum number of outstanding probes per link.
const MAX_PROBES: usize = 16;
/// Time for a node with revoked credentials to receive its goodbye.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Delay in seconds before the node reconnects after the central node stopped or replaced this
/// link.
const SOON_S: u32 = 5;
/// Delay in seconds before the node reconnects after a refusal that only an operator can lift.
const LATER_S: u32 = 60;

/// Reason for the end of a link.
enum End {
    /// The central node ends the link, with a reason and a delay before reconnecting.
    Goodbye { reason: String, retry_after_s: u32 },
    /// The node disconnected or violated the protocol.
    Gone(Ended),
    /// The node's credentials were revoked, and the node does not read its goodbye.
    CutOff,
    /// A segment of the connection came from another machine.
    Foreign,
}

impl From<Ended> for End {
    fn from(ended: Ended) -> Self {
        End::Gone(ended)
    }
}

/// Serves one link from its hello to its end.
pub(super) async fn serve<P: AgentBackend>(
    service: &AgentApi<P>,
    socket: WebSocket,
    client: &AgentClient,
    connection: &AgentConnection,
) {
    let from = connection.from;
    let node = client.peer.node;
    let mut socket = AgentSocket::new(socket, service.central.offline_after());
    let end = match greet_and_run(service, &mut socket, client, connection).await {
        Ok(never) => match never {},
        Err(end) => end,
    };
    let reason = match end {
        End::CutOff => {
            return tracing::info!(route = "link", %node, %from, "link closed: revoked, and the node does not read");
        }
        End::Foreign => {
            return tracing::warn!(route = "link", %node, %from, "link closed: a segment came from another machine");
        }
        End::Gone(ended) => ended.to_string(),
        End::Goodbye { reason, retry_after_s } => {
            let goodbye =
                FromCentral::Goodbye { reason: reason.clone(), retry_after_s: Some(retry_after_s) };
            // The goodbye is best effort: the node may be gone.
            let _ = timeout(LAST_WORD, socket.send(&goodbye)).await;
            reason
        }
    };
    tracing::info!(route = "link", %node, %from, reason, "link down");
    socket.close(&reason).await;
}

async fn greet_and_run<P: AgentBackend>(
    service: &AgentApi<P>,
    socket: &mut AgentSocket,
    client: &AgentClient,
    connection: &AgentConnection,
) -> Result<std::convert::Infallible, End> {
    let from = connection.from;
    let first = tokio::select! {
        first = socket.hello() => first?,
        () = service.shutdown.cancelled() => return Err(stopping()),
    };
    let FromAgent::Hello(hello) = first else {
        return Err(Ended::Violation("a link begins with hello").into());
    };
    check_hello(&hello, client)?;
    tokio::select! {
        () = service.rates.admit(client.peer.node, MessageClass::Record) => {}
        () = service.shutdown.cancelled() => return Err(stopping()),
    }
    let (commands, mut inbox) = mpsc::channel(COMMANDS);
    let up = service.central.link_up(&client.peer, *hello, from.ip(), commands).await;
    let (link, welcome) = up.map_err(refusal)?;
    tracing::info!(route = "link", node = %client.peer.node, %from, "link up");
    let ended = async {
        socket.send(&FromCentral::Welcome(welcome)).await?;
        run_link(service, socket, client, link, &mut inbox).await
    };
    // `run_link` sends a revoked node a goodbye. If the node has stopped reading, that write
    // blocks, and this future ends the link.
    let cut_off = async {
        service.central.wait_until_revoked(client.peer.node).await;
        tokio::time::sleep(LAST_WORD).await;
    };
    let bound = async {
        service.central.bind_link_address(client.peer.node, &connection.lan).await;
        std::future::pending().await
    };
    let ended = tokio::select! {
        // First: the welcome follows the binding of a leased address.
        biased;
        never = bound => never,
        ended = ended => ended,
        () = cut_off => Err(End::CutOff),
        () = connection.lan.ended() => Err(End::Foreign),
    };
    service.central.link_down(link).await;
    ended
}

fn check_hello(hello: &Hello, client: &AgentClient) -> Result<(), End> {
    check_version(hello.version).map_err(|refusal| End::Goodbye {
        reason: refusal.message.into_owned(),
        retry_after_s: LATER_S,
    })?;
    if hello.node != client.peer.node {
        let reason =
            format!("the hello is of {}, the certificate of {}", hello.node, client.peer.node);
        return Err(End::Goodbye { reason, retry_after_s: LATER_S });
    }
    Ok(())
}

/// Serves a link between welcome and goodbye.
async fn run_link<P: AgentBackend>(
    service: &AgentApi<P>,
    socket: &mut AgentSocket,
    client: &AgentClient,
    link: P::Link,
    inbox: &mut mpsc::Receiver<LinkCommand>,
) -> Result<std::convert::Infallible, End> {
    let mut probes = Probes::default();
    let mut expiry = interval(service.expiry_check);
    let mut certificate = client.certificate.clone();
    let mut renewed = None;
    // A message that waits for the rate of its node. Meanwhile no further one is read.
    let mut waiting: Option<FromAgent> = None;
    loop {
        let class = waiting.as_ref().map_or(MessageClass::Record, MessageClass::of);
        tokio::select! {
            // Queued commands are sent before a message of the node can end the link.
            biased;
            () = service.shutdown.cancelled() => return Err(stopping()),
            // Before messages: a node that always has one ready must not outlive its certificate.
            _ = expiry.tick(), if failpoint::defends("link-expiry") => check_expiry(service, &certificate)?,
            command = inbox.recv() => match command {
                Some(LinkCommand::Send(message)) => socket.send(&message).await?,
                Some(LinkCommand::Spec(part)) => {
                    for spec in service.central.specs(link, part).await {
                        socket.send(&FromCentral::Spec(spec)).await?;
                    }
                }
                Some(LinkCommand::Probe(answer)) => socket.ping(probes.start(answer)).await?,
                Some(LinkCommand::Close(reason)) => return Err(End::Goodbye { reason, retry_after_s: SOON_S }),
                None => return Err(End::Goodbye { reason: "replaced".into(), retry_after_s: SOON_S }),
            },
            message = socket.next::<FromAgent>(), if waiting.is_none() => match message? {
                SocketEvent::Pong(payload) => probes.finish(&payload),
                SocketEvent::Message(FromAgent::Hello(_)) => return Err(Ended::Violation("a second hello").into()),
                SocketEvent::Message(message) => waiting = Some(message),
            },
            () = service.rates.admit(client.peer.node, class), if waiting.is_some() => {
                let Some(message) = waiting.take() else { continue };
                let is_stored = message == FromAgent::Renewed;
                if let Some(reply) = service.central.link_message(link, message).await.map_err(refusal)? {
                    if let FromCentral::Certificate(issued) = &reply {
                        renewed = CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).ok();
                    }
                    socket.send(&reply).await?;
                }
                if let Some(next) = renewed.take_if(|_| is_stored) {
                    certificate = next;
                }
            },
        }
    }
}

fn check_expiry<P: AgentBackend>(service: &AgentApi<P>, certificate: &[u8]) -> Result<(), End> {
    let is_valid = service.central.identify(certificate).is_ok_and(|peer| !peer.expired);
    if is_valid { Ok(()) } else { Err(refusal(AgentApiError::StaleCertificate)) }
}

fn stopping() -> End {
    End::Goodbye { reason: "the central node stops".into(), retry_after_s: SOON_S }
}

fn refusal(error: AgentApiError) -> End {
    let retry_after_s = match &error {
        AgentApiError::StaleCertificate => 0,
        AgentApiError::Busy | AgentApiError::Internal(_) => SOON_S,
        AgentApiError::Unauthorized | AgentApiError::BadRequest(_) => LATER_S,
    };
    let reason = match error {
        AgentApiError::Internal(detail) => {
            tracing::error!(route = "link", detail, "request failed");
            "the central node failed; its log says why".into()
        }
        other => other.to_string(),
    };
    End::Goodbye { reason, retry_after_s }
}

/// Pings that callers wait for. Each ping has a number, so that the answer to an older ping proves
/// nothing.
#[derive(Default)]
struct Probes {
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Probes {
    fn start(&mut self, answer: oneshot::Sender<()>) -> Bytes {
        self.last += 1;
        if self.waiting.len() >= MAX_PROBES {
            self.waiting.pop_first();
        }
        self.waiting.insert(self.last, answer);
        Bytes::copy_from_slice(&self.last.to_be_bytes())
    }

    fn finish(&mut self, payload: &[u8]) {
        let Ok(number) = payload.try_into().map(u64::from_be_bytes) else { return };
        if let Some(answer) = self.waiting.remove(&number) {
            // The caller may have timed out.
            let _ = answer.send(());
        }
    }
}
