//! Who asks, and whether it may boot: the sighting is compared with what is known, and what was learnt is written down.
//!
//! Two machines that show the same are never one node. The first one stays what it is, whatever a second one says: the second is
//! refused and kept as its rival, so that an operator sees both. A UUID that two machines have is for the site to list; then both have
//! other IDs, and the first one keeps what it was under the old one.

use super::{Central, Live, alarm::report, script::internal, script::phase_event, stalls};
use crate::boot::Refusal;
use crate::fleet::{
    Actor, BootSession, By, Cause, Claim, ConditionKind, Event, EventKind, Identified, Node, Phase, PhaseChange, Rival,
    Sighting, Stage, Verb, Who, identify,
};
use crate::id::{Basis, BootSessionId, MacAddr, NodeId, Timestamp};
use crate::store::{StoreError, Tx};
use std::{net::Ipv4Addr, time::Duration};

/// How long a machine that has fetched its kernel may take to come online before it counts as off.
const LONGEST_BOOT: Duration = Duration::from_secs(30 * 60);

/// How a machine asked.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) session: BootSessionId,
    pub(super) from: Ipv4Addr,
    /// The link of the node that it says it is answers.
    pub(super) link_is_live: bool,
}

impl Central {
    /// Who it is, and whether it may boot. Stores what was learnt.
    pub(super) async fn admit(&self, known: Option<Node>, sighting: &Sighting, asked: Asked) -> Result<Node, Refusal> {
        let (now, live) = (self.now(), self.live());
        let claim = self.claim(known.as_ref(), sighting, asked.link_is_live, now);
        let identified = identify(known.as_ref(), sighting, claim);
        if let Identified::Collision { detail } = &identified {
            let differs = known.as_ref().is_some_and(|known| known.differs(sighting));
            let shared = asked.link_is_live || differs;
            self.collide(sighting.node_id(), sighting, asked, detail, shared).await;
            return Err(Refusal::Collision { detail: detail.clone() });
        }
        let owner = self.other_owner(sighting, asked).await?;
        if let (Identified::Known, Some(node), None) = (&identified, &known, &owner)
            && !teaches(node, sighting, &live)
        {
            return Ok(node.clone());
        }
        let order = |who| By::new(who, Verb::Approve, self.new_correlation());
        let meeting =
            Meeting { sighting, identified: &identified, owner, from: asked.from, live: &live, order: &order, now };
        let met = self.store.commit(|tx| Ok::<_, StoreError>(meeting.meet(tx))).await;
        let node = met.map_err(|error| internal(&error))?;
        if node.phase.is_admitted() && known.is_none_or(|known| !known.phase.is_admitted()) {
            self.decided();
        }
        Ok(node)
    }

    /// The node as it was known before its basis changed: the site lists or trusts its UUID now. It is the same machine if nothing that it
    /// shows is different.
    pub(super) fn known_before(&self, sighting: &Sighting) -> Option<Node> {
        self.store.read(|model| {
            if model.node(sighting.node_id()).is_some_and(|node| node.phase != Phase::Removed) {
                return None;
            }
            let others = sighting.other_bases.iter().filter_map(|basis| model.node(basis.node_id()));
            let same = |node: &&Node| {
                node.fingerprint.uuid == sighting.fingerprint.uuid
                    && identify(Some(*node), sighting, Claim::default()) == Identified::Known
            };
            others.into_iter().find(same).cloned()
        })
    }

    /// The machine goes on under its new ID as what it was under the old one.
    pub(super) async fn rename_id(&self, old: Node, sighting: &Sighting) -> Result<Node, Refusal> {
        let now = self.now();
        let new = sighting.node_id();
        tracing::info!(node = %old.id, %new, basis = %sighting.basis, "the site trusts another part of its identity now");
        let renamed = self.store.commit(|tx| {
            let Sighting { basis, fingerprint, mac, .. } = sighting.clone();
            let mut node = Node::discovered(basis, fingerprint, mac, old.discovered_at);
            node.fingerprint.macs.extend(old.fingerprint.macs.iter().copied());
            node.fingerprint.board_serial.clone_from(&old.fingerprint.board_serial);
            node.continue_as(&old);
            let detail = format!("{} is {new} now: {}", old.id, sighting.basis);
            retire(tx, old.id, Actor::Central, now);
            tx.put_node(node.clone());
            tx.event(Event::new(now, Actor::Central, EventKind::Replaced, detail).of_node(new));
            Ok::<_, StoreError>(node)
        });
        let node = renamed.await.map_err(|error| internal(&error))?;
        self.cut_off(old.id, "its ID is another one now");
        Ok(node)
    }

