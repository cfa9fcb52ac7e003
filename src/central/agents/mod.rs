//! The protocol of an agent's link: its hello, and each message, passed to the service that handles it.
//!
//! | module | content |
//! | --- | --- |
//! | `hello` | what a node reports when its link comes up: hardware, what it runs, its units |

mod hello;

use crate::{
    boot::BootService,
    enrolment::{
        Enrolment,
        enrol::{PlaneError, check_version, honours, shown},
    },
    environment::Environment,
    generations::Generations,
    links::{LinkCommand, LinkId, Links},
    nodes::NodeOps,
    tasks::Tasks,
    workloads::Workloads,
};
use hello::arrive;
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
    /// A link begins. An older one of the same node ends.
    pub async fn link_up(
        &self,
        peer: &Peer,
        hello: Hello,
        from: IpAddr,
        commands: mpsc::Sender<LinkCommand>,
    ) -> Result<(LinkId, Welcome), PlaneError> {
        check_version(hello.version)?;
        if peer.expired {
            return Err(PlaneError::StaleCertificate);
        }
        let shown = shown(peer);
        let node = self.enrolment.honoured(peer.node, &shown)?;
        if hello.node != peer.node || node.boot != Some(hello.session) {
            return Err(PlaneError::Unauthorized);
        }
        let (now, session, version) = (self.env.now(), hello.session, hello.version);
        // Before the commit, so that no deadline expires for a node while its link is recorded.
        self.links.touch(peer.node);
        self.env
            .store
            .commit(|tx| {
                // Checked again inside the transaction: a newer certificate or boot may have been stored meanwhile.
                let current =
                    tx.node(peer.node).is_some_and(|node| honours(node, &shown) && node.boot == Some(hello.session));
                if !current {
                    return Err(PlaneError::Unauthorized);
                }
                arrive(tx, peer, hello, from, now);
                Ok(())
            })
            .await?;
        self.generations.scan_soon(peer.node);
        let (id, due) = self.links.register((peer.node, shown.clone()), session, version, commands.clone(), now);
        // An operator may have revoked the node after the commit, before there was a link to close.
        if self.enrolment.honoured(peer.node, &shown).is_err() {
            self.enrolment.cut_off(peer.node, "its certificate was revoked");
            return Err(PlaneError::Unauthorized);
        }
        let _ = commands.try_send(LinkCommand::Send(self.enrolment.roots_for(&peer.serial)));
        self.tasks.task_node_linked(peer.node, session).await;
        for order in due {
            // If the new link is already closed, its orders wait for the next one.
            let _ = commands.try_send(LinkCommand::Send(FromCentral::Action(order)));
        }
        let _ = commands.try_send(LinkCommand::Vms(None));
        let heartbeat_s = u32::try_from(self.env.site().agent.heartbeat.as_secs()).unwrap_or(30);
        // An agent of the previous version accepts only its own number.
        Ok((id, Welcome { version, heartbeat_s, now: Some(now), logs: true }))
    }

    /// Handles a message of a node.
    pub async fn link_message(&self, link: LinkId, message: FromAgent) -> Result<Option<FromCentral>, PlaneError> {
        let (shown, session) = self.links.record_message(link).ok_or(PlaneError::Unauthorized)?;
        match message {
            FromAgent::Hello(_) => Err(PlaneError::BadRequest("a second hello on one link".to_owned())),
            FromAgent::Heartbeat(heartbeat) => {
                let idle = heartbeat.workloads == 0;
                self.links.heartbeat(link, heartbeat);
                self.workloads.notify_unsettled(link.node());
                if idle {
                    self.nodes.drained(link.node()).await?;
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
            FromAgent::Vm(news) => {
                self.workloads.vm_update(link.node(), news).await?;
                Ok(None)
            }
            FromAgent::Log(piece) => Ok(self.boot.store_log(link.node(), session, piece).await),
            FromAgent::Task(news) => self.tasks.task_update(link, news).await,
            FromAgent::Renewed => self.enrolment.renewed(link.node(), &shown).await.map(|()| None),
            FromAgent::Renew { csr_pem } => self
                .enrolment
                .renew_for(link.node(), &shown, &csr_pem)
                .await
                .map(|issued| Some(FromCentral::Certificate(issued))),
        }
    }
}
