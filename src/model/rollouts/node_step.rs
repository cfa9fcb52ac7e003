//! The next step of one node: from service through drain, boot settings and reboot to health.

use super::{
    NodePresent, NodeSettings, NodeStage, ProgramPoint, Rollout, RolloutNode, RolloutPolicy,
    RolloutTarget, WorkPolicy,
    checkpoint::{Action, Checkpoint, call_after_return, checkpoint, exclude_queue_time},
    health::{NodeContext, is_back, resume, runs_wanted, state_text},
    returning::{self, Return},
};
use crate::{fleet::Phase, operations::NodeOrder};

/// Whether a waiting node can begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Eligibility {
    Begins,
    /// The node has work or no link at present.
    Waits,
    /// The node served when the rollout was planned, and is offline or boots.
    Absent,
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
        // A network that fails for a while is no reason to leave all nodes out.
        Phase::Offline | Phase::Booting if record.served => return Eligibility::Absent,
        phase => return Eligibility::Skipped(format!("the node is {phase}")),
    }
    let RolloutPolicy { keep_failed, .. } = context.rollout.policy;
    let is_plain = context.rollout.target == RolloutTarget::Reboot || keep_failed;
    let is_configured = next_setting(record, present, context.rollout) == Return::Complete;
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
    record.began_at = Some(context.time.now);
}

/// Advances a node in progress.
pub(super) fn advance_node(record: &mut RolloutNode, context: &NodeContext<'_>) -> Option<Action> {
    let Some(present) = context.present else {
        record.finish(NodeStage::Skipped, Some("the node was removed"), context.time.now);
        return None;
    };
    if matches!(present.phase, Phase::Quarantined | Phase::Rejected | Phase::Discovered) {
        let reason = format!("the node is {}", present.phase);
        record.finish(NodeStage::Failed, Some(&reason), context.time.now);
        return None;
    }
    let may_unpin = !matches!(record.stage, NodeStage::Waiting | NodeStage::Draining);
    record.unpinned |= may_unpin && present.settings.pinned.is_none();
    let action = match record.stage {
        NodeStage::Draining => drain(record, present, context),
        NodeStage::Rebooting | NodeStage::Soaking => reboot(record, present, context),
        NodeStage::Returning => returning::advance_return(record, present, context),
        _ => None,
    };
    action.filter(|action| matches!(action, Action::Run(_)) || !present.is_ordering)
}

