//! The boot script: identity, admission, rendering, capability, plan.

use crate::{
    boot::{BootService, identify_machine::BootRequest, script_cache::CachedScript},
    environment::records::{phase_event, reach},
    generations::RenderError,
    workloads::rebooted,
};
use meshd_model::{
    boot::{self, Endpoint, PlanRequest, QueryError, Refusal, ScriptRequest},
    fleet::{
        Actor, BootSession, ConditionKind, Event, EventKind, Node, ObservedMachine, PhaseChange, Stage, Transition,
    },
};
use meshd_store::{Model, StoreError};
use meshd_trust::capability::Grant;
use meshd_types::{BootSessionId, Digest, MacAddr, NodeId, Timestamp, fail};
use std::{net::Ipv4Addr, sync::Arc};

impl BootService {
    /// Returns the script for a request: a boot, or a refusal that states the reason and retries. iPXE can run each result.
    pub async fn script(
        self: &Arc<Self>,
        request: Result<ScriptRequest, QueryError>,
        from: Ipv4Addr,
        endpoint: Endpoint,
    ) -> String {
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                let refusal = Refusal::BadRequest { detail: error.to_string() };
                return self.refuse(refusal, Asker { mac: None, node: None, from, endpoint }).await;
            }
        };
        let live = self.env.live();
        let Some(mut sighting) = ObservedMachine::of(&request.hardware(), request.mac, &live.site.identity.deny) else {
            let asker = Asker { mac: Some(request.mac), node: None, from, endpoint };
            return self.refuse(Refusal::Unidentified, asker).await;
        };
        request.board_serial.trim().clone_into(&mut sighting.fingerprint.board_serial);
        let asker = Asker { mac: Some(request.mac), node: Some(sighting.node_id()), from, endpoint };
        match self.boot(&request, &sighting, from, endpoint).await {
            Ok(script) => script,
            Err(refusal) => self.refuse(refusal, asker).await,
        }
    }

    async fn boot(
        self: &Arc<Self>,
        request: &ScriptRequest,
        sighting: &ObservedMachine,
        from: Ipv4Addr,
        endpoint: Endpoint,
    ) -> Result<String, Refusal> {
        let id = sighting.node_id();
        let session = self.own_session(sighting, from).await?;
        let before = self.known_before(sighting);
        let own = |other: &NodeId| *other == id || before.as_ref().is_some_and(|before| before.id == *other);
        if let Some(other) = session.node.filter(|other| !own(other)) {
            let detail = format!("{from} asked as {id} in the boot session of {other}");
            self.impersonated(id, session.id, from, detail).await;
            return Err(Refusal::NoSession);
        }
        let link_is_live = self.links.probe(before.as_ref().map_or(id, |node| node.id)).await;
        if !link_is_live && let Some(script) = self.cached_script(request, sighting, session.id, from, endpoint) {
            return Ok(script);
        }
        let known = before.clone().or_else(|| self.env.store.read(|model| model.node(id).cloned()));
        if link_is_live && known.as_ref().is_some_and(|node| node.fingerprint.macs.contains(&sighting.mac)) {
            let detail = format!("{from} asked to boot as {id}, whose link answers");
            self.impersonated(id, session.id, from, detail).await;
            return Err(Refusal::NoSession);
        }
        if let Some(old) = before {
            self.rename_id(old.id, sighting).await?;
        }
        let node = self.admit(sighting, BootRequest { session: session.id, from, link_is_live }).await?;
        let node = self.hold_if_looping(node, session.id).await.map_err(|error| internal(&error))?;
        let live = self.env.live();
        let rendered = self.generations.render_for(&live, &node, Some(session.id), endpoint).await;
        let rendered = rendered.map_err(|error| render_refusal(&error, &node))?;
        self.enter_queue(session.mac, &node)?;
        let grant = Grant { session: session.id, node: id, address: from };
        let capability = self.enrolment.capabilities.lock().grant(self.env.now(), self.env.random(), grant);
        let ask = PlanRequest {
            site: &live.site,
            what: &rendered.what,
            node: &node,
            session: session.id,
            endpoint,
            request,
            capability: &capability,
        };
        let plan = boot::decide(&ask).inspect_err(|_| self.leave_queue(session.mac))?;
        let script = boot::boot_script(&plan);
        let once = node.once.as_ref().filter(|once| once.is_for(Some(session.id))).map(|once| once.set_at);
        let told = Recorded { session: session.id, from, told: endpoint.address, once };
        self.record_boot(id, told).await.map_err(|error| internal(&error))?;
        let told = CachedScript::of(&script, &capability, request, endpoint, &live, &node);
        self.promise(session.id, rendered, told);
        Ok(script)
    }

    /// Records that the node boots in this session. A repeated script in the same session is only counted.
    async fn record_boot(&self, id: NodeId, boot: Recorded) -> Result<(), StoreError> {
        let Recorded { session, from, told, once } = boot;
        let now = self.env.now();
        if self.env.store.read(|model| is_recorded(model, id, session, from)) {
            self.repeats.count(session, now);
            return Ok(());
        }
        self.env
            .store
            .commit(|tx| {
                tx.edit_session(session, |session| session.node = Some(id));
                reach(tx, session, Stage::Script, now);
                rebooted(tx, id, session, now);
                let mut change = None;
                let before = tx.node(id).and_then(|node| node.boot).filter(|before| *before != session);
                let bare = before.filter(|before| tx.session(*before).is_some_and(ran_without_overlay));
                let used = tx.edit_node(id, |node| {
                    let same_boot = node.boot == Some(session);
                    node.boot = Some(session);
                    node.address = Some(from.into());
                    node.told = Some(told);
                    node.last_seen = now;
                    // The condition of the former boot stays until the node enrols.
                    for past in OF_ONE_BOOT.into_iter().filter(|past| !same_boot || *past != OVERLAY_MISSING) {
                        node.clear(past);
                    }
                    change = node.change(PhaseChange::Boot).ok().flatten();
                    node.use_once(session, once)
                });
                phase_event(tx, id, session, change, Actor::Node, now);
                if let Some(bare) = bare {
                    let detail = format!("Linux ran in boot {bare} without its overlay, and the node boots again");
                    let raised = tx.edit_node(id, |node| node.raise(OVERLAY_MISSING, &detail, now));
                    if raised == Some(true) {
                        let kind = EventKind::Raised { condition: OVERLAY_MISSING };
                        tx.event(Event::new(now, Actor::Central, kind, detail).of_node(id).in_session(bare));
                    }
                }
                if used == Some(true) {
                    let event = Event::new(now, Actor::Node, EventKind::BootOnce, "this boot has it, the next has not");
                    tx.event(event.of_node(id).in_session(session));
                }
                Ok(())
            })
            .await
    }

    /// Returns a refusal. The boot session keeps the reason; each reason is one event, also if the
    /// machine retries.
    async fn refuse(&self, refusal: Refusal, asker: Asker) -> String {
        let Asker { node, from, endpoint, .. } = asker;
        let (now, code) = (self.env.now(), refusal.code());
        metrics::counter!("meshd_boot_refusals_total", "code" => code).increment(1);
        let session = self.session_of(asker);
        let correlation = match session {
            // The screen shows the text of the event, also at retries.
            Some(session) => meshd_types::hex(&Digest::of_fields([session.0.as_slice(), code.as_bytes()]).0[..4]),
            None => meshd_types::hex(&self.env.random::<4>()),
        };
        let news = match session {
            Some(id) => self.env.store.read(|model| model.session(id).is_some_and(|boot| boot.is_new_wait(code, now))),
            None => self.env.allows(&format!("refusal of {from}")),
        };
        if news {
            let detail = format!("{code}: {} [{correlation}]", refusal.message());
            // Waiting in the queue is no fault, and a rack that powers on would cause many events.
            let in_line = matches!(refusal, Refusal::Busy { .. });
            if !in_line {
                tracing::warn!(node = node.map(tracing::field::display), %from, code, correlation, "boot refused");
            }
            let told = self.env.store.commit(|tx| {
                let again = session.and_then(|session| tx.edit_session(session, |boot| boot.record_wait(code, now)));
                if again != Some(false) && !in_line {
                    let event = Event::new(now, Actor::Central, EventKind::BootRefused, detail);
                    tx.event(event.of_node(node).in_session(session));
                }
                Ok::<_, StoreError>(())
            });
            if let Err(error) = told.await {
                internal(&error);
            }
        }
        boot::refusal_script(&refusal, endpoint, node, &correlation)
    }

    /// The boot session of a refused machine; `None` for another machine, which must not change the session.
    fn session_of(&self, asker: Asker) -> Option<BootSessionId> {
        self.env.store.read(|model| {
            let session = model.newest_session(asker.mac?)?;
            let own = session.is_fresh(self.env.now()) && session.address == Some(asker.from);
            own.then_some(session.id)
        })
    }
}

