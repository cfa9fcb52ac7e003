//! Identifies the node of a machine, and decides whether it may boot.
//!
//! Two machines with the same identity are never one node. The first one keeps its identity. The
//! second one is refused and recorded as a conflicting machine, so that an operator sees both. The
//! site may list a UUID that two machines have in `deny_uuids`: both get other IDs then, and the
//! first one keeps its records.

use super::store_refusal;
use crate::{
    boot::BootService,
    containers::move_replicas,
    enrolment::{
        expected::{adopt_expected, is_adoption_pending},
        revoke::delete_node,
        rule_names::RuleNames,
        site_rules::{approve_automatically, name_by_site, pending_name},
    },
    environment::{
        alarms::log_failure,
        records::{clear_condition, condition_event, phase_event, raise_if_new},
        site_snapshot::SiteSnapshot,
    },
    vms::move_work,
};
use meshd_model::{
    boot::Refusal,
    fleet::{
        Actor, AuditContext, BootSession, Condition, ConditionKind, ConflictingMachine, Event,
        EventKind, Identified, IdentityConflict, LONGEST_BOOT, Node, ObservedMachine, Phase,
        Principal, Stage, Verb, identify,
    },
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{Basis, BootSessionId, MacAddr, NodeId, Timestamp, failpoint};
use std::net::Ipv4Addr;

/// The origin of a boot request.
#[derive(Clone, Copy)]
pub(crate) struct BootRequest {
    pub(crate) session: BootSessionId,
    pub(crate) from: Ipv4Addr,
    /// The link of the claimed node answers.
    pub(crate) link_is_live: bool,
}

impl BootService {
    /// Identifies a machine, stores new facts, and approves it if a rule or policy of the site
    /// does.
    pub(crate) async fn identify_and_admit(
        &self,
        machine: &ObservedMachine,
        request: BootRequest,
    ) -> Result<Node, Refusal> {
        let id = machine.node_id();
        let now = self.env.now();
        let snapshot = self.env.snapshot();
        let node_with_other_nic = self.env.store.read(|model| {
            let known = model.node(id).filter(|node| !node.fingerprint.macs.contains(&machine.mac));
            known.cloned()
        });
        let is_node_present = match node_with_other_nic {
            // Only a machine with a new NIC could be a second machine with the same identity.
            Some(known) => request.link_is_live || self.is_present(&known, request.from).await,
            None => request.link_is_live,
        };
        let audit_for =
            |principal| AuditContext::new(principal, Verb::Approve, self.env.new_correlation());
        let mut identification = Identification {
            machine,
            request,
            is_node_present,
            owner: None,
            snapshot: &snapshot,
            audit_for: &audit_for,
            now,
        };
        let (known, identified, is_recorded) = self.env.store.read(|model| {
            let known = model.node(id);
            let is_recorded =
                known.is_some_and(|node| !changes_record(model, node, machine, &snapshot));
            (known.cloned(), identification.identify(model, known), is_recorded)
        });
        let identified = match identified {
            Ok(identified) => identified,
            Err(error) => return Err(self.reject(error, machine, request).await),
        };
        identification.owner = self.former_nic_owner(machine, request).await?;
        if let (Identified::Known, Some(node), None) = (&identified, &known, &identification.owner)
            && is_recorded
        {
            return Ok(node.clone());
        }
        let node = match self.env.store.commit(|tx| identification.record(tx)).await {
            Ok(node) => node,
            Err(error) => return Err(self.reject(error, machine, request).await),
        };
        if node.phase.is_admitted() && known.is_none_or(|known| !known.phase.is_admitted()) {
            self.enrolment.notify_decision();
        }
        Ok(node)
    }

    async fn reject(
        &self,
        error: IdentifyError,
        machine: &ObservedMachine,
        request: BootRequest,
    ) -> Refusal {
        match error {
            IdentifyError::Store(error) => store_refusal(&error),
            IdentifyError::Collision { with, detail, shared } => {
                self.record_conflict(with, machine, request, &detail, shared).await;
                Refusal::Collision { detail }
            }
            IdentifyError::HeldNic { with, phase } => {
                let mac = machine.mac;
                let detail = format!(
                    "a machine asks from NIC {mac} as another node, and this node is {phase}"
                );
                self.record_conflict(with, machine, request, &detail, false).await;
                Refusal::HeldNic { mac, node: with, phase }
            }
        }
    }

    /// The node under the ID that it had before the site changed which UUIDs it trusts. Every
    /// reported identity must match.
    pub(crate) fn former_record(&self, machine: &ObservedMachine) -> Option<Node> {
        self.env.store.read(|model| find_former_record(model, machine).cloned())
    }

    /// Moves a node and its work to its new ID. The transaction reads the record again, because an
    /// operator may have changed it since [`BootService::former_record`].
    pub(crate) async fn rename_id(
        &self,
        old: NodeId,
        machine: &ObservedMachine,
    ) -> Result<(), Refusal> {
        let now = self.env.now();
        let new = machine.node_id();
        let renamed = self.env.store.commit(|tx| {
            let Some(old) =
                find_former_record(tx.before(), machine).filter(|known| known.id == old)
            else {
                return Ok(false);
            };
            let ObservedMachine { basis, fingerprint, mac, .. } = machine.clone();
            let mut node = Node::discovered(basis, fingerprint, mac, old.discovered_at);
            node.fingerprint.macs.extend(old.fingerprint.macs.iter().copied());
            node.reported_nics.clone_from(&old.reported_nics);
            node.add_seen_nic(mac);
            if node.fingerprint.board_serial.is_empty() {
                node.fingerprint.board_serial.clone_from(&old.fingerprint.board_serial);
            }
            node.take_over_identity(old);
            let detail = format!("{} is {new} now: {}", old.id, machine.basis);
            delete_node(tx, old.id, Actor::Central, now);
            tx.put_node(node);
            move_work(tx, old.id, new, now);
            move_replicas(tx, old.id, new);
            tx.event(Event::new(now, Actor::Central, EventKind::Replaced, detail).of_node(new));
            Ok::<_, StoreError>(true)
        });
        if renamed.await.map_err(|error| store_refusal(&error))? {
            tracing::info!(node = %old, %new, basis = %machine.basis, "the node has a new ID: the site trusts another part of its identity");
            self.enrolment.disconnect(old, "its node ID has changed");
        }
        Ok(())
    }

    /// Another node that booted with this NIC before. While that node is present, two machines have
    /// one MAC address, which is refused. An operator's quarantine or rejection applies to the NIC
    /// too: root on that machine can invent another UUID.
    async fn former_nic_owner(
        &self,
        machine: &ObservedMachine,
        request: BootRequest,
    ) -> Result<Option<NodeId>, Refusal> {
        let id = machine.node_id();
        let mac = machine.mac;
        let other = self
            .env
            .store
            .read(|model| model.node_of_mac(mac).filter(|other| other.id != id).cloned());
        let Some(other) = other else { return Ok(None) };
        if is_held(&other) {
            let error = IdentifyError::HeldNic { with: other.id, phase: other.phase };
            return Err(self.reject(error, machine, request).await);
        }
        let is_present = other.mac == mac
            && (self.links.probe(other.id).await || self.is_present(&other, request.from).await);
        if is_present {
            let detail = format!("MAC {mac} belongs to node {}, which is present", other.id);
            self.record_conflict(other.id, machine, request, &detail, false).await;
            return Err(Refusal::Collision { detail });
        }
        Ok(Some(other.id))
    }

    /// Records a second machine with the identity of a node. `shared`: both certainly exist.
    async fn record_conflict(
        &self,
        id: NodeId,
        machine: &ObservedMachine,
        request: BootRequest,
        detail: &str,
        shared: bool,
    ) {
        let now = self.env.now();
        let mac = machine.mac;
        let is_news = self
            .env
            .store
            .read(|model| model.node(id).is_some_and(|node| node.is_conflict_update_due(mac, now)));
        if !is_news || !self.env.allows(&format!("collision of {mac}")) {
            return;
        }
        tracing::warn!(node = %id, from = %request.from, detail, "id_collision");
        let fingerprint = machine.fingerprint.clone();
        let conflicting = ConflictingMachine {
            fingerprint,
            mac,
            address: Some(request.from.into()),
            since: now,
            last: now,
        };
        let weak_identity = match &machine.basis {
            Basis::Uuid(uuid) if shared => Some(format!(
                "another machine shows UUID {uuid} too: {}. List it under deny_uuids in [identity]; both are known by \
                 their serial numbers or NICs then",
                conflicting.words()
            )),
            _ => None,
        };
        let recorded = self.env.store.commit(|tx| {
            let is_new = tx.edit_node(id, |node| {
                let weak_identity = weak_identity
                    .as_ref()
                    .filter(|weak_identity| {
                        node.raise(ConditionKind::WeakIdentity, *weak_identity, now)
                    })
                    .cloned();
                // `|` evaluates both: the event is recorded if either is new.
                let is_new = node.raise(ConditionKind::IdCollision, detail, now)
                    | node.record_conflict(conflicting);
                (is_new, weak_identity)
            });
            let event = |kind, detail: String| {
                condition_event(now, Actor::Stranger, kind, detail)
                    .of_node(id)
                    .in_session(request.session)
            };
            if let Some((true, _)) = &is_new {
                tx.event(event(ConditionKind::IdCollision, detail.to_owned()));
            }
            if let Some((_, Some(weak_identity))) = is_new {
                tx.event(event(ConditionKind::WeakIdentity, weak_identity));
            }
            Ok::<_, StoreError>(())
        });
        log_failure(recorded.await, "cannot record a conflicting machine");
    }
}

/// True if a sighting of a known node changes its record.
pub(crate) fn changes_record(
    model: &Model,
    node: &Node,
    machine: &ObservedMachine,
    snapshot: &SiteSnapshot,
) -> bool {
    let becomes_approved =
        node.phase == Phase::Discovered && snapshot.automatic_approval(model, node).is_some();
    let was_removed = node.phase == Phase::Removed;
    let is_named = pending_name(node, snapshot).is_some();
    becomes_approved
        || was_removed
        || is_named
        || is_adoption_pending(model, node, machine.mac)
        || node.mac != machine.mac
        || !node.seen_nics().any(|mac| *mac == machine.mac)
}

fn find_former_record<'m>(model: &'m Model, machine: &ObservedMachine) -> Option<&'m Node> {
    if model.node(machine.node_id()).is_some_and(|node| node.phase != Phase::Removed) {
        return None;
    }
    let same = |node: &&Node| {
        node.fingerprint.uuid == machine.fingerprint.uuid
            && identify(Some(*node), machine, IdentityConflict::default()) == Identified::Known
    };
    machine.other_bases.iter().filter_map(|basis| model.node(basis.node_id())).find(same)
}