fn drain(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<Action> {
    // It runs to its end also in a rollout that ends: half of it may have happened.
    match checkpoint(ProgramPoint::BeforeLeave, record, context) {
        Checkpoint::Passed => {}
        Checkpoint::Runs | Checkpoint::NotYet => {
            return Some(Action::Run(ProgramPoint::BeforeLeave));
        }
        Checkpoint::Failed(reason) => {
            record.finish(NodeStage::Failed, Some(&reason), context.time.now);
            return None;
        }
    }
    if context.rollout.state.is_ending() {
        return withdraw(record, present, context);
    }
    match present.phase {
        Phase::Maintenance => {
            record.stage = NodeStage::Rebooting;
            record.boot = Some(present.boot.clone());
            record.since_ms = context.clock_ms();
            record.unpinned = present.settings.pinned.is_none();
            reboot(record, present, context)
        }
        Phase::Draining => {
            record.left = true;
            None
        }
        Phase::Online | Phase::Degraded | Phase::Enrolling if record.left => {
            let end = |record: &mut RolloutNode| {
                let reason = "another order ended its drain";
                record.finish(NodeStage::Skipped, Some(reason), context.time.now);
            };
            call_after_return(record, context, end)
        }
        Phase::Online | Phase::Degraded | Phase::Enrolling => {
            Some(Action::Order(context.rollout.policy.drain_order()))
        }
        // It drains when it returns.
        _ => None,
    }
}

/// Returns a node that drains to service: the rollout ends.
fn withdraw(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<Action> {
    if matches!(present.phase, Phase::Draining | Phase::Maintenance) && record.drained {
        return Some(Action::Order(NodeOrder::Resume));
    }
    // Its drain is on the way: after it, the rollout has to return the node.
    if present.is_ordering {
        return None;
    }
    if matches!(present.phase, Phase::Offline | Phase::Booting) {
        let reason = "it went offline while it drained; return it with `meshd node resume`";
        record.finish(NodeStage::Skipped, Some(reason), context.time.now);
        return None;
    }
    call_after_return(record, context, RolloutNode::withdraw)
}

fn reboot(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<Action> {
    let setting = next_setting(record, present, context.rollout);
    let has_rebooted = record.boot.as_ref() != Some(&present.boot);
    // A reload gives an unpinned node another generation: that is no order to the node.
    let is_reloaded = !context.rollout.target.pins()
        && present.settings.pinned.is_none()
        && matches!(setting, Return::Order(NodeOrder::Pin { .. }));
    match setting {
        Return::Order(_) if is_reloaded && has_rebooted && record.configured => {}
        Return::Unknown if !record.configured => {
            is_over(record, context, present);
            return None;
        }
        Return::Order(_) if record.configured && !is_reloaded => {
            let end = |record: &mut RolloutNode| {
                let reason = "another order changed its boot settings";
                record.finish(NodeStage::Failed, Some(reason), context.time.now);
            };
            if present.phase == Phase::Online && present.is_linked {
                return call_after_return(record, context, end);
            }
            end(record);
            return None;
        }
        Return::Order(order) => {
            if let Some(reason) = present.refused(&order) {
                fail(record, present, context, reason);
                return None;
            }
            return Some(Action::Order(order));
        }
        Return::Complete | Return::Unknown => record.configured = true,
    }
    if !has_rebooted {
        // A node that serves is not rebooted: the floors know nothing of it.
        if present.phase == Phase::Online {
            fail(record, present, context, "another order ended its drain");
            return None;
        }
        if is_over(record, context, present) {
            return None;
        }
        let can_reboot = present.is_linked && !present.is_rebooting;
        if can_reboot {
            record.wanted = present.next;
        }
        return can_reboot.then_some(Action::Order(NodeOrder::Reboot));
    }
    if has_left_again(record, present) {
        let stage = if runs_wanted(record, present) { NodeStage::Done } else { NodeStage::Failed };
        let reason = "another order took it out of service";
        let end = |record: &mut RolloutNode| {
            record.finish(stage, Some(reason), context.time.now);
        };
        return call_after_return(record, context, end);
    }
    if let Some(reason) = &present.boot_loop {
        fail(record, present, context, reason);
        return None;
    }
    let mut action = None;
    if is_back(record, present) {
        record.stage = NodeStage::Soaking;
        action = soak(record, present, context);
    } else {
        record.stage = NodeStage::Rebooting;
        record.healthy_ms = None;
        // The gate passed another state.
        record.passed.remove(&ProgramPoint::Gate);
    }
    exclude_queue_time(record, action.as_ref(), context);
    let is_in_progress = matches!(record.stage, NodeStage::Rebooting | NodeStage::Soaking);
    // A node that is healthy and announced as back is not late, however long that takes. Nor is one
    // whose gate waits for its turn.
    let is_exempt =
        action == Some(Action::Run(ProgramPoint::AfterReturn)) || record.stopped_ms.is_some();
    if !is_in_progress || (!is_exempt && is_over(record, context, present)) {
        return None;
    }
    action.or_else(|| resume(record, present).map(Action::Order))
}

/// Advances a healthy node: it stays healthy, passes the gate, and is back.
fn soak(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<Action> {
    let soak_ms = u64::from(context.rollout.policy.soak_s) * 1000;
    let since = *record.healthy_ms.get_or_insert(context.clock_ms());
    if context.clock_ms().saturating_sub(since) < soak_ms {
        return None;
    }
    match checkpoint(ProgramPoint::Gate, record, context) {
        Checkpoint::Passed => {}
        Checkpoint::Runs => return Some(Action::Run(ProgramPoint::Gate)),
        Checkpoint::NotYet => {
            record.healthy_ms = None;
            return None;
        }
        Checkpoint::Failed(reason) => {
            fail(record, present, context, &reason);
            return None;
        }
    }
    match checkpoint(ProgramPoint::AfterReturn, record, context) {
        Checkpoint::Passed => {
            record.reason = None;
            let reason = (!present.runs_next()).then_some("a newer generation exists");
            record.finish(NodeStage::Done, reason, context.time.now);
        }
        Checkpoint::Runs | Checkpoint::NotYet => {
            return Some(Action::Run(ProgramPoint::AfterReturn));
        }
        Checkpoint::Failed(reason) => {
            record.finish(NodeStage::Failed, Some(&reason), context.time.now);
        }
    }
    None
}

/// Notes that a node is back in service after its reboot. Returns true if somebody has drained it
/// since: the rollout returns a node to service once.
fn has_left_again(record: &mut RolloutNode, present: &NodePresent) -> bool {
    record.served_again |= present.phase == Phase::Online;
    record.served_again && matches!(present.phase, Phase::Draining | Phase::Maintenance)
}

/// Fails a node whose time is over. Returns false if it is not.
fn is_over(record: &mut RolloutNode, context: &NodeContext<'_>, present: &NodePresent) -> bool {
    let is_late = context.is_late(record.since_ms);
    if is_late {
        let minutes = context.rollout.policy.node_timeout_s / 60;
        let refusal = present.refused(&NodeOrder::Reboot);
        let refusal = refusal.map(|reason| format!(": {reason}")).unwrap_or_default();
        let state = state_text(record, present);
        let gate = record.reason.take().map(|said| format!("; {said}")).unwrap_or_default();
        let reason = format!("not healthy within {minutes} minutes: it is {state}{refusal}{gate}");
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
    // A node that is in service is announced as back all the same, by its return.
    let is_awaited = present.phase == Phase::Online
        && present.is_linked
        && record.passed.contains(&ProgramPoint::BeforeLeave)
        && context.rollout.policy.after_return.is_some();
    let stays = has_rebooted && !is_changed && !is_awaited;
    if stays || context.rollout.policy.keep_failed {
        record.finish(NodeStage::Failed, Some(reason), context.time.now);
        return;
    }
    record.finish(NodeStage::Returning, Some(reason), context.time.now);
    record.finished_at = None;
    record.boot = Some(present.boot.clone());
    record.since_ms = context.clock_ms();
    (record.healthy_ms, record.stopped_ms) = (None, None);
    record.wanted = None;
    (record.configured, record.unpinned, record.left) = (false, false, false);
    record.passed.remove(&ProgramPoint::AfterReturn);
}

/// Returns the next change of the boot settings of a node.
fn next_setting(record: &RolloutNode, present: &NodePresent, rollout: &Rollout) -> Return {
    match &rollout.target {
        RolloutTarget::Reboot => Return::Complete,
        RolloutTarget::Profile { profile } => {
            let NodeSettings { profile: own, pinned, .. } = &present.settings;
            if pinned.is_some() {
                Return::Order(NodeOrder::Unpin)
            } else if own != profile {
                Return::Order(NodeOrder::AssignProfile { profile: profile.clone() })
            } else {
                Return::Complete
            }
        }
        RolloutTarget::Generation { .. } | RolloutTarget::Image { .. } => {
            let Some(goal) = record.goal else { return Return::Complete };
            // A goal of its profile names a generation of the node once it was pinned to it.
            let own = present.goal.unwrap_or(goal);
            if present.settings.pinned == Some(own) {
                Return::Complete
            } else {
                Return::Order(NodeOrder::Pin { generation: Some(goal.to_string()) })
            }
        }
        RolloutTarget::Previous => record.previous.as_ref().map_or(Return::Complete, |previous| {
            returning::next_return(previous, present, record.unpinned)
        }),
    }
}