/// The record of a delivered script.
struct Recorded {
    session: BootSessionId,
    from: Ipv4Addr,
    /// The address of the central node that it names.
    told: Ipv4Addr,
    /// The time of the override for one boot that it follows.
    once: Option<Timestamp>,
}

/// The requester of a script, as far as known.
#[derive(Clone, Copy)]
struct Asker {
    mac: Option<MacAddr>,
    node: Option<NodeId>,
    from: Ipv4Addr,
    endpoint: Endpoint,
}

const OVERLAY_MISSING: ConditionKind = ConditionKind::OverlayMissing;

/// True for a boot in which the kernel ran and nothing fetched the overlay: with `delivery = "url"` Alpine goes on without it, panics
/// for want of mesh-init, and boots again, long before the watch calls the boot bare.
fn ran_without_overlay(session: &BootSession) -> bool {
    let runs = [Stage::OsDhcp, Stage::Modloop].into_iter().any(|stage| session.reached(stage).is_some());
    runs && session.reached(Stage::Overlay).is_none() && fail::defends("overlay-missing")
}

/// Conditions that speak of one boot, and are over when another one begins.
const OF_ONE_BOOT: [ConditionKind; 5] = [
    ConditionKind::OverlayMissing,
    ConditionKind::ImageMissing,
    ConditionKind::RenderFailed,
    ConditionKind::CheckFailed,
    ConditionKind::BootLoop,
];

