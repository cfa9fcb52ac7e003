//! The first report of a link: hardware, running generation, units.

use crate::{
    enrolment::{enrol::peer_certificate, tickets::NO_MAC},
    environment::records::{clear_condition, condition_event, phase_event, record_stage},
    links::{compare_units, withdraw_end},
};
use meshd_model::fleet::{
    Actor, ConditionChanges, ConditionKind, Event, Node, PhaseChange, Stage, update_drift,
};
use meshd_proto::{Facts, Hello, VERSION};
use meshd_store::Tx;
use meshd_trust::Peer;
use meshd_types::{Basis, BootSessionId, Hardware, MacAddr, NodeId, Timestamp, failpoint};
use std::{collections::BTreeSet, net::IpAddr};

/// Records the hello of a node.
pub(crate) fn record_hello(
    tx: &mut Tx<'_>,
    peer: &Peer,
    hello: Hello,
    from: IpAddr,
    now: Timestamp,
) {
    let mut change = None;
    let mut changed_parts = None;
    let mut is_newly_outdated = false;
    let outdated = (hello.version < VERSION).then(|| {
        format!(
            "its agent has protocol version {}, this meshd has {VERSION}; boot the node",
            hello.version
        )
    });
    let macs: Vec<_> = hello.facts.nics.iter().filter_map(|nic| nic.mac).collect();
    let is_taken = |mac: &&MacAddr| {
        let model = tx.before();
        model.node_of_mac(**mac).is_some_and(|other| other.id != peer.node)
            || model.vm_of_mac(**mac).is_some()
    };
    // A node without a network boot has the NIC that the wire showed when it used its ticket;
    // behind a router it has none.
    let enrolled_nic = enrolled_nic(tx, peer.node, hello.session).filter(|mac| !is_taken(&mac));
    let foreign_macs: BTreeSet<_> = macs.iter().filter(is_taken).copied().collect();
    let raised_event = |kind, detail: String| {
        condition_event(now, Actor::Node, kind, detail).of_node(peer.node).in_session(hello.session)
    };
    if let Some(basis) = differing_basis(&hello.facts, peer.node) {
        let detail = format!("the machine itself derives {} from {basis}", basis.node_id());
        tx.event(raised_event(ConditionKind::HardwareChanged, detail));
    }
    let mut history = tx.history(peer.node);
    let before = history.clone();
    let mut drift_events = ConditionChanges::new();
    tx.edit_node(peer.node, |node: &mut Node| {
        // The new certificate was used, so the old one becomes void.
        node.certificates = vec![peer_certificate(peer)];
        let own = macs.iter().filter(|mac| !foreign_macs.contains(mac)).copied();
        let proven =
            if failpoint::defends("ticket-nic") { enrolled_nic } else { own.clone().next() };
        if let (NO_MAC, Some(nic)) = (node.mac, proven) {
            node.mac = nic;
            node.add_seen_nic(nic);
        }
        changed_parts = node.recognise(&hello.facts, own);
        if let Some(detail) = &changed_parts {
            node.raise(ConditionKind::HardwareChanged, detail.clone(), now);
        }
        is_newly_outdated = outdated
            .as_ref()
            .is_some_and(|why| node.raise(ConditionKind::AgentOutdated, why.clone(), now));
        node.booted = hello.facts.versions.generation.parse().ok();
        node.facts = Some(hello.facts);
        node.address = Some(from);
        node.last_seen = now;
        change = node.change(PhaseChange::LinkUp).ok().flatten();
        let known = node.booted.is_none_or(|booted| history.record_boot(booted, now));
        drift_events = update_drift(node, known, now);
    });
    if let Some(detail) = changed_parts {
        tx.event(raised_event(ConditionKind::HardwareChanged, detail));
    }
    match outdated {
        None => clear_condition(tx, peer.node, ConditionKind::AgentOutdated, Actor::Node, now),
        Some(why) if is_newly_outdated => tx.event(raised_event(ConditionKind::AgentOutdated, why)),
        Some(_) => {}
    }
    clear_condition(tx, peer.node, ConditionKind::StaleCa, Actor::Node, now);
    compare_units(tx, peer.node, hello.session, now);
    if history != before {
        tx.put_history(peer.node, history);
    }
    for (kind, detail) in drift_events {
        tx.event(
            Event::new(now, Actor::Node, kind, detail).of_node(peer.node).in_session(hello.session),
        );
    }
    withdraw_end(tx, peer.node, hello.session, |session| session.agent_stopped = false);
    record_stage(tx, hello.session, Stage::Link, now);
    phase_event(tx, peer.node, hello.session, change, Actor::Node, now);
}

/// Returns the NIC from which the token of this boot was used.
fn enrolled_nic(tx: &Tx<'_>, node: NodeId, session: BootSessionId) -> Option<MacAddr> {
    tx.before()
        .tokens_of(node)
        .filter(|token| token.session == session)
        .find_map(|token| token.used?.mac)
}

/// The basis that the machine's sysfs yields, if none of its bases yields the node ID. The ID of
/// the overlay stays valid: the script step decides the ID, from the identities that the site
/// trusts.
fn differing_basis(facts: &Facts, id: NodeId) -> Option<Basis> {
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
