//! The next step of one node: from service through drain, boot settings and reboot to health.

use super::{
    NodePresent, NodeSettings, NodeStage, Rollout, RolloutNode, RolloutTarget, WorkPolicy,
    health::{NodeContext, is_back, resume, state_text},
    returning,
};
use crate::{
    fleet::Phase,
    operations::{DrainPolicy, NodeOrder},
};

/// Whether a waiting node can begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Eligibility {
    Begins,
    /// The node has work or no link at present.
    Waits,
    /// The node is left out, for this reason.
    Skipped(String),
    /// The node runs already what the rollout changes it to.
    Unchanged,
}

/// Decides whether a waiting node can begin.
pub(super) fn eligibility(record: &RolloutNode, context: &NodeContext<'_>) -> Eligibility {
    let Some(present) = context.present else {
        return Eligibility::Skipped("the node was removed".to_owned());
    };
    match present.phase {
        Phase::Online
        | Phase::Degraded
        | Phase::Enrolling
        | Phase::Draining
        | Phase::Maintenance => {}
        phase => return Eligibility::Skipped(format!("the node is {phase}")),
    }
    let is_plain = context.rollout.target == RolloutTarget::Reboot;
    let is_configured = next_setting(record, present, context.rollout).is_none();
    if !is_plain && is_configured && present.runs_next() && present.settings.booted.is_some() {
        return Eligibility::Unchanged;
    }
    match context.rollout.policy.workloads {
        WorkPolicy::Skip if present.has_work => {
            Eligibility::Skipped("the node has work".to_owned())
        }
        WorkPolicy::Wait if present.has_work => Eligibility::Waits,
        _ if !present.is_linked || present.is_ordering || present.is_rebooting => {
            Eligibility::Waits
        }
        _ => Eligibility::Begins,
    }
}

/// Begins a node.
pub(super) fn begin(record: &mut RolloutNode, present: &NodePresent, context: &NodeContext<'_>) {
    record.stage = NodeStage::Draining;
    record.before = Some(present.settings.clone());
    record.drained = !matches!(present.phase, Phase::Draining | Phase::Maintenance);
    record.began_at = Some(context.time.now);
}

/// Advances a node in progress. Returns an order to the node.
pub(super) fn advance_node(
    record: &mut RolloutNode,
    context: &NodeContext<'_>,
) -> Option<NodeOrder> {
    let Some(present) = context.present else {
        record.finish(NodeStage::Skipped, Some("the node was removed"), context.time.now);
        return None;
    };
    if matches!(present.phase, Phase::Quarantined | Phase::Rejected | Phase::Discovered) {
        let reason = format!("the node is {}", present.phase);
        record.finish(NodeStage::Failed, Some(&reason), context.time.now);
        return None;
    }
    let order = match record.stage {
        NodeStage::Draining => drain(record, present, context),
        NodeStage::Rebooting | NodeStage::Soaking => reboot(record, present, context),
        NodeStage::Returning => returning::advance_return(record, present, context),
        _ => None,
    };
    order.filter(|_| !present.is_ordering)
}

