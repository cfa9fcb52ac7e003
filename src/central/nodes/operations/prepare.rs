//! Checks of an order outside the transaction.

use crate::nodes::{
    NodeOps, OperateError,
    boot_settings::{check_once, check_profile},
};
use meshd_api::BulkTarget;
use meshd_model::{
    fleet::{DeliveredGeneration, Generation},
    operations::NodeOrder,
};
use meshd_trust::Role;
use meshd_types::NodeId;
use std::{collections::BTreeMap, sync::Arc};

/// What was found out about a node before the transaction.
pub(super) enum Prepared {
    Nothing,
    /// The generation that the node can boot and is pinned to, and a new record for its history.
    Generation(Generation, Option<Box<DeliveredGeneration>>),
    /// The number of the node's last link, which is silent.
    SilentLink(Option<u64>),
}

impl NodeOps {
    /// Refuses an order that no node can follow: an unknown profile, variable or kernel argument.
    pub(super) fn check_order(
        &self,
        order: &NodeOrder,
        role: Role,
        targets: &[BulkTarget],
    ) -> Result<(), OperateError> {
        match order {
            NodeOrder::AssignProfile { profile } => check_profile(&self.env.site(), profile),
            NodeOrder::BootOnce { profile, kernel_args } => {
                check_once(&self.env.site(), profile.as_ref(), kernel_args, role)
            }
            NodeOrder::ChangeVars { set, .. } => {
                targets.iter().take(1).try_for_each(|target| self.check_declared(target.id, set))
            }
            _ => Ok(()),
        }
    }

    /// Prepares an order for each node. A missing package or generation refuses only that node.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        ids: &[NodeId],
        order: &NodeOrder,
    ) -> BTreeMap<NodeId, Result<Prepared, OperateError>> {
        let mut prepared = BTreeMap::new();
        for id in ids {
            let result = match order {
                NodeOrder::AssignProfile { profile }
                | NodeOrder::BootOnce { profile: Some(profile), .. } => {
                    self.check_bootable(*id, profile).await.map(|()| Prepared::Nothing)
                }
                NodeOrder::ChangeVars { set, unset } => {
                    self.check_vars(*id, set, unset).await.map(|()| Prepared::Nothing)
                }
                NodeOrder::Pin { generation } => self
                    .prepare_pin(*id, generation.as_deref())
                    .await
                    .map(|(generation, delivered)| {
                        Prepared::Generation(generation, delivered.map(Box::new))
                    }),
                NodeOrder::Fence => self.prepare_fence(*id).await.map(Prepared::SilentLink),
                order if order.needs_bmc() => self.check_bmc(*id).await.map(|()| Prepared::Nothing),
                _ => break,
            };
            prepared.insert(*id, result);
        }
        prepared
    }
}
