//! The cached script of a boot session. A repeated request gets the same script with another capability, unless anything that the script
//! depends on has changed.
//!
//! Session, address, identity and phase are checked at each request. Only rendering the text and writing the record are skipped.

use crate::{
    boot::{BootService, identify_machine::teaches, script::is_recorded},
    environment::site_snapshot::SiteSnapshot,
};
use meshd_model::{
    boot::{Endpoint, ScriptRequest},
    fleet::{
        Generation, Identified, IdentityConflict, NextBootOverride, Node, ObservedMachine, Phase, PhaseChange,
        Transition, identify,
    },
};
use meshd_trust::capability::Grant;
use meshd_types::{BootSessionId, ProfileName, Secret, Vars};
use std::{
    net::Ipv4Addr,
    sync::{Arc, Weak},
};

/// A delivered script and its inputs.
pub(crate) struct CachedScript {
    request: ScriptRequest,
    endpoint: Endpoint,
    /// A weak reference: the snapshot holds images in memory.
    live: Weak<SiteSnapshot>,
    phase: Phase,
    orders: Orders,
    /// The text before and after the capability.
    text: (String, String),
}

impl CachedScript {
    /// Splits the script of a node at its capability; `node` is the record before the boot. `None` if it holds no capability, or more
    /// than one.
    pub(crate) fn of(
        script: &str,
        capability: &Secret<String>,
        request: &ScriptRequest,
        endpoint: Endpoint,
        live: &Arc<SiteSnapshot>,
        node: &Node,
    ) -> Option<Arc<Self>> {
        // Exposed to be cut out.
        let (before, after) = script.split_once(capability.expose())?;
        let text = (before.to_owned(), after.to_owned());
        (!after.contains(capability.expose())).then(|| {
            Arc::new(CachedScript {
                request: request.clone(),
                endpoint,
                live: Arc::downgrade(live),
                // The phase at the next request, unless the node changes.
                phase: match node.phase.on(PhaseChange::Boot) {
                    Ok(Transition::To(phase)) => phase,
                    Ok(Transition::Stay) | Err(_) => node.phase,
                },
                orders: Orders::of(node),
                text,
            })
        })
    }

    fn with(&self, capability: &Secret<String>) -> String {
        // Exposed into the one script that is for this node.
        [self.text.0.as_str(), capability.expose(), self.text.1.as_str()].concat()
    }

    fn is_of(&self, node: &Node) -> bool {
        self.phase == node.phase && self.orders == Orders::of(node)
    }
}

/// The operator's settings that decide what a node boots.
#[derive(PartialEq, Eq)]
struct Orders {
    name: String,
    profile: Option<ProfileName>,
    vars: Vars,
    /// The override without its session, which is the present one.
    once: Option<NextBootOverride>,
    pinned: Option<Generation>,
}

impl Orders {
    fn of(node: &Node) -> Self {
        Orders {
            name: node.name.clone(),
            profile: node.profile.clone(),
            vars: node.vars.clone(),
            once: node.once.clone().map(|once| NextBootOverride { used_by: None, ..once }),
            pinned: node.pinned,
        }
    }
}

impl BootService {
    /// Returns the cached script with a new capability; `None` if it must be rendered. The node's link does not answer.
    pub(crate) fn cached_script(
        &self,
        request: &ScriptRequest,
        sighting: &ObservedMachine,
        session: BootSessionId,
        from: Ipv4Addr,
        endpoint: Endpoint,
    ) -> Option<String> {
        let told = self.promises.lock().get(&session)?.told.clone()?;
        let same = told.request == *request && told.endpoint == endpoint;
        let live = self.env.live();
        if !same || !std::ptr::eq(told.live.as_ptr(), Arc::as_ptr(&live)) {
            return None;
        }
        let id = sighting.node_id();
        let unchanged = self.env.store.read(|model| {
            let node = model.node(id).filter(|node| {
                told.is_of(node)
                    && is_recorded(model, id, session, from)
                    && identify(Some(node), sighting, IdentityConflict::default()) == Identified::Known
                    && !teaches(node, sighting, &live)
            });
            node.cloned()
        });
        self.enter_queue(sighting.mac, &unchanged?).ok()?;
        let now = self.env.now();
        let grant = Grant { session, node: id, address: from };
        let capability = self.enrolment.capabilities.lock().grant(now, self.env.random(), grant);
        // The promise must live as long as the capability.
        if !self.promise_again(session, now) {
            return None;
        }
        self.repeats.count(session, now);
        Some(told.with(&capability))
    }
}
