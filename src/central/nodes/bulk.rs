//! One order for several nodes: all of them are as the operator saw them, or nothing is changed.

use super::{
    NodeOps, OperateError,
    boot_settings::{OrderError, check_once, known as known_profile},
    lifecycle::{HELD, REJECTED, REMOVED, known, maintained, served_in},
    naming::labelled,
    operations::{approved, released},
    setting_changes::{once_cleared, once_ordered, pinned, profile_assigned, unpinned, vars_changed},
};
use crate::{enrolment::revoke::is_let_in, workloads::spare};
use meshd_api::{BulkTarget, DrainPolicy};
use meshd_model::fleet::{AuditContext, Generation, LabelChange, Lease, NextBootOverride, Node, Phase};
use meshd_store::{Model, StoreError, Tx};
use meshd_trust::Role;
use meshd_types::{NodeId, ProfileName, Timestamp, VarName, Vars, fail};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Most nodes of one order.
pub const MAX_BULK: usize = 1000;

/// An order for each of several nodes.
#[derive(Clone, Debug)]
pub enum BulkOrder {
    /// As `node approve`; `true` for nodes that were moved.
    Approve(bool),
    /// As `node reject`.
    Reject,
    /// As `node quarantine`.
    Quarantine,
    /// As `node release`.
    Release,
    /// As `node drain`, with the grace time in seconds.
    Drain(DrainPolicy, Option<u32>),
    /// As `node maintenance`.
    Maintenance,
    /// As `node resume`.
    Resume,
    /// As `node remove`.
    Remove,
    /// As `node reboot`: not a change of the store, so the nodes are compared first and then told at the same time.
    Reboot,
    /// As `node assign-profile`.
    AssignProfile(ProfileName),
    /// As `node set` and `node unset`.
    Vars(Vars, Vec<VarName>),
    /// As `node label`.
    Label(LabelChange),
    /// As `node pin` of the running generation; `false` unpins.
    Pin(bool),
    /// As `node boot-once`, by an operator of this role: a profile and kernel arguments, or `None` to clear.
    BootOnce { once: Option<(Option<ProfileName>, Vec<String>)>, role: Role },
    /// As `node doctor`: not a change of the store, like [`BulkOrder::Reboot`].
    Doctor,
}

