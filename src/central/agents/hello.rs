//! The first report of a link: hardware, what the node runs, its units.

use crate::{
    enrolment::{enrol::shown, tokens::NO_MAC},
    environment::records::{clear, phase_event, reach},
    links::compare_units,
};
use meshd_model::fleet::{
    Actor, ConditionChanges, ConditionKind, Event, EventKind, Node, PhaseChange, Stage, update_drift,
};
use meshd_proto::{Facts, Hello, VERSION};
use meshd_store::Tx;
use meshd_trust::Peer;
use meshd_types::{Basis, Hardware, NodeId, Timestamp};
use std::net::IpAddr;

/// Records the hello of a node.
pub(crate) fn arrive(tx: &mut Tx<'_>, peer: &Peer, hello: Hello, from: IpAddr, now: Timestamp) {
    let (mut change, mut other_parts, mut is_outdated) = (None, None, false);
    let outdated = (hello.version < VERSION)
        .then(|| format!("its agent speaks version {}, this meshd {VERSION}; boot the node", hello.version));
    let macs: Vec<_> = hello.facts.nics.iter().filter_map(|nic| nic.mac).collect();
    let foreign: Vec<_> = macs
        .iter()
        .filter(|mac| tx.before().node_of_mac(**mac).is_some_and(|other| other.id != peer.node))
        .copied()
        .collect();
    let raised = |kind, detail: String| {
        let kind = EventKind::Raised { condition: kind };
        Event::new(now, Actor::Node, kind, detail).of_node(peer.node).in_session(hello.session)
    };
    if let Some(basis) = another_view(&hello.facts, peer.node) {
        let detail = format!("the machine itself derives {} from {basis}", basis.node_id());
        tx.event(raised(ConditionKind::HardwareChanged, detail));
    }
    let mut history = tx.history(peer.node);
    let (before, mut told) = (history.clone(), ConditionChanges::new());
    tx.edit_node(peer.node, |node: &mut Node| {
        // The new certificate was used, so the old one is void. Records of an older release get its key here.
        node.certificates = vec![shown(peer)];
        if let (NO_MAC, Some(first)) = (node.mac, macs.iter().find(|mac| !foreign.contains(mac))) {
            node.mac = *first;
        }
        let own = macs.iter().filter(|mac| !foreign.contains(mac)).copied();
        other_parts = node.recognise(&hello.facts, own);
        if let Some(detail) = &other_parts {
            node.raise(ConditionKind::HardwareChanged, detail.clone(), now);
        }
        is_outdated = outdated.as_ref().is_some_and(|why| node.raise(ConditionKind::AgentOutdated, why.clone(), now));
        node.booted = hello.facts.versions.generation.parse().ok();
        node.facts = Some(hello.facts);
        node.address = Some(from);
        node.last_seen = now;
        change = node.change(PhaseChange::LinkUp).ok().flatten();
        // An older release recorded only the newest generation.
        let known = node.booted.is_none_or(|booted| history.booted(booted, now) || node.generation == Some(booted));
        told = update_drift(node, known, now);
    });
    if let Some(detail) = other_parts {
        tx.event(raised(ConditionKind::HardwareChanged, detail));
    }
    match outdated {
        None => clear(tx, peer.node, ConditionKind::AgentOutdated, Actor::Node, now),
        Some(why) if is_outdated => tx.event(raised(ConditionKind::AgentOutdated, why)),
        Some(_) => {}
    }
    clear(tx, peer.node, ConditionKind::StaleCa, Actor::Node, now);
    compare_units(tx, peer.node, hello.session, now);
    if history != before {
        tx.put_history(peer.node, history);
    }
    for (kind, detail) in told {
        tx.event(Event::new(now, Actor::Node, kind, detail).of_node(peer.node).in_session(hello.session));
    }
    reach(tx, hello.session, Stage::Link, now);
    phase_event(tx, peer.node, hello.session, change, Actor::Node, now);
}

/// What the machine's own sysfs yields, if nothing of it yields its ID. The overlay's ID stays: the script step decides (design, "Node
/// ID"), and by which part depends on what the site trusts.
fn another_view(facts: &Facts, id: NodeId) -> Option<Basis> {
    let system = &facts.system;
    let hardware = Hardware {
        uuid: system.uuid,
        manufacturer: system.manufacturer.clone(),
        product: system.product.clone(),
        serial: system.serial.clone(),
        macs: Vec::new(),
    };
    let known = hardware.bases().any(|basis| basis.node_id() == id);
    hardware.bases().next().filter(|_| !known)
}
