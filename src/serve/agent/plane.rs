//! What the agent plane asks of the central node.

use crate::{
    trust::{Peer, TrustError},
    wire::{
        EnrolRequest, EnrolResponse, FromAgent, FromCentral, Hello, PendingHello, PendingReply, RenewRequest, Welcome,
    },
};
use std::{future::Future, net::IpAddr, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot};

/// What the central node wants of a link.
#[derive(Debug)]
pub enum LinkCommand {
    /// Send this.
    Send(FromCentral),
    /// Ping, and fire when the node has answered.
    Probe(oneshot::Sender<()>),
    /// End the link, for this reason.
    Close(String),
}

/// Why the central node refuses.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// No such token, or it is used, expired or somebody else's. All of these look the same from outside.
    #[error("not authorised")]
    Unauthorized,
    /// The certificate must be renewed first.
    #[error("the certificate has expired; renew it")]
    StaleCertificate,
    /// What was sent makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// Too much at once; later.
    #[error("the central node is busy; try again in some seconds")]
    Busy,
    /// Our own fault. The text is for our log and is not sent.
    #[error("{0}")]
    Internal(String),
}

/// A node that waits for an operator.
pub trait Ticket: Send + 'static {
    /// The next thing to tell it. After `Approved` or `Rejected` it is not called again.
    fn next(&mut self) -> impl Future<Output = PendingReply> + Send;
}

/// The central node, as the agent plane sees it.
pub trait AgentPlane: Send + Sync + 'static {
    /// A waiting node.
    type Ticket: Ticket;
    /// Names one link.
    type Link: Copy + Send + Sync + std::fmt::Debug;

    /// TLS of the agent plane.
    fn tls(&self) -> Arc<rustls::ServerConfig>;
    /// Names the node of a certificate that passed the handshake, and says whether it has expired by now.
    fn identify(&self, certificate: &[u8]) -> Result<Peer, TrustError>;
    /// Silence after which a connection is given up.
    fn offline_after(&self) -> Duration;
    /// A token for a certificate.
    fn enrol(
        &self,
        request: EnrolRequest,
        from: IpAddr,
    ) -> impl Future<Output = Result<EnrolResponse, PlaneError>> + Send;
    /// A certificate for another one.
    fn renew(
        &self,
        peer: &Peer,
        request: RenewRequest,
    ) -> impl Future<Output = Result<EnrolResponse, PlaneError>> + Send;
    /// A node without either.
    fn pending(
        &self,
        hello: PendingHello,
        from: IpAddr,
    ) -> impl Future<Output = Result<Self::Ticket, PlaneError>> + Send;
    /// A link begins.
    fn link_up(
        &self,
        peer: &Peer,
        hello: Hello,
        from: IpAddr,
        commands: mpsc::Sender<LinkCommand>,
    ) -> impl Future<Output = Result<(Self::Link, Welcome), PlaneError>> + Send;
    /// A node said something.
    fn link_message(
        &self,
        link: Self::Link,
        message: FromAgent,
    ) -> impl Future<Output = Result<Option<FromCentral>, PlaneError>> + Send;
    /// A link is over. Called exactly once for each one that was up.
    fn link_down(&self, link: Self::Link) -> impl Future<Output = ()> + Send;
}
