//! Warm boots: a node fetches its next boot over mutual TLS, and starts it by kexec.
//!
//! ```text
//! plan ──▶ session `staged` ──▶ parts ──▶ overlay, once ──▶ report: session `started`, the boot of the node
//!   └──▶ cold, with the reason                        └──▶ report: failed, the node boots through its firmware
//! ```
//! Every step requires the node's certificate, a running order to reboot warm, and on a local
//! segment the node's own NIC. The capability of the overlay never leaves this process. See
//! docs/adr/0060-warm-reboot.md.

use crate::{
    boot::{BootService, OverlayDenied, OverlayTransfer},
    enrolment::{
        AgentApiError,
        enrol::{check_version, peer_certificate},
    },
    environment::{
        alarms::{Alarm, log_failure},
        lan_client::LanClient,
    },
    generations::Rendered,
    vms::check_no_running_work,
};
use meshd_config::Delivery;
use meshd_image::catalog::image::blob_path;
use meshd_model::{
    boot::{
        self, BootPlan, Endpoint, PlanRequest, PlannedPart, Refusal, ScriptRequest, check_warm_boot,
    },
    fleet::{
        Actor, BootSession, ColdBoot, ConditionKind, Event, EventKind, Node, Phase, Stage,
        WarmReboot, WarmRebootResult, WarmState,
    },
    operations::{NodeOperation, NodeOperationState, NodeOrder, Operation},
};
use meshd_proto::warm_boot::{
    ColdBootCause, WarmBootAnswer, WarmBootPart, WarmBootPlan, WarmBootReport, WarmBootRequest,
    WarmBootStep,
};
use meshd_store::{Model, StoreError};
use meshd_trust::{Peer, overlay_capability::Grant};
use meshd_types::{BootSessionId, Digest, NodeId, Secret, failpoint, one_line};
use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
};

/// Maximum length of a reported failure, in characters.
const MAX_FAILURE: usize = 300;

impl BootService {
    /// Plans the next boot of a node that was ordered to reboot warm.
    pub async fn plan_warm_boot(
        self: &Arc<Self>,
        peer: &Peer,
        request: &WarmBootRequest,
        client: &LanClient,
    ) -> Result<WarmBootAnswer, AgentApiError> {
        check_version(request.version)?;
        let node = self.authorise_warm_boot(peer, client).await?;
        match self.stage_warm_boot(&node).await {
            Ok(plan) => Ok(WarmBootAnswer::Plan(plan)),
            Err(WarmRefusal::Wait { seconds }) => Ok(WarmBootAnswer::Wait { seconds }),
            Err(WarmRefusal::Cold(cold)) => {
                let reason = cold.reason.clone();
                self.record_cold_boot(&node, cold).await?;
                Ok(WarmBootAnswer::Cold { reason })
            }
            Err(WarmRefusal::Store(error)) => Err(error.into()),
        }
    }

    /// Returns the file of a kernel or an initrd, for a node that was ordered to reboot warm.
    pub async fn warm_boot_part(
        &self,
        peer: &Peer,
        digest: &Digest,
        client: &LanClient,
    ) -> Result<Option<PathBuf>, AgentApiError> {
        let node = self.authorise_warm_boot(peer, client).await?;
        let found = self.env.catalog().served().find_map(|image| {
            let parts = image.manifest.parts.parts();
            parts.into_iter().find(|part| part.blob.digest == *digest)
        });
        let Some(part) = found else { return Ok(None) };
        self.record_loaded(part.stage, |model| {
            staged_session(model, &node).map(|session| session.id)
        })
        .await;
        Ok(Some(blob_path(&self.env.site().blobs_dir, digest)))
    }

