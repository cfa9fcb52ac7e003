//! Which node a machine is, and whether it may boot.
//!
//! Two machines with the same identity are never one node. The first one keeps its identity. The second one is refused and recorded as a
//! conflicting machine, so that an operator sees both. The site may list a UUID that two machines have in `deny_uuids`: both get other IDs
//! then, and the first one keeps its records.

use crate::{
    boot::{BootService, script::internal},
    enrolment::{
        revoke::retire,
        site_rules::{approve_by_site, name_by_site, pending_name},
    },
    environment::{
        alarms::report,
        records::{clear, phase_event},
        site_snapshot::SiteSnapshot,
    },
    workloads::move_work,
};
use meshd_model::{
    boot::Refusal,
    fleet::{
        Actor, AuditContext, BootSession, ConditionKind, ConflictingMachine, Event, EventKind, Identified,
        IdentityConflict, LONGEST_BOOT, Node, ObservedMachine, Phase, Principal, Stage, Verb, identify,
    },
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{Basis, BootSessionId, MacAddr, NodeId, Timestamp};
use std::net::Ipv4Addr;

/// How a machine asked.
#[derive(Clone, Copy)]
pub(crate) struct BootRequest {
    pub(crate) session: BootSessionId,
    pub(crate) from: Ipv4Addr,
    /// The link of the node that it says it is answers.
    pub(crate) link_is_live: bool,
}

impl BootService {
    /// Who it is, and whether it may boot. Stores what was learnt.
    pub(crate) async fn admit(&self, sighting: &ObservedMachine, asked: BootRequest) -> Result<Node, Refusal> {
        let (id, now, live) = (sighting.node_id(), self.env.now(), self.env.live());
        let other_card = self.env.store.read(|model| {
            let known = model.node(id).filter(|node| !node.fingerprint.macs.contains(&sighting.mac));
            known.cloned()
        });
        let is_near = match other_card {
            // Only a machine with another card has to prove that the known one is gone.
            Some(known) => asked.link_is_live || self.is_present(&known, asked.from).await,
            None => asked.link_is_live,
        };
        let order = |who| AuditContext::new(who, Verb::Approve, self.env.new_correlation());
        let mut identification =
            Identification { sighting, asked, is_near, owner: None, live: &live, order: &order, now };
        let (known, identified) = self.env.store.read(|model| {
            let known = model.node(id);
            (known.cloned(), identification.identified(model, known))
        });
        let identified = match identified {
            Ok(identified) => identified,
            Err(rejected) => return Err(self.reject(rejected, sighting, asked).await),
        };
        identification.owner = self.other_owner(sighting, asked).await?;
        if let (Identified::Known, Some(node), None) = (&identified, &known, &identification.owner)
            && !teaches(node, sighting, &live)
        {
            return Ok(node.clone());
        }
        let node = match self.env.store.commit(|tx| identification.record(tx)).await {
            Ok(node) => node,
            Err(rejected) => return Err(self.reject(rejected, sighting, asked).await),
        };
        if node.phase.is_admitted() && known.is_none_or(|known| !known.phase.is_admitted()) {
            self.enrolment.decided();
        }
        Ok(node)
    }

    async fn reject(&self, rejected: RejectedSighting, sighting: &ObservedMachine, asked: BootRequest) -> Refusal {
        match rejected {
            RejectedSighting::Store(error) => internal(&error),
            RejectedSighting::Collision { with, detail, shared } => {
                self.collide(with, sighting, asked, &detail, shared).await;
                Refusal::Collision { detail }
            }
        }
    }

    /// The node as it was known before its basis changed: the site lists or trusts its UUID now. It is the same machine if nothing that it
    /// shows is different.
    pub(crate) fn known_before(&self, sighting: &ObservedMachine) -> Option<Node> {
        self.env.store.read(|model| before(model, sighting).cloned())
    }

    /// The machine goes on under its new ID as what it is under the old one at that moment: an operator may have spoken since it
    /// was looked up. Nothing happens if it is not [`BootService::known_before`] any more.
    pub(crate) async fn rename_id(&self, old: NodeId, sighting: &ObservedMachine) -> Result<(), Refusal> {
        let now = self.env.now();
        let new = sighting.node_id();
        let renamed = self.env.store.commit(|tx| {
            let Some(old) = before(tx.before(), sighting).filter(|known| known.id == old) else { return Ok(false) };
            let ObservedMachine { basis, fingerprint, mac, .. } = sighting.clone();
            let mut node = Node::discovered(basis, fingerprint, mac, old.discovered_at);
            node.fingerprint.macs.extend(old.fingerprint.macs.iter().copied());
            if node.fingerprint.board_serial.is_empty() {
                node.fingerprint.board_serial.clone_from(&old.fingerprint.board_serial);
            }
            node.take_over_identity(old);
            let detail = format!("{} is {new} now: {}", old.id, sighting.basis);
            retire(tx, old.id, Actor::Central, now);
            tx.put_node(node);
            move_work(tx, old.id, new, now);
            tx.event(Event::new(now, Actor::Central, EventKind::Replaced, detail).of_node(new));
            Ok::<_, StoreError>(true)
        });
        if renamed.await.map_err(|error| internal(&error))? {
            tracing::info!(node = %old, %new, basis = %sighting.basis, "the site trusts another part of its identity now");
            self.enrolment.cut_off(old, "its ID is another one now");
        }
        Ok(())
    }

    /// Another node that booted with this network card. While its link answers there are two machines with one address.
    async fn other_owner(&self, sighting: &ObservedMachine, asked: BootRequest) -> Result<Option<NodeId>, Refusal> {
        let (id, mac) = (sighting.node_id(), sighting.mac);
        let other = self.env.store.read(|model| model.node_of_mac(mac).filter(|other| other.id != id).cloned());
        let Some(other) = other else { return Ok(None) };
        let is_there =
            other.mac == mac && (self.links.probe(other.id).await || self.is_present(&other, asked.from).await);
        if is_there {
            let detail = format!("MAC {mac} is that of node {}, which is there", other.id);
            self.collide(other.id, sighting, asked, &detail, false).await;
            return Err(Refusal::Collision { detail });
        }
        Ok(Some(other.id))
    }

    /// Keeps the second machine as a rival of the first, which stays what it is. `shared`: it is certain that these are two.
    async fn collide(&self, id: NodeId, sighting: &ObservedMachine, asked: BootRequest, detail: &str, shared: bool) {
        let (now, mac) = (self.env.now(), sighting.mac);
        let news = self.env.store.read(|model| model.node(id).is_some_and(|node| node.is_rival_update_due(mac, now)));
        if !news || !self.env.allows(&format!("collision of {mac}")) {
            return;
        }
        tracing::warn!(node = %id, from = %asked.from, detail, "id_collision");
        let fingerprint = sighting.fingerprint.clone();
        let rival = ConflictingMachine { fingerprint, mac, address: Some(asked.from.into()), since: now, last: now };
        let weak = match &sighting.basis {
            Basis::Uuid(uuid) if shared => Some(format!(
                "another machine shows UUID {uuid} too: {}. List it under deny_uuids in [identity]; both are known by \
                 their serial numbers or network cards then",
                rival.words()
            )),
            _ => None,
        };
        let recorded = self.env.store.commit(|tx| {
            let told = tx.edit_node(id, |node| {
                let weak = weak.as_ref().filter(|weak| node.raise(ConditionKind::WeakIdentity, *weak, now)).cloned();
                // Both, so that nothing is said of a rival that is known already.
                let told = node.raise(ConditionKind::IdCollision, detail, now) | node.record_rival(rival);
                (told, weak)
            });
            let event = |kind, detail: String| {
                let kind = EventKind::Raised { condition: kind };
                Event::new(now, Actor::Stranger, kind, detail).of_node(id).in_session(asked.session)
            };
            if let Some((true, _)) = &told {
                tx.event(event(ConditionKind::IdCollision, detail.to_owned()));
            }
            if let Some((_, Some(weak))) = told {
                tx.event(event(ConditionKind::WeakIdentity, weak));
            }
            Ok::<_, StoreError>(())
        });
        report(recorded.await);
    }
}

/// Whether a sighting of a known node tells anything that is not written down.
pub(crate) fn teaches(node: &Node, sighting: &ObservedMachine, live: &SiteSnapshot) -> bool {
    let comes_in = node.phase == Phase::Discovered && live.lets_in(node).is_some();
    let is_back = node.phase == Phase::Removed;
    let is_named = pending_name(node, live).is_some();
    comes_in || is_back || is_named || node.mac != sighting.mac || !node.fingerprint.macs.contains(&sighting.mac)
}

fn before<'m>(model: &'m Model, sighting: &ObservedMachine) -> Option<&'m Node> {
    if model.node(sighting.node_id()).is_some_and(|node| node.phase != Phase::Removed) {
        return None;
    }
    let same = |node: &&Node| {
        node.fingerprint.uuid == sighting.fingerprint.uuid
            && identify(Some(*node), sighting, IdentityConflict::default()) == Identified::Known
    };
    sighting.other_bases.iter().filter_map(|basis| model.node(basis.node_id())).find(same)
}

