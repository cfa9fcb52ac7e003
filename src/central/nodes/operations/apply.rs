//! Applies an order to one node, in a transaction.

use super::{
    prepare::Prepared,
    settle::{replace_older, settle_in},
};
use crate::{
    nodes::{
        NodeOps, OperateError,
        admission::{approve_in, release_in},
        drain::stop_work_in,
        fence::fence_in,
        lifecycle::{QUARANTINED, REJECTED, change_service_in, enter_maintenance},
        naming::label_in,
        setting_changes::{
            assign_profile_in, change_node_in, change_vars_in, clear_boot_once_in, pin_in,
            set_boot_once_in, unpin_in,
        },
    },
    vms::check_no_running_work,
};
use meshd_model::{
    fleet::{NextBootOverride, Node},
    operations::{DrainPolicy, NodeOrder, NodeOutcome, Operation},
};
use meshd_store::Tx;
use meshd_types::NodeId;

impl NodeOps {
    /// Applies an order to one node, and stores the state of its record. Does nothing unless the
    /// record is pending.
    pub(super) fn apply_to_node(
        &self,
        tx: &mut Tx<'_>,
        head: &Operation,
        id: NodeId,
        prepared: Option<Result<Prepared, OperateError>>,
    ) -> Result<Node, OperateError> {
        let now = self.env.now();
        let result = match prepared {
            Some(Err(error)) => Err(error),
            Some(Ok(prepared)) => self.apply_order(tx, head, id, prepared),
            None => self.apply_order(tx, head, id, Prepared::Nothing),
        };
        let outcome = match &result {
            Ok(_) if head.order.takes_time() => None,
            Ok(_) => Some(NodeOutcome::Done),
            Err(error) => Some(NodeOutcome::Failed(error.to_string())),
        };
        if result.is_ok() {
            replace_older(tx, head, id, now);
        }
        tx.edit_node_operation(head.id, id, |record| {
            if result.is_ok() {
                record.start(now);
            }
            outcome.is_some_and(|outcome| record.finish(outcome, now))
        });
        settle_in(tx, id, now);
        result
    }

    /// The order for one node. A failure stages nothing.
    fn apply_order(
        &self,
        tx: &mut Tx<'_>,
        head: &Operation,
        id: NodeId,
        prepared: Prepared,
    ) -> Result<Node, OperateError> {
        let now = self.env.now();
        let audit = &head.by;
        match &head.order {
            NodeOrder::Approve { moved } => approve_in(tx, id, *moved, audit, now),
            NodeOrder::Reject => {
                self.revoke_service_in(tx, id, audit, REJECTED, |_, node| Ok(node.reject()?))
            }
            NodeOrder::Quarantine => {
                self.revoke_service_in(tx, id, audit, QUARANTINED, |tx, node| {
                    check_no_running_work(tx.before(), id, audit)?;
                    Ok(node.quarantine(audit.reason.clone())?)
                })
            }
            NodeOrder::Release => release_in(tx, id, audit, now),
            NodeOrder::Drain { workloads, grace_s } => {
                let node =
                    change_service_in(tx, id, audit, now, |tx, node| self.begin_drain(tx, node))?;
                if *workloads == DrainPolicy::Stop {
                    stop_work_in(tx, id, *grace_s, audit, now);
                }
                Ok(node)
            }
            NodeOrder::Maintenance => {
                change_service_in(tx, id, audit, now, |tx, node| enter_maintenance(tx, node, audit))
            }
            NodeOrder::Resume => {
                change_service_in(tx, id, audit, now, |_, node| self.resume_service(node))
            }
            NodeOrder::Remove => self.remove_in(tx, id, audit, now),
            NodeOrder::Fence => match prepared {
                Prepared::SilentLink(last) => fence_in(tx, id, &self.links, last, audit, now),
                _ => Err(OperateError::Unprepared { node: id }),
            },
            NodeOrder::AssignProfile { profile } => change_node_in(tx, id, |tx, node| {
                assign_profile_in(tx, node, &self.env.site(), profile, audit, now)
            }),
            NodeOrder::ChangeVars { set, unset } => {
                change_node_in(tx, id, |tx, node| change_vars_in(tx, node, set, unset, audit, now))
            }
            NodeOrder::Label { change } => label_in(tx, id, change, audit, now),
            NodeOrder::Pin { .. } => {
                let Prepared::Generation(generation, delivered) = prepared else {
                    return Err(OperateError::Unprepared { node: id });
                };
                change_node_in(tx, id, |tx, node| {
                    if let Some(delivered) = delivered {
                        let mut history = tx.history(id);
                        let protected = [node.booted, node.pinned].into_iter().flatten();
                        history.record_delivery(*delivered, &protected.collect::<Vec<_>>());
                        tx.put_history(id, history);
                    }
                    Ok(pin_in(tx, node, generation, audit, now))
                })
            }
            NodeOrder::Unpin => change_node_in(tx, id, |tx, node| unpin_in(tx, node, audit, now)),
            NodeOrder::BootOnce { profile, kernel_args } => {
                let profile = profile.clone();
                let kernel_args = kernel_args.clone();
                let once = NextBootOverride { profile, kernel_args, set_at: now, used_by: None };
                change_node_in(tx, id, |tx, node| {
                    set_boot_once_in(tx, node, &self.env.site(), once, audit, now)
                })
            }
            NodeOrder::ClearBootOnce => {
                change_node_in(tx, id, |tx, node| clear_boot_once_in(tx, node, audit, now))
            }
            // `start_reboots` sends it.
            NodeOrder::Reboot | NodeOrder::WarmReboot => Err(OperateError::Unprepared { node: id }),
            NodeOrder::Power { .. } | NodeOrder::BootDevice { .. } | NodeOrder::Identify { .. } => {
                self.start_power_in(tx, head, id, now)
            }
        }
    }
}
