//! The trait by which the agent API calls the central node.

use meshd_central::{Central, LinkCommand, LinkId, NodeEnd, PendingTicket, PlaneError};
use meshd_model::fleet::Certificate;
use meshd_proto::{
    EnrolRequest, EnrolResponse, FromAgent, FromCentral, Hello, PendingHello, PendingReply, RenewRequest, Welcome,
    vm::{ConsoleId, VmOrder},
};
use meshd_trust::{Peer, TrustError};
use meshd_types::{Digest, NodeId, SystemUuid};
use std::{future::Future, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// A node that waits for an operator.
pub trait Ticket: Send + 'static {
    /// The next thing to tell it. After `Approved` or `Rejected` it is not called again.
    fn next(&mut self) -> impl Future<Output = PendingReply> + Send;
}

/// The central node, as the agent plane sees it.
pub trait AgentSettings: Send + Sync + 'static {
    /// A waiting node.
    type Ticket: Ticket;
    /// Names one link.
    type Link: Copy + Send + Sync + std::fmt::Debug;

    /// TLS of the agent plane.
    fn tls(&self) -> Arc<rustls::ServerConfig>;
    /// Names the node of a certificate that passed the handshake, and says whether it has expired by now.
    fn identify(&self, certificate: &[u8]) -> Result<Peer, TrustError>;
    /// Whether a node's certificate counts: issued by us, and neither replaced nor revoked.
    fn honours(&self, peer: &Peer) -> bool;
    /// Resolves once a node has no credential any more: whatever stands on one ends, also if the node does not read.
    fn revoked(&self, node: NodeId) -> impl Future<Output = ()> + Send {
        let _ = node;
        std::future::pending()
    }
    /// Somebody at this address does not trust our authority.
    fn distrusted(&self, from: IpAddr) -> impl Future<Output = ()> + Send;
    /// A certificate of an authority that was replaced names this node.
    fn stale(&self, node: NodeId, from: IpAddr) -> impl Future<Output = ()> + Send;
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
    /// What the node is told of one virtual machine, or of all.
    fn vm_orders(&self, link: Self::Link, which: Option<SystemUuid>) -> Vec<VmOrder> {
        let _ = (link, which);
        Vec::new()
    }
    /// Where a file lies, if a machine of the node names it.
    fn volume(&self, peer: &Peer, digest: &Digest) -> Option<PathBuf> {
        let _ = (peer, digest);
        None
    }
    /// The end of a console that the node was asked to bring.
    fn console(&self, peer: &Peer, console: ConsoleId) -> Option<NodeEnd> {
        let _ = (peer, console);
        None
    }
    /// A link is over. Called exactly once for each one that was up.
    fn link_down(&self, link: Self::Link) -> impl Future<Output = ()> + Send;
}

impl Ticket for PendingTicket {
    fn next(&mut self) -> impl Future<Output = PendingReply> + Send {
        PendingTicket::next(self)
    }
}

impl AgentSettings for Arc<Central> {
    type Ticket = PendingTicket;
    type Link = LinkId;

    fn tls(&self) -> Arc<rustls::ServerConfig> {
        self.enrolment.authority().server_config()
    }

    fn identify(&self, certificate: &[u8]) -> Result<Peer, TrustError> {
        self.enrolment.authority().identify(certificate, self.now())
    }

    fn honours(&self, peer: &Peer) -> bool {
        self.enrolment.honoured(peer.node, &Certificate::new(&peer.serial, peer.key)).is_ok()
    }

    async fn revoked(&self, node: NodeId) {
        self.enrolment.until_revoked(|| self.enrolment.is_let_in(node)).await;
    }

    async fn distrusted(&self, from: IpAddr) {
        self.enrolment.distrusted(from).await;
    }

    async fn stale(&self, node: NodeId, from: IpAddr) {
        self.enrolment.stale(node, from, "shows a certificate of an authority that was replaced").await;
    }

    fn offline_after(&self) -> Duration {
        self.site().agent.offline_after
    }

    async fn enrol(&self, request: EnrolRequest, from: IpAddr) -> Result<EnrolResponse, PlaneError> {
        self.enrolment.enrol(request, from).await
    }

    async fn renew(&self, peer: &Peer, request: RenewRequest) -> Result<EnrolResponse, PlaneError> {
        self.enrolment.renew(peer, request).await
    }

    async fn pending(&self, hello: PendingHello, from: IpAddr) -> Result<PendingTicket, PlaneError> {
        self.enrolment.pending(hello, from).await
    }

    async fn link_up(
        &self,
        peer: &Peer,
        hello: Hello,
        from: IpAddr,
        commands: mpsc::Sender<LinkCommand>,
    ) -> Result<(LinkId, Welcome), PlaneError> {
        self.agents.link_up(peer, hello, from, commands).await
    }

    fn volume(&self, peer: &Peer, digest: &Digest) -> Option<PathBuf> {
        self.workloads.volume_for(peer.node, digest)
    }

    fn console(&self, peer: &Peer, console: ConsoleId) -> Option<NodeEnd> {
        self.workloads.bring_console(peer, console)
    }

    async fn link_message(&self, link: LinkId, message: FromAgent) -> Result<Option<FromCentral>, PlaneError> {
        self.agents.link_message(link, message).await
    }

    fn vm_orders(&self, link: LinkId, which: Option<SystemUuid>) -> Vec<VmOrder> {
        self.workloads.vm_orders(link.node(), which)
    }

    async fn link_down(&self, link: LinkId) {
        self.links.link_down(link).await;
    }
}
