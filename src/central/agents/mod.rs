//! The protocol of an agent's link: its hello, and each message, passed to the service that handles
//! it.
//!
//! | module | content |
//! | --- | --- |
//! | `hello` | the first report of a link: hardware, running generation, units |

mod hello;

use crate::{
    boot::BootService,
    enrolment::{
        AgentApiError,
        enrol::{check_version, is_accepted, peer_certificate},
    },
    environment::alarms::log_failure,
    links::{LinkCommand, LinkId, SpecPart},
    nodes::{NodeOps, drain_entry_of},
    tasks::{entry_of_node, entry_of_task},
    vms::vm_entries,
};
use hello::record_hello;
use meshd_proto::{
    FromAgent, FromCentral, Hello, NodeReport, NodeSpec, Section, SectionReport, SpecEntry, Welcome,
};
use meshd_store::Model;
use meshd_trust::Peer;
use meshd_types::NodeId;
use std::{net::IpAddr, sync::Arc};
use tokio::sync::mpsc;

/// Passes what agents send on their links to the services.
pub struct AgentSessions {
    pub(super) boot: Arc<BootService>,
    /// The other services are reached by its fields.
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
        let NodeOps { env, links, enrolment, tasks, generations, .. } = &*self.nodes;
        check_version(hello.version)?;
        if peer.expired {
            return Err(AgentApiError::StaleCertificate);
        }
        let peer_certificate = peer_certificate(peer);
        let node = enrolment.check_certificate(peer.node, &peer_certificate)?;
        if hello.node != peer.node || node.boot != Some(hello.session) {
            return Err(AgentApiError::Unauthorized);
        }
        let now = env.now();
        let session = hello.session;
        let version = hello.version;
        // Before the commit, so that no deadline expires while the link is recorded.
        links.touch(peer.node);
        let committed = env.store.commit(|tx| {
            // Checked again inside the transaction: a newer certificate or boot may have been
            // stored meanwhile.
            let current = tx.node(peer.node).is_some_and(|node| {
                is_accepted(node, &peer_certificate) && node.boot == Some(hello.session)
            });
            if !current {
                return Err(AgentApiError::Unauthorized);
            }
            record_hello(tx, peer, hello, from, now);
            Ok(())
        });
        committed.await?;
        generations.scan_soon(peer.node);
        let (id, actions) =
            links.register(peer.node, peer_certificate.clone(), session, commands.clone(), now);
        // An operator may have revoked the node after the commit, before there was a link to close.
        if enrolment.check_certificate(peer.node, &peer_certificate).is_err() {
            enrolment.disconnect(peer.node, "its certificate was revoked");
            return Err(AgentApiError::Unauthorized);
        }
        let _ = commands.try_send(LinkCommand::Send(enrolment.roots_for(&peer.serial)));
        tasks.node_linked(peer.node, session).await;
        for action in actions {
            // If the link is closed already, the actions wait for the next one.
            let _ = commands.try_send(LinkCommand::Send(FromCentral::Action(action)));
        }
        let _ = commands.try_send(LinkCommand::Spec(SpecPart::All));
        let heartbeat_s = u32::try_from(env.site().agent.heartbeat.as_secs()).unwrap_or(30);
        // An agent of an older version accepts only that version.
        Ok((id, Welcome { version, heartbeat_s, now: Some(now), logs: true }))
    }

    /// Returns a part of the desired state of a link's node, as it is now, numbered for this link.
    /// A node acts on it, so it is returned when it is on the disk. If the disk refuses it, the
    /// next heartbeat repeats all.
    pub async fn specs(&self, link: LinkId, part: SpecPart) -> Vec<NodeSpec> {
        let NodeOps { env, links, .. } = &*self.nodes;
        let node = link.node();
        let containers = |model: &Model| {
            let entries = self.nodes.containers.entries(model, node);
            entries.into_iter().map(SpecEntry::Containers)
        };
        let all = |model: &Model| match part {
            SpecPart::Containers => containers(model).collect(),
            SpecPart::All => {
                spec_entries(model, node, part).into_iter().chain(containers(model)).collect()
            }
            part => spec_entries(model, node, part),
        };
        let entries = env.store.read_acknowledged(all).await;
        match entries {
            Ok(entries) => links.number_entries(link, entries),
            Err(error) => {
                log_failure(Err(error), "cannot send orders to a node");
                links.record_unsent_spec(link);
                Vec::new()
            }
        }
    }

    /// Records the end of a link.
    pub async fn link_down(&self, link: LinkId) {
        self.nodes.links.link_down(link).await;
    }

    /// Handles a message of a node.
    pub async fn link_message(
        &self,
        link: LinkId,
        message: FromAgent,
    ) -> Result<Option<FromCentral>, AgentApiError> {
        let NodeOps { links, enrolment, tasks, vms, .. } = &*self.nodes;
        let (peer_certificate, session) =
            links.record_message(link).ok_or(AgentApiError::Unauthorized)?;
        match message {
            FromAgent::Hello(_) => {
                Err(AgentApiError::BadRequest("a second hello on one link".to_owned()))
            }
            FromAgent::Heartbeat(heartbeat) => {
                let idle = heartbeat.workloads == 0;
                links.record_heartbeat(link, heartbeat);
                if links.take_unsent_spec(link) {
                    links.notify_node(link.node(), SpecPart::All);
                }
                vms.repeat_orders(link.node());
                self.nodes.containers.repeat_orders(link.node());
                self.nodes.repeat_drain_entry(link.node());
                if idle {
                    self.nodes.complete_drain(link.node()).await?;
                }
                Ok(None)
            }
            FromAgent::Checks(report) => {
                links.record_checks(link, session, *report).await?;
                Ok(None)
            }
            FromAgent::ActionDone { id, outcome } => {
                links.record_action_outcome(link.node(), id, outcome).await?;
                Ok(Some(FromCentral::Acknowledged { id }))
            }
            FromAgent::Report(NodeReport { observed, state }) => {
                match state {
                    SectionReport::Vms(update) => {
                        links.record_observed(link, Section::Vms, observed);
                        vms.vm_update(link.node(), update).await?;
                    }
                    SectionReport::Tasks(update) => {
                        links.record_observed(link, Section::Tasks, observed);
                        tasks.task_update(link.node(), update).await?;
                    }
                    SectionReport::Drain(report) => {
                        links.record_observed(link, Section::Drain, observed);
                        self.nodes.drain_update(link, report).await?;
                    }
                    SectionReport::Containers(update) => {
                        links.record_observed(link, Section::Containers, observed);
                        self.nodes.containers.container_update(link.node(), update).await?;
                    }
                    SectionReport::Unknown => {}
                }
                Ok(None)
            }
            FromAgent::Output(output) => Ok(tasks.store_output(link.node(), output).await),
            FromAgent::Log(piece) => Ok(self.boot.store_log(link.node(), session, piece).await),
            FromAgent::Goodbye => {
                links.record_agent_stop(link.node(), session).await?;
                Ok(None)
            }
            FromAgent::Renewed => {
                enrolment.confirm_renewal(link.node(), &peer_certificate).await.map(|()| None)
            }
            FromAgent::Renew { csr_pem } => enrolment
                .renew_for(link.node(), &peer_certificate, &csr_pem)
                .await
                .map(|issued| Some(FromCentral::Certificate(issued))),
        }
    }
}

/// A part of the desired state of a node, without its replicas of containers.
fn spec_entries(model: &Model, node: NodeId, part: SpecPart) -> Vec<SpecEntry> {
    let vms = |vm| vm_entries(model, node, vm).into_iter().map(SpecEntry::Vms);
    let drain = || drain_entry_of(model, node).map(SpecEntry::Drain);
    match part {
        SpecPart::All => {
            let task = entry_of_node(model, node).map(SpecEntry::Tasks);
            vms(None).chain(task).chain(drain()).collect()
        }
        SpecPart::Vm(uuid) => vms(Some(uuid)).collect(),
        SpecPart::Task(task) => {
            entry_of_task(model, node, task).map(SpecEntry::Tasks).into_iter().collect()
        }
        SpecPart::Drain => drain().into_iter().collect(),
        SpecPart::Containers => Vec::new(),
    }
}
