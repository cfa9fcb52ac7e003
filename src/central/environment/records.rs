//! Records that many services write inside a transaction: a boot stage, a change of phase, a
//! cleared condition.

use meshd_config::Group;
use meshd_model::fleet::{
    Actor, Cause, Condition, ConditionKind, Event, EventKind, LabelChange, Labels, MAX_LABELS,
    Node, Phase, Stage,
};
use meshd_store::{Model, Tx};
use meshd_types::{BootSessionId, NodeId, Timestamp};

/// Gives a node labels of its machine or rule. Labels that the node has stay, and labels beyond the
/// maximum number are left out.
pub(crate) fn add_labels(
    tx: &mut Tx<'_>,
    node: &mut Node,
    labels: &Labels,
    cause: impl Into<Cause>,
    now: Timestamp,
) {
    let set: Labels = labels
        .iter()
        .filter(|(key, _)| !node.labels.contains_key(*key))
        .take(MAX_LABELS.saturating_sub(node.labels.len()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if set.is_empty() {
        return;
    }
    let change = LabelChange { set, unset: Vec::new() };
    node.labels = change.applied(&node.labels);
    tx.event(Event::new(now, cause, EventKind::LabelsChanged, change.words()).of_node(node.id));
}

/// Returns the nodes that a group lists: by their IDs, also unknown ones, then by their names. Only a
/// group with names needs a pass over all nodes.
pub(crate) fn group_members(model: &Model, group: &Group) -> Vec<NodeId> {
    let mut ids = group.nodes.clone();
    if !group.hostlists.is_empty() {
        let mut named: Vec<&Node> = model
            .nodes()
            .filter(|node| node.phase != Phase::Removed && group.names(&node.name))
            .collect();
        named.sort_by(|one, other| one.name.cmp(&other.name));
        ids.extend(named.into_iter().map(|node| node.id));
    }
    ids
}

/// Marks a stage in its session. Records an event and returns true if the stage is new.
pub(crate) fn record_stage(
    tx: &mut Tx<'_>,
    session: BootSessionId,
    stage: Stage,
    now: Timestamp,
) -> bool {
    if tx.edit_session(session, |session| session.mark(stage, now)) != Some(true) {
        return false;
    }
    let node = tx.session(session).and_then(|session| {
        // Before the script step, the NIC identifies the machine.
        session.node.or_else(|| tx.before().node_of_mac(session.mac).map(|node| node.id))
    });
    tx.event(
        Event::new(now, Actor::Node, EventKind::Stage { stage }, "")
            .of_node(node)
            .in_session(session),
    );
    true
}

/// Records a change of phase, if there was one.
pub(crate) fn phase_event(
    tx: &mut Tx<'_>,
    node: NodeId,
    session: impl Into<Option<BootSessionId>>,
    change: Option<(Phase, Phase)>,
    cause: impl Into<Cause>,
    now: Timestamp,
) {
    if let Some((from, to)) = change {
        let event =
            Event::new(now, cause, EventKind::Phase { from, to }, format!("{from} -> {to}"));
        tx.event(event.of_node(node).in_session(session.into()));
    }
}

/// The event of a raised condition.
pub(crate) fn condition_event(
    now: Timestamp,
    cause: impl Into<Cause>,
    condition: ConditionKind,
    detail: impl Into<String>,
) -> Event {
    Event::new(now, cause, EventKind::Raised { condition }, detail)
}

/// Raises a condition of a node. Records an event if the condition is new.
pub(crate) fn raise_if_new(
    tx: &mut Tx<'_>,
    node: NodeId,
    session: impl Into<Option<BootSessionId>>,
    condition: Condition,
    cause: impl Into<Cause>,
) {
    let Condition { kind, since, detail } = condition;
    if tx.edit_node(node, |node| node.raise(kind, detail.clone(), since)) == Some(true) {
        tx.event(
            condition_event(since, cause, kind, detail).of_node(node).in_session(session.into()),
        );
    }
}

/// Clears a condition of a node. Records an event if the condition was raised.
pub(crate) fn clear_condition(
    tx: &mut Tx<'_>,
    node: NodeId,
    kind: ConditionKind,
    cause: impl Into<Cause>,
    now: Timestamp,
) {
    if tx.edit_node(node, |node| node.clear(kind)) == Some(true) {
        let boot = tx.node(node).and_then(|node| node.boot);
        tx.event(
            Event::new(now, cause, EventKind::Cleared { condition: kind }, "")
                .of_node(node)
                .in_session(boot),
        );
    }
}

/// Returns another node than `id` that has this name, or has it as its ID.
pub(crate) fn name_holder(model: &Model, id: NodeId, name: &str) -> Option<NodeId> {
    let by_id =
        || name.parse().ok().filter(|holder| *holder != id && model.node(*holder).is_some());
    let has_name =
        |node: &&Node| node.id != id && node.name == name && node.phase != Phase::Removed;
    model.nodes().find(has_name).map(|node| node.id).or_else(by_id)
}

/// Returns the kind of an open order that ends what a node runs. A warm reboot takes minutes between
/// the order and the end.
pub(crate) fn open_end_order(model: &Model, node: NodeId) -> Option<&'static str> {
    model.open_operations_of(node).find_map(|(head, _)| match &head.order {
        order if order.cuts_power() => Some("power_order"),
        order if order.is_reboot() => Some("reboot_order"),
        _ => None,
    })
}