/// A boot that is still under way.
fn is_open(session: &BootSession, now: Timestamp) -> bool {
    let starts = session.reached(Stage::Kernel).is_some_and(|at| now.since(at) <= LONGEST_BOOT);
    session.reached(Stage::Online).is_none() && (session.is_fresh(now) || starts)
}

/// True in the phases in which a node has a link, unless that was lost a moment ago.
pub(crate) fn has_link(phase: Phase) -> bool {
    use Phase::{Degraded, Draining, Enrolling, Maintenance, Online, Rebuilding};
    matches!(phase, Enrolling | Degraded | Online | Draining | Maintenance | Rebuilding)
}

/// Why a sighting is not written down.
enum RejectedSighting {
    /// It is of another machine than the node that it would be.
    Collision {
        /// The node whose it is.
        with: NodeId,
        detail: String,
        /// It is certain that these are two.
        shared: bool,
    },
    Store(StoreError),
}

impl From<StoreError> for RejectedSighting {
    fn from(error: StoreError) -> Self {
        RejectedSighting::Store(error)
    }
}

/// A sighting, and what it is measured by.
struct Identification<'a> {
    sighting: &'a ObservedMachine,
    asked: BootRequest,
    /// The link of the node answers, or was there a moment ago.
    is_near: bool,
    /// Another node that has this network card so far, and whose link does not answer.
    owner: Option<NodeId>,
    live: &'a SiteSnapshot,
    order: &'a (dyn Fn(Principal) -> AuditContext + Sync),
    now: Timestamp,
}