/// Why an order for several nodes is refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    /// No node, too many, or one of them twice.
    #[error("cannot change {count} nodes with one order; name 1 to {MAX_BULK} nodes, each of them once")]
    Count { count: usize },
    /// A node is not as the operator saw it.
    #[error(
        "node {node} changed since it was listed, so no node was changed; look at it with `meshd node show {node}` and repeat the order"
    )]
    Changed { node: NodeId },
    /// A node, the profile or a variable is unknown.
    #[error(transparent)]
    Operate(#[from] OperateError),
    /// The store cannot be written.
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

/// What came of the order for each node.
type Results = Vec<(NodeId, Result<Node, OperateError>)>;

impl NodeOps {
    /// Gives an order to several nodes in one transaction. A node that refuses it changes nothing for the others.
    pub async fn bulk(
        self: &Arc<Self>,
        targets: &[BulkTarget],
        order: &BulkOrder,
        by: &AuditContext,
    ) -> Result<Results, BulkError> {
        let distinct: BTreeSet<NodeId> = targets.iter().map(|target| target.id).collect();
        if targets.is_empty() || targets.len() > MAX_BULK || distinct.len() != targets.len() {
            return Err(BulkError::Count { count: targets.len() });
        }
        if matches!(order, BulkOrder::Reboot | BulkOrder::Doctor) {
            return self.by_links(targets, order, by).await;
        }
        let mut prepared = self.prepare(targets, order).await?;
        let now = self.env.now();
        let done = self
            .env
            .store
            .commit(|tx| {
                unchanged(tx.before(), targets)?;
                let (mut results, mut freed) = (Vec::with_capacity(targets.len()), Vec::new());
                for BulkTarget { id, .. } in targets {
                    let result = match prepared.remove(id) {
                        Some(Err(error)) => Err(error),
                        held => self.ordered_in(tx, *id, (order, held.and_then(Result::ok)), (by, now), &mut freed),
                    };
                    results.push((*id, result));
                }
                Ok::<_, BulkError>((results, freed))
            })
            .await;
        self.cut_off_all(&done, targets, order);
        let (results, freed) = done?;
        fail::point("order-committed");
        self.free(freed);
        let changed = results.iter().filter(|(_, result)| result.is_ok()).map(|(id, _)| *id).collect();
        self.followed(changed, order, by).await?;
        Ok(results)
    }

    /// Orders that the agents follow, given to all nodes at the same time.
    async fn by_links(
        &self,
        targets: &[BulkTarget],
        order: &BulkOrder,
        by: &AuditContext,
    ) -> Result<Results, BulkError> {
        self.env.store.read(|model| unchanged(model, targets))?;
        let each = targets.iter().map(async |BulkTarget { id, .. }| {
            let done = match order {
                BulkOrder::Doctor => self.links.node_doctor(*id, by).await.map(drop).map_err(OperateError::from),
                _ => self.reboot(*id, by).await,
            };
            let node = || self.env.store.read(|model| model.node(*id).cloned());
            let gone = || OperateError::NoNode { name: id.to_string() };
            (*id, done.and_then(|()| node().ok_or_else(gone)))
        });
        Ok(futures_util::future::join_all(each).await)
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
                known_profile(&self.env.site(), profile)?;
                Some(profile)
            }
            BulkOrder::BootOnce { once: Some((profile, kernel_args)), role } => {
                check_once(&self.env.site(), profile.as_ref(), kernel_args, *role)?;
                profile.as_ref()
            }
            BulkOrder::Pin(true) => {
                for BulkTarget { id, .. } in targets {
                    prepared.insert(*id, self.hold_running(*id).await);
                }
                None
            }
            BulkOrder::Vars(set, _) => {
                targets.iter().take(1).try_for_each(|target| self.declared(target.id, set)).map(|()| None)?
            }
            _ => None,
        };
        if let Some(profile) = profile {
            for BulkTarget { id, .. } in targets {
                if let Err(error) = self.check_packages(*id, profile).await {
                    prepared.insert(*id, Err(error));
                }
            }
        }
        Ok(prepared)
    }

    /// The order for one node, which can boot the generation `held`. A failure stages nothing.
    fn ordered_in(
        &self,
        tx: &mut Tx<'_>,
        id: NodeId,
        (order, held): (&BulkOrder, Option<Generation>),
        (by, now): (&AuditContext, Timestamp),
        freed: &mut Vec<Lease>,
    ) -> Result<Node, OperateError> {
        match order {
            BulkOrder::Approve(moved) => approved(tx, id, *moved, by, now),
            BulkOrder::Reject => self.ended_in(tx, id, (by, REJECTED, now), |_, node| Ok(node.reject()?)),
            BulkOrder::Quarantine => self.ended_in(tx, id, (by, HELD, now), |tx, node| {
                spare(tx.before(), id, by)?;
                Ok(node.quarantine(by.reason.clone())?)
            }),
            BulkOrder::Release => released(tx, id, by, now),
            BulkOrder::Drain(..) => served_in(tx, id, by, now, |tx, node| self.drain_begun(tx, node)),
            BulkOrder::Maintenance => served_in(tx, id, by, now, |tx, node| maintained(tx, node, by)),
            BulkOrder::Resume => served_in(tx, id, by, now, |tx, node| self.resumed(tx, node)),
            BulkOrder::Remove => {
                let (node, leases) = self.removed_in(tx, id, by, now)?;
                freed.extend(leases);
                Ok(node)
            }
            BulkOrder::AssignProfile(profile) => {
                changed(tx, id, |tx, node| profile_assigned(tx, node, &self.env.site(), profile, (by, now)))
            }
            BulkOrder::Vars(set, unset) => changed(tx, id, |tx, node| vars_changed(tx, node, (set, unset), (by, now))),
            BulkOrder::Label(change) => labelled(tx, id, change, by, now),
            BulkOrder::Pin(true) => {
                let generation = held.ok_or(OrderError::RunsNothing { node: id })?;
                changed(tx, id, |tx, node| Ok(pinned(tx, node, generation, (by, now))))
            }
            BulkOrder::Pin(false) => changed(tx, id, |tx, node| unpinned(tx, node, (by, now))),
            BulkOrder::BootOnce { once: Some((profile, kernel_args)), .. } => {
                let (profile, kernel_args) = (profile.clone(), kernel_args.clone());
                let once = NextBootOverride { profile, kernel_args, set_at: now, used_by: None };
                changed(tx, id, |tx, node| once_ordered(tx, node, &self.env.site(), once, (by, now)))
            }
            BulkOrder::BootOnce { once: None, .. } => changed(tx, id, |tx, node| once_cleared(tx, node, (by, now))),
            // Not in a transaction.
            BulkOrder::Reboot | BulkOrder::Doctor => known(tx, id),
        }
    }

    /// Closes the links of nodes that lost their credentials, also if the change could not be flushed.
    fn cut_off_all<T>(&self, done: &Result<T, BulkError>, targets: &[BulkTarget], order: &BulkOrder) {
        let why = match order {
            BulkOrder::Reject => REJECTED,
            BulkOrder::Quarantine => HELD,
            BulkOrder::Remove => REMOVED,
            _ => return,
        };
        if !matches!(done, Ok(_) | Err(BulkError::Store(_))) {
            return;
        }
        for BulkTarget { id, .. } in targets {
            if !self.env.store.read(|model| model.node(*id).is_some_and(is_let_in)) {
                self.enrolment.cut_off(*id, why);
            }
        }
    }

    /// What follows the transaction, outside of the store.
    async fn followed(
        self: &Arc<Self>,
        changed: Vec<NodeId>,
        order: &BulkOrder,
        by: &AuditContext,
    ) -> Result<(), BulkError> {
        match order {
            BulkOrder::Approve(_) => self.enrolment.decided(),
            BulkOrder::Resume => changed.iter().for_each(|id| self.links.watch_over(*id, self.env.monotonic())),
            BulkOrder::Remove => changed.iter().for_each(|id| self.orphans.forget(*id)),
            BulkOrder::Drain(DrainPolicy::Stop, grace_s) => {
                for id in changed {
                    self.stop_work_on(id, *grace_s, by).await?;
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

/// Changes and stores one node. A failure stages nothing.
fn changed(
    tx: &mut Tx<'_>,
    id: NodeId,
    change: impl FnOnce(&mut Tx<'_>, Node) -> Result<Node, OperateError>,
) -> Result<Node, OperateError> {
    let node = known(tx, id)?;
    let node = change(tx, node)?;
    tx.put_node(node.clone());
    Ok(node)
}

/// Refuses an order of which one node is not as the operator saw it.
fn unchanged(model: &Model, targets: &[BulkTarget]) -> Result<(), BulkError> {
    for BulkTarget { id, revision } in targets {
        let node = model.node(*id).filter(|node| node.phase != Phase::Removed);
        if node.is_none_or(|node| node.revision() != *revision) {
            return Err(BulkError::Changed { node: *id });
        }
    }
    Ok(())
}
