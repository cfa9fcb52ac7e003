//! The cached script of a boot session. A repeated request gets the same script with another
//! capability, unless anything that the script depends on has changed.
//!
//! Session, address, identity and phase are checked at each request. Only rendering the text and
//! writing the record are skipped.

use super::{boot_record::is_recorded, identify_machine::changes_record};
use crate::{boot::BootService, environment::site_snapshot::SiteSnapshot};
use meshd_model::{
    boot::{Endpoint, ScriptRequest},
    fleet::{
        Generation, Identified, IdentityConflict, NextBootOverride, Node, ObservedMachine, Phase,
        PhaseChange, Transition, identify,
    },
};
use meshd_trust::overlay_capability::Grant;
use meshd_types::{BootSessionId, ProfileName, Secret, Vars};
use std::{
    net::Ipv4Addr,
    sync::{Arc, Weak},
};

pub(crate) struct CachedScript {
    request: ScriptRequest,
    endpoint: Endpoint,
    /// Weak, because a snapshot holds images in memory.
    snapshot: Weak<SiteSnapshot>,
    phase: Phase,
    settings: BootSettings,
    /// The text before and after the capability.
    text: (String, String),
}

impl CachedScript {
    /// Splits the script of a node at its capability; `node` is the record before the boot. `None`
    /// if it holds no capability, or more than one.
    pub(crate) fn split(
        script: &str,
        capability: &Secret<String>,
        request: &ScriptRequest,
        endpoint: Endpoint,
        snapshot: &Arc<SiteSnapshot>,
        node: &Node,
    ) -> Option<Arc<Self>> {
        // Exposed to find its position.
        let (before, after) = script.split_once(capability.expose())?;
        let text = (before.to_owned(), after.to_owned());
        (!after.contains(capability.expose())).then(|| {
            Arc::new(CachedScript {
                request: request.clone(),
                endpoint,
                snapshot: Arc::downgrade(snapshot),
                // The phase at the next request, unless the node changes.
                phase: match node.phase.apply(PhaseChange::Boot) {
                    Ok(Transition::To(phase)) => phase,
                    Ok(Transition::Stay) | Err(_) => node.phase,
                },
                settings: BootSettings::from_node(node),
                text,
            })
        })
    }

    fn with_capability(&self, capability: &Secret<String>) -> String {
        // Exposed only in the script of this node.
        [self.text.0.as_str(), capability.expose(), self.text.1.as_str()].concat()
    }

    fn matches_node(&self, node: &Node) -> bool {
        self.phase == node.phase && self.settings == BootSettings::from_node(node)
    }
}

/// The operator's settings that decide what a node boots.
#[derive(PartialEq, Eq)]
struct BootSettings {
    name: String,
    profile: Option<ProfileName>,
    vars: Vars,
    /// The override without its session, which is the present one.
    once: Option<NextBootOverride>,
    pinned: Option<Generation>,
}

impl BootSettings {
    fn from_node(node: &Node) -> Self {
        BootSettings {
            name: node.name.clone(),
            profile: node.profile.clone(),
            vars: node.vars.clone(),
            once: node.boot_override.clone().map(|once| NextBootOverride { used_by: None, ..once }),
            pinned: node.pinned,
        }
    }
}

impl BootService {
    /// Returns the cached script with a new capability; `None` if it must be rendered. The node's
    /// link does not answer.
    pub(crate) fn cached_script(
        &self,
        request: &ScriptRequest,
        machine: &ObservedMachine,
        session: BootSessionId,
        from: Ipv4Addr,
        endpoint: Endpoint,
    ) -> Option<String> {
        let cached = self.pending_overlays.lock().get(&session)?.script.clone()?;
        let is_same_request = cached.request == *request && cached.endpoint == endpoint;
        let snapshot = self.env.snapshot();
        if !is_same_request || !std::ptr::eq(cached.snapshot.as_ptr(), Arc::as_ptr(&snapshot)) {
            return None;
        }
        let id = machine.node_id();
        let unchanged = self.env.store.read(|model| {
            let node = model.node(id).filter(|node| {
                cached.matches_node(node)
                    && is_recorded(model, id, session, from)
                    && identify(Some(node), machine, IdentityConflict::default())
                        == Identified::Known
                    && !changes_record(model, node, machine, &snapshot)
            });
            node.cloned()
        });
        self.enter_queue(machine.mac, &unchanged?).ok()?;
        let now = self.env.now();
        let grant = Grant { session, node: id, address: from };
        let capability = self.enrolment.capabilities.lock().grant(now, self.env.random(), grant);
        // The pending overlay must live as long as the capability.
        if !self.renew_pending_overlay(session, now) {
            return None;
        }
        self.count_repeat(session, now);
        Some(cached.with_capability(&capability))
    }
}
