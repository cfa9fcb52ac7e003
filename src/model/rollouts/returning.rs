//! The return of a failed node to what it ran: profile, pin, and the generation that it ran.

use super::{
    NodePresent, NodeSettings, NodeStage, RolloutNode,
    health::{NodeContext, is_back, resume, state_text},
};
use crate::operations::NodeOrder;

/// Returns the next change that leads back to earlier settings; `None` if the node boots next what
/// it ran. A node whose profile has changed since is pinned to the generation that it ran.
pub(super) fn next_return(before: &NodeSettings, present: &NodePresent) -> Option<NodeOrder> {
    let now = &present.settings;
    let pin = |generation: &_| NodeOrder::Pin { generation: Some(format!("{generation}")) };
    if before.profile != now.profile {
        return Some(NodeOrder::AssignProfile { profile: before.profile.clone() });
    }
    match (&before.pinned, &before.booted) {
        (Some(pinned), _) => (now.pinned.as_ref() != Some(pinned)).then(|| pin(pinned)),
        (None, Some(booted)) if now.pinned.is_none() => {
            (present.next.as_ref() != Some(booted)).then(|| pin(booted))
        }
        (None, booted) => (now.pinned != *booted).then_some(NodeOrder::Unpin),
    }
}

/// Advances a node that returns. Returns an order to the node.
pub(super) fn advance_return(
    record: &mut RolloutNode,
    present: &NodePresent,
    context: &NodeContext<'_>,
) -> Option<NodeOrder> {
    let before = record.before.clone()?;
    if !record.configured {
        match next_return(&before, present) {
            // A generation that is not archived any more cannot be pinned: the node boots the
            // profile that it had.
            Some(order) if present.refused(&order).is_none() => return Some(order),
            _ => record.configured = true,
        }
    }
    let never_left =
        record.boot.as_ref() == Some(&present.boot) && present.settings.booted == before.booted;
    let has_rebooted = record.boot.as_ref() != Some(&present.boot);
    if (has_rebooted || never_left) && is_back(record, present) {
        record.finish(NodeStage::Returned, None, context.time.now);
        return None;
    }
    if context.is_late(record.since_ms) {
        let reason = record.reason.take().unwrap_or_default();
        let reason = format!("{reason}; it did not return: it is {}", state_text(present));
        record.finish(NodeStage::Failed, Some(&reason), context.time.now);
        return None;
    }
    if !has_rebooted && !never_left {
        return (present.is_linked && !present.is_rebooting).then_some(NodeOrder::Reboot);
    }
    resume(record, present)
}
