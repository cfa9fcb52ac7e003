//! The lifecycle of a node: reject, quarantine, maintain, resume, replace, remove, revoke.

use super::OperateError;
use crate::{
    enrolment::revoke::{disown, is_let_in, retire},
    environment::records::{clear, phase_event},
    links::LinkError,
    nodes::NodeOps,
    workloads::{forget, move_vms, spare, spare_all, spare_task},
};
use meshd_model::fleet::{
    AuditContext, BootSession, ConditionKind, Event, EventKind, Lease, Node, Phase, PhaseChange, Stage,
    UnlawfulTransition,
};
use meshd_store::{Model, Tx};
use meshd_types::{MacAddr, NodeId, Timestamp};
use std::sync::Arc;

impl NodeOps {
    /// Takes back every credential of a node and cuts its link. The boot that it is in is over: it gets new ones when it
    /// boots again, as far as its phase allows.
    pub async fn revoke(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let (now, why) = (self.env.now(), by.reason.as_deref().unwrap_or("an operator took them back"));
        let node = self
            .env
            .store
            .commit(|tx| {
                disown(tx, id, &self.links.link_state(id), by, why, now);
                tx.node(id).cloned().ok_or_else(|| OperateError::NoNode { name: id.to_string() })
            })
            .await;
        self.cut_off_after(&node, id, why);
        node
    }

    /// Closes the link of a node that has lost its credentials. A change that could not be flushed is in memory all the same, and a repeated
    /// order changes nothing: nothing else would end the link.
    pub(crate) fn cut_off_after<T>(&self, done: &Result<T, OperateError>, id: NodeId, why: &str) {
        let may_be_done = matches!(done, Ok(_) | Err(OperateError::Store(_)));
        if may_be_done && !self.env.store.read(|model| model.node(id).is_some_and(is_let_in)) {
            self.enrolment.cut_off(id, why);
        }
    }

    /// Rejects a machine: its next boot is refused, and a pending connection ends.
    pub async fn reject(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        self.end_service(id, by, REJECTED, |_, node| Ok(node.reject()?)).await
    }

