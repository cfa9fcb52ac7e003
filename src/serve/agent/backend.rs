//! Calls of the agent API to the central node.

use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use meshd_central::{
    AgentApiError, Central, LanClient, LinkCommand, LinkId, NodeConsole, OverlayTransfer,
    PendingConnection, SpecPart,
};
use meshd_model::fleet::Certificate;
use meshd_proto::{
    EnrolRequest, EnrolResponse, FromAgent, FromCentral, Hello, NodeSpec, PendingHello,
    PendingReply, RenewRequest, Welcome,
    vm::ConsoleId,
    warm_boot::{WarmBootAnswer, WarmBootReport, WarmBootRequest, WarmBootStep},
};
use meshd_trust::{Peer, TrustError};
use meshd_types::{Digest, NodeId};
use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// Replies to a node that waits for approval, up to `Approved` or `Rejected`. Dropping it ends the
/// wait.
pub type PendingReplies = BoxStream<'static, PendingReply>;

/// Decisions behind the routes and the link, made by the central node or by a test.
pub trait AgentBackend: Send + Sync + 'static {
    /// Identifier of a link.
    type Link: Copy + Send + Sync + std::fmt::Debug;

    /// Returns the client of an accepted connection. `interface` is that of the listener.
    fn client(&self, interface: Option<&str>, from: SocketAddr, at: SocketAddr) -> LanClient {
        let _ = (interface, at);
        from.ip().into()
    }
    /// Returns the TLS configuration of the agent API.
    fn tls(&self) -> Arc<rustls::ServerConfig>;
    /// Returns the node of a certificate that passed the handshake, and whether the certificate has
    /// expired.
    fn identify(&self, certificate: &[u8]) -> Result<Peer, TrustError>;
    /// Returns true if this site issued the node's certificate, and has neither replaced nor
    /// revoked it.
    fn accepts_certificate(&self, peer: &Peer) -> bool;
    /// Resolves once a node has no valid credential. All connections of the node then end, even if
    /// the node does not read.
    fn wait_until_revoked(&self, node: NodeId) -> impl Future<Output = ()> + Send {
        let _ = node;
        std::future::pending()
    }
    /// Records that this client does not trust this site's authority.
    fn record_distrust(&self, client: &LanClient) -> impl Future<Output = ()> + Send;
    /// Records that a client presented a certificate of a replaced authority, which names this
    /// node.
    fn record_stale_certificate(
        &self,
        node: NodeId,
        from: IpAddr,
    ) -> impl Future<Output = ()> + Send;
    /// Returns the time after which a silent connection is closed.
    fn offline_after(&self) -> Duration;
    /// Issues a certificate in exchange for a token.
    fn enrol(
        &self,
        request: EnrolRequest,
        client: LanClient,
    ) -> impl Future<Output = Result<EnrolResponse, AgentApiError>> + Send;
    /// Renews a certificate.
    fn renew(
        &self,
        peer: &Peer,
        request: RenewRequest,
    ) -> impl Future<Output = Result<EnrolResponse, AgentApiError>> + Send;
    /// Registers a node that has neither a token nor a certificate.
    fn wait_for_approval(
        &self,
        hello: PendingHello,
        client: LanClient,
    ) -> impl Future<Output = Result<PendingReplies, AgentApiError>> + Send;
    /// Registers a new link.
    fn link_up(
        &self,
        peer: &Peer,
        hello: Hello,
        from: IpAddr,
        commands: mpsc::Sender<LinkCommand>,
    ) -> impl Future<Output = Result<(Self::Link, Welcome), AgentApiError>> + Send;
    /// Binds the address of a new link to its NIC; raises an alarm if another machine has it.
    fn bind_link_address(
        &self,
        node: NodeId,
        client: &LanClient,
    ) -> impl Future<Output = ()> + Send {
        let _ = (node, client);
        std::future::ready(())
    }
    /// Handles a message of a node.
    fn link_message(
        &self,
        link: Self::Link,
        message: FromAgent,
    ) -> impl Future<Output = Result<Option<FromCentral>, AgentApiError>> + Send;
    /// Returns a part of the desired state of the node, as it is now.
    fn specs(
        &self,
        link: Self::Link,
        part: SpecPart,
    ) -> impl Future<Output = Vec<NodeSpec>> + Send {
        let _ = (link, part);
        std::future::ready(Vec::new())
    }
    /// Returns the path of a volume if a VM of the node uses it.
    fn volume(&self, peer: &Peer, digest: &Digest) -> Option<PathBuf> {
        let _ = (peer, digest);
        None
    }
    /// Returns the plan of a warm boot.
    fn plan_warm_boot(
        &self,
        peer: &Peer,
        request: WarmBootRequest,
        client: &LanClient,
    ) -> impl Future<Output = Result<WarmBootAnswer, AgentApiError>> + Send {
        let _ = (peer, request, client);
        std::future::ready(Err(AgentApiError::Unauthorized))
    }
    /// Returns the path of a part of an image for a warm boot.
    fn warm_boot_part(
        &self,
        peer: &Peer,
        digest: Digest,
        client: &LanClient,
    ) -> impl Future<Output = Result<Option<PathBuf>, AgentApiError>> + Send {
        let _ = (peer, digest, client);
        std::future::ready(Err(AgentApiError::Unauthorized))
    }
    /// Opens the overlay of a warm boot.
    fn open_warm_overlay(
        &self,
        peer: &Peer,
        step: WarmBootStep,
        client: &LanClient,
    ) -> impl Future<Output = Result<OverlayTransfer, AgentApiError>> + Send {
        let _ = (peer, step, client);
        std::future::ready(Err(AgentApiError::Unauthorized))
    }
    /// Records that a warm boot starts, or that it has failed.
    fn report_warm_boot(
        &self,
        peer: &Peer,
        report: WarmBootReport,
        client: &LanClient,
    ) -> impl Future<Output = Result<(), AgentApiError>> + Send {
        let _ = (peer, report, client);
        std::future::ready(Err(AgentApiError::Unauthorized))
    }
    /// Returns the node's side of a console that the central node has requested.
    fn console(&self, peer: &Peer, console: ConsoleId) -> Option<NodeConsole> {
        let _ = (peer, console);
        None
    }
    /// Records the end of a link. Is called exactly once for each registered link.
    fn link_down(&self, link: Self::Link) -> impl Future<Output = ()> + Send;
}

