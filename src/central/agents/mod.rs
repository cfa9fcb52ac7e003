//! The protocol of an agent's link: its hello, and each message, passed to the service that handles it.
//!
//! | module | content |
//! | --- | --- |
//! | `hello` | the first report of a link: hardware, running generation, units |

mod hello;

use crate::{
    boot::BootService,
    enrolment::{
        Enrolment,
        enrol::{AgentApiError, check_version, is_accepted, peer_certificate},
    },
    environment::Environment,
    generations::Generations,
    links::{LinkCommand, LinkId, Links},
    nodes::NodeOps,
    tasks::Tasks,
    vms::Workloads,
};
use hello::record_hello;
use meshd_proto::{FromAgent, FromCentral, Hello, Welcome};
use meshd_trust::Peer;
use std::{net::IpAddr, sync::Arc};
use tokio::sync::mpsc;

/// Passes what agents send on their links to the services.
pub struct AgentSessions {
    pub(super) env: Arc<Environment>,
    pub(super) links: Arc<Links>,
    pub(super) enrolment: Arc<Enrolment>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) workloads: Arc<Workloads>,
    pub(super) generations: Arc<Generations>,
    pub(super) boot: Arc<BootService>,
    pub(super) nodes: Arc<NodeOps>,
}

impl AgentSessions {
    /// Opens a link. An older link of the same node is closed.
    pub async fn link_up(
        &self,
        peer: &Peer,
        hello: Hello,
        from: IpAddr,
        commands: mpsc::Sender<LinkCommand>,
    ) -> Result<(LinkId, Welcome), AgentApiError> {
        check_version(hello.version)?;
        if peer.expired {
            return Err(AgentApiError::StaleCertificate);
        }
        let peer_certificate = peer_certificate(peer);
        let node = self.enrolment.check_certificate(peer.node, &peer_certificate)?;
        if hello.node != peer.node || node.boot != Some(hello.session) {
            return Err(AgentApiError::Unauthorized);
        }
        let (now, session, version) = (self.env.now(), hello.session, hello.version);
        // Before the commit, so that no deadline expires while the link is recorded.
        self.links.touch(peer.node);
        self.env
            .store
            .commit(|tx| {
                // Checked again inside the transaction: a newer certificate or boot may have been stored meanwhile.
                let current = tx
                    .node(peer.node)
                    .is_some_and(|node| is_accepted(node, &peer_certificate) && node.boot == Some(hello.session));
                if !current {
                    return Err(AgentApiError::Unauthorized);
                }
                record_hello(tx, peer, hello, from, now);
                Ok(())
            })
            .await?;
        self.generations.scan_soon(peer.node);
        let (id, actions) =
            self.links.register((peer.node, peer_certificate.clone()), session, version, commands.clone(), now);
        // An operator may have revoked the node after the commit, before there was a link to close.
        if self.enrolment.check_certificate(peer.node, &peer_certificate).is_err() {
            self.enrolment.disconnect(peer.node, "its certificate was revoked");
            return Err(AgentApiError::Unauthorized);
        }
        let _ = commands.try_send(LinkCommand::Send(self.enrolment.roots_for(&peer.serial)));
        self.tasks.node_linked(peer.node, session).await;
        for action in actions {
            // If the link is closed already, the actions wait for the next one.
            let _ = commands.try_send(LinkCommand::Send(FromCentral::Action(action)));
        }
        let _ = commands.try_send(LinkCommand::Vms(None));
        let heartbeat_s = u32::try_from(self.env.site().agent.heartbeat.as_secs()).unwrap_or(30);
        // An agent of an older version accepts only that version.
        Ok((id, Welcome { version, heartbeat_s, now: Some(now), logs: true }))
    }

    /// Handles a message of a node.
    pub async fn link_message(&self, link: LinkId, message: FromAgent) -> Result<Option<FromCentral>, AgentApiError> {
        let (peer_certificate, session) = self.links.record_message(link).ok_or(AgentApiError::Unauthorized)?;
        match message {
            FromAgent::Hello(_) => Err(AgentApiError::BadRequest("a second hello on one link".to_owned())),
            FromAgent::Heartbeat(heartbeat) => {
                let idle = heartbeat.workloads == 0;
                self.links.heartbeat(link, heartbeat);
                self.workloads.notify_unsettled(link.node());
                if idle {
                    self.nodes.complete_drain(link.node()).await?;
                }
                Ok(None)
            }
            FromAgent::Checks(report) => {
                self.links.checked(link, session, *report).await?;
                Ok(None)
            }
            FromAgent::ActionDone { id, outcome } => {
                self.links.action_done(link.node(), id, outcome).await?;
                Ok(Some(FromCentral::Acknowledged { id }))
            }
            FromAgent::Vm(update) => {
                self.workloads.vm_update(link.node(), update).await?;
                Ok(None)
            }
            FromAgent::Log(piece) => Ok(self.boot.store_log(link.node(), session, piece).await),
            FromAgent::Task(update) => self.tasks.task_update(link, update).await,
            FromAgent::Renewed => self.enrolment.confirm_renewal(link.node(), &peer_certificate).await.map(|()| None),
            FromAgent::Renew { csr_pem } => self
                .enrolment
                .renew_for(link.node(), &peer_certificate, &csr_pem)
                .await
                .map(|issued| Some(FromCentral::Certificate(issued))),
        }
    }
}
