//! Changes of one node's boot settings, in a transaction: profile, variables, pin, override for one
//! boot.

use super::{
    error::{OperateError, OrderError},
    lifecycle::existing_node,
};
use crate::vms::{check_no_open_slots, check_no_running_work};
use meshd_config::{MAX_VARS, Site};
use meshd_model::{
    boot,
    fleet::{
        AuditContext, ConditionKind, Event, EventKind, Generation, NextBootOverride, Node, Phase,
    },
};
use meshd_store::Tx;
use meshd_types::{NodeId, ProfileName, Timestamp, VarName, VarValue, Vars, failpoint};

/// Changes and stores one node, in a transaction. A failure stages nothing.
pub(super) fn change_node_in(
    tx: &mut Tx<'_>,
    id: NodeId,
    change: impl FnOnce(&mut Tx<'_>, Node) -> Result<Node, OperateError>,
) -> Result<Node, OperateError> {
    let node = existing_node(tx, id)?;
    let node = change(tx, node)?;
    tx.put_node(node.clone());
    Ok(node)
}

/// Assigns a profile to one node, in a transaction; the caller stores the node. A failure stages
/// nothing.
pub(super) fn assign_profile_in(
    tx: &mut Tx<'_>,
    mut node: Node,
    site: &Site,
    profile: &ProfileName,
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    check_no_running_work(tx.before(), node.id, audit)?;
    keep_slots(tx, &node, site, profile, audit)?;
    let before = boot::effective_profile(site, &node).name.clone();
    node.profile = Some(profile.clone());
    let detail = format!("{before} -> {profile}");
    use Phase::{Degraded, Draining, Enrolling, Maintenance, Online};
    let running = matches!(node.phase, Enrolling | Degraded | Online | Draining | Maintenance);
    // Else it is found out from what the node runs and would boot.
    if running && (node.central_address.is_none() || node.booted.is_none()) && before != *profile {
        node.raise(ConditionKind::RebootRequired, format!("profile {detail}"), now);
    }
    record_event(tx, &node, EventKind::ProfileAssigned, detail, audit, now);
    Ok(node)
}

/// Refuses a profile that changes the resources for VMs of a node with open slots.
fn keep_slots(
    tx: &Tx<'_>,
    node: &Node,
    site: &Site,
    next: &ProfileName,
    audit: &AuditContext,
) -> Result<(), OperateError> {
    let usual = boot::effective_profile(site, node);
    let changes =
        site.profiles.get(next).is_some_and(|next| usual.changed_vm_resource(next).is_some());
    if changes { Ok(check_no_open_slots(tx.before(), node.id, audit)?) } else { Ok(()) }
}

/// Changes the variables of one node, in a transaction; the caller stores the node. A failure
/// stages nothing.
pub(super) fn change_vars_in(
    tx: &mut Tx<'_>,
    mut node: Node,
    set: &Vars,
    unset: &[VarName],
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    let id = node.id;
    if let Some(name) = unset.iter().find(|name| !node.vars.contains_key(*name)) {
        return Err(OrderError::NoVar { node: id, name: name.clone() }.into());
    }
    // A value may be a secret: events and audit log are copied to other places.
    let hides_values = failpoint::defends("event-values");
    let text = |(name, value): (&VarName, &VarValue)| {
        if hides_values { name.to_string() } else { format!("{name}={value}") }
    };
    let names = set.iter().map(text);
    let names: Vec<String> = names.chain(unset.iter().map(|name| format!("-{name}"))).collect();
    node.vars.extend(set.clone());
    node.vars.retain(|name, _| !unset.contains(name));
    if node.vars.len() > MAX_VARS {
        return Err(OrderError::TooManyVars { node: id, count: node.vars.len() }.into());
    }
    record_event(tx, &node, EventKind::VarsChanged, names.join(" "), audit, now);
    Ok(node)
}

/// Sets the override for one boot of one node, in a transaction; the caller stores the node. A
/// failure stages nothing.
pub(super) fn set_boot_once_in(
    tx: &mut Tx<'_>,
    mut node: Node,
    site: &Site,
    once: NextBootOverride,
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    if node.pinned.is_some() {
        return Err(OrderError::Pinned { node: node.id }.into());
    }
    let usual = &boot::effective_profile(site, &node).name;
    if once.profile.as_ref().is_some_and(|other| other != usual)
        && failpoint::defends("boot-once-guard")
    {
        check_no_running_work(tx.before(), node.id, audit)?;
    }
    if let Some(other) = &once.profile {
        keep_slots(tx, &node, site, other, audit)?;
    }
    record_event(
        tx,
        &node,
        EventKind::BootOnce,
        format!("the next boot: {}", once.words()),
        audit,
        now,
    );
    node.boot_override = Some(once);
    Ok(node)
}

/// Removes the override of one node, in a transaction; the caller stores the node.
pub(super) fn clear_boot_once_in(
    tx: &mut Tx<'_>,
    mut node: Node,
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    let once = node.boot_override.take().ok_or(OrderError::NothingOrdered { node: node.id })?;
    record_event(tx, &node, EventKind::BootOnce, format!("cleared: {}", once.words()), audit, now);
    Ok(node)
}

/// Pins one node, in a transaction; the caller stores the node.
pub(super) fn pin_in(
    tx: &mut Tx<'_>,
    mut node: Node,
    generation: Generation,
    audit: &AuditContext,
    now: Timestamp,
) -> Node {
    (node.pinned, node.boot_override) = (Some(generation), None);
    record_event(
        tx,
        &node,
        EventKind::Pinned,
        format!("generation {}", generation.0.short()),
        audit,
        now,
    );
    node
}

/// Unpins one node, in a transaction; the caller stores the node.
pub(super) fn unpin_in(
    tx: &mut Tx<'_>,
    mut node: Node,
    audit: &AuditContext,
    now: Timestamp,
) -> Result<Node, OperateError> {
    let generation = node.pinned.take().ok_or(OrderError::NotPinned { node: node.id })?;
    let detail = format!("no longer to generation {}", generation.0.short());
    record_event(tx, &node, EventKind::Pinned, detail, audit, now);
    Ok(node)
}

fn record_event(
    tx: &mut Tx<'_>,
    node: &Node,
    kind: EventKind,
    detail: String,
    audit: &AuditContext,
    now: Timestamp,
) {
    tx.event(Event::new(now, audit, kind, detail).of_node(node.id));
}