    /// Another node that booted with this network card. While its link answers there are two machines with one address.
    async fn other_owner(&self, sighting: &Sighting, asked: Asked) -> Result<Option<NodeId>, Refusal> {
        let (id, mac) = (sighting.node_id(), sighting.mac);
        let other = self.store.read(|model| model.node_of_mac(mac).filter(|other| other.id != id).cloned());
        let Some(other) = other else { return Ok(None) };
        if other.mac == mac && self.probe(other.id).await {
            let detail = format!("MAC {mac} is that of node {}, whose link answers", other.id);
            self.collide(other.id, sighting, asked, &detail, false).await;
            return Err(Refusal::Collision { detail });
        }
        Ok(Some(other.id))
    }

    /// Keeps the second machine as a rival of the first, which stays what it is. `shared`: it is certain that these are two.
    async fn collide(&self, id: NodeId, sighting: &Sighting, asked: Asked, detail: &str, shared: bool) {
        let (now, mac) = (self.now(), sighting.mac);
        let news = self.store.read(|model| model.node(id).is_some_and(|node| node.is_challenge_news(mac, now)));
        if !news || !self.alarms.allow(self.clock.monotonic(), &format!("collision of {mac}")) {
            return;
        }
        tracing::warn!(node = %id, from = %asked.from, detail, "id_collision");
        let fingerprint = sighting.fingerprint.clone();
        let rival = Rival { fingerprint, mac, address: Some(asked.from.into()), since: now, last: now };
        let weak = match &sighting.basis {
            Basis::Uuid(uuid) if shared => Some(format!(
                "another machine shows UUID {uuid} too: {}. List it under deny_uuids in [identity]; both are known by \
                 their serial numbers or network cards then",
                rival.words()
            )),
            _ => None,
        };
        let recorded = self.store.commit(|tx| {
            let told = tx.edit_node(id, |node| {
                let weak = weak.as_ref().filter(|weak| node.raise(ConditionKind::WeakIdentity, *weak, now)).cloned();
                // Both, so that nothing is said of a rival that is known already.
                let told = node.raise(ConditionKind::IdCollision, detail, now) | node.challenged(rival);
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

    /// What speaks against the known node having another network card now: it lives, or boots elsewhere. A link that was lost
    /// a moment ago, by a restart of this process or a blip, is as good as a live one.
    fn claim(&self, known: Option<&Node>, sighting: &Sighting, link_is_live: bool, now: Timestamp) -> Claim {
        let boots_elsewhere = known.and_then(|node| node.boot).is_some_and(|boot| {
            self.store
                .read(|model| model.session(boot).is_some_and(|other| other.mac != sighting.mac && is_open(other, now)))
        });
        let was_just_here = known.is_some_and(|node| {
            let linked = matches!(
                node.phase,
                Phase::Enrolling
                    | Phase::Degraded
                    | Phase::Online
                    | Phase::Draining
                    | Phase::Maintenance
                    | Phase::Rebuilding
            );
            linked && self.silence(node.id) <= self.site().agent.offline_after
        });
        Claim { link_is_live: link_is_live || was_just_here, boots_elsewhere }
    }

    /// The rules of the site have changed: whoever waits and fits one goes on at once.
    pub(super) async fn admit_waiting(&self) {
        let (live, now) = (self.live(), self.now());
        let lets_in = |node: &&Node| node.phase == Phase::Discovered && live.lets_in(node).is_some();
        let waiting: Vec<NodeId> = self.store.read(|model| model.nodes().filter(lets_in).map(|node| node.id).collect());
        if waiting.is_empty() {
            return;
        }
        let order = |who| By::new(who, Verb::Approve, self.new_correlation());
        let admitted = self.store.commit(|tx| {
            for id in &waiting {
                let Some(mut node) = tx.node(*id).cloned() else { continue };
                approve_by_site(tx, &mut node, &live, &order, now);
                tx.put_node(node);
            }
            Ok::<_, StoreError>(())
        });
        report(admitted.await);
        self.decided();
    }
}

/// Whether a sighting of a known node tells anything that is not written down.
pub(super) fn teaches(node: &Node, sighting: &Sighting, live: &Live) -> bool {
    let comes_in = node.phase == Phase::Discovered && live.lets_in(node).is_some();
    let is_back = node.phase == Phase::Removed;
    comes_in || is_back || node.mac != sighting.mac || !node.fingerprint.macs.contains(&sighting.mac)
}

/// A boot that is still under way.
fn is_open(session: &BootSession, now: Timestamp) -> bool {
    let starts = session.reached(Stage::Kernel).is_some_and(|at| now.since(at) <= LONGEST_BOOT);
    session.reached(Stage::Online).is_none() && (session.is_fresh(now) || starts)
}

/// A sighting that is no collision, and what it is measured by.
struct Meeting<'a> {
    sighting: &'a Sighting,
    identified: &'a Identified,
    /// Another node that has this network card so far.
    owner: Option<NodeId>,
    from: Ipv4Addr,
    live: &'a Live,
    order: &'a (dyn Fn(Who) -> By + Sync),
    now: Timestamp,
}

impl Meeting<'_> {
    /// Writes down what a sighting tells: a new node, a known one, or one with other parts.
    fn meet(&self, tx: &mut Tx<'_>) -> Node {
        let Meeting { sighting, identified, now, .. } = *self;
        let (id, mac) = (sighting.node_id(), sighting.mac);
        let event = |kind, detail: String| Event::new(now, Actor::Node, kind, detail).of_node(id);
        let mut node = match tx.node(id).filter(|node| node.phase != Phase::Removed) {
            Some(node) => node.clone(),
            None => self.discover(tx),
        };
        if let Identified::HardwareChanged { detail } = identified {
            if node.raise(ConditionKind::HardwareChanged, detail, now) {
                tx.event(event(EventKind::Raised { condition: ConditionKind::HardwareChanged }, detail.clone()));
            }
            let before = std::mem::replace(&mut node.fingerprint, sighting.fingerprint.clone());
            node.fingerprint.macs.extend(before.macs);
            // Only the agent sees it; it says at its next link whether that is another one too.
            node.fingerprint.board_serial = before.board_serial;
        }
        approve_by_site(tx, &mut node, self.live, self.order, now);
        node.mac = mac;
        node.fingerprint.macs.insert(mac);
        node.address = Some(self.from.into());
        // It was taken for another machine while it was not certain that the old card is gone.
        let resolved = node.no_rival(mac) && node.rivals.is_empty();
        tx.put_node(node.clone());
        if let Some(owner) = self.owner {
            moved_card(tx, owner, id, mac, now);
        }
        if resolved {
            stalls::clear(tx, id, ConditionKind::IdCollision, Actor::Node, now);
            stalls::clear(tx, id, ConditionKind::WeakIdentity, Actor::Node, now);
        }
        tx.node(id).cloned().unwrap_or(node)
    }

    /// A machine that nobody knows, or that was forgotten.
    fn discover(&self, tx: &mut Tx<'_>) -> Node {
        let Meeting { sighting, now, .. } = *self;
        let Sighting { basis, fingerprint, mac, .. } = sighting.clone();
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
            if was_rival && tx.edit_node(other, |node| node.no_rival(mac) && node.rivals.is_empty()) == Some(true) {
                stalls::clear(tx, other, ConditionKind::IdCollision, Actor::Node, now);
            }
        }
        node
    }
}

/// Lets an unknown node in if policy or a rule says so, and gives it the profile of that rule.
fn approve_by_site(tx: &mut Tx<'_>, node: &mut Node, live: &Live, order: &(dyn Fn(Who) -> By + Sync), now: Timestamp) {
    let Some(let_in) = live.lets_in(node).filter(|_| node.phase == Phase::Discovered) else { return };
    let by = order(let_in.map_or(Who::Meshd, |rule| Who::Rule(rule.name.clone())));
    let change = node.change(PhaseChange::Approve).ok().flatten();
    phase_event(tx, node.id, node.boot, change, &by, now);
    if let Some(profile) = let_in.and_then(|rule| rule.profile.clone()).filter(|_| node.profile.is_none()) {
        tx.event(Event::new(now, &by, EventKind::ProfileAssigned, profile.to_string()).of_node(node.id));
        node.profile = Some(profile);
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

/// Forgets a node, with everything that it could get in by.
pub(super) fn retire(tx: &mut Tx<'_>, id: NodeId, cause: impl Into<Cause>, now: Timestamp) -> Option<Node> {
    let mut node = tx.node(id).cloned()?;
    let change = node.remove(now).ok().flatten();
    let hashes: Vec<_> = tx.before().tokens_of(id).map(|token| token.hash).collect();
    hashes.into_iter().for_each(|hash| tx.remove_token(hash));
    tx.remove_history(id);
    tx.put_node(node.clone());
    phase_event(tx, id, None, change, cause, now);
    Some(node)
}
