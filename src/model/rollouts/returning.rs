//! The return of a failed node to what it ran: profile, pin, and the generation that it ran.

use super::{
    NodePresent, NodeSettings, NodeStage, ProgramPoint, RolloutNode, RolloutTarget,
    checkpoint::{Action, Checkpoint, call_after_return, checkpoint, stop_timeout},
    health::{NodeContext, is_back, resume, state_text},
};
use crate::{fleet::Phase, operations::NodeOrder};

/// The next change of the boot settings of a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// The settings are as wanted.
    Complete,
    Order(NodeOrder),
    /// What the node boots next is not known yet.
    Unknown,
}

/// Returns the next change that leads back to earlier settings. A pin that the node did not have
/// is removed; then a node whose profile has changed since is pinned to the generation that it ran.
/// `was_unpinned`: the node was seen without a pin since its return began.
pub(super) fn next_return(
    before: &NodeSettings,
    present: &NodePresent,
    was_unpinned: bool,
) -> Return {
    let now = &present.settings;
    let pin = |generation: &_| {
        Return::Order(NodeOrder::Pin { generation: Some(format!("{generation}")) })
    };
    if before.profile != now.profile {
        return Return::Order(NodeOrder::AssignProfile { profile: before.profile.clone() });
    }
    match (&before.pinned, &before.booted) {
        (Some(pinned), _) if now.pinned.as_ref() != Some(pinned) => pin(pinned),
        (None, Some(_)) if now.pinned.is_none() && present.is_next_stale => Return::Unknown,
        (None, Some(booted)) if now.pinned.is_none() && present.next.as_ref() != Some(booted) => {
            pin(booted)
        }
        (None, booted) if now.pinned.is_some() && (!was_unpinned || now.pinned != *booted) => {
            Return::Order(NodeOrder::Unpin)
        }
        _ => Return::Complete,
    }
}

/// Advances a node that returns.
pub(super) fn advance_return(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<Action> {
    let before = record.before.clone()?;
    if !record.configured {
        match next_return(&before, present, record.unpinned) {
            Return::Order(order) => {
                let Some(refusal) = present.refused(&order) else {
                    return Some(Action::Order(order));
                };
                // A reboot would lead into the same fault again.
                end_failed(record, &format!("it cannot return: {refusal}"), context);
                return None;
            }
            Return::Unknown if !context.is_late(record.since_ms) => return None,
            Return::Complete | Return::Unknown => record.configured = true,
        }
    }
    let never_left =
        record.boot.as_ref() == Some(&present.boot) && present.settings.booted == before.booted;
    let has_rebooted = record.boot.as_ref() != Some(&present.boot);
    if (has_rebooted || never_left) && is_back(record, present) {
        match checkpoint(ProgramPoint::AfterReturn, record, context) {
            Checkpoint::Passed => {
                // After a plain reboot it runs what the gate refused.
                let is_same = context.rollout.target == RolloutTarget::Reboot
                    && !has_rebooted
                    && record.served_again;
                let stage = if is_same { NodeStage::Failed } else { NodeStage::Returned };
                record.finish(stage, None, context.time.now);
            }
            Checkpoint::Runs | Checkpoint::NotYet => {
                return Some(Action::Run(ProgramPoint::AfterReturn));
            }
            Checkpoint::Failed(cause) => end_failed(record, &cause, context),
        }
        return None;
    }
    if !has_rebooted && !never_left {
        return leave(record, present, context);
    }
    if context.is_late(record.since_ms) {
        end_unreturned(record, present, context);
        return None;
    }
    resume(record, present).map(Action::Order)
}

/// Reboots a node. A node that serves is drained first, as before its change: the floors decide
/// when.
fn leave(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<Action> {
    let is_draining = present.phase == Phase::Draining;
    stop_timeout(record, is_draining, context);
    record.left |= is_draining || present.phase == Phase::Maintenance;
    let serves = present.phase == Phase::Online;
    if is_draining {
        return None;
    }
    if serves && record.left {
        return call_after_return(record, context, |record| {
            end_failed(record, "another order ended its drain", context);
        });
    }
    if context.is_late(record.since_ms) {
        let end = |record: &mut RolloutNode| end_unreturned(record, present, context);
        if serves {
            return call_after_return(record, context, end);
        }
        end(record);
        return None;
    }
    if serves {
        return Some(Action::Order(context.rollout.policy.drain_order()));
    }
    let can_reboot = present.is_linked && !present.is_rebooting;
    if can_reboot {
        record.wanted = present.next;
    }
    can_reboot.then_some(Action::Order(NodeOrder::Reboot))
}

fn end_unreturned(record: &mut RolloutNode, present: &NodePresent, context: &NodeContext<'_>) {
    let cause = format!("it did not return: it is {}", state_text(record, present));
    end_failed(record, &cause, context);
}

/// Ends a node that failed. The cause for which it did not return follows its reason.
fn end_failed(record: &mut RolloutNode, cause: &str, context: &NodeContext<'_>) {
    let reason = record.reason.take().unwrap_or_default();
    record.finish(NodeStage::Failed, Some(&format!("{reason}; {cause}")), context.time.now);
}