/// True if an operator or meshd holds a node: no other node may boot from its NICs.
fn is_held(node: &Node) -> bool {
    matches!(node.phase, Phase::Rejected | Phase::Quarantined) && failpoint::defends("held-nic")
}

/// True while a boot is in progress.
fn is_open(session: &BootSession, now: Timestamp) -> bool {
    let starts = session.reached(Stage::Kernel).is_some_and(|at| now.distance(at) <= LONGEST_BOOT);
    session.reached(Stage::Online).is_none() && (session.is_fresh(now) || starts)
}

/// Why a machine was not identified.
enum IdentifyError {
    /// Another machine has this identity or MAC address.
    Collision {
        /// The node that owns it.
        with: NodeId,
        detail: String,
        /// Two machines certainly exist.
        shared: bool,
    },
    /// The NIC belongs to a node that is rejected or quarantined.
    HeldNic {
        with: NodeId,
        phase: Phase,
    },
    Store(StoreError),
}

impl From<StoreError> for IdentifyError {
    fn from(error: StoreError) -> Self {
        IdentifyError::Store(error)
    }
}

/// A machine, and the state that decides its identity.
struct Identification<'a> {
    machine: &'a ObservedMachine,
    request: BootRequest,
    /// The node is present: its link is or was live, or its NIC answers.
    is_node_present: bool,
    /// Another node that had this NIC and is not present.
    owner: Option<NodeId>,
    snapshot: &'a SiteSnapshot,
    audit_for: &'a (dyn Fn(Principal) -> AuditContext + Sync),
    now: Timestamp,
}