    /// Opens the overlay of a planned boot, with its token.
    pub async fn open_warm_overlay(
        self: &Arc<Self>,
        peer: &Peer,
        step: &WarmBootStep,
        client: &LanClient,
    ) -> Result<OverlayTransfer, AgentApiError> {
        check_version(step.version)?;
        let node = self.authorise_warm_boot(peer, client).await?;
        let session = self.require_staged(&node, step.session)?;
        let has_overlay = session.warm == Some(WarmState::Delivered);
        if has_overlay && failpoint::defends("warm-overlay-once") {
            return Err(AgentApiError::Unauthorized);
        }
        let address = session.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let grant = Grant { session: session.id, node: node.id, address };
        let opened = {
            let mut capabilities = self.enrolment.capabilities.lock();
            let now = self.env.now();
            let capability = capabilities.grant(now, self.env.random(), grant);
            // Exposed to open the transfer at once: nobody else learns it.
            capabilities.open(now, capability.expose(), address)
        };
        let Ok(transfer) = opened else { return Err(AgentApiError::Busy) };
        self.fill_transfer(transfer, Delivery::Initrd).await.map_err(|denied| match denied {
            OverlayDenied::NotFound | OverlayDenied::Gone => AgentApiError::Unauthorized,
            OverlayDenied::Busy => AgentApiError::Busy,
        })
    }

    /// Records that a node starts its planned boot, or that it boots through its firmware.
    pub async fn report_warm_boot(
        &self,
        peer: &Peer,
        report: WarmBootReport,
        client: &LanClient,
    ) -> Result<(), AgentApiError> {
        check_version(report.version)?;
        let node = self.authorise_warm_boot(peer, client).await?;
        match (report.session, report.failure) {
            (Some(id), None) => self.start_warm_boot(&node, id).await,
            (id, failure) => {
                let failure: String =
                    failure.unwrap_or_default().chars().take(MAX_FAILURE).collect();
                let failure = one_line(&failure);
                // The failure of a boot that has a plan names its session.
                let has_plan = self.env.store.read(|model| staged_session(model, &node).is_some());
                if id.is_none() && has_plan {
                    return Err(AgentApiError::Unauthorized);
                }
                let staged = id.and_then(|id| self.require_staged(&node, id).ok());
                if let Some(session) = staged {
                    self.end_warm_boot(session.id, &failure).await?;
                    self.leave_queue(session.mac);
                }
                let cold = ColdBoot { cause: report.cause, reason: failure.into_owned() };
                self.record_cold_boot(&node, cold).await?;
                Ok(())
            }
        }
    }

    /// Returns the node of a certificate if an operator ordered its warm reboot, and if the request
    /// comes from its NIC. A key alone gives nothing: not without an order, and not elsewhere.
    async fn authorise_warm_boot(
        &self,
        peer: &Peer,
        client: &LanClient,
    ) -> Result<Node, AgentApiError> {
        let node = self.enrolment.check_certificate(peer.node, &peer_certificate(peer))?;
        let is_ordered = self.env.store.read(|model| is_warm_reboot_ordered(model, node.id));
        if !is_ordered && failpoint::defends("warm-ordered") {
            return Err(AgentApiError::Unauthorized);
        }
        let Err(mismatch) = self.env.check_node_neighbour(client, &node).await else {
            return Ok(node);
        };
        if !failpoint::defends("warm-neighbour") {
            return Ok(node);
        }
        if client.claim_alarm(Some(node.id)) {
            let from = client.address;
            let detail = format!("{from} asked for the warm boot of {}: {mismatch}", node.id);
            let cause = format!("warm boot by {from}");
            let kind = ConditionKind::BootImpersonated;
            let id = Some(node.id);
            self.env.alarm(Alarm { kind, node: id, session: node.boot, cause, detail }).await;
        }
        Err(AgentApiError::Unauthorized)
    }

