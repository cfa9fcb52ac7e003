//! Ends running orders: those that a newer order replaces, and those whose effect the record of the
//! node shows.

use crate::links::withdraw_end;
use meshd_model::{
    fleet::{ColdBoot, Node, WarmReboot, WarmRebootResult},
    operations::{NodeOperation, NodeOperationState, NodeOrder, NodeOutcome, Operation},
};
use meshd_proto::warm_boot::ColdBootCause;
use meshd_store::{Model, Tx};
use meshd_types::{BootSessionId, NodeId, OperationId, Timestamp};

/// Returns the newest boot of a node that has begun.
pub(crate) fn newest_boot(model: &Model, node: &Node) -> Option<BootSessionId> {
    model.begun_boot_of(node).map(|boot| boot.id)
}

/// Cancels older orders of a node that this one replaces: running ones of its kind, and pending
/// ones if the node leaves service.
pub(super) fn replace_older(tx: &mut Tx<'_>, head: &Operation, id: NodeId, now: Timestamp) {
    let older: Vec<OperationId> = tx
        .before()
        .open_operations_of(id)
        .filter(|(other, record)| match record.state {
            _ if other.id == head.id => false,
            NodeOperationState::Pending => head.order.withdraws_pending(),
            NodeOperationState::Running => head.order.replaces(&other.order),
            _ => false,
        })
        .map(|(other, _)| other.id)
        .collect();
    for other in older {
        let outcome = NodeOutcome::Cancelled(format!("replaced by operation {}", head.id));
        tx.edit_node_operation(other, id, |record| record.finish(outcome, now));
    }
}

/// Ends the running orders of a node whose effect its record shows. Drains end in the transaction
/// that ends them; reboots are settled each second (`drive.rs`).
pub(crate) fn settle_in(tx: &mut Tx<'_>, id: NodeId, now: Timestamp) {
    let before = tx.before();
    let newest = tx.node(id).and_then(|node| newest_boot(before, node));
    let mut open: Vec<Operation> = before
        .open_operations_of(id)
        .filter(|(head, _)| head.order.takes_time())
        .map(|(head, _)| head.clone())
        .collect();
    // Operations that this transaction stores.
    let staged = tx
        .staged_operations()
        .filter(|head| head.order.takes_time() && before.operation(head.id).is_none());
    open.extend(staged.cloned());
    for head in open {
        let node = tx.node(id).cloned();
        let observe =
            |record: &_| NodeOperation::observe(record, &head.order, node.as_ref(), newest, now);
        let outcome = tx.node_operation(head.id, id).and_then(observe);
        if let Some(outcome) = outcome {
            let has_failed = matches!(outcome, NodeOutcome::Failed(_));
            if head.order == NodeOrder::WarmReboot && outcome == NodeOutcome::Done {
                record_warm_result(tx, head.id, id, now);
            }
            tx.edit_node_operation(head.id, id, |record| record.finish(outcome, now));
            if has_failed {
                retract_end(tx, id);
            }
        }
    }
}

/// Records how a node has rebooted, unless it has reported a boot through its firmware: an agent that
/// restarted meanwhile reports nothing.
fn record_warm_result(tx: &mut Tx<'_>, order: OperationId, id: NodeId, now: Timestamp) {
    let Some(node) = tx.node(id).filter(|node| !node.has_warm_result(order)) else { return };
    // A machine that boots from its disk opens no session: its newest boot may be an older warm one.
    let record = tx.node_operation(order, id);
    let warm = tx.before().begun_boot_of(node).filter(|boot| boot.warm.is_some());
    let warm = warm.filter(|boot| record.is_some_and(|record| record.is_later_boot(boot.id)));
    let result = match warm {
        Some(boot) => WarmRebootResult::Warm { session: boot.id },
        None => WarmRebootResult::Cold(ColdBoot {
            cause: ColdBootCause::NoReport,
            reason: "its agent did not report why".to_owned(),
        }),
    };
    let reboot = WarmReboot { operation: order, at: now, result };
    tx.edit_node(id, |node| node.warm_reboot = Some(reboot));
}

/// The node runs on after an order that was to end its boot: a later end is not announced, and no
/// other machine boots as the node without a wait.
pub(super) fn retract_end(tx: &mut Tx<'_>, id: NodeId) {
    let running = tx.node(id).filter(|node| node.phase.has_link()).and_then(|node| node.boot);
    if let Some(session) = running {
        withdraw_end(tx, id, session, |session| session.reboot_ordered = false);
    }
}
