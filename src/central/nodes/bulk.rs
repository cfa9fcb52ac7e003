//! One order for several nodes. Nothing changes if a node differs from the revision that the operator saw.

use super::{
    NodeOps, OperateError,
    admission::{approve_in, release_in},
    boot_settings::{OrderError, check_once, check_profile},
    lifecycle::{QUARANTINED, REJECTED, REMOVED, change_service_in, enter_maintenance, existing_node},
    naming::label_in,
    setting_changes::{change_node_in, once_cleared, once_ordered, pinned, profile_assigned, unpinned, vars_changed},
};
use crate::vms::check_no_running_work;
use meshd_api::{BulkTarget, DrainPolicy};
use meshd_model::fleet::{AuditContext, Generation, LabelChange, Lease, NextBootOverride, Node, Phase};
use meshd_store::{Model, StoreError, Tx};
use meshd_trust::Role;
use meshd_types::{NodeId, ProfileName, Timestamp, VarName, Vars, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Maximum number of nodes of one order.
pub const MAX_BULK: usize = 1000;

/// An order for several nodes.
#[derive(Clone, Debug)]
pub enum BulkOrder {
    /// `true` for nodes that were moved to another relay port.
    Approve(bool),
    Reject,
    Quarantine,
    Release,
    /// With the grace time in seconds.
    Drain(DrainPolicy, Option<u32>),
    Maintenance,
    Resume,
    Remove,
    /// Changes no record: the revisions are checked first, then all nodes reboot at the same time.
    Reboot,
    AssignProfile(ProfileName),
    /// Variables to set and to unset.
    Vars(Vars, Vec<VarName>),
    Label(LabelChange),
    /// As `node pin` of the running generation; `false` unpins.
    Pin(bool),
    /// As `node boot-once`, by an operator of this role: a profile and kernel arguments, or `None` to clear.
    BootOnce {
        once: Option<(Option<ProfileName>, Vec<String>)>,
        role: Role,
    },
    /// As `node doctor`: not a change of the store, like [`BulkOrder::Reboot`].
    Doctor,
}

/// Why an order for several nodes is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    #[error("cannot change {count} nodes with one order")]
    Count { count: usize },
    #[error("node {node} changed since it was listed, so no node was changed")]
    Changed { node: NodeId },
    /// A node, the profile or a variable is unknown.
    #[error(transparent)]
    Operate(#[from] OperateError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(BulkError {
    BulkError::Count { .. } => "name 1 to {MAX_BULK} nodes, each of them once";
    BulkError::Changed { node } => "look at it with `meshd node show {node}` and repeat the order";
    @source BulkError::Operate(source) => source;
});

/// The result for each node.
type Results = Vec<(NodeId, Result<Node, OperateError>)>;

impl NodeOps {
    /// Applies an order to several nodes in one transaction. A refused order of one node does not affect the others.
    pub async fn bulk(
        self: &Arc<Self>,
        targets: &[BulkTarget],
        order: &BulkOrder,
        audit: &AuditContext,
    ) -> Result<Results, BulkError> {
        let distinct: BTreeSet<NodeId> = targets.iter().map(|target| target.id).collect();
        if targets.is_empty() || targets.len() > MAX_BULK || distinct.len() != targets.len() {
            return Err(BulkError::Count { count: targets.len() });
        }
        if matches!(order, BulkOrder::Reboot | BulkOrder::Doctor) {
            return self.by_links(targets, order, audit).await;
        }
        let mut prepared = self.prepare(targets, order).await?;
        let now = self.env.now();
        let recorded = self.env.store.commit(|tx| {
            check_revisions(tx.before(), targets)?;
            let (mut results, mut leases) = (Vec::with_capacity(targets.len()), Vec::new());
            for BulkTarget { id, .. } in targets {
                let result = match prepared.remove(id) {
                    Some(Err(error)) => Err(error),
                    running => {
                        self.apply_order(tx, *id, (order, running.and_then(Result::ok)), (audit, now), &mut leases)
                    }
                };
                results.push((*id, result));
            }
            Ok::<_, BulkError>((results, leases))
        });
        let outcome = recorded.await;
        self.disconnect_revoked(&outcome, targets, order);
        let (results, leases) = outcome?;
        failpoint::point("order-committed");
        self.release_leases(leases);
        let changed = results.iter().filter(|(_, result)| result.is_ok()).map(|(id, _)| *id).collect();
        self.run_follow_ups(changed, order, audit).await?;
        Ok(results)
    }