/// Whether the boot of a node in a session is in the store already, so that one more script of it changes nothing there.
pub(crate) fn is_recorded(model: &Model, id: NodeId, session: BootSessionId, from: Ipv4Addr) -> bool {
    let known = model.session(session).is_some_and(|session| {
        let goes_on = session.stalled().is_none() && session.waiting().is_none();
        let told = session.reached(Stage::Script).is_some();
        session.node == Some(id) && session.address == Some(from) && told && goes_on
    });
    known
        && model.node(id).is_some_and(|node| {
            let settled = matches!(node.phase.on(PhaseChange::Boot), Ok(Transition::Stay));
            let is_past = |kind| kind != OVERLAY_MISSING && OF_ONE_BOOT.contains(&kind);
            let past = node.conditions.iter().any(|condition| is_past(condition.kind));
            let once = node.once.as_ref().is_none_or(|once| once.used_by == Some(session));
            node.boot == Some(session) && node.address == Some(from.into()) && settled && !past && once
        })
}

pub(crate) fn internal(error: &StoreError) -> Refusal {
    tracing::error!(error = error as &dyn std::error::Error, "cannot answer a boot");
    Refusal::Internal { detail: "the central node cannot write its store; see its log".to_owned() }
}

fn render_refusal(error: &RenderError, node: &Node) -> Refusal {
    tracing::error!(node = %node.id, error = error as &dyn std::error::Error, "cannot render a boot");
    match error {
        RenderError::NoImage { image } => Refusal::ImageMissing { image: image.clone(), detail: error.to_string() },
        _ => Refusal::RenderFailed { detail: error.to_string() },
    }
}