    /// Renders the next boot of a node, and opens its session.
    async fn stage_warm_boot(self: &Arc<Self>, node: &Node) -> Result<WarmBootPlan, WarmRefusal> {
        let snapshot = self.env.snapshot();
        let cold = WarmRefusal::cold;
        let session = self.env.store.read(|model| staged_session(model, node).cloned());
        let id = session.map_or_else(|| BootSessionId(self.env.random()), |session| session.id);
        let profile = boot::choose(&snapshot.site, node, Some(id)).map_err(|why| cold(&why))?;
        let checked = self.env.store.read(|model| {
            let is_over = |boot: &&BootSession| !boot.is_staged() || boot.ended;
            let boots = model.boots_of(node).into_iter().filter(is_over);
            check_warm_boot(&snapshot.site, node, &profile, boots)
        });
        checked.map_err(|why| {
            WarmRefusal::Cold(ColdBoot { cause: why.cause(), reason: why.to_string() })
        })?;
        let (Some(IpAddr::V4(address)), Some(central)) = (node.address, node.central_address)
        else {
            return Err(cold(&"its address is not on record"));
        };
        let endpoint = self.env.endpoint(central);
        let rendered = self.generations.render_for(&snapshot, node, Some(id), endpoint).await;
        let rendered = rendered.map_err(|error| cold(&error))?;
        self.enter_queue(node.mac, node).map_err(|refusal| match refusal {
            Refusal::Busy { seconds, .. } => WarmRefusal::Wait { seconds },
            other => WarmRefusal::cold(&other.message()),
        })?;
        let planned = plan(&snapshot.site, node, id, endpoint, &rendered);
        let plan = planned.map_err(|refusal| {
            self.leave_queue(node.mac);
            WarmRefusal::cold(&refusal.message())
        })?;
        self.open_warm_session(node, id, address).await.map_err(WarmRefusal::Store)?;
        self.add_pending_overlay(id, rendered, endpoint, None);
        Ok(public_plan(&plan))
    }

    async fn open_warm_session(
        &self,
        node: &Node,
        id: BootSessionId,
        address: Ipv4Addr,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let opened = self.env.store.commit(|tx| {
            // The plan was requested again.
            if tx.session(id).is_some() {
                return Ok(());
            }
            let former = node.boot.and_then(|boot| tx.session(boot)).cloned();
            let mut session = BootSession::open(id, node.mac, Stage::Script, now);
            session.node = Some(node.id);
            session.address = Some(address);
            session.warm = Some(WarmState::Staged);
            if let Some(former) = former {
                session.uuid = former.uuid;
                session.arch = former.arch;
                session.relay_port = former.relay_port;
                session.is_relayed = former.is_relayed;
            }
            tx.put_session(session);
            let detail = format!("warm, MAC {}", node.mac);
            let started = Event::new(now, Actor::Central, EventKind::BootStarted, detail);
            tx.event(started.of_node(node.id).in_session(id));
            Ok(())
        });
        opened.await
    }

    fn require_staged(&self, node: &Node, id: BootSessionId) -> Result<BootSession, AgentApiError> {
        let session = self.env.store.read(|model| model.session(id).cloned());
        let is_own = |session: &BootSession| {
            let is_of_node =
                session.node == Some(node.id) || !failpoint::defends("warm-session-node");
            session.is_staged() && !session.ended && is_of_node
        };
        session.filter(is_own).ok_or(AgentApiError::Unauthorized)
    }

    async fn start_warm_boot(&self, node: &Node, id: BootSessionId) -> Result<(), AgentApiError> {
        let session = self.require_staged(node, id)?;
        let (Some(address), Some(central)) = (session.address, node.central_address) else {
            return Err(AgentApiError::Unauthorized);
        };
        // Without its overlay, the boot would end in a panic.
        if session.reached(Stage::Overlay).is_none() {
            return Err(AgentApiError::Unauthorized);
        }
        let once = node.boot_override.as_ref().filter(|once| once.is_for(Some(id)));
        let once = once.map(|once| once.set_at);
        let started = self.env.store.commit(|tx| {
            check_start(tx.before(), node.id)?;
            tx.edit_session(id, |session| session.warm = Some(WarmState::Started));
            Ok::<_, AgentApiError>(())
        });
        started.await?;
        self.record_boot(node.id, id, address, central, once).await?;
        Ok(())
    }

    async fn end_warm_boot(&self, id: BootSessionId, failure: &str) -> Result<(), StoreError> {
        let ended = self.env.store.commit(|tx| {
            // It may have started meanwhile.
            if tx.session(id).is_some_and(BootSession::is_staged) {
                tx.edit_session(id, |session| {
                    session.failure = Some(failure.to_owned());
                    session.ended = true;
                });
            }
            Ok(())
        });
        ended.await
    }