impl Identification<'_> {
    /// Who it is, as far as that is known now.
    fn identified(&self, model: &Model, known: Option<&Node>) -> Result<Identified, RejectedSighting> {
        let claim = known.map_or_else(IdentityConflict::default, |known| self.claim(model, known));
        match identify(known, self.sighting, claim) {
            Identified::Collision { detail } => {
                let differs = known.is_some_and(|known| known.differs(self.sighting));
                let shared = self.asked.link_is_live || differs;
                Err(RejectedSighting::Collision { with: self.sighting.node_id(), detail, shared })
            }
            identified => Ok(identified),
        }
    }

    /// What speaks against the known node having another network card now: it lives, or boots by one that it has. A link that
    /// was lost a moment ago, by a restart of this process or a blip, is as good as a live one.
    fn claim(&self, model: &Model, known: &Node) -> IdentityConflict {
        let others = known.fingerprint.macs.iter().filter(|mac| **mac != self.sighting.mac);
        let boots_elsewhere = others.filter_map(|mac| model.newest_session(*mac)).any(|boot| {
            // From its DHCP on, when it is not said yet which node it is.
            boot.node.is_none_or(|of| of == known.id) && is_open(boot, self.now)
        });
        let link_is_live = self.asked.link_is_live || self.is_near;
        IdentityConflict { link_is_live, boots_elsewhere }
    }

    /// Writes down what a sighting tells: a new node, a known one, or one with other parts. Who it is is decided here, where nothing
    /// can come between: another machine that shows the same may have been met a moment ago.
    fn record(&self, tx: &mut Tx<'_>) -> Result<Node, RejectedSighting> {
        let Identification { sighting, now, .. } = *self;
        let (id, mac) = (sighting.node_id(), sighting.mac);
        let identified = self.identified(tx.before(), tx.node(id))?;
        let owner = tx.before().node_of_mac(mac).map(|other| other.id).filter(|other| *other != id);
        if let Some(with) = owner.filter(|_| owner != self.owner) {
            let detail = format!("MAC {mac} is that of node {with} now");
            return Err(RejectedSighting::Collision { with, detail, shared: false });
        }
        let event = |kind, detail: String| Event::new(now, Actor::Node, kind, detail).of_node(id);
        let mut node = match tx.node(id).filter(|node| node.phase != Phase::Removed) {
            Some(node) => node.clone(),
            None => self.discover(tx),
        };
        if let Identified::HardwareChanged { detail } = &identified {
            if node.raise(ConditionKind::HardwareChanged, detail, now) {
                tx.event(event(EventKind::Raised { condition: ConditionKind::HardwareChanged }, detail.clone()));
            }
            let before = std::mem::replace(&mut node.fingerprint, sighting.fingerprint.clone());
            node.fingerprint.macs.extend(before.macs);
            // A loader may not know it; the agent says at its next link whether that is another one too.
            if node.fingerprint.board_serial.is_empty() {
                node.fingerprint.board_serial = before.board_serial;
            }
        }
        node.mac = mac;
        node.fingerprint.macs.insert(mac);
        node.address = Some(self.asked.from.into());
        name_by_site(tx, &mut node, self.live, now);
        approve_by_site(tx, &mut node, self.live, self.order, now);
        // It was taken for another machine while it was not certain that the old card is gone.
        let resolved = node.remove_rival(mac) && node.rivals.is_empty();
        tx.put_node(node.clone());
        if let Some(owner) = owner {
            moved_card(tx, owner, id, mac, now);
        }
        if resolved {
            clear(tx, id, ConditionKind::IdCollision, Actor::Node, now);
            clear(tx, id, ConditionKind::WeakIdentity, Actor::Node, now);
        }
        Ok(tx.node(id).cloned().unwrap_or(node))
    }

    /// A machine that nobody knows, or that was forgotten.
    fn discover(&self, tx: &mut Tx<'_>) -> Node {
        let Identification { sighting, now, .. } = *self;
        let ObservedMachine { basis, fingerprint, mac, .. } = sighting.clone();
        let id = basis.node_id();
        let event = Event::new(now, Actor::Node, EventKind::Discovered, format!("{basis} MAC {mac}"));
        tx.event(event.of_node(id));
        let mut node = Node::discovered(basis, fingerprint, mac, now);
        if let Some(gone) = tx.node(id).cloned() {
            node.released_at = gone.released_at;
            phase_event(tx, id, None, Some((gone.phase, node.phase)), Actor::Node, now);
        }
        // It has an ID of its own now: no longer a rival of the node whose UUID it shows.
        for other in sighting.other_bases.iter().map(Basis::node_id) {
            let was_rival = tx.node(other).is_some_and(|node| node.rivals.iter().any(|rival| rival.mac == mac));
            if was_rival && tx.edit_node(other, |node| node.remove_rival(mac) && node.rivals.is_empty()) == Some(true) {
                clear(tx, other, ConditionKind::IdCollision, Actor::Node, now);
            }
        }
        node
    }
}

/// A network card of one node boots another one now: a MAC address is never two nodes'.
fn moved_card(tx: &mut Tx<'_>, from: NodeId, to: NodeId, mac: MacAddr, now: Timestamp) {
    let detail = format!("its network card {mac} is in node {to} now");
    let raised = tx.edit_node(from, |node| {
        node.fingerprint.macs.remove(&mac);
        node.raise(ConditionKind::HardwareChanged, &detail, now)
    });
    if raised == Some(true) {
        let kind = EventKind::Raised { condition: ConditionKind::HardwareChanged };
        tx.event(Event::new(now, Actor::Node, kind, detail).of_node(from));
    }
}
