//! An order to one node: an operation with one node.

use super::{AcceptedOrder, BulkError};
use crate::nodes::{NodeOps, OperateError};
use meshd_api::{BulkTarget, DrainPolicy};
use meshd_model::{
    fleet::{AuditContext, Node},
    operations::NodeOrder,
};
use meshd_trust::Role;
use meshd_types::{NodeId, ProfileName};
use std::sync::Arc;

impl NodeOps {
    /// Gives an order to one node, whatever its revision. `role` is the role of the caller.
    pub async fn order_one(
        self: &Arc<Self>,
        id: NodeId,
        order: NodeOrder,
        role: Role,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        let target = BulkTarget { id, revision: None };
        let accepted = match self.order(&[target], order, role, audit).await {
            Ok(accepted) => accepted,
            Err(BulkError::Operate(error)) => return Err(error),
            Err(BulkError::Store(error)) => return Err(error.into()),
            Err(BulkError::Count { .. } | BulkError::Changed { .. }) => return Err(no_node(id)),
        };
        match accepted {
            AcceptedOrder { results: None, operation: Some(operation) } => {
                Err(OperateError::Unfinished { node: id, operation })
            }
            AcceptedOrder { results, .. } => {
                let result = results.and_then(|mut results| results.pop());
                result.map_or_else(|| Err(no_node(id)), |(_, result)| result)
            }
        }
    }
}

fn no_node(id: NodeId) -> OperateError {
    OperateError::NoNode { name: id.to_string() }
}

/// Orders without input, for callers that need no operation ID.
macro_rules! single_orders {
    ($($verb:ident: $order:ident;)*) => {
        impl NodeOps {
            $(pub async fn $verb(self: &Arc<Self>, id: NodeId, audit: &AuditContext) -> Result<Node, OperateError> {
                self.order_one(id, NodeOrder::$order, Role::Admin, audit).await
            })*
        }
    };
}

single_orders! {
    reject: Reject;
    quarantine: Quarantine;
    release: Release;
    maintain: Maintenance;
    resume: Resume;
    remove: Remove;
    fence: Fence;
    reboot: Reboot;
    unpin: Unpin;
}

impl NodeOps {
    pub async fn approve(
        self: &Arc<Self>,
        id: NodeId,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        self.order_one(id, NodeOrder::Approve { moved: false }, Role::Admin, audit).await
    }

    /// Drains a node without stopping its work.
    pub async fn drain(
        self: &Arc<Self>,
        id: NodeId,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        self.drain_with(id, DrainPolicy::Wait, None, audit).await
    }

    /// Drains a node. [`DrainPolicy::Stop`] stops its work within `grace_s` seconds, or within the
    /// grace time of each VM.
    pub async fn drain_with(
        self: &Arc<Self>,
        id: NodeId,
        workloads: DrainPolicy,
        grace_s: Option<u32>,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        self.order_one(id, NodeOrder::Drain { workloads, grace_s }, Role::Admin, audit).await
    }

    pub async fn assign_profile(
        self: &Arc<Self>,
        id: NodeId,
        profile: ProfileName,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        self.order_one(id, NodeOrder::AssignProfile { profile }, Role::Admin, audit).await
    }

    pub async fn boot_once(
        self: &Arc<Self>,
        id: NodeId,
        profile: Option<ProfileName>,
        kernel_args: Vec<String>,
        role: Role,
        audit: &AuditContext,
    ) -> Result<Node, OperateError> {
        self.order_one(id, NodeOrder::BootOnce { profile, kernel_args }, role, audit).await
    }
}