    /// Ends the boots that no agent loads any more: their orders have ended.
    pub(crate) async fn end_abandoned_warm_boots(&self) {
        let is_abandoned = |model: &Model, session: &BootSession| {
            let ordered = |node| is_warm_reboot_ordered(model, node);
            session.is_staged() && !session.ended && !session.node.is_some_and(ordered)
        };
        let abandoned: Vec<BootSessionId> = self.env.store.read(|model| {
            let staged = model.newest_sessions().filter(|boot| is_abandoned(model, boot));
            staged.map(|boot| boot.id).collect()
        });
        for id in abandoned {
            log_failure(
                self.end_warm_boot(id, "its order has ended").await,
                "cannot end a warm boot",
            );
        }
    }

    /// Records a boot through the firmware, once for each order: the agent may repeat its report.
    async fn record_cold_boot(&self, node: &Node, cold: ColdBoot) -> Result<(), StoreError> {
        let now = self.env.now();
        let recorded = self.env.store.commit(|tx| {
            let order = warm_order(tx.before(), node.id).map(|head| head.id);
            let is_known = |order| tx.node(node.id).is_none_or(|node| node.has_warm_result(order));
            let Some(order) = order.filter(|order| !is_known(*order)) else { return Ok(()) };
            let reason = &cold.reason;
            let detail = format!("warm reboot: it boots through its firmware instead: {reason}");
            let event = Event::new(now, Actor::Central, EventKind::NodeAction, detail);
            tx.event(event.of_node(node.id));
            let result = WarmRebootResult::Cold(cold);
            let reboot = WarmReboot { operation: order, at: now, result };
            tx.edit_node(node.id, |node| node.warm_reboot = Some(reboot));
            Ok(())
        });
        recorded.await
    }
}

/// Why there is no plan.
enum WarmRefusal {
    Wait { seconds: u32 },
    Cold(ColdBoot),
    Store(StoreError),
}

impl WarmRefusal {
    fn cold(reason: &dyn std::fmt::Display) -> Self {
        let reason = reason.to_string();
        WarmRefusal::Cold(ColdBoot { cause: ColdBootCause::Other, reason })
    }
}

fn is_warm_reboot_ordered(model: &Model, node: NodeId) -> bool {
    warm_order(model, node).is_some()
}

/// The running order to reboot a node warm.
fn warm_order(model: &Model, node: NodeId) -> Option<&Operation> {
    let mut open = model.open_operations_of(node);
    let is_warm = |(head, record): &(&Operation, &NodeOperation)| {
        head.order == NodeOrder::WarmReboot && record.state == NodeOperationState::Running
    };
    open.find(is_warm).map(|(head, _)| head)
}

/// Refuses the start of a boot while the former one may run work: the report would release work that
/// the former kernel still runs.
fn check_start(model: &Model, node: NodeId) -> Result<(), AgentApiError> {
    let refused = |why: String| Err(AgentApiError::BadRequest(why));
    if model.node(node).is_some_and(|node| node.phase == Phase::Offline) {
        return refused("the node is offline".to_owned());
    }
    let Some(order) = warm_order(model, node) else { return Err(AgentApiError::Unauthorized) };
    check_no_running_work(model, node, &order.by).or_else(|work| refused(work.to_string()))
}

/// The boot that a node loads at present.
fn staged_session<'a>(model: &'a Model, node: &Node) -> Option<&'a BootSession> {
    let newest = model.newest_session(node.mac)?;
    (newest.is_staged() && !newest.ended && newest.node == Some(node.id)).then_some(newest)
}

/// Decides what the node boots, as the script of a loader would.
fn plan(
    site: &meshd_config::Site,
    node: &Node,
    session: BootSessionId,
    endpoint: Endpoint,
    rendered: &Rendered,
) -> Result<BootPlan, Refusal> {
    boot::decide(&PlanRequest {
        site,
        contents: &rendered.contents,
        node,
        session,
        endpoint,
        // What a loader can boot and what kexec can boot must not differ.
        request: &ScriptRequest::of_node(node),
        // The overlay of a warm boot has no URL.
        capability: &Secret::new(String::new()),
    })
}

fn public_plan(plan: &BootPlan) -> WarmBootPlan {
    let part = |part: &PlannedPart| WarmBootPart {
        name: part.name.to_owned(),
        digest: part.digest,
        size: part.size,
    };
    WarmBootPlan {
        session: plan.secret.session,
        kernel: part(plan.public.kernel()),
        initrds: plan.public.initrds().map(part).collect(),
        command_line: boot::kexec_command_line(plan),
    }
}
