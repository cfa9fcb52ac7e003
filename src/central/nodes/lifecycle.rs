//! Lifecycle orders: maintain, resume, replace, remove, revoke, accept a NIC; texts of rejection
//! and quarantine, which `operations/apply.rs` applies.

use super::OperateError;
use crate::{
    containers::remove_replicas,
    enrolment::revoke::{delete_node, revoke_credentials},
    environment::records::{clear_condition, phase_event},
    links::LinkError,
    nodes::NodeOps,
    vms::{check_no_task, check_no_work, move_vms, remove_node_work},
};
use meshd_model::fleet::{
    AuditContext, ConditionKind, Event, EventKind, ExpectedMachine, Node, Phase, PhaseChange,
    UnlawfulTransition,
};
use meshd_store::{Model, Tx};
use meshd_types::{MacAddr, NodeId, Timestamp};
use std::{collections::BTreeSet, sync::Arc};

impl NodeOps {
    /// Revokes every credential of a node and closes its link. The node receives new credentials at
    /// its next boot if its phase allows.
    pub async fn revoke(&self, id: NodeId, audit: &AuditContext) -> Result<Node, OperateError> {
        let now = self.env.now();
        let why = audit.reason.as_deref().unwrap_or("an operator revoked them");
        let stored = self.env.store.commit(|tx| {
            revoke_credentials(tx, id, &self.links.link_state(id), audit, why, now);
            existing_node(tx, id)
        });
        let node = stored.await?;
        self.disconnect_revoked(id, why);
        Ok(node)
    }

    /// Closes the link of a node without credentials.
    pub(super) fn disconnect_revoked(&self, id: NodeId, why: &str) {
        if !self.enrolment.has_valid_certificate(id) {
            self.enrolment.disconnect(id, why);
        }
    }

    /// Removes one node and its leases in a transaction. A failure stages nothing.
    pub(super) fn remove_in(
        &self,
        tx: &mut Tx<'_>,
        id: NodeId,
        audit: &AuditContext,
        now: Timestamp,
    ) -> Result<Node, OperateError> {
        let node = existing_node(tx, id)?;
        check_no_work(tx.before(), id, audit)?;
        node.phase.apply(PhaseChange::Remove)?;
        revoke_credentials(tx, id, &self.links.link_state(id), audit, REMOVED, now);
        remove_leases(tx, &node);
        expected_of(tx.before(), &node).iter().for_each(|it| tx.remove_expected_machine(it.mac));
        remove_node_work(tx, id, audit, now);
        remove_replicas(tx, id, audit, now);
        Ok(delete_node(tx, id, audit, now).unwrap_or(node))
    }