    /// Holds a node in iPXE until an operator releases it. If it runs, it is cut off at once.
    pub async fn quarantine(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let because = by.reason.clone();
        let hold = |tx: &Tx<'_>, node: &mut Node| {
            spare(tx.before(), id, by)?;
            Ok(node.quarantine(because)?)
        };
        self.end_service(id, by, HELD, hold).await
    }

    /// Removes a node: its certificates, tokens and address are void, its link is closed, and its settings are deleted.
    /// The machine is discovered anew if it ever boots again.
    pub async fn remove(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        let removed = self.env.store.commit(|tx| self.removed_in(tx, id, by, now)).await;
        self.cut_off_after(&removed, id, REMOVED);
        let (node, freed) = removed?;
        self.orphans.forget(id);
        self.free(freed);
        Ok(node)
    }

    /// Removes one node, in a transaction, and gives the leases that it had. A failure stages nothing.
    pub(super) fn removed_in(
        &self,
        tx: &mut Tx<'_>,
        id: NodeId,
        by: &AuditContext,
        now: Timestamp,
    ) -> Result<(Node, Vec<Lease>), OperateError> {
        let node = known(tx, id)?;
        spare_all(tx.before(), id, by)?;
        node.phase.on(PhaseChange::Remove)?;
        disown(tx, id, &self.links.link_state(id), by, REMOVED, now);
        let freed = leases_of(tx, &node);
        freed.iter().for_each(|lease| tx.remove_lease(lease.address));
        forget(tx, id, by, now);
        let node = retire(tx, id, by, now).unwrap_or(node);
        Ok((node, freed))
    }

    /// What an operator takes a node's credentials for.
    async fn end_service(
        &self,
        id: NodeId,
        by: &AuditContext,
        why: &str,
        change: impl FnOnce(&Tx<'_>, &mut Node) -> Result<Option<(Phase, Phase)>, OperateError>,
    ) -> Result<Node, OperateError> {
        let now = self.env.now();
        let ended = self.env.store.commit(|tx| self.ended_in(tx, id, (by, why, now), change)).await;
        self.cut_off_after(&ended, id, why);
        ended
    }

    /// Takes the credentials of one node, in a transaction. A failure stages nothing.
    pub(super) fn ended_in(
        &self,
        tx: &mut Tx<'_>,
        id: NodeId,
        (by, why, now): (&AuditContext, &str, Timestamp),
        change: impl FnOnce(&Tx<'_>, &mut Node) -> Result<Option<(Phase, Phase)>, OperateError>,
    ) -> Result<Node, OperateError> {
        let mut node = known(tx, id)?;
        let changed = change(tx, &mut node)?;
        if changed.is_some() {
            let boot = node.boot;
            // Counted by `disown`, so that the event says how many there were.
            node.certificates = tx.node(id).map(|node| node.certificates.clone()).unwrap_or_default();
            tx.put_node(node);
            disown(tx, id, &self.links.link_state(id), by, why, now);
            phase_event(tx, id, boot, changed, by, now);
        }
        known(tx, id)
    }

    /// Takes a node out of service at once, whatever virtual machines run. A task would end: that has to be forced.
    pub async fn maintain(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        self.serve_otherwise(id, by, |tx, node| maintained(tx, node, by)).await
    }

    /// Back to service. Its checks decide between online and degraded; without a link it is offline.
    pub async fn resume(&self, id: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        let node = self.serve_otherwise(id, by, |tx, node| self.resumed(tx, node)).await?;
        self.links.watch_over(id, self.env.monotonic());
        Ok(node)
    }

    /// The changes of a node that returns to service.
    pub(super) fn resumed(&self, tx: &Tx<'_>, node: &mut Node) -> Result<Vec<Option<(Phase, Phase)>>, OperateError> {
        let linked = self.links.link_state(node.id).since.is_some();
        let ready = linked && passes(node, tx.before().boot_of(node));
        let back = node.change(PhaseChange::Resume)?;
        let then = match (linked, ready) {
            (false, _) => node.change(PhaseChange::Silent)?,
            (true, true) => node.change(PhaseChange::ChecksPass)?,
            (true, false) => None,
        };
        Ok(vec![back, then])
    }

    pub(super) async fn serve_otherwise(
        &self,
        id: NodeId,
        by: &AuditContext,
        change: impl FnOnce(&Tx<'_>, &mut Node) -> Result<Vec<Option<(Phase, Phase)>>, OperateError>,
    ) -> Result<Node, OperateError> {
        let now = self.env.now();
        self.env.store.commit(|tx| served_in(tx, id, by, now, change)).await
    }

    /// New hardware is what the old one was: name, profile, variables, groups and reservations. The old node is removed; the new one is
    /// let in, and what it has taken over holds from its next boot on.
    pub async fn replace(self: &Arc<Self>, old: NodeId, new: NodeId, by: &AuditContext) -> Result<Node, OperateError> {
        if old == new {
            return Err(OperateError::SameNode { node: old });
        }
        // The old hardware runs: whoever wants to replace it has to say so by switching it off, or by removing it.
        let silent = self.links.link_number(old);
        if self.links.probe(old).await {
            return Err(LinkError::StillLinked { node: old }.into());
        }
        let now = self.env.now();
        let why = "other hardware replaces this node";
        let freed = self
            .env
            .store
            .commit(|tx| {
                self.links.no_newer_link(old, silent)?;
                let (gone, mut node) = (known(tx, old)?, known(tx, new)?);
                spare_all(tx.before(), old, by)?;
                if gone.phase == Phase::Removed {
                    // What it was is forgotten, or the new one has it already.
                    return if node.former.contains(&old) { Ok(Vec::new()) } else { Err(no_node(old)) };
                }
                let changed = match node.phase {
                    Phase::Discovered | Phase::Rejected => node.change(PhaseChange::Approve)?,
                    phase if phase.is_admitted() => None,
                    phase => return Err(UnlawfulTransition { from: phase, change: PhaseChange::Approve }.into()),
                };
                node.take_over(&gone);
                let freed = leases_of(tx, &gone);
                freed.iter().for_each(|lease| tx.remove_lease(lease.address));
                disown(tx, old, &self.links.link_state(old), by, why, now);
                forget(tx, old, by, now);
                move_vms(tx, old, new);
                retire(tx, old, by, now);
                let boot = node.boot;
                tx.put_node(node);
                phase_event(tx, new, boot, changed, by, now);
                let detail = format!("{new} is what {old} was");
                for of in [old, new] {
                    tx.event(Event::new(now, by, EventKind::Replaced, detail.clone()).of_node(of));
                }
                Ok::<_, OperateError>(freed)
            })
            .await;
        self.cut_off_after(&freed, old, why);
        self.free(freed?);
        self.orphans.forget(old);
        self.generations.scan_all();
        self.env.store.read(|model| model.node(new).cloned()).ok_or_else(|| no_node(new))
    }

    /// Accepts a network card as a node's own: its next boot by that card is the node's, whatever else the machine shows. For a machine
    /// whose card was swapped and that has no serial number by which it could be recognised.
    ///
    /// # Errors
    /// The node runs, so the card is in another machine; or the card is another node's or a virtual machine's.
    pub async fn accept_nic(&self, id: NodeId, mac: MacAddr, by: &AuditContext) -> Result<Node, OperateError> {
        let is_own = |node: &Node| node.fingerprint.macs.contains(&mac);
        if !self.env.store.read(|model| model.node(id).is_some_and(is_own)) && self.links.probe(id).await {
            return Err(LinkError::StillLinked { node: id }.into());
        }
        let now = self.env.now();
        self.env
            .store
            .commit(|tx| {
                let mut node = known(tx, id)?;
                if !node.phase.is_admitted() {
                    return Err(no_node(id));
                }
                if let Some(holder) = nic_holder(tx.before(), id, mac) {
                    return Err(OperateError::NicTaken { node: id, mac, holder });
                }
                let added = node.fingerprint.macs.insert(mac);
                let resolved = node.remove_rival(mac) && node.rivals.is_empty();
                tx.put_node(node.clone());
                if resolved {
                    clear(tx, id, ConditionKind::IdCollision, by, now);
                    clear(tx, id, ConditionKind::WeakIdentity, by, now);
                }
                if added {
                    tx.event(Event::new(now, by, EventKind::NicAccepted, mac.to_string()).of_node(id));
                }
                known(tx, id)
            })
            .await
    }

    /// Addresses that their machines need no longer, for the DHCP service to give to others.
    pub(super) fn free(&self, leases: Vec<Lease>) {
        let mut freed = self.freed.lock();
        // Without a DHCP service nobody takes them; they are gone from the store in any case.
        if freed.len() < MAX_FREED {
            freed.extend(leases);
        }
    }

    /// What [`NodeOps::remove`] freed since the last time.
    pub fn take_freed(&self) -> Vec<Lease> {
        std::mem::take(&mut self.freed.lock())
    }
}

/// Why the link of a node ends that an operator rejected.
pub(super) const REJECTED: &str = "an operator rejected this node";
/// Why the link of a node ends that an operator quarantined.
pub(super) const HELD: &str = "an operator holds this node";
/// Why the link of a node ends that an operator removed.
pub(super) const REMOVED: &str = "an operator removed this node";

/// Changes the service of one node, in a transaction. A failure stages nothing.
pub(super) fn served_in(
    tx: &mut Tx<'_>,
    id: NodeId,
    by: &AuditContext,
    now: Timestamp,
    change: impl FnOnce(&Tx<'_>, &mut Node) -> Result<Vec<Option<(Phase, Phase)>>, OperateError>,
) -> Result<Node, OperateError> {
    let mut node = known(tx, id)?;
    let changes = change(tx, &mut node)?;
    tx.put_node(node.clone());
    for change in changes {
        phase_event(tx, id, node.boot, change, by, now);
    }
    Ok(node)
}

/// The changes of a node that goes into maintenance at once.
pub(super) fn maintained(
    tx: &Tx<'_>,
    node: &mut Node,
    by: &AuditContext,
) -> Result<Vec<Option<(Phase, Phase)>>, OperateError> {
    spare_task(tx.before(), node.id, by)?;
    Ok(vec![node.change(PhaseChange::Drained)?])
}

/// Freed addresses that wait for the DHCP service, which looks four times a second.
const MAX_FREED: usize = 20_000;

fn leases_of(tx: &Tx<'_>, node: &Node) -> Vec<Lease> {
    let macs = &node.fingerprint.macs;
    tx.before().leases().filter(|lease| macs.contains(&lease.mac)).cloned().collect()
}

/// Who else has a network card, in words.
fn nic_holder(model: &Model, id: NodeId, mac: MacAddr) -> Option<String> {
    let node = model.node_of_mac(mac).filter(|other| other.id != id).map(|other| format!("node {}", other.id));
    node.or_else(|| model.vm_of_mac(mac).map(|vm| format!("virtual machine {}", vm.name())))
}

/// A node that is on record.
pub(super) fn known(tx: &Tx<'_>, id: NodeId) -> Result<Node, OperateError> {
    tx.node(id).cloned().ok_or_else(|| no_node(id))
}

fn no_node(id: NodeId) -> OperateError {
    OperateError::NoNode { name: id.to_string() }
}

/// True if the checks of this boot pass as far as they are known.
fn passes(node: &Node, boot: Option<&BootSession>) -> bool {
    let told = boot.is_some_and(|boot| boot.reached(Stage::Online).is_some());
    told && node.passes()
}

/// An operator takes a node as it is: parts, rivals and units as they are now are right.
/// Its port of a relay is forgotten only where it was `moved`.
pub(crate) fn acknowledge(tx: &mut Tx<'_>, id: NodeId, moved: bool, by: &AuditContext, now: Timestamp) {
    let seen: Vec<ConditionKind> = tx.edit_node(id, |node| node.acknowledged(moved)).unwrap_or_default();
    for kind in seen {
        clear(tx, id, kind, by, now);
    }
}
