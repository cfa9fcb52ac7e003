//! Boots, reboots and drains of nodes.

use super::{Activity, ActivityKind, ActivityState, ObjectKind};
use crate::fleet::{BootSession, BootStatus, LONGEST_BOOT, Node, Phase, Stage, Stall, Wait};
use crate::operations::NodeOperation;
use meshd_types::Timestamp;

fn of_node(node: &Node, kind: ActivityKind, request: &str) -> Activity {
    let activity = Activity::new(kind, ObjectKind::Node, node.id.to_string(), request);
    Activity { name: node.name.clone(), node: Some(node.id), ..activity }
}

/// Returns the boot of a machine while it is in progress, waits or has failed. `node` is the node
/// of the session.
pub fn boot(session: &BootSession, node: Option<&Node>, now: Timestamp) -> Option<Activity> {
    let is_newest = |node: &&Node| node.boot == Some(session.id);
    let boots = node
        .filter(is_newest)
        .is_some_and(|node| matches!(node.phase, Phase::Booting | Phase::Enrolling));
    let is_linked = node.filter(is_newest).is_some_and(|node| {
        let linked = matches!(
            node.phase,
            Phase::Online | Phase::Degraded | Phase::Draining | Phase::Maintenance
        );
        linked && session.reached(Stage::Link).is_some()
    });
    // A machine does not report that it was switched off, so old boots are omitted.
    if session.ended || is_linked || !boots && now.distance(last_activity(session)) > LONGEST_BOOT {
        return None;
    }
    let (state, reason) = match session.standing(false) {
        BootStatus::Booting => (ActivityState::Accepted, None),
        BootStatus::Waiting => (ActivityState::Requested, session.waiting().map(Wait::reason)),
        BootStatus::Stalled => (ActivityState::Failed, session.stalled().map(stall_reason)),
        BootStatus::Failed => (ActivityState::Failed, session.failure.clone()),
        BootStatus::Online | BootStatus::Rebooted | BootStatus::Stopped => return None,
    };
    let activity = match node {
        Some(node) => of_node(node, ActivityKind::Boot, "boot"),
        None => {
            Activity::new(ActivityKind::Boot, ObjectKind::Machine, session.mac.to_string(), "boot")
        }
    };
    let progress = session.furthest().map(|stage| stage.as_str().to_owned()).unwrap_or_default();
    Some(Activity { since: Some(session.opened_at), state, progress, reason, ..activity })
}

fn last_activity(session: &BootSession) -> Timestamp {
    let stages = session.stages.iter().map(|mark| mark.last);
    stages.chain(session.waits.iter().map(|wait| wait.last)).max().unwrap_or(session.refreshed_at)
}

fn stall_reason(stall: &Stall) -> String {
    format!("stalled before {}: {}", stall.missing, stall.cause)
}

/// Returns an ordered reboot that is not finished.
pub fn reboot(node: &Node, record: &NodeOperation) -> Activity {
    let activity = of_node(node, ActivityKind::Reboot, "reboot");
    let Some(confirmed) = record.confirmed_at else {
        return Activity { since: record.started_at, ..activity };
    };
    let (state, reason) = match node.phase {
        Phase::Offline => (
            ActivityState::Failed,
            Some("the node did not come back; look at its console".to_owned()),
        ),
        _ => (ActivityState::Accepted, None),
    };
    Activity { since: Some(confirmed), state, reason, ..activity }
}

/// Returns the drain of a node that is not finished. `work` names the work that is left.
pub fn drain(node: &Node, record: &NodeOperation, work: &[String], is_linked: bool) -> Activity {
    let activity =
        Activity { since: record.started_at, ..of_node(node, ActivityKind::Drain, "drain") };
    let state = if node.phase == Phase::Draining {
        ActivityState::Accepted
    } else {
        ActivityState::Requested
    };
    let reason = (!work.is_empty()).then(|| format!("waits for {}", work.join(", ")));
    Activity { state, reason, ..activity }.without_link(is_linked)
}
