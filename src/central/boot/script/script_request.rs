//! The boot script: identity, admission, rendering, capability, plan.

use super::{identify_machine::BootRequest, script_cache::CachedScript, store_refusal};
use crate::{boot::BootService, environment::lan_client::LanClient, generations::RenderError};
use meshd_model::{
    boot::{self, Endpoint, Loader, PlanRequest, QueryError, Refusal, ScriptRequest},
    fleet::{Actor, Event, EventKind, Node, ObservedMachine},
};
use meshd_store::StoreError;
use meshd_trust::overlay_capability::Grant;
use meshd_types::{BootSessionId, Digest, MacAddr, NodeId};
use std::{net::Ipv4Addr, sync::Arc};

impl BootService {
    /// Returns the script for a request: a boot, or a refusal that states the reason and retries.
    /// iPXE can run each result.
    pub async fn script(
        self: &Arc<Self>,
        request: Result<ScriptRequest, QueryError>,
        client: impl Into<LanClient>,
        endpoint: Endpoint,
    ) -> String {
        let client = client.into();
        let from = client.ipv4();
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                let refusal = Refusal::BadRequest { detail: error.to_string() };
                let requester =
                    Requester { loader: Loader::Ipxe, mac: None, node: None, from, endpoint };
                return self.refuse(refusal, requester).await;
            }
        };
        let snapshot = self.env.snapshot();
        let Some(mut machine) = ObservedMachine::from_hardware(
            &request.hardware(),
            request.mac,
            &snapshot.site.identity.deny,
        ) else {
            let requester = Requester {
                loader: request.loader,
                mac: Some(request.mac),
                node: None,
                from,
                endpoint,
            };
            return self.refuse(Refusal::Unidentified, requester).await;
        };
        request.board_serial.trim().clone_into(&mut machine.fingerprint.board_serial);
        let loader = request.loader;
        let mac = Some(request.mac);
        let requester = Requester { loader, mac, node: Some(machine.node_id()), from, endpoint };
        match self.boot(&request, &machine, &client, endpoint).await {
            Ok(script) => script,
            Err(refusal) => self.refuse(refusal, requester).await,
        }
    }

    async fn boot(
        self: &Arc<Self>,
        request: &ScriptRequest,
        machine: &ObservedMachine,
        client: &LanClient,
        endpoint: Endpoint,
    ) -> Result<String, Refusal> {
        let id = machine.node_id();
        let from = client.ipv4();
        let session = self.verify_requester(machine, client).await?;
        let former = self.former_record(machine);
        let is_own = |other: &NodeId| {
            *other == id || former.as_ref().is_some_and(|former| former.id == *other)
        };
        if let Some(other) = session.node.filter(|other| !is_own(other)) {
            let detail = format!("{from} asked as {id} in the boot session of {other}");
            return Err(self.refuse_impersonation(id, session.id, from, detail).await);
        }
        let known_id = former.as_ref().map_or(id, |node| node.id);
        let link_is_live = self.links.probe(known_id).await;
        if !link_is_live {
            self.check_reboot_announced(known_id, &session)?;
        }
        if !link_is_live
            && let Some(script) = self.cached_script(request, machine, session.id, from, endpoint)
        {
            return Ok(script);
        }
        let known = former.clone().or_else(|| self.env.store.read(|model| model.node(id).cloned()));
        if link_is_live
            && known.as_ref().is_some_and(|node| node.fingerprint.macs.contains(&machine.mac))
        {
            let detail = format!("{from} asked to boot as {id}, whose link answers");
            return Err(self.refuse_impersonation(id, session.id, from, detail).await);
        }
        if let Some(old) = former {
            self.rename_id(old.id, machine).await?;
        }
        let node = self
            .identify_and_admit(machine, BootRequest { session: session.id, from, link_is_live })
            .await?;
        if node.phase.is_admitted() {
            // It may have been approved by this request.
            self.pin(from, session.mac);
        }
        let node =
            self.hold_if_looping(node, session.id).await.map_err(|error| store_refusal(&error))?;
        let snapshot = self.env.snapshot();
        let rendered =
            self.generations.render_for(&snapshot, &node, Some(session.id), endpoint).await;
        let rendered = rendered.map_err(|error| render_refusal(&error, &node))?;
        self.enter_queue(session.mac, &node)?;
        let grant = Grant { session: session.id, node: id, address: from };
        let capability =
            self.enrolment.capabilities.lock().grant(self.env.now(), self.env.random(), grant);
        let plan_inputs = PlanRequest {
            site: &snapshot.site,
            contents: &rendered.contents,
            node: &node,
            session: session.id,
            endpoint,
            request,
            capability: &capability,
        };
        let plan = boot::decide(&plan_inputs).inspect_err(|_| self.leave_queue(session.mac))?;
        let script = request.loader.boot_script(&plan);
        let once = node
            .boot_override
            .as_ref()
            .filter(|once| once.is_for(Some(session.id)))
            .map(|once| once.set_at);
        let recorded = self.record_boot(id, session.id, from, endpoint.address, once).await;
        recorded.map_err(|error| {
            self.leave_queue(session.mac);
            store_refusal(&error)
        })?;
        let cached = CachedScript::split(&script, &capability, request, endpoint, &snapshot, &node);
        self.add_pending_overlay(session.id, rendered, endpoint, cached);
        Ok(script)
    }

    /// Returns the script of a refusal. The boot session stores the reason; retries for the same
    /// reason record no further event.
    async fn refuse(&self, refusal: Refusal, requester: Requester) -> String {
        let Requester { loader, node, from, endpoint, .. } = requester;
        let now = self.env.now();
        let code = refusal.code();
        metrics::counter!("meshd_boot_refusals_total", "code" => code).increment(1);
        let session = self.find_own_session(requester);
        let correlation = match session {
            // The screen shows the text of the event, also at retries.
            Some(session) => {
                meshd_types::hex(&Digest::of_fields([session.0.as_slice(), code.as_bytes()]).0[..4])
            }
            None => meshd_types::hex(&self.env.random::<4>()),
        };
        let is_new_reason = match session {
            Some(id) => self
                .env
                .store
                .read(|model| model.session(id).is_some_and(|boot| boot.is_new_wait(code, now))),
            None => self.env.allows(&format!("refusal of {from}")),
        };
        if is_new_reason {
            let detail = format!("{code}: {} [{correlation}]", refusal.message());
            // A rack that powers on would cause many events.
            let is_fault = !refusal.is_temporary();
            if is_fault {
                tracing::warn!(node = node.map(tracing::field::display), %from, code, correlation, "boot refused");
            }
            let recorded = self.env.store.commit(|tx| {
                let is_new = session.and_then(|session| {
                    tx.edit_session(session, |boot| {
                        let is_new = boot.record_wait(code, now);
                        if is_fault {
                            boot.explain_wait(code, &refusal.message());
                        }
                        is_new
                    })
                });
                if is_new != Some(false) && is_fault {
                    let event = Event::new(now, Actor::Central, EventKind::BootRefused, detail);
                    tx.event(event.of_node(node).in_session(session));
                }
                Ok::<_, StoreError>(())
            });
            if let Err(error) = recorded.await {
                store_refusal(&error);
            }
        }
        loader.refusal_script(&refusal, endpoint, node, &correlation)
    }

    /// The boot session of a refused machine; `None` for another machine, which must not change the
    /// session.
    fn find_own_session(&self, requester: Requester) -> Option<BootSessionId> {
        self.env.store.read(|model| {
            let session = model.newest_session(requester.mac?)?;
            let is_own =
                session.is_fresh(self.env.now()) && session.address == Some(requester.from);
            is_own.then_some(session.id)
        })
    }
}

/// The known facts of the requester of a script.
#[derive(Clone, Copy)]
struct Requester {
    loader: Loader,
    mac: Option<MacAddr>,
    node: Option<NodeId>,
    from: Ipv4Addr,
    endpoint: Endpoint,
}

fn render_refusal(error: &RenderError, node: &Node) -> Refusal {
    tracing::error!(node = %node.id, error = error as &dyn std::error::Error, "cannot render a boot");
    match error {
        RenderError::NoImage { image } => {
            Refusal::ImageMissing { image: image.clone(), detail: error.to_string() }
        }
        RenderError::Faults { source, .. } => {
            let first =
                source.0.first().map(|fault| format!(": {}", fault.message)).unwrap_or_default();
            Refusal::RenderFailed { detail: format!("{error}{first}") }
        }
        _ => Refusal::RenderFailed { detail: error.to_string() },
    }
}