    /// Orders that the agents follow, given to all nodes at the same time.
    async fn by_links(
        &self,
        targets: &[BulkTarget],
        order: &BulkOrder,
        audit: &AuditContext,
    ) -> Result<Results, BulkError> {
        self.env.store.read(|model| check_revisions(model, targets))?;
        let outcomes = targets.iter().map(async |BulkTarget { id, .. }| {
            let done = match order {
                BulkOrder::Doctor => self.links.node_doctor(*id, audit).await.map(drop).map_err(OperateError::from),
                _ => self.reboot(*id, audit).await,
            };
            let node = || self.env.store.read(|model| model.node(*id).cloned());
            let gone = || OperateError::NoNode { name: id.to_string() };
            (*id, done.and_then(|()| node().ok_or_else(gone)))
        });
        Ok(futures_util::future::join_all(outcomes).await)
    }

    /// Prepares the order before the transaction: an unknown profile, variable or kernel argument refuses all of it, a missing package or
    /// generation only that node. Returns refusals, and the running generations that nodes are to be pinned to.
    async fn prepare(
        self: &Arc<Self>,
        targets: &[BulkTarget],
        order: &BulkOrder,
    ) -> Result<BTreeMap<NodeId, Result<Generation, OperateError>>, BulkError> {
        let mut prepared = BTreeMap::new();
        let profile = match order {
            BulkOrder::AssignProfile(profile) => {
                check_profile(&self.env.site(), profile)?;
                Some(profile)
            }
            BulkOrder::BootOnce { once: Some((profile, kernel_args)), role } => {
                check_once(&self.env.site(), profile.as_ref(), kernel_args, *role)?;
                profile.as_ref()
            }
            BulkOrder::Pin(true) => {
                for BulkTarget { id, .. } in targets {
                    prepared.insert(*id, self.prepare_pin(*id, None).await);
                }
                None
            }
            BulkOrder::Vars(set, _) => {
                targets.iter().take(1).try_for_each(|target| self.check_declared(target.id, set)).map(|()| None)?
            }
            _ => None,
        };
        if let BulkOrder::Vars(set, unset) = order {
            for BulkTarget { id, .. } in targets {
                if let Err(error) = self.check_vars(*id, set, unset).await {
                    prepared.insert(*id, Err(error));
                }
            }
        }
        if let Some(profile) = profile {
            for BulkTarget { id, .. } in targets {
                if let Err(error) = self.check_bootable(*id, profile).await {
                    prepared.insert(*id, Err(error));
                }
            }
        }
        Ok(prepared)
    }