impl Identification<'_> {
    fn identify(&self, model: &Model, known: Option<&Node>) -> Result<Identified, IdentifyError> {
        let conflict =
            known.map_or_else(IdentityConflict::default, |known| self.conflict(model, known));
        match identify(known, self.machine, conflict) {
            Identified::Collision { detail } => {
                let differs = known.is_some_and(|known| known.differs(self.machine));
                let shared = self.request.link_is_live || differs;
                Err(IdentifyError::Collision { with: self.machine.node_id(), detail, shared })
            }
            identified => Ok(identified),
        }
    }

    /// Signs that the known node still uses another NIC: it is present, or boots from that NIC. A
    /// link that was lost a moment ago, by a restart of meshd or a short interruption, counts as
    /// live.
    fn conflict(&self, model: &Model, known: &Node) -> IdentityConflict {
        let others = known.fingerprint.macs.iter().filter(|mac| **mac != self.machine.mac);
        let boots_elsewhere = others.filter_map(|mac| model.newest_session(*mac)).any(|boot| {
            // Before its script, a boot has no node yet.
            boot.node.is_none_or(|of| of == known.id) && is_open(boot, self.now)
        });
        let link_is_live = self.request.link_is_live || self.is_node_present;
        IdentityConflict { link_is_live, boots_elsewhere }
    }

    /// Stores a new node, or the changes of a known one. The transaction identifies the machine
    /// again: another machine with the same identity may have been stored since the first check.
    fn record(&self, tx: &mut Tx<'_>) -> Result<Node, IdentifyError> {
        let Identification { machine, now, .. } = *self;
        let id = machine.node_id();
        let mac = machine.mac;
        let identified = self.identify(tx.before(), tx.node(id))?;
        let other = tx.before().node_of_mac(mac).filter(|other| other.id != id);
        if let Some(held) = other.filter(|other| is_held(other)) {
            return Err(IdentifyError::HeldNic { with: held.id, phase: held.phase });
        }
        let owner = other.map(|other| other.id);
        if let Some(with) = owner.filter(|_| owner != self.owner) {
            let detail = format!("MAC {mac} belongs to node {with} now");
            return Err(IdentifyError::Collision { with, detail, shared: false });
        }
        let mut node = match tx.node(id).filter(|node| node.phase != Phase::Removed) {
            Some(node) => node.clone(),
            None => self.discover(tx),
        };
        if let Identified::HardwareChanged { detail } = &identified {
            if node.raise(ConditionKind::HardwareChanged, detail, now) {
                let event = condition_event(
                    now,
                    Actor::Node,
                    ConditionKind::HardwareChanged,
                    detail.clone(),
                );
                tx.event(event.of_node(id));
            }
            let before = std::mem::replace(&mut node.fingerprint, machine.fingerprint.clone());
            node.fingerprint.macs.extend(before.macs);
            // A loader may not know the board serial; the agent reports it at its next link.
            if node.fingerprint.board_serial.is_empty() {
                node.fingerprint.board_serial = before.board_serial;
            }
        }
        node.mac = mac;
        node.add_seen_nic(mac);
        node.address = Some(self.request.from.into());
        adopt_expected(tx, &mut node, mac, self.audit_for, now);
        name_by_site(tx, &mut node, self.snapshot, now);
        let mut names = RuleNames::new(self.snapshot);
        approve_automatically(tx, &mut node, self.snapshot, self.audit_for, &mut names, now);
        // The machine was recorded as conflicting until the old NIC was certainly gone.
        let resolved = node.remove_conflict(mac) && node.conflicting_machines.is_empty();
        tx.put_node(node.clone());
        if let Some(owner) = owner {
            record_moved_nic(tx, owner, id, mac, now);
        }
        if resolved {
            clear_condition(tx, id, ConditionKind::IdCollision, Actor::Node, now);
            clear_condition(tx, id, ConditionKind::WeakIdentity, Actor::Node, now);
        }
        Ok(tx.node(id).cloned().unwrap_or(node))
    }

    /// Creates the record of an unknown or removed machine.
    fn discover(&self, tx: &mut Tx<'_>) -> Node {
        let Identification { machine, now, .. } = *self;
        let ObservedMachine { basis, fingerprint, mac, .. } = machine.clone();
        let id = basis.node_id();
        let event =
            Event::new(now, Actor::Node, EventKind::Discovered, format!("{basis} MAC {mac}"));
        tx.event(event.of_node(id));
        let mut node = Node::discovered(basis, fingerprint, mac, now);
        if let Some(removed_record) = tx.node(id).cloned() {
            node.released_at = removed_record.released_at;
            phase_event(tx, id, None, Some((removed_record.phase, node.phase)), Actor::Node, now);
        }
        // With its own ID, the machine no longer conflicts with the node that has the same UUID.
        for other in machine.other_bases.iter().map(Basis::node_id) {
            let was_conflicting = tx.node(other).is_some_and(|node| {
                node.conflicting_machines.iter().any(|conflicting| conflicting.mac == mac)
            });
            if was_conflicting
                && tx.edit_node(other, |node| {
                    node.remove_conflict(mac) && node.conflicting_machines.is_empty()
                }) == Some(true)
            {
                clear_condition(tx, other, ConditionKind::IdCollision, Actor::Node, now);
            }
        }
        node
    }
}

/// Records that a NIC moved to another node: a MAC address belongs to one node only.
fn record_moved_nic(tx: &mut Tx<'_>, from: NodeId, to: NodeId, mac: MacAddr, now: Timestamp) {
    let detail = format!("its NIC {mac} is in node {to} now");
    tx.edit_node(from, |node| node.remove_nic(mac));
    raise_if_new(
        tx,
        from,
        None,
        Condition { kind: ConditionKind::HardwareChanged, since: now, detail },
        Actor::Node,
    );
}
