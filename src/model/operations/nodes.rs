//! Boots, reboots and drains of nodes.

use super::{ObjectKind, Operation, OperationKind, OperationState};
use crate::fleet::{BootSession, BootStatus, LONGEST_BOOT, Node, Phase, Stage, Stall, Wait};
use meshd_types::Timestamp;

fn of_node(node: &Node, kind: OperationKind, request: &str) -> Operation {
    let operation = Operation::new(kind, ObjectKind::Node, node.id.to_string(), request);
    Operation { name: node.name.clone(), node: Some(node.id), ..operation }
}

/// Returns the boot of a machine while it is in progress, waits or has failed. `node` is the node of the session.
pub fn boot(session: &BootSession, node: Option<&Node>, now: Timestamp) -> Option<Operation> {
    let is_newest = |node: &&Node| node.boot == Some(session.id);
    let boots = node.filter(is_newest).is_some_and(|node| matches!(node.phase, Phase::Booting | Phase::Enrolling));
    let is_linked = node.filter(is_newest).is_some_and(|node| {
        let linked = matches!(node.phase, Phase::Online | Phase::Degraded | Phase::Draining | Phase::Maintenance);
        linked && session.reached(Stage::Link).is_some()
    });
    // A machine does not report that it was switched off, so old boots are omitted.
    if session.ended || is_linked || !boots && now.distance(last_activity(session)) > LONGEST_BOOT {
        return None;
    }
    let (state, reason) = match session.standing(false) {
        BootStatus::Booting => (OperationState::Accepted, None),
        BootStatus::Waiting => (OperationState::Requested, session.waiting().map(Wait::reason)),
        BootStatus::Stalled => (OperationState::Failed, session.stalled().map(stall_reason)),
        BootStatus::Failed => (OperationState::Failed, session.failure.clone()),
        BootStatus::Online | BootStatus::Rebooted | BootStatus::Stopped => return None,
    };
    let operation = match node {
        Some(node) => of_node(node, OperationKind::Boot, "boot"),
        None => Operation::new(OperationKind::Boot, ObjectKind::Machine, session.mac.to_string(), "boot"),
    };
    let progress = session.furthest().map(|stage| stage.as_str().to_owned()).unwrap_or_default();
    Some(Operation { since: Some(session.opened_at), state, progress, reason, ..operation })
}

fn last_activity(session: &BootSession) -> Timestamp {
    let stages = session.stages.iter().map(|mark| mark.last);
    stages.chain(session.waits.iter().map(|wait| wait.last)).max().unwrap_or(session.refreshed_at)
}

fn stall_reason(stall: &Stall) -> String {
    format!("stalled before {}: {}", stall.missing, stall.cause)
}

/// Returns an ordered reboot that is not done. `sent` is the time of an order that the agent has not answered. `session` is the newest
/// boot session of the node.
pub fn reboot(
    node: &Node,
    session: Option<&BootSession>,
    sent: Option<Timestamp>,
    confirmed: Option<Timestamp>,
) -> Option<Operation> {
    let operation = of_node(node, OperationKind::Reboot, "reboot");
    if sent.is_some() {
        return Some(Operation { since: sent, ..operation });
    }
    session.filter(|session| session.reboot_ordered && node.boot == Some(session.id))?;
    let (state, reason) = match node.phase {
        Phase::Offline => (OperationState::Failed, Some("the node did not come back; look at its console".to_owned())),
        Phase::Removed | Phase::Rejected | Phase::Quarantined => return None,
        _ => (OperationState::Accepted, None),
    };
    Some(Operation { since: confirmed, state, reason, ..operation })
}

/// Returns the drain of a node while work is left. `work` names that work.
pub fn drain(node: &Node, work: &[String], is_linked: bool, since: Option<Timestamp>) -> Option<Operation> {
    let operation = Operation { since, ..of_node(node, OperationKind::Drain, "drain") };
    let state = match node.phase {
        Phase::Draining => OperationState::Accepted,
        _ if node.drains => OperationState::Requested,
        _ => return None,
    };
    let reason = (!work.is_empty()).then(|| format!("waits for {}", work.join(", ")));
    Some(Operation { state, reason, ..operation }.without_link(is_linked))
}