fn drain(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<NodeOrder> {
    let is_out = matches!(present.phase, Phase::Draining | Phase::Maintenance);
    if context.rollout.state.is_ending() {
        if is_out && record.drained {
            return Some(NodeOrder::Resume);
        }
        if matches!(present.phase, Phase::Offline | Phase::Booting) {
            let reason = "it went offline while it drained; return it with `meshd node resume`";
            record.finish(NodeStage::Skipped, Some(reason), context.time.now);
        } else {
            record.withdraw();
        }
        return None;
    }
    match present.phase {
        Phase::Maintenance => {
            record.stage = NodeStage::Rebooting;
            record.boot = Some(present.boot.clone());
            record.since_ms = context.clock_ms();
            reboot(record, present, context)
        }
        Phase::Draining => {
            record.left = true;
            None
        }
        Phase::Online | Phase::Degraded | Phase::Enrolling if record.left => {
            let reason = "another order ended its drain";
            record.finish(NodeStage::Skipped, Some(reason), context.time.now);
            None
        }
        Phase::Online | Phase::Degraded | Phase::Enrolling => {
            let policy = &context.rollout.policy;
            let workloads = match policy.workloads {
                WorkPolicy::Stop => DrainPolicy::Stop,
                _ => DrainPolicy::Wait,
            };
            Some(NodeOrder::Drain { workloads, grace_s: policy.grace_s })
        }
        // It drains when it returns.
        _ => None,
    }
}

fn reboot(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<NodeOrder> {
    let setting = next_setting(record, present, context.rollout);
    match setting {
        Some(_) if record.configured => {
            let reason = "another order changed its boot settings";
            record.finish(NodeStage::Failed, Some(reason), context.time.now);
            return None;
        }
        Some(order) => {
            if let Some(reason) = present.refused(&order) {
                fail(record, present, context, reason);
                return None;
            }
            return Some(order);
        }
        None => record.configured = true,
    }
    if record.boot.as_ref() == Some(&present.boot) {
        if is_over(record, context, present) {
            return None;
        }
        let can_reboot = present.is_linked && !present.is_rebooting;
        return can_reboot.then_some(NodeOrder::Reboot);
    }
    if let Some(reason) = &present.boot_loop {
        fail(record, present, context, reason);
        return None;
    }
    let soak_ms = u64::from(context.rollout.policy.soak_s) * 1000;
    if is_back(record, present) {
        record.stage = NodeStage::Soaking;
        let since = *record.healthy_ms.get_or_insert(context.clock_ms());
        if context.clock_ms().saturating_sub(since) >= soak_ms {
            record.finish(NodeStage::Done, None, context.time.now);
            return None;
        }
    } else {
        record.stage = NodeStage::Rebooting;
        record.healthy_ms = None;
    }
    if is_over(record, context, present) {
        return None;
    }
    resume(record, present)
}

/// Fails a node whose time is over. Returns false if it is not.
fn is_over(record: &mut RolloutNode, context: &NodeContext<'_>, present: &NodePresent) -> bool {
    let is_late = context.is_late(record.since_ms);
    if is_late {
        let minutes = context.rollout.policy.node_timeout_s / 60;
        let refusal = present.refused(&NodeOrder::Reboot);
        let refusal = refusal.map(|reason| format!(": {reason}")).unwrap_or_default();
        let state = state_text(present);
        let reason = format!("not healthy within {minutes} minutes: it is {state}{refusal}");
        fail(record, present, context, &reason);
    }
    is_late
}

/// Fails a node: it returns to what it ran. A node that ran the same before and after its reboot
/// has nothing to return to.
fn fail(record: &mut RolloutNode, present: &NodePresent, context: &NodeContext<'_>, reason: &str) {
    let is_changed = record.before.as_ref().is_some_and(|before| {
        *before != present.settings || (before.booted.is_some() && before.booted != present.next)
    });
    let has_rebooted = record.boot.as_ref() != Some(&present.boot);
    if has_rebooted && !is_changed {
        record.finish(NodeStage::Failed, Some(reason), context.time.now);
        return;
    }
    record.finish(NodeStage::Returning, Some(reason), context.time.now);
    record.finished_at = None;
    record.boot = Some(present.boot.clone());
    record.since_ms = context.clock_ms();
    record.healthy_ms = None;
    record.configured = false;
}

/// Returns the next change of the boot settings of a node; `None` if they are as wanted.
fn next_setting(
    record: &RolloutNode,
    present: &NodePresent,
    rollout: &Rollout,
) -> Option<NodeOrder> {
    match &rollout.target {
        RolloutTarget::Reboot => None,
        RolloutTarget::Profile { profile } => {
            let NodeSettings { profile: own, pinned, .. } = &present.settings;
            if pinned.is_some() {
                Some(NodeOrder::Unpin)
            } else {
                (own != profile).then(|| NodeOrder::AssignProfile { profile: profile.clone() })
            }
        }
        RolloutTarget::Previous => {
            record.previous.as_ref().and_then(|previous| returning::next_return(previous, present))
        }
    }
}