    /// Changes the phase of one node and revokes its credentials, in a transaction. A failure
    /// stages nothing.
    pub(super) fn revoke_service_in(
        &self,
        tx: &mut Tx<'_>,
        id: NodeId,
        audit: &AuditContext,
        why: &str,
        change: impl FnOnce(&Tx<'_>, &mut Node) -> Result<Option<(Phase, Phase)>, OperateError>,
    ) -> Result<Node, OperateError> {
        let now = self.env.now();
        let mut node = existing_node(tx, id)?;
        let changed = change(tx, &mut node)?;
        if changed.is_some() {
            let boot = node.boot;
            // `revoke_credentials` counts them for its event.
            node.certificates =
                tx.node(id).map(|node| node.certificates.clone()).unwrap_or_default();
            tx.put_node(node);
            revoke_credentials(tx, id, &self.links.link_state(id), audit, why, now);
            phase_event(tx, id, boot, changed, audit, now);
        }
        existing_node(tx, id)
    }

    /// Returns a node to service. Returns the changes of phase.
    pub(super) fn resume_service(&self, node: &mut Node) -> Result<PhaseChanges, OperateError> {
        let linked = self.links.is_linked(node.id);
        let ready = linked && node.passes();
        let back = node.change(PhaseChange::Resume)?;
        let then = match (linked, ready) {
            (false, _) => node.change(PhaseChange::Silent)?,
            (true, true) => node.change(PhaseChange::ChecksPass)?,
            (true, false) => None,
        };
        Ok(vec![back, then])
    }

    /// Moves a node's identity to replacement hardware: name, profile, variables, groups and
    /// reservations. Removes the old node, and approves the new one, which uses the identity from
    /// its next boot on.
    pub async fn replace(
        self: &Arc<Self>,
        old: NodeId,
        new: NodeId,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        if old == new {
            return Err(OperateError::SameNode { node: old });
        }
        // An operator must switch the old hardware off, or remove the node, before it is replaced.
        let silent = self.links.link_number(old);
        if self.links.probe(old).await {
            return Err(LinkError::StillLinked { node: old }.into());
        }
        let now = self.env.now();
        let why = "other hardware replaces this node";
        let stored = self.env.store.commit(|tx| {
            self.links.check_no_newer_link(old, silent)?;
            let old_node = existing_node(tx, old)?;
            let mut node = existing_node(tx, new)?;
            check_no_work(tx.before(), old, audit)?;
            if old_node.phase == Phase::Removed {
                // The new node may have replaced it already.
                return if node.former.contains(&old) { Ok(()) } else { Err(no_node(old)) };
            }
            let changed = match node.phase {
                Phase::Discovered | Phase::Rejected => node.change(PhaseChange::Approve)?,
                phase if phase.is_admitted() => None,
                phase => {
                    return Err(
                        UnlawfulTransition { from: phase, change: PhaseChange::Approve }.into()
                    );
                }
            };
            node.take_over(&old_node);
            move_expected(tx, &old_node, &node);
            remove_leases(tx, &old_node);
            revoke_credentials(tx, old, &self.links.link_state(old), audit, why, now);
            remove_node_work(tx, old, audit, now);
            remove_replicas(tx, old, audit, now);
            move_vms(tx, old, new);
            delete_node(tx, old, audit, now);
            let boot = node.boot;
            tx.put_node(node);
            phase_event(tx, new, boot, changed, audit, now);
            let detail = format!("{new} replaces {old}");
            for of in [old, new] {
                tx.event(Event::new(now, audit, EventKind::Replaced, detail.clone()).of_node(of));
            }
            Ok::<_, OperateError>(())
        });
        stored.await?;
        self.disconnect_revoked(old, why);
        self.generations.scan_all();
        self.env.store.read(|model| model.node(new).cloned()).ok_or_else(|| no_node(new))
    }

    /// Adds a NIC to a node, so that a boot from it belongs to the node. Needed after a NIC was
    /// swapped in a machine without a serial number.
    ///
    /// # Errors
    /// The node runs, so the NIC is in another machine; or the NIC belongs to another node or a VM.
    pub async fn accept_nic(
        &self,
        id: NodeId,
        mac: MacAddr,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        let is_own = |node: &Node| node.seen_nics().any(|own| *own == mac);
        if !self.env.store.read(|model| model.node(id).is_some_and(is_own))
            && self.links.probe(id).await
        {
            return Err(LinkError::StillLinked { node: id }.into());
        }
        let now = self.env.now();
        let committed = self.env.store.commit(|tx| {
            let mut node = existing_node(tx, id)?;
            if !node.phase.is_admitted() {
                return Err(no_node(id));
            }
            if let Some(holder) = other_nic_holder(tx.before(), id, mac) {
                return Err(OperateError::NicTaken { node: id, mac, holder });
            }
            let added = node.add_seen_nic(mac);
            let resolved = node.remove_conflict(mac) && node.conflicting_machines.is_empty();
            tx.put_node(node.clone());
            if resolved {
                clear_condition(tx, id, ConditionKind::IdCollision, audit, now);
                clear_condition(tx, id, ConditionKind::WeakIdentity, audit, now);
            }
            if added {
                tx.event(
                    Event::new(now, audit, EventKind::NicAccepted, mac.to_string()).of_node(id),
                );
            }
            existing_node(tx, id)
        });
        committed.await
    }
}

/// Changes of a node's phase, in order; `None` for a change without effect.
pub(super) type PhaseChanges = Vec<Option<(Phase, Phase)>>;

/// Reason for closing the link of a rejected node.
pub(super) const REJECTED: &str = "an operator rejected this node";
/// Reason for closing the link of a quarantined node.
pub(super) const QUARANTINED: &str = "an operator holds this node";
/// Reason for closing the link of a removed node.
pub(super) const REMOVED: &str = "an operator removed this node";

/// Changes the phase of one node without revoking its credentials, in a transaction. A failure
/// stages nothing.
pub(super) fn change_service_in(
    tx: &mut Tx<'_>,
    id: NodeId,
    audit: &AuditContext,
    now: Timestamp,
    change: impl FnOnce(&Tx<'_>, &mut Node) -> Result<PhaseChanges, OperateError>,
) -> Result<Node, OperateError> {
    let mut node = existing_node(tx, id)?;
    let changes = change(tx, &mut node)?;
    tx.put_node(node.clone());
    for change in changes {
        phase_event(tx, id, node.boot, change, audit, now);
    }
    Ok(node)
}

/// Moves a node to maintenance. Returns the change of phase.
pub(super) fn enter_maintenance(
    tx: &Tx<'_>,
    node: &mut Node,
    audit: &AuditContext,
) -> Result<PhaseChanges, OperateError> {
    check_no_task(tx.before(), node.id, audit)?;
    Ok(vec![node.change(PhaseChange::Drained)?])
}

/// Returns the records of the machine that is a node: those that have become the node, also if
/// another node has the NIC now, and those of its NICs that have become none.
fn expected_of(model: &Model, node: &Node) -> Vec<ExpectedMachine> {
    let is_own = |machine: &&ExpectedMachine| {
        machine.has_become(node)
            || machine.node.is_none() && node.seen_nics().any(|mac| *mac == machine.mac)
    };
    model.expected_machines().filter(is_own).cloned().collect()
}

/// Moves the record of a replaced machine, which reserves its address, to the NIC of its replacement.
fn move_expected(tx: &mut Tx<'_>, old: &Node, new: &Node) {
    let mut machines = expected_of(tx.before(), old);
    // Last: the new NIC keeps one record.
    machines.sort_by_key(|machine| machine.has_become(old));
    for machine in machines {
        tx.remove_expected_machine(machine.mac);
        tx.put_expected_machine(ExpectedMachine {
            mac: new.mac,
            node: Some(new.id),
            serial: None,
            ..machine
        });
    }
}

/// Removes the leases of a node. The DHCP service follows.
fn remove_leases(tx: &mut Tx<'_>, node: &Node) {
    let macs: BTreeSet<&MacAddr> = node.seen_nics().collect();
    let own =
        tx.before().leases().filter(|lease| macs.contains(&lease.mac)).map(|lease| lease.address);
    own.for_each(|address| tx.remove_lease(address));
}

/// Describes the other node or VM that has a NIC.
fn other_nic_holder(model: &Model, id: NodeId, mac: MacAddr) -> Option<String> {
    let node = model
        .node_of_mac(mac)
        .filter(|other| other.id != id)
        .map(|other| format!("node {}", other.id));
    node.or_else(|| model.vm_of_mac(mac).map(|vm| format!("VM {}", vm.name())))
}

pub(super) fn existing_node(tx: &Tx<'_>, id: NodeId) -> Result<Node, OperateError> {
    tx.node(id).cloned().ok_or_else(|| no_node(id))
}

fn no_node(id: NodeId) -> OperateError {
    OperateError::NoNode { name: id.to_string() }
}

/// Accepts the present hardware, units and conflicts of a node. `moved` also clears its relay port.
pub(crate) fn acknowledge(
    tx: &mut Tx<'_>,
    id: NodeId,
    moved: bool,
    audit: &AuditContext,
    now: Timestamp,
) {
    let cleared: Vec<ConditionKind> =
        tx.edit_node(id, |node| node.acknowledged(moved)).unwrap_or_default();
    for kind in cleared {
        clear_condition(tx, id, kind, audit, now);
    }
}