    /// The order for one node, which can boot its `running` generation. A failure stages nothing.
    fn apply_order(
        &self,
        tx: &mut Tx<'_>,
        id: NodeId,
        (order, running): (&BulkOrder, Option<Generation>),
        (audit, now): (&AuditContext, Timestamp),
        leases: &mut Vec<Lease>,
    ) -> Result<Node, OperateError> {
        match order {
            BulkOrder::Approve(moved) => approve_in(tx, id, *moved, audit, now),
            BulkOrder::Reject => self.revoke_service_in(tx, id, (audit, REJECTED, now), |_, node| Ok(node.reject()?)),
            BulkOrder::Quarantine => self.revoke_service_in(tx, id, (audit, QUARANTINED, now), |tx, node| {
                check_no_running_work(tx.before(), id, audit)?;
                Ok(node.quarantine(audit.reason.clone())?)
            }),
            BulkOrder::Release => release_in(tx, id, audit, now),
            BulkOrder::Drain(..) => change_service_in(tx, id, audit, now, |tx, node| self.begin_drain(tx, node)),
            BulkOrder::Maintenance => {
                change_service_in(tx, id, audit, now, |tx, node| enter_maintenance(tx, node, audit))
            }
            BulkOrder::Resume => change_service_in(tx, id, audit, now, |tx, node| self.resume_service(tx, node)),
            BulkOrder::Remove => {
                let (node, freed) = self.remove_in(tx, id, audit, now)?;
                leases.extend(freed);
                Ok(node)
            }
            BulkOrder::AssignProfile(profile) => {
                change_node_in(tx, id, |tx, node| profile_assigned(tx, node, &self.env.site(), profile, (audit, now)))
            }
            BulkOrder::Vars(set, unset) => {
                change_node_in(tx, id, |tx, node| vars_changed(tx, node, (set, unset), (audit, now)))
            }
            BulkOrder::Label(change) => label_in(tx, id, change, audit, now),
            BulkOrder::Pin(true) => {
                let generation = running.ok_or(OrderError::RunsNothing { node: id })?;
                change_node_in(tx, id, |tx, node| Ok(pinned(tx, node, generation, (audit, now))))
            }
            BulkOrder::Pin(false) => change_node_in(tx, id, |tx, node| unpinned(tx, node, (audit, now))),
            BulkOrder::BootOnce { once: Some((profile, kernel_args)), .. } => {
                let (profile, kernel_args) = (profile.clone(), kernel_args.clone());
                let once = NextBootOverride { profile, kernel_args, set_at: now, used_by: None };
                change_node_in(tx, id, |tx, node| once_ordered(tx, node, &self.env.site(), once, (audit, now)))
            }
            BulkOrder::BootOnce { once: None, .. } => {
                change_node_in(tx, id, |tx, node| once_cleared(tx, node, (audit, now)))
            }
            // Not in a transaction.
            BulkOrder::Reboot | BulkOrder::Doctor => existing_node(tx, id),
        }
    }

    /// Closes the links of nodes that lost their credentials, also if the change could not be flushed.
    fn disconnect_revoked<T>(&self, outcome: &Result<T, BulkError>, targets: &[BulkTarget], order: &BulkOrder) {
        let why = match order {
            BulkOrder::Reject => REJECTED,
            BulkOrder::Quarantine => QUARANTINED,
            BulkOrder::Remove => REMOVED,
            _ => return,
        };
        if !matches!(outcome, Ok(_) | Err(BulkError::Store(_))) {
            return;
        }
        for BulkTarget { id, .. } in targets {
            if !self.enrolment.has_valid_certificate(*id) {
                self.enrolment.disconnect(*id, why);
            }
        }
    }

    /// Runs the effects outside the store, after the transaction.
    async fn run_follow_ups(
        self: &Arc<Self>,
        changed: Vec<NodeId>,
        order: &BulkOrder,
        audit: &AuditContext,
    ) -> Result<(), BulkError> {
        match order {
            BulkOrder::Approve(_) => self.enrolment.notify_decision(),
            BulkOrder::Resume => changed.iter().for_each(|id| self.links.arm_timer(*id, self.env.monotonic())),
            BulkOrder::Drain(DrainPolicy::Stop, grace_s) => {
                for id in changed {
                    self.stop_work_on(id, *grace_s, audit).await?;
                }
            }
            BulkOrder::AssignProfile(_) | BulkOrder::Vars(..) | BulkOrder::BootOnce { .. } => {
                self.generations.scan(changed).await?;
            }
            BulkOrder::Pin(pins) => {
                self.generations.scan(changed).await?;
                if *pins {
                    self.generations.update_in_use().await;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Refuses an order of which one node is not as the operator saw it.
fn check_revisions(model: &Model, targets: &[BulkTarget]) -> Result<(), BulkError> {
    for BulkTarget { id, revision } in targets {
        let node = model.node(*id).filter(|node| node.phase != Phase::Removed);
        if node.is_none_or(|node| node.revision() != *revision) {
            return Err(BulkError::Changed { node: *id });
        }
    }
    Ok(())
}
