//! What a machine receives that an operator expects: name, profile, labels, approval.

use super::site_rules::may_approve;
use crate::environment::records::{add_labels, name_holder, phase_event};
use meshd_model::fleet::{
    Actor, AuditContext, Event, EventKind, ExpectedMachine, Node, Phase, PhaseChange, Principal,
};
use meshd_store::{Model, Tx};
use meshd_types::{MacAddr, Timestamp};

/// Returns whether a node has not yet received what the record of its boot NIC defines.
pub(crate) fn is_adoption_pending(model: &Model, node: &Node, mac: MacAddr) -> bool {
    model.expected_machine(mac).is_some_and(|machine| {
        let waits = machine.approved && node.phase == Phase::Discovered;
        (machine.node.is_none() || waits) && machine.accepts(node)
    })
}

/// Gives a node what the record of its boot NIC defines: settings once, and an approval while it
/// waits. What an operator has set on the node before stays.
pub(crate) fn adopt_expected(
    tx: &mut Tx<'_>,
    node: &mut Node,
    mac: MacAddr,
    audit_for: &(dyn Fn(Principal) -> AuditContext + Sync),
    now: Timestamp,
) {
    let Some(machine) = tx.expected_machine(mac).cloned() else { return };
    if !machine.accepts(node) {
        let expected = machine.serial.as_deref();
        let reported = node.fingerprint.serial.as_str();
        let adopted = machine.node.map(tracing::field::display);
        tracing::warn!(node = %node.id, %mac, expected, reported, adopted, "another machine than expected has this NIC: it receives no settings");
        return;
    }
    if machine.node.is_none() {
        apply_settings(tx, node, &machine, now);
        tx.put_expected_machine(ExpectedMachine { node: Some(node.id), ..machine.clone() });
    }
    if machine.approved && may_approve(tx, node) {
        let audit = audit_for(Principal::Meshd);
        let change = node.change(PhaseChange::Approve).ok().flatten();
        phase_event(tx, node.id, node.boot, change, &audit, now);
    }
}

/// Gives a node name, profile and labels that no operator has set.
fn apply_settings(tx: &mut Tx<'_>, node: &mut Node, machine: &ExpectedMachine, now: Timestamp) {
    if let Some(name) = machine.name.as_ref().filter(|name| node.name != **name) {
        match name_holder(tx.before(), node.id, name) {
            Some(holder) => {
                tracing::warn!(node = %node.id, name, %holder, "name of an expected machine is taken by another node");
            }
            None if node.has_generated_name() => {
                let detail = format!("{} -> {name}", node.name);
                node.name.clone_from(name);
                tx.event(
                    Event::new(now, Actor::Central, EventKind::Renamed, detail).of_node(node.id),
                );
            }
            None => {}
        }
    }
    if let Some(profile) = machine.profile.clone().filter(|_| node.profile.is_none()) {
        let event =
            Event::new(now, Actor::Central, EventKind::ProfileAssigned, profile.to_string());
        tx.event(event.of_node(node.id));
        node.profile = Some(profile);
    }
    add_labels(tx, node, &machine.labels, Actor::Central, now);
}