impl AgentBackend for Arc<Central> {
    type Link = LinkId;

    fn client(&self, interface: Option<&str>, from: SocketAddr, at: SocketAddr) -> LanClient {
        self.lan_client(interface, from, at)
    }

    fn tls(&self) -> Arc<rustls::ServerConfig> {
        self.enrolment.authority().server_config()
    }

    fn identify(&self, certificate: &[u8]) -> Result<Peer, TrustError> {
        self.enrolment.authority().identify(certificate, self.now())
    }

    fn accepts_certificate(&self, peer: &Peer) -> bool {
        self.enrolment
            .check_certificate(peer.node, &Certificate::new(&peer.serial, peer.key))
            .is_ok()
    }

    async fn wait_until_revoked(&self, node: NodeId) {
        self.enrolment.until_revoked(|| self.enrolment.has_valid_certificate(node)).await;
    }

    async fn record_distrust(&self, client: &LanClient) {
        self.enrolment.record_failed_handshake(client).await;
    }

    async fn record_stale_certificate(&self, node: NodeId, from: IpAddr) {
        self.enrolment
            .stale_certificate(node, from, "shows a certificate of an authority that was replaced")
            .await;
    }

    fn offline_after(&self) -> Duration {
        self.site().agent.offline_after
    }

    async fn enrol(
        &self,
        request: EnrolRequest,
        client: LanClient,
    ) -> Result<EnrolResponse, AgentApiError> {
        self.enrolment.enrol(request, client).await
    }

    async fn renew(
        &self,
        peer: &Peer,
        request: RenewRequest,
    ) -> Result<EnrolResponse, AgentApiError> {
        self.enrolment.renew(peer, request).await
    }

    async fn wait_for_approval(
        &self,
        hello: PendingHello,
        client: LanClient,
    ) -> Result<PendingReplies, AgentApiError> {
        let waiting = self.enrolment.pending(hello, client).await?;
        let next = |mut waiting: PendingConnection| async move {
            let reply = waiting.next().await;
            Some((reply, waiting))
        };
        Ok(stream::unfold(waiting, next).boxed())
    }

    async fn link_up(
        &self,
        peer: &Peer,
        hello: Hello,
        from: IpAddr,
        commands: mpsc::Sender<LinkCommand>,
    ) -> Result<(LinkId, Welcome), AgentApiError> {
        self.agents.link_up(peer, hello, from, commands).await
    }

    async fn bind_link_address(&self, node: NodeId, client: &LanClient) {
        self.boot.pin_link(node, client).await;
    }

    fn volume(&self, peer: &Peer, digest: &Digest) -> Option<PathBuf> {
        self.vms.volume_for(peer.node, digest)
    }

    async fn plan_warm_boot(
        &self,
        peer: &Peer,
        request: WarmBootRequest,
        client: &LanClient,
    ) -> Result<WarmBootAnswer, AgentApiError> {
        self.boot.plan_warm_boot(peer, &request, client).await
    }

    async fn warm_boot_part(
        &self,
        peer: &Peer,
        digest: Digest,
        client: &LanClient,
    ) -> Result<Option<PathBuf>, AgentApiError> {
        self.boot.warm_boot_part(peer, &digest, client).await
    }

    async fn open_warm_overlay(
        &self,
        peer: &Peer,
        step: WarmBootStep,
        client: &LanClient,
    ) -> Result<OverlayTransfer, AgentApiError> {
        self.boot.open_warm_overlay(peer, &step, client).await
    }

    async fn report_warm_boot(
        &self,
        peer: &Peer,
        report: WarmBootReport,
        client: &LanClient,
    ) -> Result<(), AgentApiError> {
        self.boot.report_warm_boot(peer, report, client).await
    }

    fn console(&self, peer: &Peer, console: ConsoleId) -> Option<NodeConsole> {
        self.links.accept_console(peer, console)
    }

    async fn link_message(
        &self,
        link: LinkId,
        message: FromAgent,
    ) -> Result<Option<FromCentral>, AgentApiError> {
        self.agents.link_message(link, message).await
    }

    async fn specs(&self, link: LinkId, part: SpecPart) -> Vec<NodeSpec> {
        self.agents.specs(link, part).await
    }

    async fn link_down(&self, link: LinkId) {
        self.agents.link_down(link).await;
    }
}
